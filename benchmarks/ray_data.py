"""The corpus of `benchmarks.scale` read in Ray Data's own way, beside the product: time, memory, what a kill loses.

    python -m benchmarks.ray_data [--documents 100000]

Ray Data: `read_parquet`, `map_batches` over an actor pool whose actors read whole documents with the same loop and
scripted engine, `write_parquet`, with `CheckpointConfig` by document id. For the run after, documents are joined with
the answers (left anti) before they are read. It keeps no turns, evidence and segments, and cannot resume within a
document. The product's times contain segmenting, and on the run after also the ingest.
"""

import argparse
import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.dataset as ds

from benchmarks.kills import Tally
from benchmarks.plan import watched
from benchmarks.record import Row, arguments, result, write
from benchmarks.scale import QUESTION, Step, in_process, make_corpus, peak_mb, read, take
from infra.cluster.session import ray_session
from infra.readers import ReaderSpec
from memagent.config import Config, RayConfig, load_config
from memagent.errors import MemagentError
from memagent.nano import bundled
from memagent.reading.loop import read as read_text
from memagent.records import text_hash

_TALLY = "MEMAGENT_SCRIPTED_TALLY"
_ENGINES = 2
_BATCH = 512


class Reader:
    """An actor of Ray Data's pool: one engine, and the readings of a batch side by side."""

    def __init__(self, config: Config) -> None:
        self._spec = ReaderSpec(config)
        self._engine = self._spec.make_engine()
        self._loop = asyncio.new_event_loop()
        self._loop.run_until_complete(self._engine.start())

    def __call__(self, batch: pa.Table) -> pa.Table:
        """Read the documents of a batch."""
        texts, ids = batch["text"].to_pylist(), batch["id"].to_pylist()
        answers = self._loop.run_until_complete(self._read(texts))
        columns = {"id": ids, "content_hash": [text_hash(text) for text in texts], "answer": answers}
        return pa.table({name: pa.array(values, pa.string()) for name, values in columns.items()})

    async def _read(self, texts: list[str]) -> list[str | None]:
        return await asyncio.gather(*(self._one(text) for text in texts))

    async def _one(self, text: str) -> str | None:
        try:
            return (await read_text(text, QUESTION, self._engine.generate, self._spec.scheme)).answer
        except MemagentError:
            return None


def hashed(batch: pa.Table) -> pa.Table:
    """Add the hash of each text, by which a document that changed is another one."""
    hashes = [text_hash(text) for text in batch["text"].to_pylist()]
    return batch.append_column("content_hash", pa.array(hashes, pa.string()))


def run(folder: str, scheduled: bool, config: Config) -> Step:
    """Read the corpus in `folder` into ``answers``; on a scheduled, only documents without an answer."""
    import ray
    from ray.data.checkpoint import CheckpointConfig

    from benchmarks.ray_data import Reader, hashed  # by the name under which workers can import them

    began = time.monotonic()
    with ray_session(RayConfig()), watched() as most:
        context = ray.data.DataContext.get_current()
        documents = ray.data.read_parquet(f"{folder}/corpus")
        if scheduled:
            answers = ray.data.read_parquet(f"{folder}/answers").select_columns(["content_hash"])
            documents = documents.map_batches(hashed, batch_format="pyarrow", batch_size=10_000)
            documents = documents.join(answers, "left_anti", 8, on=("content_hash",)).drop_columns(["content_hash"])
        else:
            context.checkpoint_config = CheckpointConfig(
                "id", f"{folder}/checkpoint", delete_checkpoint_on_success=True
            )
        documents.map_batches(
            Reader,
            fn_constructor_args=(config,),
            batch_format="pyarrow",
            batch_size=_BATCH,
            concurrency=_ENGINES,
            num_cpus=0.5,
        ).write_parquet(f"{folder}/answers")
    seconds = round(time.monotonic() - began, 1)
    return {
        "seconds": seconds,
        "peak_mb": peak_mb(),
        "conversations": 0,
        "engine_seconds": seconds,
        "stages": {"worker_mb": most[0]},
    }


def kill_half_way(folder: str, expected: int) -> float:
    """Start a run in a process of its own, kill it when half of the conversations are done; return its seconds."""
    tally, began = Tally(Path(os.environ[_TALLY])), time.monotonic()
    before = tally.conversations
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.ray_data", "--inside", folder], stdout=subprocess.DEVNULL
    )
    while process.poll() is None and tally.conversations - before < expected // 2:
        time.sleep(0.2)
    below = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGKILL)
    process.wait()
    psutil.wait_procs(below, timeout=30)
    return time.monotonic() - began


def count(folder: str) -> tuple[int, int]:
    """Return rows and different documents in the answers."""
    table = ds.dataset(f"{folder}/answers").to_table(columns=["content_hash"])
    return table.num_rows, len(table["content_hash"].unique())


def measure(documents: int) -> list[Row]:
    """Measure both ways on a corpus of so many documents."""
    base = Path(tempfile.mkdtemp(prefix="memagent-ray-data-"))
    os.environ[_TALLY] = str(base / "tally")
    tally = Tally(base / "tally")
    sets = ["engine.kind=scripted", f"engine.model={bundled()}", f"pool.max_size={_ENGINES}"]
    config = load_config(sets=sets, store=str(base / "store"))
    rows: list[Row] = []

    def add(name: str, value: float, ours: float | None, unit: str = "s", note: str = "") -> None:
        rows.append(Row(name, round(value, 1), unit, column="Ray Data", n=1, note=note))
        if ours is not None:
            rows.append(Row(name, round(ours, 1), unit, column="memagent", n=1))
        print(rows[-2:], flush=True)

    try:
        make_corpus(base / "corpus", documents)
        in_process(take, config, str(base / "corpus"))
        mine = in_process(read, config)
        conversations = tally.conversations
        theirs = in_process(run, str(base), False, config)
        add("first run", theirs["seconds"], mine["seconds"])
        add("peak memory of the driver", theirs["peak_mb"], mine["peak_mb"], "MB")
        add("largest worker", theirs["stages"]["worker_mb"], None, "MB")
        make_corpus(base / "corpus", documents, changed=max(1, documents // 100))
        mine = in_process(read, config)
        add("scheduled run with 1% changed", in_process(run, str(base), True, config)["seconds"], mine["seconds"])
        shutil.rmtree(base / "answers")
        before = tally.conversations
        kill_half_way(str(base), conversations)
        in_process(run, str(base), False, config)
        again = tally.conversations - before - conversations
        held, different = count(str(base))
        note = f"killed once, half way; {held:,} rows for {different:,} of {documents:,} documents"
        add("conversations again after a kill", 100 * again / conversations, None, "%", note)
        return rows
    finally:
        shutil.rmtree(base, ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--documents", type=int, default=100_000)
    parser.add_argument("--inside", default="")
    arguments(parser)
    given = parser.parse_args()
    if given.inside:
        run(given.inside, False, load_config(sets=["engine.kind=scripted", f"engine.model={bundled()}"]))
        return
    write(result("ray-data", "Ray Data's own way beside the product", measure(given.documents), given))


if __name__ == "__main__":
    main()
