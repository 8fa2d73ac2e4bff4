"""The page of a PDF on the review pages: drawn in a child process, only while the file is what was read."""

import io

import pytest
from PIL import Image

from infra.store.delta import Table
from infra.store.location import Corpus
from memagent.records import text_hash
from pipelines.views.passages import PageRequest, Pages
from pipelines.web.access import Access
from pipelines.web.address import Address
from tests.support.hostile import pdf
from tests.support.made_up_run import CORPUS, MadeUpRun, local_store
from tests.support.review_service import PORT, Person, home, known, review_service_on

__all__ = ["home"]
TEXT = "The key is 42."


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "key.pdf"
    path.write_bytes(pdf(TEXT))
    return path


def yellow(png):
    picture = Image.open(io.BytesIO(png)).convert("RGB")
    return sum(count for count, (r, g, b) in picture.getcolors(2**24) if r > 200 and g > 200 and b < 190)


def test_the_page_has_the_evidence_marked(file):
    page = Pages().get(PageRequest(str(file), 1, text_hash(TEXT), "42"))
    assert not isinstance(page, str) and (page.number, page.pages) == (1, 1)
    whole = Pages().get(PageRequest(str(file), 1, text_hash(TEXT), TEXT))
    assert 0 < yellow(page.png) < yellow(whole.png)


def test_evidence_is_found_on_the_page_without_the_marks_of_the_text(file):
    file.write_bytes(pdf("Due is 10) Tj 5 Ts /F1 7 Tf (6"))
    page = Pages().get(PageRequest(str(file), 1, text_hash("Due is 10^6"), "Due is 10^6"))
    assert not isinstance(page, str) and yellow(page.png) > 0


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (pdf("Another text."), "has changed"),
        (b"no pdf", "cannot be drawn"),
        (None, "gone|vanished|no such|there"),
    ],
)
def test_what_is_no_longer_the_file_gives_no_page(file, content, words):
    file.unlink() if content is None else file.write_bytes(content)
    page = Pages().get(PageRequest(str(file), 1, text_hash(TEXT), "The"))
    assert isinstance(page, str) and any(word in page for word in words.split("|")), page


def test_an_answer_from_a_pdf_shows_its_page(home, file):
    run = MadeUpRun(local_store(home))
    name = run.document("key.pdf", TEXT)
    run.documents[0] |= {"source": str(file), "media_type": "application/pdf", "page_starts": [0]}
    reading = run.reading([name], "q", "What is the key?", "42", {0: "42"}, quotes=(TEXT,))
    run.save()
    with review_service_on(known(run.store), home) as service:
        anna = Person(service, Access(service.journal, ["anna"], Address(PORT)), "anna")
        page = anna.get(f"/answers/{CORPUS}/{reading}")
        assert f'data-load="/answers/{CORPUS}/{reading}/page?document={name}&amp;start=0&amp;end=14"' in page
        part = anna.get(f"/answers/{CORPUS}/{reading}/page?document={name}&start=0&end=14")
        assert "Page 1 of 1" in part and "page.png" in part
        picture = anna.http.get(f"/answers/{CORPUS}/{reading}/page.png?document={name}&start=0&end=14")
        assert picture.headers["content-type"] == "image/png" and yellow(picture.content) > 0
        assert Table(run.store, "answers").count(Corpus(run.store, CORPUS).name) == 1
