"""The worker of the memory pass, apart from its engine."""

import asyncio
from contextlib import suppress

from infra.cluster import reading_worker
from infra.cluster.reading_worker import PassSpec, ReadingWorker
from infra.readers import ReaderSpec
from infra.store import Corpus, Store
from memagent.config import load_config


class Tally:
    def __init__(self):
        self.reports = 0

    def report(self, worker, counts):
        self.reports += 1


def test_turns_that_come_while_others_are_written_do_not_keep_it_busy(tmp_path, model_folder, monkeypatch):
    store = str(tmp_path / "store")
    config = load_config(store=store, engine__kind="scripted", engine__model=str(model_folder))
    spec = PassSpec(Corpus(Store(store), "c"), "run", ReaderSpec(config), inflight=8, flush_seconds=60.0)
    monkeypatch.setattr(reading_worker, "_REPORT_SECONDS", 0.05)

    async def run():
        tally = Tally()
        worker = ReadingWorker(spec, tally)
        flushes = 0

        async def flush():
            nonlocal flushes
            flushes += 1
            worker._full.set()  # as many turns as are written at once have come again
            await asyncio.sleep(0.05)

        monkeypatch.setattr(worker, "_flush", flush)
        monkeypatch.setattr(type(worker._writer), "buffered", property(lambda _: 0 if flushes else 10**6))
        task = asyncio.create_task(worker._flush_forever())
        await asyncio.sleep(0.6)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        return flushes, tally.reports

    flushes, reports = asyncio.run(run())
    assert flushes == 1 and 2 < reports < 20
