"""The worker of the memory pass, apart from its engine."""

import asyncio
import errno
import os
from contextlib import suppress

import pytest

from infra.cluster import reading_worker
from infra.cluster.board import Attempt, Board
from infra.cluster.reading_worker import PassSpec, ReadingWorker, part_seconds
from infra.readers import ReaderSpec
from infra.store.location import Corpus, Store
from memagent.config import load_config


class Recorder(Board):
    def __init__(self):
        super().__init__()
        self.told = 0

    def report(self, worker, counts, lines=()):
        self.told += 1


def _flushing(config, seconds):
    pool = config.pool.model_copy(update={"inflight": 8})
    return config.model_copy(update={"flush_seconds": seconds, "pool": pool})


def test_turns_that_come_while_others_are_written_do_not_keep_it_busy(tmp_path, model_folder, monkeypatch):
    store = str(tmp_path / "store")
    config = load_config(store=store, engine__kind="scripted", engine__model=str(model_folder))
    spec = PassSpec(Corpus(Store(store), "c"), "run", ReaderSpec(config), _flushing(config, 60.0))
    monkeypatch.setattr(reading_worker, "_REPORT_SECONDS", 0.05)
    monkeypatch.setattr(reading_worker, "_SHORTEST_PART", 1.0)

    async def run():
        board = Recorder()
        worker = ReadingWorker(board, spec)
        flushes = 0

        async def flush():
            nonlocal flushes
            flushes += 1
            worker._writer.buffered_bytes = 0
            worker._full.set()  # as many turns as are written at once have come again
            await asyncio.sleep(0.05)

        monkeypatch.setattr(worker, "_flush", flush)
        worker._writer.buffered_bytes = 10**9
        task = asyncio.create_task(worker._flush_forever())
        await asyncio.sleep(0.6)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        return flushes, board.told

    flushes, reports = asyncio.run(run())
    assert flushes == 1 and 2 < reports < 20


def test_items_that_come_at_once_start_the_engine_once(tmp_path, model_folder, monkeypatch):
    config = load_config(engine__kind="scripted", engine__model=str(model_folder))
    spec = PassSpec(Corpus(Store(str(tmp_path / "store")), "c"), "run", ReaderSpec(config), _flushing(config, 60.0))
    starts = []

    async def run():
        worker = ReadingWorker(Board(), spec)

        async def start():
            starts.append(worker)
            await asyncio.sleep(0.05)

        monkeypatch.setattr(worker._engine, "start", start)
        await asyncio.gather(*(worker._ready() for _ in range(20)))
        await worker.stop()

    asyncio.run(run())
    assert len(starts) == 1


def test_a_crash_costs_little_of_a_short_run_and_a_long_one_writes_few_parts():
    assert [part_seconds(elapsed, 30.0) for elapsed in (0, 200, 4_000, 10**6)] == [0.5, 0.5, 10, 30]
    assert part_seconds(10**6, 0.2) == 0.2, "what is asked for"


FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/store/turns/part")


@pytest.mark.parametrize(("error", "ends"), [(FULL, True), (ConnectionError("away for a moment"), False)])
def test_a_full_disk_ends_what_is_read_and_a_store_that_is_away_does_not(
    tmp_path, model_folder, monkeypatch, error, ends
):
    store = str(tmp_path / "store")
    config = load_config(store=store, engine__kind="scripted", engine__model=str(model_folder))
    spec = PassSpec(Corpus(Store(store), "c"), "run", ReaderSpec(config), _flushing(config, 0.05))
    monkeypatch.setattr(reading_worker, "read_work", lambda *given: [])

    async def run():
        worker, failed = ReadingWorker(Board(), spec), asyncio.Event()

        def flush():
            worker._writer.flush = int  # there is room again
            loop.call_soon_threadsafe(failed.set)
            raise error

        loop, worker._writer.flush = asyncio.get_running_loop(), flush
        await worker._ready()
        await failed.wait()
        while worker._flushing.locked():
            await asyncio.sleep(0.01)
        drained = worker._drained.is_set()
        try:
            return drained, await worker.run({}, Attempt())
        finally:
            await worker.stop()

    if ends:
        with pytest.raises(OSError, match="/store/turns/part"):
            asyncio.run(run())
    else:
        drained, result = asyncio.run(run())
        assert not drained and result["answered"] == 0


def test_what_was_read_until_the_disk_was_full_is_written_into_the_room_that_was_held(
    tmp_path, model_folder, monkeypatch
):
    """Also the conversations of other blocks that are under way: all end with the first block that does."""
    config = load_config(store=str(tmp_path / "store"), engine__kind="scripted", engine__model=str(model_folder))
    spec = PassSpec(Corpus(Store(config.store), "c"), "run", ReaderSpec(config), _flushing(config, 60.0))
    monkeypatch.setattr(reading_worker, "read_work", lambda *given: [])
    events = []

    async def run():
        worker = ReadingWorker(Board(), spec)

        def flush():
            events.append("written" if worker._room._file is None else "no room")
            if worker._room._file is not None:
                raise FULL

        worker._writer.flush = flush
        await worker._ready()
        worker._idle.clear()

        async def other_block():
            await asyncio.sleep(0.3)
            events.append("conversation ended")
            worker._idle.set()

        other = asyncio.create_task(other_block())
        try:
            await worker.run({}, Attempt())
        finally:
            await other
            worker._flush_task.cancel()

    with pytest.raises(OSError, match="/store/turns/part"):
        asyncio.run(run())
    assert events == ["no room", "written", "conversation ended", "written"]
