"""What a training run keeps in the store: where it is, its metrics, checkpoints and rollouts.

The state is written last, so that whenever a run is killed, it points at a whole checkpoint.
"""

import gzip
import json
from dataclasses import asdict, dataclass, field
from typing import Any

from infra.store import Store
from memagent.errors import TrainingError
from memagent.rl.trajectory import Group, from_dict

_HOME = "training"


@dataclass(slots=True)
class State:
    """Where a run is."""

    step: int = 0
    """Training steps taken, whose weights the checkpoint holds."""
    cursor: int = 0
    """Tasks of the dataset that were used up."""
    best_step: int = 0
    best_score: float = -1.0
    """By validation; the weights of this step become the candidate."""
    stale: int = 0
    """Validations since the best."""
    done: str = ""
    """Why the run ended; empty while it has not."""
    counts: dict[str, float] = field(default_factory=dict)
    """Sums over the run: tokens, trajectories, seconds, deaths of engines."""


class Checkpoints:
    """The files of one run: ``training/<run_id>/``."""

    def __init__(self, store: Store, run_id: str) -> None:
        self._store, self.run_id = store, run_id
        self.metrics: list[dict[str, Any]] = []

    def read(self) -> State | None:
        """Return where the run was left, with its metrics up to there; None for a new run."""
        try:
            state = State(**json.loads(self._store.read_bytes(_HOME, self.run_id, "state.json")))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError) as error:
            raise TrainingError(f"the state of run {self.run_id} cannot be read: {error}") from error
        try:
            lines = self._store.read_bytes(_HOME, self.run_id, "metrics.jsonl").decode().splitlines()
        except FileNotFoundError:
            lines = []
        rows = [json.loads(line) for line in lines]
        # Steps after the checkpoint are taken again, and counted then.
        self.metrics = [row for row in rows if row["step"] <= state.step]
        return state

    def note(self, row: dict[str, Any]) -> None:
        """Add a row of metrics."""
        self.metrics.append(row)
        text = "".join(json.dumps(row) + "\n" for row in self.metrics)
        self._store.write_bytes(text.encode(), _HOME, self.run_id, "metrics.jsonl")

    def commit(self, state: State) -> None:
        """Say where the run is; its checkpoint stands already. Older checkpoints are deleted."""
        data = json.dumps(asdict(state), indent=1).encode()
        self._store.write_bytes(data, _HOME, self.run_id, "state.json")
        kept = {"/".join(self.checkpoint(state.step)), "/".join(self.best(state.best_step))}
        root = len(self._store.path()) + 1
        for name in ("checkpoints", "best"):
            for path in self._store.list(_HOME, self.run_id, name, suffix=""):
                if path[root:].rpartition("/")[0] not in kept:
                    self._store.delete(path)

    def checkpoint(self, step: int) -> tuple[str, ...]:
        """Return the place of a step's checkpoint."""
        return (_HOME, self.run_id, "checkpoints", f"step-{step:06d}")

    def best(self, step: int) -> tuple[str, ...]:
        """Return the place of the model folder of a step."""
        return (_HOME, self.run_id, "best", f"step-{step:06d}")

    def record(self, step: int, groups: list[Group], cursor: int) -> None:
        """Keep the rollouts of a step."""
        lines = [json.dumps({"cursor": cursor})]
        lines += [json.dumps([one.as_dict() for one in group.trajectories]) for group in groups]
        data = gzip.compress("\n".join(lines).encode(), compresslevel=3)
        self._store.write_bytes(data, _HOME, self.run_id, "rollouts", f"step-{step:06d}.jsonl.gz")

    def recorded(self, step: int) -> tuple[list[Group], int]:
        """Return the rollouts of a step, and the cursor after it.

        Raises:
            TrainingError: they were not kept.
        """
        try:
            data = self._store.read_bytes(_HOME, self.run_id, "rollouts", f"step-{step:06d}.jsonl.gz")
        except FileNotFoundError as error:
            raise TrainingError(f"run {self.run_id} has no recorded rollouts of step {step}") from error
        head, *lines = gzip.decompress(data).decode().splitlines()
        groups = []
        for line in lines:
            trajectories = tuple(from_dict(one) for one in json.loads(line))
            groups.append(Group(trajectories[0].sample_id, trajectories))
        return groups, int(json.loads(head)["cursor"])
