"""Sources that become much more than they are: the text that comes out, the memory and the time have limits."""

import io
import os
import sys
import textwrap
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from infra.sources import Parsed, Refused, parse
from infra.sources.sandbox import Guard
from infra.system.processes import usable_cores, usable_memory
from memagent.config import IngestConfig
from memagent.errors import SourceError
from tests.support.hostile import pdf, word

MERGED = "merged" * 50
PADDED = "<div style=padding-left:2em>"


def texts(path: Path, **options: object) -> list[str]:
    records = parse(str(path), path.name, IngestConfig.model_validate(options))
    return [record.text for record in records if isinstance(record, Parsed)]


def put(folder: Path, name: str, data: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


def padded(depth: int, lines: int, style: str) -> str:
    return f'<div style="{style}">' * depth + "<p>x</p>" * lines + "</div>" * depth


def test_the_style_of_a_page_is_not_laid_out_to_the_letter(tmp_path: Path) -> None:
    """8 KB of it made a text of 600 million characters."""
    page = put(tmp_path, "padding.html", padded(200, 30, "padding-left:99999em"))
    assert page.stat().st_size < 10_000
    (text,) = texts(page)
    assert text.split() == ["x"] * 30
    assert len(text) < 100_000
    (text,) = texts(put(tmp_path, "margin.html", padded(2, 30, "margin-top:99999em;margin-bottom:99999em")))
    assert len(text) < 1000
    (text,) = texts(put(tmp_path, "list.html", "<ul>" * 100 + "<li>x</li>" * 30 + "</ul>" * 100))
    assert text.split() == ["-", "x"] * 30


@pytest.mark.parametrize("style", ["padding-left:" + "9" * 400 + "em", "style:" * 5000, "padding-left:1.1.1em;" * 9])
def test_a_style_without_sense_is_passed_over(tmp_path: Path, style: str) -> None:
    (text,) = texts(put(tmp_path, "a.html", f'<div style="{style};display:block"><p>one</p></div><p>two</p>'))
    assert text.split() == ["one", "two"]


@pytest.mark.parametrize(
    "page",
    [
        PADDED * 200 + "<pre>" + "x\n" * 20_000 + "</pre>" + "</div>" * 200,
        PADDED * 200 + "<table>" + "<tr><td>x</td></tr>" * 9000 + "</table>" + "</div>" * 200,
    ],
    ids=["preformatted", "indented"],
)
def test_the_layout_of_a_page_has_a_limit(tmp_path: Path, page: str) -> None:
    with pytest.raises(SourceError, match="max_ratio") as error:
        texts(put(tmp_path, "a.html", page), max_ratio=2)
    assert error.value.reason == "bomb"
    (text,) = texts(put(tmp_path, "a.html", page), max_ratio=10_000)  # it would have come to that
    assert len(text) > 2 * len(page)


@pytest.mark.parametrize(
    "page",
    [
        "<table><tr><td>" + "w" * 10**6 + "</td></tr>" + "<tr><td>x" * 10**5 + "</table>",
        "<table><tr>" + "<td>x</td>" * 300 + "<td>" + "x<br>" * 4000 + "</td></tr></table>",
    ],
    ids=["wide", "high"],
)
def test_tables_are_not_filled_up(tmp_path: Path, page: str) -> None:
    (text,) = texts(put(tmp_path, "a.html", page), max_ratio=2)
    assert text.count("x") == page.count("x")


def test_pages_of_a_pdf_count_as_they_come(tmp_path: Path) -> None:
    """The pages of a file may all be one."""
    page = pdf("word " * 400).replace(b"/Kids [3 0 R] /Count 1", b"/Kids [" + b"3 0 R " * 2000 + b"] /Count 2000")
    with pytest.raises(SourceError, match="max_ratio"):
        texts(put(tmp_path, "a.pdf", page), max_ratio=1.5)
    (text,) = texts(put(tmp_path, "b.pdf", pdf("words on a page")), max_ratio=1.5)
    assert text == "words on a page"


def table_file(tmp_path: Path, rows: int, span: int = 1) -> Path:
    """Return a Word document with a table whose first column is one cell."""
    name = "word/document.xml"
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(word(""))) as old, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as new:
        for entry in old.namelist():
            if entry != name:
                new.writestr(entry, old.read(entry))
        body = "".join(
            f'<w:tr><w:tc><w:tcPr><w:vMerge w:val="{"continue" if number else "restart"}"/></w:tcPr>'
            f"<w:p><w:r><w:t>{'' if number else MERGED}</w:t></w:r></w:p></w:tc>"
            f'<w:tc><w:tcPr><w:gridSpan w:val="{span}"/></w:tcPr><w:p><w:r><w:t>{number}</w:t></w:r></w:p></w:tc>'
            "</w:tr>"
            for number in range(rows)
        )
        main = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
        new.writestr(name, f'<w:document xmlns:w="{main}"><w:body><w:tbl>{body}</w:tbl></w:body></w:document>')
    return put(tmp_path, "a.docx", out.getvalue())


def test_cells_that_are_merged_over_many_rows_and_columns(tmp_path: Path) -> None:
    """The first ended in a RecursionError, the second in as many objects as columns."""
    (text,) = texts(table_file(tmp_path, 1500))
    assert text.splitlines() == [f"{MERGED}\t{number}" for number in range(1500)]
    (text,) = texts(table_file(tmp_path, 3, span=2**31 - 1))
    assert [line.split("\t")[1] for line in text.splitlines()] == ["0", "1", "2"]
    with pytest.raises(SourceError, match="max_ratio"):
        texts(table_file(tmp_path, 5000), max_ratio=1.5)


def test_rows_of_a_table_count_together(tmp_path: Path) -> None:
    once = pa.array(["x" * 2**20], pa.string()).dictionary_encode()
    column = pa.DictionaryArray.from_arrays(pa.array([0] * 2000, pa.int32()), once.dictionary)
    pq.write_table(pa.table({"text": column}), tmp_path / "a.parquet")
    records = parse(str(tmp_path / "a.parquet"), "a.parquet", IngestConfig())
    with pytest.raises(SourceError, match="max_ratio"):
        for count, _ in enumerate(records):
            assert count < 2000
    assert count == 2**26 // 2**20 - 1


def test_titles_and_ids_are_short(tmp_path: Path) -> None:
    path = put(tmp_path, "a.csv", f"id,text,title\n1,one,{'t ' * 5000}\n{'9' * 2000},two,\n")
    one, two = parse(str(path), "a.csv", IngestConfig(id_column="id"))
    assert isinstance(one, Parsed) and isinstance(two, Refused)
    assert len(one.title) == 300
    assert two.reason == "long-id"


_CHILD = """
    import numpy
    from infra.sources import sandbox_child as child
    from infra.sources.base import Parsed
    from memagent.errors import SourceError
    def hostile(file, name, options, gets_on):
        if name == "endless":
            while True:
                yield Parsed("x", "", "text/plain", row="1")
        if name == "greedy":
            held = []
            try:
                while True:
                    held.append(numpy.empty(64 * 2**20, "u1"))  # asked for, and never touched
            except MemoryError:
                taken = len(held) * 64 * 2**20
                held.clear()
                raise SourceError("too-large", str(taken))
        yield Parsed("fine", "", "text/plain")
    child.parse_file = hostile
    child.main()
"""


@pytest.fixture
def guard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Guard]:
    (tmp_path / "greedy_child.py").write_text(textwrap.dedent(_CHILD))
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    guard = Guard(IngestConfig(), module="greedy_child")
    yield guard
    guard.close()


def test_a_source_has_a_time_for_all_its_texts(guard: Guard, tmp_path: Path) -> None:
    patient, path = guard.options, str(put(tmp_path, "x", "x"))
    guard.options = patient.model_copy(update={"source_seconds": 0.5})
    with pytest.raises(SourceError, match="source_seconds") as error:
        for _ in guard.parse(path, "endless"):
            pass
    guard.options = patient
    assert error.value.reason == "timeout"
    assert [record[0].text for record in guard.parse(path, "fine") if isinstance(record, tuple)] == ["fine"]


def test_a_small_source_is_given_little_memory_and_none_more_than_its_share(guard: Guard, tmp_path: Path) -> None:
    taken = []
    for size in (8440, 500 * 2**20):
        path = put(tmp_path, "source", b"")
        os.truncate(path, size)
        with pytest.raises(SourceError) as error:
            list(guard.parse(str(path), "greedy"))
        assert error.value.reason == "too-large"
        taken.append(int(error.value.detail) / 2**30)
    share = usable_memory() / usable_cores() / 2**30
    assert min(share, 2) - 1 < taken[0] < 3
    assert min(share, 6) - 1 < taken[1] < 7
