"""The fault matrix: what a fault costs a run that is asked two questions of a folder.

    python -m benchmarks.faults [--times 10] [--vllm 2] [--cases driver,worker,...] [--record NAME]

Faults are a SIGKILL of the driver (the command is then given again), the worker, the engine's process or the S3
server (started again after three seconds); a fifth of the S3 requests answered by 500, 503, not at all, not to the end,
or after five seconds. For each: readings that lack an answer, that have two, that differ from an undisturbed run;
conversations that were done again; and the seconds from the fault to the next conversation. Those of a node and of a
learner's rank are in `benchmarks.cluster` and in the tests.
"""

import argparse
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import psutil
import pyarrow.dataset as ds

from benchmarks.kills import Tally
from benchmarks.record import Row, arguments, result, write
from infra.store import Store
from infra.tables.delta import Table
from tests.endurance import ENGINE_TITLES, QUESTIONS, WORKER_TITLE, find, make_archive
from tests.s3_faults import FAULTS, faulty_s3
from tests.s3_server import S3Server, running_s3

_KILLED = ("driver", "worker", "engine", "S3 server")
_CASES = (*_KILLED, *FAULTS)
_AWAY_SECONDS = 3.0
_SCRIPTED = ("engine.scripted_process=true", "engine.scripted_delay=0.1", "pool.inflight=16", "flush_seconds=1")
_NAMES = {
    "500": "a fifth of S3 requests: 500",
    "503": "a fifth of S3 requests: 503",
    "reset": "a fifth of S3 requests: no answer",
    "cut": "a fifth of S3 requests: done, but no answer",
    "slow": "a fifth of S3 requests: 5 s later",
}


@dataclass(frozen=True)
class Outcome:
    """What became of a disturbed run."""

    lost: int
    double: int
    differing: int
    again: float | None
    """Share of conversations that were done again; None: the engine does not count them."""
    recovered: float | None
    """Seconds from the fault to the next conversation."""


class Trial:
    """A run of one case."""

    def __init__(self, base: Path, store: str, engine: str, calm: dict[tuple[str, str], str]) -> None:
        self._store, self._engine, self._calm = Store(store), engine, calm
        self._argv = command(base / "archive", store, engine)
        self.tally = Tally(base / f"tally-{random.randrange(2**32)}")

    def start(self) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "MEMAGENT_SCRIPTED_TALLY": str(self.tally.path)}
        return subprocess.Popen(self._argv, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def done(self) -> int:
        """Return how many conversations there were: counted by the engine, or in the log."""
        return self.tally.conversations if self._engine == "scripted" else len(self._turns())

    def disturb(self, case: str, after: int, server: S3Server | None) -> float | None:
        """Run with a fault once `after` conversations are done; return the seconds till the next one."""
        process = self.start()
        if case not in _KILLED:
            ended(process)
            return None
        while self.done() < after:
            if process.poll() is not None:
                raise RuntimeError(f"it ended before the fault: {self.done()} conversations, fault after {after}")
            time.sleep(0.05)
        began, before = time.monotonic(), self.done()
        if case == "S3 server" and server:
            server.kill()
            time.sleep(_AWAY_SECONDS)
            server.start()
        else:
            root = psutil.Process(process.pid)
            title = WORKER_TITLE if case == "worker" else ENGINE_TITLES[self._engine]
            victim = root if case == "driver" else find(root, title)
            if victim is None:
                raise RuntimeError(f"there is no {case} to kill")
            victim.kill()
        if case == "driver":
            process.wait()
            process = self.start()
        while self.done() <= before and process.poll() is None:
            time.sleep(0.05)
        recovered = time.monotonic() - began
        ended(process)
        return recovered

    def outcome(self, recovered: float | None) -> Outcome:
        rows = Table(self._store, "answers").read(None, ["content_hash", "question", "answer"]).to_pylist()
        answers = {(row["content_hash"], row["question"]): row["answer"] for row in rows}
        distinct = len(set(self._turns()))
        held = self.tally.conversations
        return Outcome(
            lost=len(set(self._calm) - set(answers)),
            double=len(rows) - len(answers),
            differing=sum(answers[key] != self._calm[key] for key in self._calm if key in answers),
            again=held / distinct - 1 if held else None,
            recovered=recovered,
        )

    def _turns(self) -> list[tuple[str, int, int]]:
        files = self._store.list("turns")
        if not files:
            return []
        table = ds.dataset(files, filesystem=self._store.arrow).to_table(columns=["reading_id", "lane", "step"])
        return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


def command(archive: Path, store: str, engine: str) -> list[str]:
    """Return the command that is disturbed."""
    argv = [sys.executable, "-m", "pipelines.cli", "ask", str(archive), "--store", store, "--engine", engine]
    sets = _SCRIPTED if engine == "scripted" else ("flush_seconds=1",)
    asked = [part for question in QUESTIONS for part in ("-q", question)]
    return [*argv, "--no-answers", *asked, *(part for one in sets for part in ("--set", one))]


def ended(process: subprocess.Popen[bytes]) -> None:
    """Wait for a run; raise if it failed."""
    if process.wait():
        raise RuntimeError(f"the run ended with status {process.returncode}")


def calm(base: Path, engine: str) -> tuple[dict[tuple[str, str], str], int]:
    """Return the answers of an undisturbed run, and its conversations."""
    trial = Trial(base, str(base / f"calm-{engine}"), engine, {})
    ended(trial.start())
    rows = Table(trial._store, "answers").read(None, ["content_hash", "question", "answer"]).to_pylist()
    return {(row["content_hash"], row["question"]): row["answer"] for row in rows}, trial.done()


def measure(cases: list[str], times: int, engine: str, documents: int) -> Iterator[Row]:
    """Yield the rows of an engine's cases."""
    rng = random.Random(0)
    base = Path(tempfile.mkdtemp(prefix="memagent-faults-"))
    try:
        make_archive(base / "archive", documents, 40)
        expected, conversations = calm(base, engine)
        for case in cases:
            outcomes = []
            for number in range(times):
                on_s3 = case not in _KILLED or case == "S3 server"
                (base / f"s3-{case}-{number}").mkdir()
                with running_s3(base / f"s3-{case}-{number}") if on_s3 else nullcontext() as server:
                    store = f"{server.bucket}/store" if server else str(base / f"store-{case}-{number}")
                    with faulty_s3(0.2, case) if case in FAULTS else nullcontext():
                        trial = Trial(base, store, engine, expected)
                        after = round(conversations * rng.uniform(0.1, 0.8))
                        recovered = trial.disturb(case, after, server)
                    outcomes.append(trial.outcome(recovered))
                print(f"{engine}, {case}: {outcomes[-1]}", flush=True)
            yield from rows_of(_NAMES.get(case, f"{case} killed"), engine, outcomes)
    finally:
        shutil.rmtree(base, ignore_errors=True)


def rows_of(name: str, engine: str, outcomes: list[Outcome]) -> Iterator[Row]:
    """Yield the rows of a case."""
    counts = {
        "lost": sum(each.lost for each in outcomes),
        "double": sum(each.double for each in outcomes),
        "differing": sum(each.differing for each in outcomes),
    }
    for what, count in counts.items():
        yield Row(f"{name}: {what}", count, column=engine, n=len(outcomes))
    again = [100 * each.again for each in outcomes if each.again is not None]
    recovered = [each.recovered for each in outcomes if each.recovered is not None]
    for what, unit, values in (("done again", "%", again), ("recovered after", "s", recovered)):
        if values:
            note = f"at most {max(values):.2f} {unit}"
            mean = round(statistics.mean(values), 2)
            yield Row(f"{name}: {what}", mean, unit, column=engine, n=len(values), note=note)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--times", type=int, default=10, help="with the scripted engine")
    parser.add_argument("--vllm", type=int, default=2, help="times with vLLM: the killed processes alone")
    parser.add_argument("--documents", type=int, default=60)
    parser.add_argument("--cases", default=",".join(_CASES))
    arguments(parser)
    given = parser.parse_args()
    os.environ.pop("MEMAGENT_STORE", None)
    cases = given.cases.split(",")
    rows = list(measure(cases, given.times, "scripted", given.documents))
    if given.vllm:
        rows += measure([case for case in cases if case in _KILLED[:3]], given.vllm, "vllm", given.documents // 3)
    write(result("faults", "What faults cost", rows, given))


if __name__ == "__main__":
    main()
