"""Archives of documents: each file is one, or a table of them."""

import io
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from infra.sources import parse
from infra.sources.base import Parsed, Refused
from memagent.config import IngestConfig
from memagent.errors import SourceError
from tests.support.hostile import pdf


def packed(files: Mapping[str, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return file.getvalue()


def records(folder: Path, data: bytes, **options: float) -> list[Parsed | Refused]:
    (folder / "a.zip").write_bytes(data)
    return list(parse(str(folder / "a.zip"), "a.zip", IngestConfig(**options)))


def test_each_file_is_a_document_under_its_path(tmp_path):
    found = records(
        tmp_path,
        packed(
            {
                "leases/a.txt": b"The rent is 900.",
                "leases/b.pdf": pdf("One.", "Two."),
                "rows.csv": b"id,text\n7,seven\n8,eight\n",
                "__MACOSX/leases/._a.txt": b"\0\0",
                ".hidden/c.txt": b"no",
                "Thumbs.db": b"no",
            }
        ),
    )
    assert [record.row for record in found] == ["leases/a.txt", "leases/b.pdf", "rows.csv#1", "rows.csv#2"]
    a, b, *rows = (record for record in found if isinstance(record, Parsed))
    assert a.text == "The rent is 900." and b.media_type == "application/pdf" and b.page_starts == [0, 6]
    assert ["eight" in row.text for row in rows] == [False, True]


def test_a_file_that_cannot_be_read_is_a_row_and_the_others_go_on(tmp_path):
    data = packed(
        {
            "a.pdf": b"no pdf",
            "inner.zip": packed({"x.txt": b"x"}),
            "blank.txt": b" \n",
            "old.doc": b"\xd0\xcf\x11\xe0" + bytes(80),
            "good.txt": b"good",
            "b.txt.gz": b"\x1f\x8b",
        }
    )
    found = records(tmp_path, data)
    refused = {record.row: record.reason for record in found if isinstance(record, Refused)}
    assert refused == {
        "a.pdf": "broken",
        "inner.zip": "binary",
        "blank.txt": "empty",
        "old.doc": "binary",
        "b.txt.gz": "binary",
    }
    assert [record.row for record in found if isinstance(record, Parsed)] == ["good.txt"]


def test_names_are_read_as_the_programs_wrote_them(tmp_path):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("Kündigung.txt", b"a")
        archive.writestr("xx.txt", b"b")
    data = file.getvalue().replace(b"xx.txt", "ü.txt".encode())  # UTF-8 that does not say so
    assert [record.row for record in records(tmp_path, data)] == ["Kündigung.txt", "ü.txt"]


def test_a_damaged_member_is_a_row(tmp_path):
    data = bytearray(packed({"a.txt": b"first " * 400, "b.txt": b"second"}))
    data[45] ^= 0xFF
    one, two = records(tmp_path, bytes(data))
    assert isinstance(one, Refused) and (one.row, one.reason) == ("a.txt", "broken")
    assert isinstance(two, Parsed) and two.text == "second"


def test_a_member_that_nests_too_deeply_is_a_row(tmp_path):
    deep = b"<table><tr><td>" * 220 + b"x"
    found = records(tmp_path, packed({"a.html": deep, "b.txt": b"The rent is 900."}))
    assert [getattr(one, "reason", "") for one in found] == ["too-deep", ""]


def test_bombs_and_what_is_no_archive_are_refused(tmp_path):
    with pytest.raises(SourceError, match="bomb"):
        records(tmp_path, packed({"a.txt": b"0" * 2**26}))
    with pytest.raises(SourceError, match="broken"):
        records(tmp_path, b"PK\x03\x04" + bytes(64))
    with pytest.raises(SourceError, match="empty"):
        records(tmp_path, packed({}))


def test_files_of_one_path_are_refused_and_names_that_mislead_are_quoted(tmp_path):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the name is there twice
        for name in ("a.txt", "a.txt", "./a.txt", "x/../a.txt", "t.csv", "t.csv#1", "b\n\u202e.txt", "l" * 1200):
            archive.writestr(name, "text\nx" if name == "t.csv" else f"text of {name}")
    found = records(tmp_path, file.getvalue())
    assert [one.row for one in found if isinstance(one, Parsed)] == [
        "a.txt",
        "t.csv#1",
        "t.csv%231",
        "b%0A%E2%80%AE.txt",
    ]
    refused = [(one.row[:5], one.reason) for one in found if isinstance(one, Refused)]
    assert refused == [("a.txt", "duplicate-id")] * 3 + [("lllll", "long-id")]
