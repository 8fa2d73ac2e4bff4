"""The metrics of a training step, and their export to TensorBoard and Weights & Biases."""

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from infra.store.location import Store
from memagent.errors import ConfigError
from memagent.rl.config import StageRecipe
from memagent.rl.reward import Trace
from memagent.rl.rollout import pass_rate
from memagent.rl.trajectory import Group, Trajectory
from pipelines.training.checkpoints import MetricsRow
from pipelines.training.rollouts import Sampled, by_task


class Monitors:
    """Writes the metrics of each step. A resumed run begins a new file at its step."""

    def __init__(self, store: Store, run_id: str, stage: StageRecipe) -> None:
        """Open the writers: TensorBoard's, and those that the recipe names.

        Raises:
            ConfigError: one is named whose package is not installed.
        """
        from tensorboard.summary import Writer

        self._store = store
        self._parts = ("training", run_id, "tensorboard")
        self._local = tempfile.TemporaryDirectory() if store.is_s3 else None
        self._folder = Path(self._local.name if self._local else store.path(*self._parts))
        self._writer = Writer(str(self._folder))
        self._trackers: list[Tracker] = [_wandb(stage.wandb, run_id)] if stage.wandb else []
        self._trackers += [Mlflow(stage.mlflow, run_id)] if stage.mlflow else []

    def write(self, row: MetricsRow) -> None:
        """Write a row of metrics."""
        numbers = dict(_numbers(row, ""))
        step = int(numbers.pop("step"))
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, step=step)
        self._writer.flush()
        for tracker in self._trackers:
            tracker.log(numbers, step=step)

    def close(self) -> None:
        """Close the writers; upload the files if the store is on S3."""
        self._writer.close()
        if self._local is not None:
            for file in sorted(self._folder.iterdir()):
                self._store.put_file(file, *self._parts, file.name)
            self._local.cleanup()
        for tracker in self._trackers:
            tracker.finish()


class Tracker(Protocol):
    """Where metrics go beside TensorBoard; a run of Weights & Biases is one."""

    def log(self, data: dict[str, float], *, step: int) -> object:
        """Keep the metrics of a step."""

    def finish(self) -> object:
        """Close it."""


class Mlflow:
    """A run of an MLflow experiment, by the training's name; a resumed training goes on in it."""

    def __init__(self, experiment: str, run_id: str) -> None:
        """Begin the run, or go on with the one of this name.

        Raises:
            ConfigError: mlflow is not installed.
        """
        try:
            import mlflow
        except ImportError as error:
            raise ConfigError("stage.mlflow is set and mlflow is not installed: pip install mlflow") from error
        self._mlflow: Any = mlflow
        known = mlflow.set_experiment(experiment).experiment_id
        named = f"attributes.run_name = '{run_id}'"
        found = mlflow.search_runs([known], filter_string=named, output_format="list", max_results=1)
        mlflow.start_run(run_id=found[0].info.run_id if found else None, run_name=None if found else run_id)

    def log(self, data: dict[str, float], *, step: int) -> None:
        """Keep the metrics of a step."""
        self._mlflow.log_metrics(data, step=step)

    def finish(self) -> None:
        """End the run."""
        self._mlflow.end_run()


def _numbers(row: MetricsRow, prefix: str) -> Iterator[tuple[str, float]]:
    for name, value in row.items():
        if isinstance(value, dict):
            yield from _numbers(value, f"{prefix}{name}/")
        elif isinstance(value, int | float):
            yield f"{prefix}{name}", float(value)


def _wandb(project: str, run_id: str) -> Any:
    try:
        import wandb
    except ImportError as error:
        raise ConfigError("stage.wandb is set and wandb is not installed: pip install wandb") from error
    return wandb.init(project=project, id=run_id, resume="allow")


_CLIPPED = ("clipped_low", "clipped_high", "clipped_dual")
_TAUGHT = ("entropy", "nll")
"""Means over tokens that a teacher's readings have, too; their loss is the negative log-likelihood."""
_PER_TOKEN = ("loss", "kl", *_CLIPPED, "ratio", "weight", "logprob_diff", *_TAUGHT, "masked")


def rollout_metrics(sampled: Sampled) -> MetricsRow:
    """Return a batch's metrics: lengths and, of rollouts, rewards of all groups and the share of groups with signal."""
    groups = [group for _, group in sampled.seen]
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    conversations = [conversation for trajectory in trajectories for conversation in trajectory.conversations]
    row: MetricsRow = {
        **sampled.counts,
        "trajectories": len(trajectories),
        "conversations": len(conversations),
        "response_tokens": _mean([len(one.response_ids) for one in conversations]),
        "memory_tokens": _mean([len(one.response_ids) for one in conversations if one.kind == "update"]),
    }
    if sampled.taught:
        return row
    tokens = sum(conversation.tokens for conversation in conversations)
    return {
        "reward": _mean([trajectory.reward.total for trajectory in trajectories]),
        "strict": pass_rate(groups),
        "lenient": _mean([trajectory.reward.lenient for trajectory in trajectories]),
        "groups": len(sampled.groups),
        "sampled_groups": len(groups),
        "kept_share": len(sampled.groups) / len(groups) if groups else 0.0,
        **row,
        "cut_share": _mean([one.cut for one in conversations]),
        **_gates(trajectories),
        "rollout_tokens": tokens,
        "rollout_tokens_per_second": tokens / sampled.seconds if sampled.seconds else 0.0,
        "tasks": by_task(sampled.seen),
    }


@dataclass(frozen=True, slots=True)
class Compute:
    """What a learner computes with, for its utilisation."""

    weights: int
    """Parameters that a token is multiplied with."""
    ranks: int
    peak_tflops: float = 0.0
    """Of a rank's GPU, in 10^12 operations a second; 0: unknown."""

    def metrics(self, tokens: float, seconds: float) -> MetricsRow:
        """Return model operations a second (6 a weight and computed token, PaLM, arXiv 2204.02311), and their share of
        the peak. What checkpointing computes again does not count.
        """
        if not tokens or not seconds:
            return {}
        tflops = 6.0 * self.weights * tokens / seconds / 1e12
        return {"tflops": tflops} | ({"mfu": tflops / self.ranks / self.peak_tflops} if self.peak_tflops else {})


def learning_metrics(
    steps: Sequence[dict[str, float]], seconds: float, compute: Compute | None = None, *, taught: bool = False
) -> MetricsRow:
    """Return the metrics of a batch's optimiser steps, as token means; of `taught` readings those that they have."""
    tokens = sum(step.get("tokens", 0.0) for step in steps)
    trained = sum(step.get("trained_tokens", 0.0) for step in steps)
    computed = sum(step.get("computed_tokens", 0.0) for step in steps)
    means = {
        name: sum(step.get(name, 0.0) for step in steps) / max(tokens, 1.0)
        for name in (_TAUGHT if taught else _PER_TOKEN)
    }
    return {
        **means,
        "gradient_norm": _mean([step["gradient_norm"] for step in steps]),
        "lr": steps[-1]["lr"] if steps else 0.0,
        "optimiser_steps": len(steps),
        "gradient": _gradient(steps),
        "trained_tokens": trained,
        "trained_tokens_per_second": trained / seconds if seconds else 0.0,
        "computed_tokens": computed,
        **(compute.metrics(computed, seconds) if compute else {}),
    }


def _gradient(steps: Sequence[dict[str, float]]) -> dict[str, float]:
    """Return the share of the gradient by the number of a trajectory's conversations, as the mean over steps."""
    names = sorted({name for step in steps for name in step if name.startswith("gradient/")})
    means = {name.partition("/")[2]: _mean([step.get(name, 0.0) for step in steps]) for name in names}
    return dict(sorted(means.items(), key=lambda item: int(item[0])))


def _gates(trajectories: Sequence[Trajectory]) -> MetricsRow:
    """Return the share of the segments that were read before an exit, and of the updates whose gate was right."""
    traces = [trajectory.trace for trajectory in trajectories if trajectory.trace is not None]
    right = [value for trace in traces for value in right_updates(trace)]
    read = [len(trace.updates) / trace.segments for trace in traces if trace.segments]
    return ({"segments_read": _mean(read)} if read else {}) | ({"gates_right": _mean(right)} if right else {})


def right_updates(trace: Trace) -> list[float]:
    """Return for each update whether its gate was right, 1 or 0; nothing where evidence is not known.

    It is right if the memory changed where the segment holds evidence, and only there. A response that the policy did
    not end itself is never right.
    """
    if trace.evidence is None:
        return []
    read = zip(trace.updates, trace.evidence, strict=False)  # fewer updates than segments after an exit
    return [float(update.whole and update.changed == holds) for update, holds in read]


def validation_metrics(groups: Sequence[tuple[str, Group]]) -> MetricsRow:
    """Return validation metrics: rewards without penalties, strict and lenient, by task. Failed readings count 0."""
    trajectories = [group.trajectories[0] for _, group in groups]
    return {
        "n": len(trajectories),
        "failed": sum(not trajectory.conversations for trajectory in trajectories),
        "reward": _mean([trajectory.reward.total for trajectory in trajectories]),
        "strict": _mean([trajectory.reward.strict for trajectory in trajectories]),
        "lenient": _mean([trajectory.reward.lenient for trajectory in trajectories]),
        "tasks": by_task(list(groups)),
    }


def shares(seconds: dict[str, float]) -> dict[str, float]:
    """Return each phase's share of a step's time, and the share in which the engines are idle."""
    whole = sum(seconds.values())
    if not whole:
        return {}
    parts = {name: round(value / whole, 4) for name, value in seconds.items()}
    return parts | {"engines_wait": round(1.0 - (seconds["rollout"] + seconds["validate"]) / whole, 4)}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
