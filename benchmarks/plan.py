"""Planning a large archive: seconds, and the peak memory of the driver and of any task.

    python -m benchmarks.plan [--documents 1000000,10000000] [--questions 3]

The tables hold metadata only, in large files sorted by content hash, as `memagent optimize` leaves them;
planning reads no text. Nothing has been answered, so that every reading is planned and written.
"""

import argparse
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa

from benchmarks.record import Row, arguments, result, write
from benchmarks.scale import Step, in_process, peak_mb
from infra.cluster.session import lazy_ray
from infra.readers import ReaderSpec
from infra.store.delta import Table
from infra.store.location import Corpus, Store
from infra.store.schemas import now
from memagent.config import Config, load_config
from memagent.nano import bundled
from memagent.questions import ask as make_question
from memagent.reading.segmenting import CUTTING_VERSION, segment_key
from pipelines.stages.plan import make_plan
from pipelines.stages.planned_readings import PlanRequest

_CHUNK = 500_000
_LOOK_SECONDS = 0.5


def write_metadata(config: Config, documents: int) -> None:
    """Write the rows of `documents` and `segmented` for so many documents of one segment."""
    store, reader, at = Store(config.store), ReaderSpec(config), now()
    numbers = np.sort(np.random.default_rng(0).integers(0, 2**64, documents, dtype=np.uint64))
    tables = {name: Table(store, name) for name in ("documents", "segmented")}
    for first in range(0, documents, _CHUNK):
        hashes = [f"{number:016x}" * 2 for number in numbers[first : first + _CHUNK].tolist()]
        count = len(hashes)
        columns = {
            "corpus": ["plan"] * count,
            "doc_id": [f"part-{first:08}.parquet#{row}" for row in range(count)],
            "content_hash": hashes,
            "title": [f"Document {first + row}" for row in range(count)],
            "source": [f"/archive/part-{first:08}.parquet"] * count,
            "source_stamp": [""] * count,
            "media_type": ["text/plain"] * count,
            "encoding": ["utf-8"] * count,
            "size_bytes": [1_000] * count,
            "chars": [1_000] * count,
            "state": ["present"] * count,
            "seen_at": [at] * count,
            "first_seen": [at] * count,
            "tokenizer": [reader.tokenizer.fingerprint] * count,
            "segment_tokens": [reader.reading.segment_tokens] * count,
            "boundary": [reader.reading.boundary] * count,
            "cutting_version": [CUTTING_VERSION] * count,
            "part": [f"segments/plan/{first:08}.parquet"] * count,
            "first_row": list(range(count)),
            "segments": [1] * count,
            "tokens": [200] * count,
            "written_at": [at] * count,
            "segment_key": [
                segment_key(name, reader.tokenizer, reader.reading.segment_tokens, reader.reading.boundary)
                for name in hashes
            ],
        }
        for table in tables.values():
            none = [None] * count  # what a text may lack, as pages
            fields = {one.name: pa.array(columns.get(one.name, none), one.type) for one in table.schema}
            table.append(pa.table(fields, table.schema))


@contextmanager
def watched() -> Iterator[list[float]]:
    """Yield a list whose only item is the largest memory of a child process so far, in MB."""
    most, stop = [0.0], threading.Event()

    def look() -> None:
        while not stop.wait(_LOOK_SECONDS):
            for process in psutil.Process().children(recursive=True):
                try:
                    most[0] = max(most[0], round(process.memory_info().rss / 2**20, 1))
                except psutil.Error:
                    continue

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield most
    finally:
        stop.set()
        thread.join()


def plan(config: Config, questions: int) -> Step:
    """Plan the readings of so many questions; `stages` has the largest memory of a task."""
    began = time.monotonic()
    asked = tuple(
        make_question(f"What is the secret code of the vault number {number}?") for number in range(questions)
    )
    request = PlanRequest(Corpus(Store(config.store), "plan"), ReaderSpec(config), asked, run_id="plan", engines=8)
    with lazy_ray(config.ray), watched() as most:
        planned = make_plan(request)
    return {
        "seconds": round(time.monotonic() - began, 1),
        "peak_mb": peak_mb(),
        "conversations": planned.conversations,
        "engine_seconds": 0.0,
        "stages": {"task_mb": most[0], "blocks": len(planned.blocks)},
    }


def measure(documents: int, questions: int) -> list[Row]:
    """Measure a corpus of so many documents."""
    folder = Path(tempfile.mkdtemp(prefix="memagent-plan-"))
    config = load_config(sets=["engine.kind=scripted", f"engine.model={bundled()}"], store=str(folder / "store"))
    try:
        write_metadata(config, documents)
        step = in_process(plan, config, questions)
        print(f"{documents:,} documents: {step}", flush=True)
        if step["conversations"] != 2 * documents * questions:
            raise RuntimeError("readings are missing in the plan")
        column = f"{documents:,} documents x {questions} questions"
        written = sum(path.stat().st_size for path in (folder / "store" / "runs").rglob("*.parquet"))
        return [
            Row("plan", step["seconds"], "s", column=column, n=1),
            Row("peak memory of the driver", step["peak_mb"], "MB", column=column, n=1),
            Row("peak memory of a task", step["stages"]["task_mb"], "MB", column=column, n=1),
            Row("plan and work files", round(written / 2**20), "MB", column=column),
            Row("blocks of work", round(step["stages"]["blocks"]), column=column),
        ]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--documents", default="1000000,10000000")
    parser.add_argument("--questions", type=int, default=3)
    arguments(parser)
    given = parser.parse_args()
    rows = [row for count in given.documents.split(",") for row in measure(int(count), given.questions)]
    write(result("plan", "Planning a large archive", rows, given))


if __name__ == "__main__":
    main()
