"""A corpus of many documents: ingest to answers, scheduled runs after it, and the driver's memory.

    python -m benchmarks.scale [--documents 10000,100000,1000000] [--store URL | --s3] [--set key=value ...]

Documents are rows of Parquet files: most of one segment, one in twenty of two, one in ten thousand of a thousand. They
are read with the scripted engine, so what is measured is the pipeline. Each step runs in a driver process of its own,
whose peak memory is that of this process; workers are Ray's.
"""

import argparse
import multiprocessing
import random
import re
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from itertools import islice
from pathlib import Path
from typing import TypedDict

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.record import Row, arguments, result, write
from infra.cluster.session import lazy_ray
from infra.store.corpora import remember
from infra.store.location import Corpus, Store
from memagent.config import Config, load_config
from memagent.nano import bundled
from memagent.questions import ask as make_question
from pipelines.ask import digest
from pipelines.io.answers import answer_rows
from pipelines.operate.optimize import optimize
from pipelines.operate.status import corpus_status
from pipelines.stages.ingest import ingest
from tests.support.s3_server import s3_server

QUESTION = "What is the secret code of the vault?"
FILE_ROWS = 50_000
_WORDS = (
    "the of a contract party shall notify region color weather table data file index under over between agreement term "
    "renewal seller buyer"
).split()


class Step(TypedDict):
    """The cost of a step."""

    seconds: float
    peak_mb: float
    conversations: int
    engine_seconds: float
    stages: dict[str, float]


def document(number: int, version: int, words: int = 12) -> str:
    """Return a document: the needle's sentence somewhere in filler of its own."""
    rng = random.Random(f"{number}-{version}")
    sentences = 10
    if number % 20 == 7:
        sentences = 18
    if number % 10_000 == 77:
        sentences = 12_000
    lines = [" ".join(rng.choices(_WORDS, k=words)).capitalize() + "." for _ in range(sentences)]
    lines.insert(rng.randrange(sentences), f"The secret code of the vault is {number}.")
    return " ".join(lines)


def make_corpus(folder: Path, documents: int, changed: int = 0) -> None:
    """Write the corpus as Parquet files; the first `changed` documents in another version."""
    folder.mkdir(parents=True, exist_ok=True)
    for first in range(0, documents, FILE_ROWS):
        if changed and first >= changed:
            return
        numbers = range(first, min(documents, first + FILE_ROWS))
        texts = pa.array([document(n, int(n < changed)) for n in numbers], pa.large_string())
        table = pa.table({"id": [f"doc-{n:08}" for n in numbers], "text": texts})
        pq.write_table(table, folder / f"part-{first // FILE_ROWS:05}.parquet", row_group_size=5_000)


def in_process(step: Callable[..., Step], *given: object) -> Step:
    """Run a step in a fresh process."""
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    process = context.Process(target=_run, args=(step, given, answers))
    process.start()
    answer: Step | str = answers.get()
    process.join()
    if isinstance(answer, str):
        raise RuntimeError(answer)
    return answer


def _run(step: Callable[..., Step], given: tuple[object, ...], answers: "multiprocessing.Queue[Step | str]") -> None:
    try:
        answers.put(step(*given))
    except BaseException as error:
        answers.put(f"{type(error).__name__}: {error}")
        raise


def peak_mb() -> float:
    """Return the peak memory of this process; `ru_maxrss` would be that of the process which started it, if larger."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return round(int(found[1]) / 1024, 1) if found else 0.0


def take(config: Config, folder: str) -> Step:
    """Ingest the corpus."""
    began = time.monotonic()
    corpus = Corpus(Store(config.store), "scale")
    remember(corpus, sources=[folder])
    with lazy_ray(config.ray):
        ingest(corpus, [folder], config, "ingest")
    return _step(began, 0, 0.0, {})


def read(config: Config) -> Step:
    """Digest the corpus by one question."""
    began = time.monotonic()
    summary = digest("scale", [make_question(QUESTION)], config, fetch=True)
    if summary["readings"]["failed"]:
        raise RuntimeError(f"readings failed: {summary['failures_by_reason']}")
    return _step(began, summary["conversations"], summary["engine_seconds"], summary["stage_seconds"])


def look(config: Config) -> Step:
    """Show the corpus's status."""
    began = time.monotonic()
    corpus_status(config, "scale")
    return _step(began, 0, 0.0, {})


def choose(config: Config) -> Step:
    """Take twenty answers by a pattern."""
    began = time.monotonic()
    rows = answer_rows(Corpus(Store(config.store), "scale"), where=[("answer", "*77*")])
    if len(list(islice(rows, 20))) < 20:
        raise RuntimeError("there are not twenty such answers")
    return _step(began, 0, 0.0, {})


def tidy(config: Config) -> Step:
    """Put the files of the store together, and delete the replaced ones."""
    began = time.monotonic()
    optimize("scale", config, retention_days=0)
    return _step(began, 0, 0.0, {})


def _step(began: float, conversations: int, engine_seconds: float, stages: dict[str, float]) -> Step:
    return {
        "seconds": round(time.monotonic() - began, 1),
        "peak_mb": peak_mb(),
        "conversations": conversations,
        "engine_seconds": engine_seconds,
        "stages": stages,
    }


def objects(store: Store) -> int:
    """Return how many files a store has."""
    return len(store.list(suffix=""))


def rows_of(documents: int, name: str, step: Step, note: str = "") -> list[Row]:
    """Return a step's rows."""
    print(f"{documents:,} documents, {name}: {step}", flush=True)
    column = f"{documents:,} documents"
    return [
        Row(name, step["seconds"], "s", column=column, n=1, note=note),
        Row(f"driver's peak memory, {name}", step["peak_mb"], "MB", column=column, n=1),
    ]


def measure(documents: int, url: str, sets: list[str]) -> list[Row]:
    """Measure a corpus of so many documents."""
    folder = Path(tempfile.mkdtemp(prefix="memagent-scale-"))
    store = f"{url}/{documents}" if url else str(folder / "store")
    model = ["engine.kind=scripted", f"engine.model={bundled()}"]
    config = load_config(sets=[*model, *sets], store=store)
    try:
        make_corpus(folder / "corpus", documents)
        rows = rows_of(documents, "ingest", in_process(take, config, str(folder / "corpus")))
        first = in_process(read, config)
        rate = first["conversations"] / first["engine_seconds"]
        rows += rows_of(
            documents,
            "first digest",
            first,
            ", ".join(f"{name} {seconds:,.0f} s" for name, seconds in first["stages"].items() if seconds >= 1),
        )
        rows.append(Row("conversations a second in the pass", round(rate, 1), column=f"{documents:,} documents"))
        rows.append(Row("objects in the store", objects(Store(store)), column=f"{documents:,} documents"))
        rows += rows_of(documents, "scheduled run without a change", in_process(read, config))
        make_corpus(folder / "corpus", documents, changed=max(1, documents // 100))
        rows += rows_of(documents, "scheduled run with 1% changed", in_process(read, config))
        return rows + after(documents, config)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def after(documents: int, config: Config) -> list[Row]:
    """Measure what people do with a corpus that was read."""
    column = f"{documents:,} documents"
    rows = rows_of(documents, "optimize", in_process(tidy, config))
    files = objects(Store(config.store))
    rows.append(Row("objects in the store after it", files, column=column, note="entries of Delta's logs among them"))
    rows += rows_of(documents, "status", in_process(look, config))
    rows += rows_of(documents, "answers by a pattern, the first twenty", in_process(choose, config))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--documents", default="10000,100000,1000000")
    parser.add_argument("--store", default="", help="URL to put the stores under; else a temporary folder")
    parser.add_argument("--s3", action="store_true", help="start an S3 server, and put the stores there")
    parser.add_argument("--set", action="append", default=[])
    arguments(parser)
    given = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="memagent-s3-") as name,
        s3_server(Path(name)) if given.s3 else nullcontext(given.store) as url,
    ):
        rows = [row for n in given.documents.split(",") for row in measure(int(n), url, given.set)]
    if given.s3:
        write(result("scale-s3", "A corpus of many documents, on S3 (SeaweedFS on the same two cores)", rows, given))
    else:
        write(result("scale", "A corpus of many documents", rows, given))


if __name__ == "__main__":
    main()
