"""Pages that are pictures: read by OCR in the confined parser, and said wherever answers are shown."""

import ctypes
import json
from pathlib import Path

import pypdfium2
import pytest
from PIL import Image, ImageDraw, ImageFont

from infra.sources import parse
from infra.sources import pdf as pdf_format
from infra.sources.base import Parsed
from infra.sources.sandbox import Guard
from infra.store.location import Corpus
from memagent.config import Config, IngestConfig
from memagent.errors import SourceError
from pipelines.answers import AnswerTable
from pipelines.io.answers import answer_rows
from pipelines.report.page import build
from pipelines.stages.ingest import ingest
from pipelines.views.passages import PageRequest, Pages
from pipelines.web.access import Access
from pipelines.web.address import Address
from tests.support.commands import run_here
from tests.support.made_up_run import CORPUS, MadeUpRun, local_store
from tests.support.review_service import PORT, Person, home, known, review_service_on

__all__ = ["home"]
WORDS = ("The monthly rent is 1,250 euros.", "The lease begins in March.")
WARNING = "read by OCR (compare numbers; no accents, €, ticks): pages 1-2"


def scan(path: Path) -> Path:
    """A PDF of two pages that are pictures of words."""
    pages = []
    for words in WORDS:
        page = Image.new("RGB", (1240, 1754), "white")
        ImageDraw.Draw(page).text((120, 200), words, fill="black", font=ImageFont.load_default(40))
        pages.append(page)
    pages[0].save(path, save_all=True, append_images=pages[1:])
    return path


@pytest.fixture(scope="module")
def scanned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Parsed]:
    path = scan(tmp_path_factory.mktemp("scan") / "lease.pdf")
    guard = Guard(IngestConfig())
    ((parsed, _),) = guard.parse(str(path), path.name)  # type: ignore[misc]
    guard.close()
    return path, parsed


def test_a_picture_of_a_page_is_read(scanned):
    _, parsed = scanned
    assert parsed.text == "\n\n".join(WORDS) and parsed.page_starts == [0, len(WORDS[0]) + 2]
    assert parsed.warnings == (WARNING,)


@pytest.mark.parametrize(("turned", "shown"), [(180, 0), (90, 0), (90, 90), (180, 180)])
def test_a_page_that_was_scanned_turned_is_read(tmp_path, turned, shown):
    """`turned`: degrees by which the picture lies; `shown`: by which a viewer turns the page."""
    page = Image.new("RGB", (1240, 1754), "white")
    for row, words in enumerate(WORDS):
        ImageDraw.Draw(page).text((120, 200 + 100 * row), words, fill="black", font=ImageFont.load_default(40))
    page.rotate(turned, expand=True).save(path := tmp_path / "a.pdf")
    with pypdfium2.PdfDocument(path) as document:
        document[0].set_rotation(shown)
        document.save(tmp_path / "b.pdf")
    (read,) = parse(str(tmp_path / "b.pdf"), "b.pdf", IngestConfig())
    assert read.text.strip() == "\n".join(WORDS) and read.warnings == (
        "read by OCR (compare numbers; no accents, €, ticks): page 1",
    )


def test_answers_that_were_typed_onto_a_scan_stand_at_their_questions(tmp_path):
    """And scanned ones stay, that say what is typed elsewhere on the page."""
    page, scanned = (
        Image.new("RGB", (1240, 1754), "white"),
        {200: "Is the supplier insolvent?", 300: "No", 400: "Is it listed?"},
    )
    for down, words in scanned.items():
        ImageDraw.Draw(page).text((120, down), words, fill="black", font=ImageFont.load_default(40))
    page.save(tmp_path / "a.pdf", resolution=150)
    with pypdfium2.PdfDocument(tmp_path / "a.pdf") as document:
        sheet, font = document[0], pypdfium2.raw.FPDFText_LoadStandardFont(document, b"Helvetica")
        for across, up, words in ((60, 580, "No"), (300, 20, "17")):
            typed = pypdfium2.raw.FPDFPageObj_CreateTextObj(document, font, 18)
            said = (ctypes.c_ushort * (len(words) + 1))(*map(ord, words), 0)
            pypdfium2.raw.FPDFText_SetText(typed, said)
            pypdfium2.raw.FPDFPageObj_Transform(typed, 1, 0, 0, 1, across, up)
            pypdfium2.raw.FPDFPage_InsertObject(sheet, typed)
        sheet.gen_content()
        document.save(tmp_path / "b.pdf")
    (read,) = parse(str(tmp_path / "b.pdf"), "b.pdf", IngestConfig())
    assert read.text.strip().split("\n") == ["Is the supplier insolvent?", "No", "Is it listed?", "No", "17"]


def test_a_tall_page_is_read_in_pieces(tmp_path):
    """As one picture it would be made so small that its digits cannot be told apart."""
    page, pen = Image.new("RGB", (1200, 7000), "white"), ImageFont.load_default(22)
    rows = [f"Section {row}: the fee is {1_250 + 7 * row}.50 euros." for row in range(0, 80, 4)]
    for row, words in enumerate(rows):
        ImageDraw.Draw(page).text((80, 60 + 345 * row), words, fill="black", font=pen)
    page.save(tmp_path / "a.pdf")
    (read,) = parse(str(tmp_path / "a.pdf"), "a.pdf", IngestConfig())
    assert ["".join(line.split()) for line in read.text.strip().split("\n")] == ["".join(row.split()) for row in rows]


def test_a_page_of_cells_of_one_digit_stays_upright(tmp_path):
    """A digit is taller than wide, and so says nothing of how the page lies."""
    page, pen = Image.new("RGB", (1240, 1754), "white"), ImageFont.load_default(40)
    rows = {"Delivery on time": "1 1 2 3 2 3 3", "Quality of goods": "5 2 5 1 5 2 4"}
    for row, (label, cells) in enumerate(rows.items()):
        for place, words in [(120, label), *((600 + 80 * n, cell) for n, cell in enumerate(cells.split()))]:
            ImageDraw.Draw(page).text((place, 200 + 100 * row), words, fill="black", font=pen)
    page.save(tmp_path / "a.pdf")
    (read,) = parse(str(tmp_path / "a.pdf"), "a.pdf", IngestConfig())
    assert [line.startswith(label[:4]) for line, label in zip(read.text.split("\n"), rows, strict=True)] == [True, True]


def test_without_the_extra_it_is_a_failure_that_says_what_to_install(scanned, monkeypatch):
    monkeypatch.setattr(pdf_format, "_ocr_is_there", lambda: False)
    with scanned[0].open("rb") as file, pytest.raises(SourceError, match=r"no-text.*pip install 'memagent\[ocr\]'"):
        list(pdf_format.parse_pdf(file, pdf_format.ParseRequest("a.pdf", IngestConfig())))


def test_answers_carry_the_warning_to_files_report_and_review_pages(scanned, home, tmp_path):
    path, parsed = scanned
    run = MadeUpRun(local_store(home))
    name = run.document("lease.pdf", parsed.text)
    given = {"media_type": "application/pdf", "page_starts": parsed.page_starts, "warnings": list(parsed.warnings)}
    run.documents[0] |= {"source": str(path), **given}
    reading = run.reading([name], "q", "What is the rent?", "1,250 euros", {0: "1,250"}, quotes=WORDS[:1])
    other = run.document("other.txt", "Nothing else.")
    run.reading([name, other], "all", "Anything?", "no", {0: "no"})
    run.save()
    rows = {row["question_id"]: row for row in answer_rows(Corpus(run.store, CORPUS))}
    assert rows["q"]["warnings"][-1] == WARNING and rows["all"]["warnings"][-1] == "1 document has warnings"
    assert {answer.question_id: answer.warnings for answer in AnswerTable(Corpus(run.store, CORPUS))}["q"][
        -1
    ] == WARNING
    assert WARNING in build(run.store, rows["q"]["run_id"])
    with review_service_on(known(run.store), home) as service:
        anna = Person(service, Access(service.journal, ["anna"], Address(PORT)), "anna")
        assert WARNING in anna.get(f"/answers/{CORPUS}/{reading}")
        part = anna.get(f"/answers/{CORPUS}/{reading}/page?document={name}&start=40&end=50")
        assert "Page 2 of 2" in part
    shown = Pages().get(PageRequest(str(path), 1, "", "rent"))
    assert not isinstance(shown, str) and shown.pages == 2


def test_an_ingest_counts_it_and_explains_it(scanned, tmp_path):
    path, _ = scanned
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "lease.pdf").write_bytes(path.read_bytes())
    (tmp_path / "in" / "plain.txt").write_text("Nothing else.")
    corpus = Corpus(local_store(tmp_path / "store"), "c")
    summary = ingest(corpus, [str(tmp_path / "in")], Config(), "run-1")
    assert (summary["documents"], summary["with_warnings"], summary["quarantined"]) == (2, 1, {})
    said, _ = run_here("ingest", "--explain", str(tmp_path / "in"))
    assert f"warning: {WARNING}" in said and WORDS[1] in said and "page 2, from character" in said
    listed, _ = run_here("ingest", "--explain", "--json", str(tmp_path / "in" / "plain.txt"))
    (document,) = json.loads(listed)["documents"]
    assert (document["text"], document["encoding"], document["warnings"]) == ("Nothing else.", "utf-8", [])
