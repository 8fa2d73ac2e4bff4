"""The token of a server that is one user's own."""

import os
import stat

import pytest

from memagent.errors import UsageError
from pipelines.web.address import auth_string


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_a_token_is_made_once_and_nobody_else_reads_it(tmp_path):
    file = tmp_path / "home" / "memagent" / "auth"
    before = os.umask(0)
    try:
        made = auth_string(file)
    finally:
        os.umask(before)
    user, _, token = made.partition(":")
    assert user == "memagent" and len(token) >= 40
    assert mode(file) == 0o600 and mode(file.parent) == 0o700
    assert auth_string(file) == made == file.read_text().strip()
    assert list(file.parent.iterdir()) == [file]
    assert auth_string(tmp_path / "other" / "auth") != made


@pytest.mark.parametrize("readable", [0o644, 0o620, 0o604])
def test_a_token_that_others_could_have_read_or_written_is_made_anew(tmp_path, readable):
    file = tmp_path / "auth"
    made = auth_string(file)
    file.chmod(readable)
    assert auth_string(file) != made and mode(file) == 0o600


@pytest.mark.parametrize("held", ["", "memagent:short", "x" * 50, "memagent:" + "ü" * 43])
def test_what_is_no_token_is_made_anew(tmp_path, held):
    file = tmp_path / "auth"
    file.write_text(held, encoding="utf-8")
    file.chmod(0o600)
    assert len(auth_string(file)) > 50


def test_a_link_to_another_file_is_not_followed(tmp_path):
    target = tmp_path / "target"
    target.write_text("memagent:" + "a" * 43)
    target.chmod(0o600)
    file = tmp_path / "own" / "auth"
    file.parent.mkdir()
    file.symlink_to(target)
    assert auth_string(file) != target.read_text() and not file.is_symlink()
    assert target.read_text() == "memagent:" + "a" * 43


def test_a_folder_that_cannot_be_written_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="token cannot be kept in"):
        auth_string(tmp_path / "file" / "auth")
