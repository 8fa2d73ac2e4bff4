"""Hostile files against the parsers alone, in the guarded process."""

from pathlib import Path

import pytest

from infra.sources import Refused
from infra.sources.base import unquoted
from infra.sources.discovery import list_sources
from infra.sources.sandbox import Guard
from memagent.errors import SourceError
from tests.support.hostile import OPTIONS, Case, build


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Case]]:
    base = tmp_path_factory.mktemp("hostile")
    return base / "in", build(base / "in", base / "out")


def test_each_source_gives_exactly_what_it_should(folder: tuple[Path, list[Case]]) -> None:
    root, cases = folder
    assert len(cases) >= 60
    listing = list_sources([str(root)])
    assert listing.hidden == 1
    paths = {source.doc_id: source.path for source in listing.sources()}
    unusable = {bad.source.removeprefix(f"{root}/"): bad for bad in listing.unusable}
    assert paths.keys() | unusable.keys() == {case.source for case in cases}
    wrong = []
    guard = Guard(OPTIONS)
    for case in cases:
        documents: dict[str, str] = {}
        refused: dict[str, str] = {}
        if bad := unusable.get(case.source):
            refused[""] = bad.reason
        else:
            try:
                for record in guard.parse(paths[case.source], case.source.rsplit("/", 1)[-1]):
                    if isinstance(record, Refused):
                        refused |= {record.row: record.reason} if record.reason != "empty" else {}
                        assert record.detail and "\n" not in record.detail and "Traceback" not in record.detail
                    else:
                        parsed, _ = record
                        row = "" if parsed.row is None else f"#{parsed.row}"
                        documents[case.source + row] = parsed.text
            except SourceError as error:
                refused |= {"": error.reason} if error.reason != "empty" else {}
                assert error.detail and "\n" not in error.detail and "Traceback" not in error.detail
        right = documents.keys() == case.documents.keys() and refused == case.refused
        right = right and all(words in documents[name] for name, words in case.documents.items())
        right = right and not any(case.absent and case.absent in text for text in documents.values())
        if not right:
            wrong.append((case.source, {k: v[:80] for k, v in documents.items()}, refused, case.refused))
    guard.close()
    assert not wrong, "\n".join(map(repr, wrong))


def test_names_can_be_turned_back(folder: tuple[Path, list[Case]]) -> None:
    root, cases = folder
    listing = list_sources([str(root)])
    for source in listing.sources():
        assert unquoted(source.source) == source.path
        source.source.encode("utf-8")
    assert len(cases) == len({case.source for case in cases})
