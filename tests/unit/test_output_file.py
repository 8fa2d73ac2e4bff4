"""Files that commands write for their users."""

from resource import RLIMIT_FSIZE, getrlimit, setrlimit

import pytest

from memagent.errors import UsageError
from pipelines.io.answers import write_answers
from pipelines.io.writer import output_file, write_xlsx


def test_a_file_is_put_in_place_whole_and_its_folders_are_made(tmp_path):
    path = tmp_path / "a" / "b.txt"
    with output_file(path) as aside:
        aside.write_text("all of it")
        assert not path.exists()
    assert path.read_text() == "all of it" and [one.name for one in path.parent.iterdir()] == ["b.txt"]


def test_what_fails_leaves_nothing_and_what_was_there_stays(tmp_path):
    path = tmp_path / "b.txt"
    path.write_text("before")
    with pytest.raises(RuntimeError), output_file(path) as aside:
        aside.write_text("half of it")
        raise RuntimeError
    assert path.read_text() == "before" and len(list(tmp_path.iterdir())) == 1


def test_a_place_that_cannot_be_written_is_said(tmp_path):
    (tmp_path / "file").write_text("")
    file, bucket = tmp_path / "file" / "x.csv", "s3://bucket/x.csv"
    places = [(tmp_path, "is a folder"), (file, "cannot be written"), ("", "folder"), (bucket, "on this machine")]
    for place, says in places:
        with pytest.raises(UsageError, match=says):
            write_answers([], "csv", type(tmp_path)(place))
    assert [one.name for one in tmp_path.iterdir()] == ["file"]


def test_a_workbook_that_the_temporary_folder_has_no_room_for_is_said(tmp_path):
    before = getrlimit(RLIMIT_FSIZE)
    says = pytest.raises(UsageError, match=r"cannot be written: openpyxl writes it in /.* first, which fails")
    with says, output_file(tmp_path / "a.xlsx") as aside, aside.open("wb") as file:
        setrlimit(RLIMIT_FSIZE, (100_000, before[1]))
        try:
            write_xlsx(["a"], ([f"a text {number}"] for number in range(20_000)), file)
        finally:
            setrlimit(RLIMIT_FSIZE, before)
    assert not list(tmp_path.iterdir())


def test_the_format_is_that_of_the_files_name(tmp_path):
    write_answers([], None, tmp_path / "a.csv")
    assert (tmp_path / "a.csv").read_text(encoding="utf-8-sig").startswith("document,question,answer,quote")
    with pytest.raises(UsageError, match=r"a\.txt has no known format: give --format csv"):
        write_answers([], None, tmp_path / "a.txt")


def test_a_link_that_was_put_where_it_is_written_is_not_followed(tmp_path):
    victim, target = tmp_path / "victim", tmp_path / "out" / "a.csv"
    victim.write_text("mine")
    target.parent.mkdir()
    (target.parent / ".a.csv.part").symlink_to(victim)
    with output_file(target) as first, output_file(target) as second:
        assert first != second
        first.write_text("1")
        second.write_text("2")
    assert victim.read_text() == "mine" and target.read_text() == "1"
