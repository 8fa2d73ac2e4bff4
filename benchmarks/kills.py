"""A large run that is killed again and again: what is lost, what is done twice, what the answers are in the end.

    python -m benchmarks.kills [--documents 1000000] [--driver 5] [--worker 5] [--all 2] [--set key=value ...]

The corpus is that of `benchmarks.scale`. One run reads it; its driver, a worker, or all of its processes are killed by
SIGKILL at moments spread over the pass, and the same command is given again each time. The scripted engine counts every
conversation that it has, so what is done again is counted and not estimated.
"""

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pyarrow.dataset as ds

from benchmarks.record import Row, arguments, result, write
from benchmarks.scale import FILE_ROWS, QUESTION, in_process, make_corpus, take
from infra.store.delta import Table
from infra.store.location import Store
from memagent.config import load_config
from memagent.nano import bundled

_TALLY = "MEMAGENT_SCRIPTED_TALLY"
_WORKER = "MapBatches(_EngineWorker)"
_LOOK_SECONDS = 0.2
_MARGIN = 0.9
"""Share of the pass in which kills happen."""


class Tally:
    """The file to which the scripted engine appends a byte for each conversation."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def conversations(self) -> int:
        """Conversations so far."""
        return self.path.stat().st_size if self.path.exists() else 0


def processes(root: psutil.Process) -> list[psutil.Process]:
    """Return a process and all below it."""
    return [root, *root.children(recursive=True)]


def victims(root: psutil.Process, target: str) -> list[psutil.Process]:
    """Return the processes to kill; none if the target is not there."""
    if target == "all":
        return processes(root)
    if target == "driver":
        return [root]
    for process in root.children(recursive=True):
        try:
            if _WORKER in " ".join(process.cmdline()):
                return [process]
        except psutil.Error:
            continue
    return []


def disturb(argv: list[str], tally: Tally, kills: Iterator[tuple[int, str]]) -> tuple[list[str], int]:
    """Run a command until it ends by itself; return the targets killed, and how often it was started.

    Args:
        argv: the command.
        tally: counts conversations.
        kills: after how many conversations what is killed, in order.
    """
    killed: list[str] = []
    starts = 0
    after, target = next(kills, (sys.maxsize, ""))
    while True:
        starts += 1
        process = subprocess.Popen(argv, env={**os.environ, _TALLY: str(tally.path)}, stdout=subprocess.DEVNULL)
        root = psutil.Process(process.pid)
        while process.poll() is None:
            time.sleep(_LOOK_SECONDS)
            if tally.conversations < after or not (chosen := victims(root, target)):
                continue
            for victim in chosen:
                victim.send_signal(signal.SIGKILL)
            killed.append(target)
            print(f"{target} killed after {tally.conversations:,} conversations", flush=True)
            if target != "worker":
                process.wait()
            after, target = next(kills, (sys.maxsize, ""))
        if process.returncode == 0:
            return killed, starts
        if not killed or killed[-1] == "worker":
            raise RuntimeError(f"the run ended with status {process.returncode}")


def logged(store: Store) -> int:
    """Return how many different conversations are in the turn log."""
    table = ds.dataset(store.list("turns", "scale"), filesystem=store.arrow).to_table(
        columns=["reading_id", "span", "step"]
    )
    return int(table.group_by(["reading_id", "span", "step"]).aggregate([]).num_rows)


def check_answers(store: Store, documents: int) -> int:
    """Return how many answers are not the document's number; raise if a document has none, or several."""
    answers = Table(store, "answers").read("scale", ["reading_id", "content_hash", "answer"])
    names = Table(store, "documents").read("scale", ["doc_id", "content_hash"])
    if answers.num_rows != documents or len(answers["reading_id"].unique()) != documents:
        raise RuntimeError(f"{answers.num_rows:,} answers of {documents:,} documents")
    joined = answers.join(names, "content_hash")
    pairs = zip(joined["doc_id"].to_pylist(), joined["answer"].to_pylist(), strict=True)
    return sum(_number(doc_id) != int(answer or -1) for doc_id, answer in pairs)


def _number(doc_id: str) -> int:
    """Return a document's number: ids are ``part-00001.parquet#7``, with rows counted from one."""
    part, _, row = doc_id.removeprefix("part-").partition(".parquet#")
    return int(part) * FILE_ROWS + int(row) - 1


def measure(documents: int, targets: list[str], sets: list[str]) -> list[Row]:
    """Read a corpus of so many documents, disturbed."""
    folder = Path(tempfile.mkdtemp(prefix="memagent-kills-"))
    store = str(folder / "store")
    given = ["engine.kind=scripted", f"engine.model={bundled()}", *sets]
    try:
        make_corpus(folder / "corpus", documents)
        in_process(take, load_config(sets=given, store=store), str(folder / "corpus"))
        argv = [sys.executable, "-m", "memagent", "ask", "scale", "-q", QUESTION, "--store", store, "--no-answers"]
        argv += [part for item in given for part in ("--set", item)]
        step = 2 * documents / (len(targets) + 1) * _MARGIN
        moments = iter([(round(step * (number + 1)), target) for number, target in enumerate(targets)])
        tally = Tally(folder / "tally")
        began = time.monotonic()
        killed, starts = disturb(argv, tally, moments)
        seconds = time.monotonic() - began
        distinct = logged(Store(store))
        again = tally.conversations - distinct
        column = f"{documents:,} documents"
        kinds = ", ".join(f"{killed.count(kind)} {kind}" for kind in ("driver", "worker", "all"))
        return [
            Row("kills", len(killed), column=column, note=f"{kinds}; started {starts} times"),
            Row("conversations", distinct, column=column),
            Row("done again", round(100 * again / distinct, 2), "%", column=column, note=f"{again:,} conversations"),
            Row("answers that differ", check_answers(Store(store), documents), column=column, n=documents),
            Row("segmenting to answers with all kills", round(seconds, 1), "s", column=column, n=1),
        ]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--documents", type=int, default=1_000_000)
    parser.add_argument("--driver", type=int, default=5)
    parser.add_argument("--worker", type=int, default=5)
    parser.add_argument("--all", type=int, default=2)
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--seed", type=int, default=0)
    arguments(parser)
    given = parser.parse_args()
    targets = ["driver"] * given.driver + ["worker"] * given.worker + ["all"] * given.all
    random.Random(given.seed).shuffle(targets)
    write(result("scale-kills", "A large run, killed", measure(given.documents, targets, given.set), given))


if __name__ == "__main__":
    main()
