"""The GPUs of a plan, and the sizes of its model."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from infra.readers import bundled_version
from memagent.errors import ConfigError
from memagent.rl.footprint import ModelShape


@dataclass(frozen=True, slots=True)
class Gpu:
    """A kind of GPU."""

    name: str
    gib: float
    """Memory that a process finds."""
    tflops: float
    """Peak of dense bfloat16 products, in 10^12 operations a second."""
    terabytes: float
    """Memory bandwidth, in 10^12 bytes a second."""


GPUS = {
    "a100-40": Gpu("A100 40 GB", 39, 312, 1.55),
    "a100": Gpu("A100 80 GB", 79, 312, 2.0),
    "l40s": Gpu("L40S", 44, 362, 0.86),
    "h100": Gpu("H100", 79, 989, 3.35),
    "h200": Gpu("H200", 139, 989, 4.8),
    "b200": Gpu("B200", 178, 2250, 8.0),
}


@dataclass(frozen=True, slots=True)
class Machines:
    """The GPUs that there are."""

    gpus: int
    per_node: int = 8
    gpu: Gpu = GPUS["h100"]


_RAY_NAMES = {"A100-40G": "a100-40", "A100-80G": "a100"}


def known_gpus(accelerators: Iterable[str]) -> list[Gpu]:
    """Return the kinds of GPUs that are known, of those that Ray names."""
    return [gpu for name in accelerators if (gpu := GPUS.get(_RAY_NAMES.get(name, name.lower()))) is not None]


def load_shape(model: str, config: Path | None = None) -> ModelShape:
    """Read the sizes of a model.

    Args:
        model: a folder, a bundled version, or a Hugging Face name, of which only ``config.json`` is downloaded.
        config: that file, if it is here already.

    Raises:
        ConfigError: there is no such file, or it is of another kind of model.
    """
    path = config or (bundled_version(model) or Path(model).expanduser()) / "config.json"
    if config is None and not path.is_file():
        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

        try:
            path = Path(hf_hub_download(model, "config.json"))
        except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
            raise ConfigError(
                f"config.json of {model!r} is unavailable ({type(error).__name__}): give it with --model-config FILE"
            ) from error
    try:
        return ModelShape.of(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
