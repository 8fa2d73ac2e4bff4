"""The metrics of a training step, and their export to TensorBoard and Weights & Biases."""

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from infra.store import Store
from memagent.errors import ConfigError
from memagent.rl.rollout import pass_rate
from memagent.rl.trajectory import Group, Trajectory
from pipelines.training.rollouts import Sampled, by_task


class Monitors:
    """Writes the numbers of each step. A run that goes on begins a file of its own, from its step."""

    def __init__(self, store: Store, run_id: str, project: str) -> None:
        """Open what is wanted.

        Raises:
            ConfigError: Weights & Biases is wanted and not installed.
        """
        from tensorboard.summary import Writer

        self._store = store
        self._place = ("training", run_id, "tensorboard")
        self._aside = tempfile.TemporaryDirectory() if store.is_s3 else None
        self._folder = Path(self._aside.name if self._aside else store.path(*self._place))
        self._writer = Writer(str(self._folder))
        self._wandb = _wandb(project, run_id) if project else None

    def write(self, row: dict[str, Any]) -> None:
        """Write a row of metrics."""
        numbers = dict(_numbers(row, ""))
        step = int(numbers.pop("step"))
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, step=step)
        self._writer.flush()
        if self._wandb is not None:
            self._wandb.log(numbers, step=step)

    def close(self) -> None:
        """End the files; those of a store on S3 are uploaded."""
        self._writer.close()
        if self._aside is not None:
            for file in sorted(self._folder.iterdir()):
                self._store.put_file(file, *self._place, file.name)
            self._aside.cleanup()
        if self._wandb is not None:
            self._wandb.finish()


def _numbers(row: dict[str, Any], prefix: str) -> Iterator[tuple[str, float]]:
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


_PER_TOKEN = ("loss", "kl", "clipped_low", "clipped_high", "clipped_dual", "ratio", "weight", "logprob_diff", "entropy")


def rollout_metrics(sampled: Sampled) -> dict[str, Any]:
    """Describe a batch: rewards of all that was sampled, lengths, and how many groups teach."""
    groups = [group for _, group in sampled.seen]
    every = [trajectory for group in groups for trajectory in group.trajectories]
    tokens = sum(conversation.tokens for one in every for conversation in one.conversations)
    return {
        "reward": _mean([one.reward.total for one in every]),
        "strict": pass_rate(groups),
        "lenient": _mean([one.reward.lenient for one in every]),
        "groups": len(sampled.groups),
        "sampled_groups": len(groups),
        "kept_share": len(sampled.groups) / len(groups) if groups else 0.0,
        **sampled.counts,
        "trajectories": len(every),
        "conversations": sum(len(one.conversations) for one in every),
        "response_tokens": _mean([float(n) for n in _responses(every)]),
        "memory_tokens": _mean([float(n) for n in _responses(every, "update")]),
        "cut_share": _mean([float(c.cut) for one in every for c in one.conversations]),
        "rollout_tokens": tokens,
        "rollout_tokens_per_second": tokens / sampled.seconds if sampled.seconds else 0.0,
        "tasks": by_task(sampled.seen),
    }


def learning_metrics(steps: Sequence[dict[str, float]], seconds: float) -> dict[str, Any]:
    """Describe the optimiser steps of a batch: token means of the sums."""
    tokens = sum(step.get("tokens", 0.0) for step in steps)
    trained = sum(step.get("trained_tokens", 0.0) for step in steps)
    means = {name: sum(step.get(name, 0.0) for step in steps) / max(tokens, 1.0) for name in _PER_TOKEN}
    return {
        **means,
        "gradient_norm": _mean([step["gradient_norm"] for step in steps]),
        "lr": steps[-1]["lr"] if steps else 0.0,
        "optimiser_steps": len(steps),
        "trained_tokens": trained,
        "trained_tokens_per_second": trained / seconds if seconds else 0.0,
    }


def validation_metrics(groups: Sequence[tuple[str, Group]]) -> dict[str, Any]:
    """Describe a validation: rewards without fines, strict and lenient, by task."""
    every = [group.trajectories[0] for _, group in groups]
    return {
        "n": len(every),
        "reward": _mean([one.reward.total for one in every]),
        "strict": _mean([one.reward.strict for one in every]),
        "lenient": _mean([one.reward.lenient for one in every]),
        "tasks": by_task(list(groups)),
    }


def shares(seconds: dict[str, float]) -> dict[str, float]:
    """Return each phase's share of a step, and the share in which the engines wait."""
    whole = sum(seconds.values())
    if not whole:
        return {}
    parts = {name: round(value / whole, 4) for name, value in seconds.items()}
    return parts | {"engines_wait": round(1.0 - (seconds["rollout"] + seconds["validate"]) / whole, 4)}


def _responses(every: Sequence[Trajectory], kind: str = "") -> list[int]:
    return [len(c.response_ids) for one in every for c in one.conversations if not kind or c.kind == kind]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
