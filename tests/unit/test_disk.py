"""Room that is held on a disk."""

import errno
import os
import subprocess

import pytest

from infra.store.location import DiskReserve, is_full


def test_room_is_held_without_a_trace_and_is_there_when_it_is_given_up(tmp_path):
    before = os.statvfs(tmp_path).f_bfree
    room = DiskReserve(str(tmp_path / "store"), 64 * 2**20)
    held = before - os.statvfs(tmp_path).f_bfree
    assert os.listdir(tmp_path / "store") == []
    room.give_up()
    room.give_up()
    freed = os.statvfs(tmp_path).f_bfree - before
    assert held * os.statvfs(tmp_path).f_frsize > 32 * 2**20 and freed * os.statvfs(tmp_path).f_frsize > -(32 * 2**20)


def test_a_file_system_that_cannot_hold_room_is_no_error_and_a_full_one_is(tmp_path, monkeypatch):
    def refuse(number):
        def call(*given):
            raise OSError(number, os.strerror(number))

        return call

    monkeypatch.setattr(os, "posix_fallocate", refuse(errno.EOPNOTSUPP))
    DiskReserve(str(tmp_path), 100).give_up()
    monkeypatch.setattr(os, "posix_fallocate", refuse(errno.ENOSPC))
    with pytest.raises(OSError, match="No space") as raised:
        DiskReserve(str(tmp_path), 100)
    assert is_full(raised.value) and not is_full(ValueError()) and not is_full(OSError(errno.EIO, "broken"))


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small disk")
def test_what_a_full_disk_refused_leaves_no_file_behind(tmp_path):
    from infra.store.location import Store

    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)], check=False).returncode:
        pytest.skip("this machine mounts nothing")
    try:
        store = Store(str(disk / "store"))
        room = DiskReserve(store.url, 256 * 2**10)
        with pytest.raises(OSError, match="No space"):
            store.write_bytes(b"\0" * 900 * 2**10, "turns", "large")
        assert os.listdir(disk / "store" / "turns") == []
        room.give_up()
        store.write_bytes(b"\0" * 900 * 2**10, "turns", "large")
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=False)
