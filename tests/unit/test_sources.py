"""Listing of local sources, their names and their ids."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.sources.base import quoted, unquoted
from infra.sources.discovery import list_sources
from infra.sources.listing import Source, assign_ids
from memagent.errors import UsageError

NAMES = st.text(
    st.one_of(st.characters(exclude_categories=["Cs"]), st.sampled_from("%#./a0F\n\u202e\udcff")), min_size=1
)


@given(NAMES, NAMES)
def test_quoted_names_are_text_and_stay_apart(one: str, other: str) -> None:
    shown = quoted(one)
    shown.encode("utf-8")
    assert "#" not in shown and "\n" not in shown and "\u202e" not in shown
    assert not {".", ".."} & set(shown.split("/"))
    assert (shown == quoted(other)) == (one == other)


@given(st.binary(min_size=1))
def test_any_file_name_comes_back(name: bytes) -> None:
    path = os.fsdecode(name)
    assert os.fsencode(unquoted(quoted(path))) == name


def test_ordinary_names_are_left_alone() -> None:
    for name in ("a b.txt", "100%.txt", "ünïcödé/名前.md", "..a/b..", "a'b\"c<d>&e"):
        assert quoted(name) == name
    assert quoted("row#1", safe="#") == "row#1"


def tree(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    return root


def ids(*arguments: str) -> list[str]:
    return [source.doc_id for source in list_sources([str(argument) for argument in arguments]).sources()]


def test_folders_globs_and_files(tmp_path: Path) -> None:
    root = tree(tmp_path, "b.txt", "a.txt", "a.pdf", "d/c.txt", "d/e/f.txt", "x[1].txt")
    assert ids(root) == ["a.pdf", "a.txt", "b.txt", "x[1].txt", "d/c.txt", "d/e/f.txt"]
    assert ids(f"{root}/") == ids(root)
    assert ids(f"{root}/*.txt") == ["a.txt", "b.txt", "x[1].txt"]
    assert ids(f"{root}/**/*.txt") == ["a.txt", "b.txt", "x[1].txt", "d/c.txt", "d/e/f.txt"]
    assert ids(f"{root}/d/*/*") == ["e/f.txt"]
    with pytest.raises(UsageError, match=r"between slashes, as in \*\*/\*.pdf"):
        ids(f"{root}/**.txt")
    assert ids(f"{root}/[ab].*") == ["a.pdf", "a.txt", "b.txt"]
    assert ids(f"{root}/x[1].txt") == ["x[1].txt"]  # a file of this very name is no pattern
    assert ids(f"{root}/d/c.txt", f"{root}/a.txt") == ["c.txt", "a.txt"]


def test_a_file_that_two_arguments_name_is_read_once(tmp_path: Path) -> None:
    root = tree(tmp_path, "a.txt", "d/b.txt")
    assert ids(root, f"{root}/d", f"{root}/a.txt", f"{root}/*.txt") == ["a.txt", "d/b.txt"]


def test_relative_and_home_paths_have_full_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree(tmp_path, "in/a.txt")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for argument in ("in", "./in", "~/in", "in/../in"):
        (source,) = list_sources([argument]).sources()
        assert (source.doc_id, source.source) == ("a.txt", f"{tmp_path}/in/a.txt")


@pytest.mark.parametrize("name", ["~$lease.docx", "Thumbs.db", "desktop.ini", "_SUCCESS", "_committed_77", "_metadata"])
def test_files_that_programs_keep_beside_documents_are_passed_over_unless_given(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("x")
    (tmp_path / "lease.txt").write_text("x")
    listing = list_sources([str(tmp_path)])
    assert (listing.count, listing.hidden, listing.unusable) == (1, 1, [])
    assert list_sources([str(tmp_path / name)]).count == 1


def test_hidden_names_are_passed_over_and_counted(tmp_path: Path) -> None:
    root = tree(tmp_path, "a.txt", ".git/config", ".DS_Store", "d/.x")
    listing = list_sources([str(root)])
    assert [source.doc_id for source in listing.sources()] == ["a.txt"]
    assert listing.hidden == 3
    assert ids(f"{root}/.DS_Store") == [".DS_Store"]


def test_a_folder_may_be_deeper_than_python_can_call(tmp_path: Path) -> None:
    """1,200 folders, one in the other, ended the whole listing in a RecursionError."""
    tree(tmp_path, "a.txt", "z/b.txt")
    local = os.getcwd()
    os.chdir(tmp_path)
    try:
        for _ in range(1200):
            os.mkdir("d")
            os.chdir("d")
        Path("deep.txt").write_text("deep")
    finally:
        os.chdir(local)
    try:
        assert ids(tmp_path) == ["a.txt", "d/" * 1200 + "deep.txt", "z/b.txt"]
        assert ids(f"{tmp_path}/**/*.txt") == ids(tmp_path)
        assert assign_ids(list_sources([str(tmp_path)]).sources(), ())[1].doc_id.endswith("deep.txt")
    finally:  # pytest's own cleaning is recursive
        (tmp_path / ("d/" * 1200) / "deep.txt").unlink()
        os.removedirs(tmp_path / ("d/" * 1200))


def test_a_path_that_is_too_long_for_the_system_is_told(tmp_path: Path) -> None:
    tree(tmp_path, "a.txt")
    local = os.getcwd()
    name = "n" * 250
    os.chdir(tmp_path)
    try:
        for _ in range(20):
            os.mkdir(name)
            os.chdir(name)
    finally:
        os.chdir(local)
    listing = list_sources([str(tmp_path)])
    assert [source.doc_id for source in listing.sources()] == ["a.txt"]
    (bad,) = listing.unusable
    assert bad.reason == "unreadable" and "too long" in bad.detail


def test_links_that_lead_to_each_other_in_a_long_row(tmp_path: Path) -> None:
    root = tree(tmp_path, "a.txt")
    for number in range(1500):
        (root / f"{number}").symlink_to(root / (f"{number + 1}" if number < 1499 else "a.txt"))
    listing = list_sources([str(root)])
    assert {bad.reason for bad in listing.unusable} == {"link"}
    assert listing.count + len(listing.unusable) == 1501


def test_the_stamp_tells_changes(tmp_path: Path) -> None:
    root = tree(tmp_path, "a.txt")

    def stamp() -> str:
        return next(list_sources([str(root)]).sources()).stamp

    first = stamp()
    assert stamp() == first
    os.utime(root / "a.txt", ns=(1, 1))
    assert stamp() != first
    second = stamp()
    (root / "a.txt").write_text("longer than it was")
    os.utime(root / "a.txt", ns=(1, 1))
    assert stamp() != second


@pytest.mark.parametrize("argument", ["none", "none/*.txt", "*.pdf", "http://x/y", "none/a.txt"])
def test_what_is_not_there_is_wrong_use(tmp_path: Path, argument: str) -> None:
    tree(tmp_path, "a.txt")
    with pytest.raises(UsageError, match="source"):
        list_sources([argument if "://" in argument else f"{tmp_path}/{argument}"])


def test_a_named_file_may_be_gone_and_an_empty_source_is_kept(
    tmp_path: Path,
) -> None:
    kept = {"*.txt": "empty-source", "": "empty-source", "no/*.txt": "empty-source", "a.txt": "no-folder"}
    for argument, reason in (*kept.items(), ("no/a.txt", "no-folder"), ("a.txt", "")):
        before = f"{tmp_path}/{'no/' * argument.startswith('no')}a.txt"
        if not reason:
            tree(tmp_path, "b.txt")  # so the folder is there, and can be looked into
        listing = list_sources([f"{tmp_path}/{argument}".rstrip("/")], lambda before=before: [before])
        assert listing.count == 0
        assert listing.covered(before) is not bool(reason)
        assert [bad.reason for bad in listing.unusable] == [reason] * bool(reason)
        assert not listing.covered(f"{tmp_path}/b.md")


def test_what_another_source_covers_is_gone_where_a_folder_in_it_is_empty(tmp_path: Path) -> None:
    root = tree(tmp_path, "a.txt", "sub/b.txt")
    (tmp_path / "sub" / "b.txt").unlink()
    listing = list_sources([str(root), f"{root}/sub"], lambda: [f"{root}/a.txt", f"{root}/sub/b.txt"])
    assert not listing.unusable and listing.covered(f"{root}/sub/b.txt")


def test_a_folder_that_cannot_be_listed_hides_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tree(tmp_path, "a.txt", "locked/b.txt")
    scan = os.scandir

    def scandir(path: str) -> object:
        if str(path).endswith("locked"):
            raise PermissionError(13, "Permission denied", path)
        return scan(path)

    monkeypatch.setattr(os, "scandir", scandir)
    listing = list_sources([str(root)])
    assert [(bad.source, bad.reason) for bad in listing.unusable] == [(f"{root}/locked", "unreadable")]
    assert listing.covered(f"{root}/c.txt")
    assert not listing.covered(f"{root}/locked/b.txt")


def test_links_are_followed_only_within_their_folder(tmp_path: Path) -> None:
    tree(tmp_path, "out/secret.txt")
    root = tree(tmp_path / "in", "a.txt", "d/b.txt")
    (root / "inside.txt").symlink_to(root / "d/b.txt")
    (root / "outside.txt").symlink_to(tmp_path / "out/secret.txt")
    (root / "up").symlink_to(tmp_path)
    listing = list_sources([str(root)])
    assert [source.doc_id for source in listing.sources()] == ["a.txt", "inside.txt", "d/b.txt"]
    assert [(bad.source, bad.reason) for bad in listing.unusable] == [
        (f"{root}/outside.txt", "link"),
        (f"{root}/up", "link"),
    ]
    (tmp_path / "alias").symlink_to(root)
    assert ids(f"{tmp_path}/alias") == ["a.txt", "inside.txt", "d/b.txt"]  # a link that is given is meant


def found(*paths: str, root: str = "") -> list[Source]:
    return [Source(path, path, path.removeprefix(root), 1, "s") for path in paths]


def test_ids_grow_only_where_they_meet() -> None:
    one = found("/x/in/a.txt", "/x/in/b.txt", root="/x/in/")
    two = found("/y/in/a.txt", root="/y/in/")
    three = found("/z/y/in/a.txt", root="/z/y/in/")
    named = assign_ids([*one, *two, *three], ())
    assert [source.doc_id for source in named] == ["a.txt", "b.txt", "in/a.txt", "y/in/a.txt"]
    kept = assign_ids(two, {"a.txt"})
    assert [source.doc_id for source in kept] == ["in/a.txt"]


@given(st.lists(st.lists(st.sampled_from("ab"), min_size=2, max_size=4), min_size=1, max_size=12, unique_by=tuple))
def test_ids_are_always_distinct(paths: list[list[str]]) -> None:
    sources = []
    for parts in paths:
        path = "/" + "/".join(parts)
        sources.append(Source(path, path, parts[-1], 1, "s"))
    named = assign_ids(sources, ())
    assert len({source.doc_id for source in named}) == len(sources)
    assert all(source.source.endswith(source.doc_id) for source in named)
