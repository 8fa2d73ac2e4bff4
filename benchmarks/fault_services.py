"""Faults of what runs around the reading: the server and the runner of `memagent up`, and a rank of a training."""

import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError

import psutil
import torch

from benchmarks.fault_trials import SCRIPTED, Outcome, Scene, Trial
from infra.store.location import Store
from tests.endurance import QUESTIONS, TALLY, find
from tests.integration import test_training as trainings
from tests.support.flowing import Served, serving

_TITLES = {"Prefect server": "pipelines.flows.serve", "runner": "pipelines.cli.up"}
_RANK = "ray::RankActor"
_ENDED = {"COMPLETED", "FAILED", "CRASHED", "CANCELLED"}
_GIVES_UP_SECONDS = 60.0
"""Time in which `memagent up` must notice; then it is ended, as an operator would."""
_OUTLIVES_SECONDS = 3.0
"""Time in which a flow that outlives it has another conversation."""


def service_killed(scene: Scene, what: str) -> Outcome:
    """The Prefect server or the runner of `memagent up` is killed; both commands are given again.

    The process of a flow run outlives its runner, and goes on reading.
    """
    sets = ["engine.kind=scripted", *SCRIPTED]
    trial = Trial(scene, str(scene.folder / "up" / "store"))
    (scene.folder / "up").mkdir()
    with _counted(trial.tally.path):
        with serving(scene.folder / "up", sets) as served:
            _begin(served, scene)
            _wait(lambda: trial.done() >= scene.after, served)
            began = time.monotonic()
            victim = find(psutil.Process(served.process.pid), _TITLES[what])
            if victim is None:
                raise RuntimeError(f"there is no {what} to kill")
            _kill(victim, _TITLES[what])
            with suppress(subprocess.TimeoutExpired):
                served.process.wait(_GIVES_UP_SECONDS)
        before = trial.done()
        recovered = _next(trial, before, began)
        with serving(scene.folder / "up", sets) as served:
            run = _begin(served, scene)
            _wait(lambda: trial.done() > before or _state(served, run) in _ENDED, served)
            recovered = recovered or time.monotonic() - began
            _wait(lambda: _state(served, run) in _ENDED, served)
            if _state(served, run) != "COMPLETED":
                raise RuntimeError(f"the flow run is {_state(served, run)}: {_said(served)}")
    return trial.outcome(recovered)


def _next(trial: Trial, before: int, began: float) -> float | None:
    """Return when the next conversation comes that no `memagent up` is there for; None: none comes."""
    until = time.monotonic() + _OUTLIVES_SECONDS
    while time.monotonic() < until:
        if trial.done() > before:
            return time.monotonic() - began
        time.sleep(0.05)
    return None


def _kill(victim: psutil.Process, title: str) -> None:
    """Kill a process, and the one of the same module that it watches over."""
    below = [one for one in victim.children() if title in " ".join(one.cmdline())]
    for process in [*below, victim]:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def _begin(served: Served, scene: Scene) -> str:
    deployment = _ask(served, "deployments/name/answer-archive/bulk")["id"]
    given = {"corpus": "archive", "questions": list(QUESTIONS), "sources": [str(scene.archive)]}
    wanted = {"parameters": given, "idempotency_key": uuid.uuid4().hex}  # where it is asked for twice, there is one
    return str(_ask(served, f"deployments/{deployment}/create_flow_run", wanted)["id"])


def _state(served: Served, run: str) -> str:
    return str(_ask(served, f"flow_runs/{run}")["state"]["type"])


def _ask(served: Served, path: str, body: dict[str, Any] | None = None) -> Any:
    """Ask the server as Prefect's own client does: again while it is busy, as it is when it starts (503)."""
    while True:
        try:
            return served.ask(path, body)
        except URLError as error:
            if isinstance(error, HTTPError) and error.code != HTTPStatus.SERVICE_UNAVAILABLE:
                raise
            _check(served)
            time.sleep(1.0)


def _wait(true: Callable[[], bool], served: Served) -> None:
    while not true():
        _check(served)
        time.sleep(0.2)


def _check(served: Served) -> None:
    if served.process.poll() is not None:
        raise RuntimeError(f"memagent up ended: {_said(served)}")


def _said(served: Served) -> str:
    return served.log.read_text(errors="replace")[-2000:]


@contextmanager
def _counted(tally: Path) -> Iterator[None]:
    """Have the scripted engines of all processes count conversations in a file."""
    os.environ[TALLY] = str(tally)
    try:
        yield
    finally:
        os.environ.pop(TALLY)


def rank_killed(scene: Scene) -> Outcome:
    """One of two ranks of a training is killed between two of its five steps."""
    (scene.folder / "small.toml").write_text(trainings.RECIPE)
    (scene.folder / "text.txt").write_text("the term of the notice is in the schedule. " * 200)
    calm, killed = (_Training(scene.folder, name) for name in ("calm", "killed"))
    undisturbed = calm.start()
    run = json.loads(calm.end(undisturbed))["run_id"]
    process, after = killed.start(), 1 + scene.after % (trainings.STEPS - 2)
    while len(killed.steps(run)) < after:
        if process.poll() is not None:
            raise RuntimeError(f"the training ended before the fault: {killed.said()}")
        time.sleep(0.05)
    ranks = [one for one in psutil.Process(process.pid).children(recursive=True) if _RANK in " ".join(one.cmdline())]
    if not ranks:
        raise RuntimeError("there is no rank to kill")
    began, before = time.monotonic(), len(killed.steps(run))
    ranks[-1].kill()
    while len(killed.steps(run)) <= before and process.poll() is None:
        time.sleep(0.05)
    recovered = time.monotonic() - began
    killed.end(process)
    steps, expected = killed.steps(run), calm.weights(scene.folder / "calm-weights")
    weights = killed.weights(scene.folder / "killed-weights")
    return Outcome(
        lost=trainings.STEPS - len(set(steps)),
        double=len(steps) - len(set(steps)),
        differing=sum(not torch.allclose(weights[name], expected[name], atol=1e-5, rtol=1e-4) for name in expected),
        again="none: rollouts are recorded",
        recovered=recovered,
    )


class _Training:
    """`memagent train` on recorded rollouts, with two ranks and a checkpoint a step."""

    def __init__(self, folder: Path, name: str) -> None:
        self._store, self._errors = Store(str(folder / name)), folder / f"{name}-errors"
        self._output = folder / f"{name}-output"
        self._argv = [sys.executable, "-m", "memagent", "train", "--recipe", str(folder / "small.toml"), "--json"]
        self._argv += ["--data", "needles", "--text", str(folder / "text.txt"), "--replay", trainings.RUN]
        self._argv += ["--store", self._store.url]
        self._argv += ["--set", "learner.world_size=2", "--set", "learner.cpus=0.5"]
        trainings.record(self._store)

    def start(self) -> "subprocess.Popen[bytes]":
        with self._output.open("wb") as output, self._errors.open("wb") as errors:
            return subprocess.Popen(self._argv, stdout=output, stderr=errors)

    def said(self) -> str:
        return self._errors.read_text(errors="replace")[-2000:]

    def end(self, process: "subprocess.Popen[bytes]") -> str:
        """Wait for the training, and return what it printed."""
        if process.wait():
            raise RuntimeError(f"the training ended with status {process.returncode}: {self.said()}")
        return self._output.read_text()

    def steps(self, run: str) -> list[int]:
        return [int(row["step"]) for row in trainings.steps_of(self._store, run)]

    def weights(self, folder: Path) -> dict[str, Any]:
        """Fetch the last checkpoint."""
        folder.mkdir()
        whole: dict[str, Any] = trainings.weights(self._store, folder)
        return whole
