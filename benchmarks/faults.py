"""The fault matrix: what a fault costs a run that is asked two questions of a folder.

    python -m benchmarks.faults [--times 10] [--vllm 2] [--cases driver,worker,...] [--beside 4] [--record NAME]

For each fault: runs that did not end well; readings that lack an answer, that have two, that differ from an undisturbed
run; conversations that were done again; and the seconds from the fault to the next conversation, in which a command
that has to be given again starts anew. Of a training, steps and tensors stand for readings and answers. The record is
written after each case, and keeps the cases of an earlier one. "disk" needs root (it mounts a small disk), "clock" a C
compiler.

The scripted engine's conversations take their time by waiting, so that `--beside` trials run side by side; they share
the machine, and recover more slowly than one alone. With vLLM there is one at a time.
"""

import argparse
import math
import os
import random
import shutil
import statistics
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from benchmarks.fault_services import rank_killed, service_killed
from benchmarks.fault_trials import (
    Answers,
    Outcome,
    Scene,
    Trial,
    clock_set,
    disk_filled,
    moment,
    node_killed,
    process_killed,
    s3_server_killed,
    s3_spoilt,
)
from benchmarks.record import Row, arguments, result, write
from tests.endurance import make_archive

_CASES: dict[str, tuple[str, Callable[[Scene], Outcome]]] = {
    "driver": ("driver killed", partial(process_killed, what="driver")),
    "worker": ("worker killed", partial(process_killed, what="worker")),
    "engine": ("engine killed", partial(process_killed, what="engine")),
    "rank": ("a rank of the learner killed", rank_killed),
    "node": ("Ray node killed", node_killed),
    "prefect": ("Prefect server killed", partial(service_killed, what="Prefect server")),
    "runner": ("runner of flows killed", partial(service_killed, what="runner")),
    "s3": ("S3 server killed", s3_server_killed),
    "500": ("a fifth of S3 requests: 500", partial(s3_spoilt, kind="500")),
    "503": ("a fifth of S3 requests: 503", partial(s3_spoilt, kind="503")),
    "reset": ("a fifth of S3 requests: no answer", partial(s3_spoilt, kind="reset")),
    "cut": ("a fifth of S3 requests: done, but no answer", partial(s3_spoilt, kind="cut")),
    "slow": ("a fifth of S3 requests: 5 s later", partial(s3_spoilt, kind="slow")),
    "disk": ("the store's disk full", disk_filled),
    "clock": ("the clock set 1 h ahead, then 2 h back", clock_set),
}
"""Cases by name: what they are called in the record, and what makes a trial of one."""
_MANY_FAULTS = ("500", "503", "reset", "cut", "slow")
"""Cases of which each trial has hundreds of faults: a third of the times are made."""
_OF_OUTCOMES = ("lost", "double", "differing", "done again", "recovered after")
"""Columns of what became of the runs that ended well."""
_WITH_VLLM = ("driver", "worker", "engine", "node", "s3")


class Archive:
    """The folder that all trials read, and an undisturbed run over it."""

    def __init__(self, base: Path, engine: str, documents: int) -> None:
        self._base, self.engine = base, engine
        make_archive(base / "archive", documents, 40)
        trial = Trial(self._scene("calm", {}, 0), str(base / "calm" / "store"))
        trial.undisturbed()
        self._calm, self._conversations = trial.answers()[1], trial.done()

    def scene(self, name: str, rng: random.Random) -> Scene:
        """Return what a trial is given."""
        return self._scene(name, self._calm, moment(self._conversations, rng))

    def _scene(self, name: str, calm: Answers, after: int) -> Scene:
        (self._base / name).mkdir()
        return Scene(self._base / name, self._base / "archive", self.engine, calm=calm, after=after)


def measure(cases: list[str], times: int, archive: Archive, pool: Executor) -> Iterator[list[Row]]:
    """Yield the rows of each of an engine's cases, in their order."""
    rng = random.Random(0)
    trials: dict[str, list[Future[Outcome | None]]] = {
        case: [pool.submit(tried, case, archive.scene(f"{case}-{n}", rng)) for n in range(trials_of(case, times))]
        for case in cases
    }
    for case, begun in trials.items():
        outcomes = [trial.result() for trial in begun]
        good = [outcome for outcome in outcomes if outcome is not None]
        yield list(rows_of(f"{_CASES[case][0]}, {archive.engine}", good, len(outcomes) - len(good)))


def trials_of(case: str, times: int) -> int:
    """Return how many trials are made of a case."""
    return math.ceil(times / 3) if case in _MANY_FAULTS else times


def tried(case: str, scene: Scene) -> Outcome | None:
    """Make a trial of a case, and say what it came to; None: its run did not end well."""
    began = time.monotonic()
    try:
        outcome = _CASES[case][1](scene)
    except Exception as error:  # whatever it is: a trial that fails is counted, and the others are made
        print(f"{scene.engine}, {case}: {error!r}", flush=True)
        traceback.print_exc()
        return None
    finally:
        shutil.rmtree(scene.folder, ignore_errors=True)
    print(f"{scene.engine}, {case}: {outcome} in {time.monotonic() - began:.0f} s", flush=True)
    return outcome


@dataclass(frozen=True)
class Plan:
    """Which trials are made with an engine."""

    cases: list[str]
    times: int
    """Trials of a case; see `trials_of`."""
    engine: str
    documents: int
    beside: int
    """Trials at the same time, each in a process of its own."""

    def measure(self) -> Iterator[list[Row]]:
        """Yield the rows of each case."""
        base = Path(tempfile.mkdtemp(prefix="memagent-faults-"))
        pool = ProcessPoolExecutor(self.beside, get_context("spawn"))
        try:
            yield from measure(self.cases, self.times, Archive(base, self.engine, self.documents), pool)
        finally:
            pool.shutdown(cancel_futures=True)
            shutil.rmtree(base, ignore_errors=True)


def rows_of(name: str, outcomes: list[Outcome], failures: int) -> Iterator[Row]:
    """Yield the rows of a case; `failures` are trials whose run did not end well."""
    yield Row(name, len(outcomes) + failures, column="times")
    yield Row(name, failures, column="failed")
    if not outcomes:  # else a record that is kept would show what earlier trials came to
        yield from (Row(name, "no run ended well", column=column) for column in _OF_OUTCOMES)
        return
    yield Row(name, sum(each.lost for each in outcomes), column="lost")
    yield Row(name, sum(each.double for each in outcomes), column="double")
    yield Row(name, sum(each.differing for each in outcomes), column="differing")
    again = [100 * each.again for each in outcomes if isinstance(each.again, float)]
    if again:
        most = f"at most {max(again):.2f}%"
        yield Row(name, round(statistics.mean(again), 2), "%", column="done again", note=most)
    for reason in sorted({each.again for each in outcomes if isinstance(each.again, str)}):
        yield Row(name, reason, column="done again")
    recovered = [each.recovered for each in outcomes if each.recovered is not None]
    if recovered:
        most = f"at most {max(recovered):.1f} s"
        yield Row(name, round(statistics.mean(recovered), 1), "s", column="recovered after", note=most)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--times", type=int, default=10, help="with the scripted engine; of spoilt requests a third")
    parser.add_argument("--vllm", type=int, default=2, help=f"times with vLLM: {', '.join(_WITH_VLLM)}")
    parser.add_argument("--documents", type=int, default=300, help="with vLLM a fifteenth")
    parser.add_argument("--cases", default=",".join(_CASES))
    parser.add_argument("--beside", type=int, default=4, help="trials with the scripted engine at the same time")
    arguments(parser)
    given = parser.parse_args()
    os.environ.pop("MEMAGENT_STORE", None)
    cases = given.cases.split(",")
    if wrong := [case for case in cases if case not in _CASES]:
        parser.error(f"there is no case {wrong[0]!r}: {', '.join(_CASES)}")
    with_vllm = [case for case in cases if case in _WITH_VLLM]
    plans = (
        Plan(cases, given.times, "scripted", given.documents, given.beside),
        Plan(with_vllm, given.vllm, "vllm", given.documents // 15, 1),
    )
    for plan in plans:
        if plan.cases and plan.times:
            for rows in plan.measure():
                write(result("faults", "What faults cost", rows, given), keep=True)


if __name__ == "__main__":
    main()
