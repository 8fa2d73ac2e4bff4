"""The files of a training run in the store: state, metrics, checkpoints and recorded rollouts.

The state is written last, so that it always points at a whole checkpoint, whenever a run is killed.
"""

import gzip
import json
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from infra.maintenance.erasure import TRAININGS
from infra.store.location import Store
from memagent.errors import TrainingError
from memagent.rl.trajectory import Group, from_dict

HOME = TRAININGS
"""Folder of all training runs."""
METRICS = "metrics.jsonl"
MetricsRow = dict[str, Any]
"""A line of ``metrics.jsonl``: the metrics of a step, nested by group (``seconds``, ``validation``)."""


@dataclass(slots=True)
class State:
    """Progress of a run; JSON in ``state.json``."""

    step: int = 0
    """Training steps that the checkpoint includes."""
    cursor: int = 0
    """Tasks of the dataset drawn so far."""
    pending: list[int] = field(default_factory=list)
    """Numbers of those that were in no batch yet."""
    best_step: int = 0
    best_score: float = -1.0
    """Validation reward at `best_step`, whose weights become the candidate."""
    stale: int = 0
    """Validations since the best one."""
    done: str = ""
    """Why the run ended; empty while it runs."""
    counts: dict[str, float] = field(default_factory=dict)
    """Sums over the run: tokens, trajectories, seconds, training rows without documents."""


def read_metrics(store: Store, run_id: str) -> list[MetricsRow]:
    """Return a run's metrics, sorted by step; none if there are none yet.

    Raises:
        TrainingError: they cannot be read.
    """
    try:
        lines = store.read_bytes(HOME, run_id, METRICS).decode("utf-8", "replace").splitlines()
        rows = {int(row["step"]): row for row in map(json.loads, lines)}
    except FileNotFoundError:
        return []
    except (ValueError, TypeError, KeyError) as error:
        raise TrainingError(f"the metrics of run {run_id} cannot be read: {error}") from error
    return [rows[step] for step in sorted(rows)]


class Checkpoints:
    """The files of one run: ``training/<run_id>/``."""

    def __init__(self, store: Store, run_id: str) -> None:
        self.store, self.run_id = store, run_id
        self.metrics: list[MetricsRow] = []

    def read(self) -> State | None:
        """Return the saved state and load the metrics up to it; None for a new run.

        Raises:
            TrainingError: the state cannot be parsed.
        """
        try:
            state = State(**json.loads(self.store.read_bytes(HOME, self.run_id, "state.json")))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError) as error:
            raise TrainingError(f"the state of run {self.run_id} cannot be read: {error}") from error
        # Steps after the checkpoint are repeated and logged again.
        self.metrics = [row for row in read_metrics(self.store, self.run_id) if row["step"] <= state.step]
        return state

    def note(self, row: MetricsRow) -> None:
        """Add a row of metrics."""
        self.metrics.append(row)
        text = "".join(json.dumps(row) + "\n" for row in self.metrics)
        self.store.write_bytes(text.encode(), HOME, self.run_id, METRICS)

    def commit(self, state: State) -> None:
        """Write the state, after its checkpoint; delete older checkpoints."""
        data = json.dumps(asdict(state), indent=1).encode()
        self.store.write_bytes(data, HOME, self.run_id, "state.json")
        kept = {"/".join(self.checkpoint(state.step)), "/".join(self.best(state.best_step))}
        root = len(self.store.path()) + 1
        for name in ("checkpoints", "best"):
            for path in self.store.list(HOME, self.run_id, name, suffix=""):
                if path[root:].rpartition("/")[0] not in kept:
                    self.store.delete(path)

    def checkpoint(self, step: int) -> tuple[str, ...]:
        """Return the store path of a step's checkpoint."""
        return (HOME, self.run_id, "checkpoints", f"step-{step:06d}")

    def best(self, step: int) -> tuple[str, ...]:
        """Return the store path of a step's model folder."""
        return (HOME, self.run_id, "best", f"step-{step:06d}")

    def exported(self, step: int, kind: Literal["model", "adapter"]) -> tuple[str, ...]:
        """Return the store path of a step's export, which is kept."""
        return (HOME, self.run_id, "exports", f"step-{step:06d}", kind)

    def record(self, step: int, groups: list[Group], cursor: int) -> None:
        """Write the rollouts of a step."""
        lines = [json.dumps({"cursor": cursor})]
        lines += [json.dumps([trajectory.as_dict() for trajectory in group.trajectories]) for group in groups]
        data = gzip.compress("\n".join(lines).encode(), compresslevel=3)
        self.store.write_bytes(data, HOME, self.run_id, "rollouts", f"step-{step:06d}.jsonl.gz")

    def recorded(self, step: int) -> tuple[list[Group], int]:
        """Return the rollouts of a step, and the cursor after it.

        Raises:
            TrainingError: they were not recorded.
        """
        try:
            data = self.store.read_bytes(HOME, self.run_id, "rollouts", f"step-{step:06d}.jsonl.gz")
        except FileNotFoundError as error:
            raise TrainingError(f"run {self.run_id} has no recorded rollouts of step {step}") from error
        head, *lines = gzip.decompress(data).decode().splitlines()
        groups = []
        for line in lines:
            trajectories = tuple(from_dict(trajectory) for trajectory in json.loads(line))
            groups.append(Group(trajectories[0].sample_id, trajectories))
        return groups, int(json.loads(head)["cursor"])
