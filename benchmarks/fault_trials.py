"""A run of `memagent ask` that a fault disturbs, and what became of it."""

import os
import random
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pyarrow.dataset as ds
from ray.cluster_utils import Cluster

from benchmarks.kills import Tally
from infra.store.delta import Table
from infra.store.location import Store
from tests.endurance import ENGINE_TITLES, IN_RAY, QUESTIONS, TALLY, WORKER_TITLE, find
from tests.support.s3_faults import Fault, faulty_s3
from tests.support.s3_server import S3Server, running_s3

SCRIPTED = ("engine.scripted_process=true", "engine.scripted_delay=0.4", "pool.inflight=16")
"""A run of 300 documents then reads for about 100 s. A fault costs what was done since the last part of the turn log,
at most half a second by default, and what is in hand: in a shorter run 1% would be less than that."""
_AWAY_SECONDS = 3.0
_LEAVING_SECONDS = 30.0
_DISK = "size=256m"
_CLOCK = Path(__file__).parents[1] / "tests" / "support" / "set_clock.c"
Answers = Mapping[tuple[str, str], str]
"""Answers by text and question."""


@dataclass(frozen=True)
class Outcome:
    """What became of a disturbed run."""

    lost: int
    double: int
    differing: int
    again: float | str | None
    """Share of conversations that were done again, or why there are none; None: the engine does not count them."""
    recovered: float | None
    """Seconds from the fault to the next conversation; None: it is one of single requests."""


@dataclass(frozen=True)
class Scene:
    """What a trial is given."""

    folder: Path
    """Of this trial alone."""
    archive: Path
    engine: str
    calm: Answers
    """Of an undisturbed run."""
    after: int
    """Conversations before the fault."""


class Trial:
    """A run, its store, and the file in which the scripted engine counts conversations."""

    def __init__(self, scene: Scene, store: str, sets: Sequence[str] = (), variables: Mapping[str, str] = {}) -> None:
        self.scene, self.store = scene, Store(store)
        self.tally = Tally(scene.folder / "tally")
        self._argv = command(scene.archive, store, scene.engine, sets)
        self._variables = {TALLY: str(self.tally.path), **variables}
        self._errors = scene.folder / "errors"

    def start(self) -> "subprocess.Popen[bytes]":
        """Give the command."""
        with self._errors.open("wb") as errors:
            return subprocess.Popen(
                self._argv, env={**os.environ, **self._variables}, stdout=subprocess.DEVNULL, stderr=errors
            )

    def said(self) -> str:
        """Return the end of the last command's standard error."""
        return self._errors.read_text(errors="replace")[-2000:]

    def end(self, process: "subprocess.Popen[bytes]") -> None:
        """Wait for a run; raise if it failed."""
        if process.wait():
            raise RuntimeError(f"the run ended with status {process.returncode}: {self.said()}")

    def done(self) -> int:
        """Return how many conversations there were: counted by the engine, or in the log."""
        return self.tally.conversations if self.scene.engine == "scripted" else len(self._turns())

    def disturb(
        self, fault: Callable[["Trial", "subprocess.Popen[bytes]"], "subprocess.Popen[bytes] | None"]
    ) -> Outcome:
        """Run, with a fault once `Scene.after` conversations are done.

        Args:
            fault: makes it; returns the process with which the work goes on, if it is another one.
        """
        process = self.start()
        while self.done() < self.scene.after:
            if process.poll() is not None:
                raise RuntimeError(f"it ended after {self.done()} of {self.scene.after} conversations: {self.said()}")
            time.sleep(0.05)
        began = time.monotonic()
        process = fault(self, process) or process
        before = self.done()
        while self.done() <= before and process.poll() is None:
            time.sleep(0.05)
        recovered = time.monotonic() - began
        self.end(process)
        return self.outcome(recovered)

    def undisturbed(self) -> Outcome:
        """Run from start to end: the fault is in the store."""
        self.end(self.start())
        return self.outcome(None)

    def answers(self) -> tuple[int, Answers]:
        """Return how many answers there are, and one of each text and question."""
        rows = Table(self.store, "answers").read(None, ["content_hash", "question", "answer"]).to_pylist()
        return len(rows), {(row["content_hash"], row["question"]): row["answer"] for row in rows}

    def outcome(self, recovered: float | None) -> Outcome:
        """Compare what is in the store with an undisturbed run."""
        count, answers = self.answers()
        calm, held = self.scene.calm, self.tally.conversations
        return Outcome(
            lost=len(set(calm) - set(answers)),
            double=count - len(answers),
            differing=sum(answers[key] != calm[key] for key in calm if key in answers),
            again=held / len(set(self._turns())) - 1 if held else None,
            recovered=recovered,
        )

    def _turns(self) -> list[tuple[str, int, int]]:
        files = self.store.list("turns")
        if not files:
            return []
        table = ds.dataset(files, filesystem=self.store.arrow).to_table(columns=["reading_id", "span", "step"])
        return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


def command(archive: Path, store: str, engine: str, sets: Sequence[str] = ()) -> list[str]:
    """Return the command that is disturbed."""
    argv = [sys.executable, "-m", "memagent", "ask", str(archive), "--store", store, "--engine", engine]
    chosen = [*(SCRIPTED if engine == "scripted" else ()), *sets]
    asked = [part for question in QUESTIONS for part in ("-q", question)]
    return [*argv, "--no-answers", *asked, *(part for one in chosen for part in ("--set", one))]


def process_killed(scene: Scene, what: str) -> Outcome:
    """The driver, the worker or the engine's process is killed; a driver's command is given again."""

    def fault(trial: Trial, process: "subprocess.Popen[bytes]") -> "subprocess.Popen[bytes] | None":
        root = psutil.Process(process.pid)
        title = WORKER_TITLE if what == "worker" else ENGINE_TITLES[scene.engine]
        victim = root if what == "driver" else find(root, title)
        if victim is None:
            raise RuntimeError(f"there is no {what} to kill")
        engine = find(root, ENGINE_TITLES[scene.engine])
        victim.kill()
        again = None
        if what == "driver":
            process.wait()
            again = trial.start()
        if engine is not None:  # what it has in hand is no conversation of the run that goes on
            psutil.wait_procs([engine], _LEAVING_SECONDS)
        return again

    return Trial(scene, str(scene.folder / "store"), IN_RAY if what == "worker" else ()).disturb(fault)


def s3_server_killed(scene: Scene) -> Outcome:
    """The S3 server is killed, and started again after three seconds."""
    with _s3(scene) as server:

        def fault(trial: Trial, process: "subprocess.Popen[bytes]") -> None:
            server.kill()
            time.sleep(_AWAY_SECONDS)
            server.start()

        return Trial(scene, f"{server.bucket}/store").disturb(fault)


def s3_spoilt(scene: Scene, kind: Fault) -> Outcome:
    """A fifth of the S3 requests is spoilt, from start to end."""
    with _s3(scene) as server, faulty_s3(0.2, kind):
        return Trial(scene, f"{server.bucket}/store").undisturbed()


@contextmanager
def _s3(scene: Scene) -> Iterator[S3Server]:
    (scene.folder / "s3").mkdir()
    with running_s3(scene.folder / "s3") as server:
        yield server


def node_killed(scene: Scene) -> Outcome:
    """Of two Ray nodes that have room for a worker, the one whose worker reads is lost with all of its processes."""
    os.environ[TALLY] = str(scene.folder / "tally")  # of the nodes' processes, too
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    try:
        nodes = [cluster.add_node(num_cpus=2) for _ in range(2)]

        def fault(trial: Trial, process: "subprocess.Popen[bytes]") -> None:
            raylets = {node.all_processes["raylet"][0].process.pid: node for node in nodes}
            for pid, node in raylets.items():
                if find(psutil.Process(pid), WORKER_TITLE):
                    below = psutil.Process(pid).children(recursive=True)
                    cluster.remove_node(node, allow_graceful=False)
                    for each in below:  # with a machine all of its processes go
                        with suppress(psutil.NoSuchProcess):
                            each.kill()
                    return
            raise RuntimeError("no node has a worker")

        sets = [f"ray.address={cluster.address}", "pool.min_size=1", "pool.max_size=1"]
        return Trial(scene, str(scene.folder / "store"), sets).disturb(fault)
    finally:
        cluster.shutdown()
        os.environ.pop(TALLY)


def disk_filled(scene: Scene) -> Outcome:
    """The store's disk has no room left: the run says so and ends; once there is room, the command is given again."""
    disk = scene.folder / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", _DISK, "tmpfs", str(disk)], capture_output=True, text=True)
    if mounted.returncode:
        raise RuntimeError(f"a disk of its own needs root: {mounted.stderr.strip()}")
    ballast = disk / "ballast"

    def fault(trial: Trial, process: "subprocess.Popen[bytes]") -> "subprocess.Popen[bytes]":
        with ballast.open("wb", buffering=0) as file:
            try:
                while file.write(b"\0" * 2**16):
                    pass
            except OSError:
                pass
        if process.wait() == 0 or "no space is left" not in trial.said():
            raise RuntimeError(f"status {process.returncode} on a full disk: {trial.said()}")
        ballast.unlink()
        return trial.start()

    try:
        return Trial(scene, str(disk / "store")).disturb(fault)
    finally:
        ballast.unlink(missing_ok=True)
        subprocess.run(["umount", "--lazy", str(disk)], check=False)


def clock_set(scene: Scene) -> Outcome:
    """The wall clock of all processes is set an hour ahead, and three seconds later two hours back."""
    library, clock = scene.folder / "clock.so", scene.folder / "clock"
    built = subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(_CLOCK), "-ldl"], check=False)
    if built.returncode:
        raise RuntimeError("a clock of its own needs a C compiler")
    clock.write_bytes(_seconds(0))
    variables = {"LD_PRELOAD": str(library), "SET_CLOCK": str(clock)}

    def fault(trial: Trial, process: "subprocess.Popen[bytes]") -> None:
        for hours in (1, -1):
            with clock.open("r+b") as file:  # in place: the processes have it mapped
                file.write(_seconds(hours))
            time.sleep(_AWAY_SECONDS if hours > 0 else 0)

    return Trial(scene, str(scene.folder / "store"), variables=variables).disturb(fault)


def _seconds(hours: int) -> bytes:
    return struct.pack("=q", 3600 * hours)


def moment(conversations: int, rng: random.Random) -> int:
    """Draw after how many conversations a fault comes."""
    return round(conversations * rng.uniform(0.1, 0.8))
