"""Metrics for other programs: TensorBoard's event files, and Weights & Biases by option."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from infra.store import Store
from memagent.errors import ConfigError


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
