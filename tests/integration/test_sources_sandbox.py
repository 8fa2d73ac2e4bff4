"""The guarded parser: it outlives what crashes it, hangs it, or ends it."""

import os
import signal
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.sources.base import Parsed, Refused
from infra.sources.listing import open_source
from infra.sources.sandbox import Guard
from memagent.config import IngestConfig
from memagent.errors import SourceError
from memagent.records import text_hash
from tests.support.waiting import wait_for

_CHILD = """
    import os, signal, time
    from infra.sources import sandbox_child as child
    parse = child.parse_file
    def hostile(file, name, options, gets_on):
        if name == "long.csv":
            for _ in range(50):
                time.sleep(0.1)
                gets_on()
        if name == "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        if name == "exit":
            os._exit(3)
        if name == "hang":
            time.sleep(600)
        if name == "memory":
            bytearray(2**40)
        if name == "bug":
            raise KeyError("line one\\nline two")
        if name == "deep":
            hostile.__wrapped__()
        if name == "half":
            yield from list(parse(file, "a.csv", options, gets_on))[:1]
            os.kill(os.getpid(), signal.SIGKILL)
        yield from parse(file, name, options, gets_on)
    def recurse():
        recurse()
    hostile.__wrapped__ = recurse
    child.parse_file = hostile
    child.main()
"""


@pytest.fixture(autouse=True)
def children_are_waited_for() -> Iterator[None]:
    """Ray, where a test before this one has started it, has the system forget how children ended."""
    before = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGCHLD, before)


@pytest.fixture
def guard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Guard]:
    (tmp_path / "hostile_child.py").write_text(textwrap.dedent(_CHILD))
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    guard = Guard(IngestConfig(), module="hostile_child")
    yield guard
    guard.close()


@pytest.fixture
def table(tmp_path: Path) -> str:
    (tmp_path / "a.csv").write_text("text\none\ntwo\na,b\n")
    return str(tmp_path / "a.csv")


def read(guard: Guard, path: str, name: str = "a.csv") -> list[str]:
    return [r.reason if isinstance(r, Refused) else r[0].text for r in guard.parse(path, name)]


def test_texts_come_through_with_their_hashes(guard: Guard, table: str) -> None:
    records = list(guard.parse(table, "a.csv"))
    first = records[0]
    assert isinstance(first, tuple)
    assert first == (Parsed("one", "", "text/csv", "utf-8", "1"), text_hash("one"))
    assert isinstance(records[2], Refused)


@pytest.mark.parametrize(
    ("name", "reason", "detail"),
    [
        ("crash", "crashed", "SIGSEGV"),
        ("exit", "crashed", "status 3"),
        ("hang", "timeout", "parse_seconds"),
        ("memory", "too-large", "memory"),
        ("bug", "broken", "KeyError"),
        ("deep", "too-deep", "deep"),
    ],
)
def test_a_bad_source_is_an_error_and_the_next_is_read(
    guard: Guard, table: str, name: str, reason: str, detail: str
) -> None:
    assert read(guard, table) == ["one", "two", "ragged"]
    patient = guard.options
    if name == "hang":  # the others may take their time: the machine may be busy
        guard.options = patient.model_copy(update={"parse_seconds": 0.5})
    with pytest.raises(SourceError, match=detail) as error:
        read(guard, table, name)
    guard.options = patient
    assert error.value.reason == reason
    assert "\n" not in error.value.detail
    assert read(guard, table) == ["one", "two", "ragged"]


def test_a_parser_that_gets_on_may_take_long(guard: Guard, table: str) -> None:
    guard.options = guard.options.model_copy(update={"parse_seconds": 3.0})
    assert read(guard, table, "long.csv") == ["one", "two", "ragged"]


def test_what_came_before_a_crash_stands(guard: Guard, table: str) -> None:
    records = guard.parse(table, "half")
    assert isinstance(next(records), tuple)
    with pytest.raises(SourceError, match="SIGKILL"):
        next(records)
    assert read(guard, table) == ["one", "two", "ragged"]


def test_a_source_that_is_left_half_read_does_not_mix_with_the_next(guard: Guard, table: str) -> None:
    records = guard.parse(table, "a.csv")
    next(records)
    records.close()  # type: ignore[attr-defined]
    assert read(guard, table) == ["one", "two", "ragged"]


def test_a_child_that_does_not_start_is_no_fault_of_the_source(table: str) -> None:
    guard = Guard(IngestConfig(), module="no_such_module")
    with pytest.raises(RuntimeError, match="no_such_module"):
        read(guard, table)
    guard.close()


def test_a_file_of_the_folder_that_it_is_run_in_is_no_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('the archive ran')")
    (tmp_path / "a.txt").write_text("text")
    monkeypatch.chdir(tmp_path)
    guard = Guard(IngestConfig())
    try:
        assert read(guard, str(tmp_path / "a.txt"), "a.txt") == ["text"]
    finally:
        guard.close()


def test_the_child_ends_with_its_parent(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")
    code = f"""
        import sys, os
        sys.path[:] = {sys.path!r}
        from infra.sources.sandbox import Guard
        from memagent.config import IngestConfig
        guard = Guard(IngestConfig())
        list(guard.parse({str(tmp_path / "a.txt")!r}, "a.txt"))
        os.write(3, str(guard._process.pid).encode())
        os.kill(os.getpid(), 9)
    """
    reading, writing = os.pipe()
    pid = os.posix_spawn(
        sys.executable,
        [sys.executable, "-c", textwrap.dedent(code)],
        os.environ,
        file_actions=[(os.POSIX_SPAWN_DUP2, writing, 3)],
    )
    os.close(writing)
    os.waitpid(pid, 0)
    child = int(os.read(reading, 100))
    os.close(reading)
    assert wait_for(lambda: not _runs(child))


def _runs(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


def test_a_crash_is_told_where_nobody_knows_the_status(guard: Guard, table: str) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with pytest.raises(SourceError, match="not known"):
        read(guard, table, "crash")
    assert read(guard, table) == ["one", "two", "ragged"]


def test_what_changes_after_it_was_listed_is_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def reason(path: Path) -> str:
        with pytest.raises(SourceError) as error:
            open_source(str(path), 100)
        return error.value.reason

    assert reason(tmp_path / "gone.txt") == "vanished"
    os.mkfifo(tmp_path / "pipe")
    assert reason(tmp_path / "pipe") == "not-a-file"
    assert reason(tmp_path) == "not-a-file"
    (tmp_path / "grown.txt").write_bytes(b"x" * 101)
    assert reason(tmp_path / "grown.txt") == "too-large"

    def forbidden(*_: object, **__: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", forbidden)
    assert reason(tmp_path / "grown.txt") == "unreadable"


def test_the_parser_sees_no_keys_of_others(monkeypatch):
    monkeypatch.setenv("PREFECT_API_KEY", "secret")
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    guard = Guard(IngestConfig())
    try:
        connection = guard._start()
        names = {
            line.partition(b"=")[0] for line in Path(f"/proc/{guard._process.pid}/environ").read_bytes().split(b"\0")
        }
        assert connection is not None and b"PATH" in names
        assert not {b"PREFECT_API_KEY", b"OPENAI_API_KEY"} & names
    finally:
        guard.close()
