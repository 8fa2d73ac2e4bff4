"""The models that a training run keeps, in Hugging Face format: exports by step, and the best one."""

import re
from collections import defaultdict
from dataclasses import dataclass

from infra.store import Store
from pipelines.training.checkpoints import HOME

_MODEL = re.compile(r"(?:exports/step-(?P<step>\d+)/(?P<kind>model|adapter)|best/step-(?P<best>\d+))/[^/]+")


@dataclass(frozen=True, slots=True)
class ExportedModel:
    """A folder that transformers (or PEFT) loads."""

    step: int
    kind: str
    """``model``, ``adapter`` (PEFT), or ``best``: the weights that became the candidate."""
    folder: str
    """Path or URL."""
    size_bytes: int


def exported_models(store: Store, run_id: str) -> list[ExportedModel]:
    """Return the models of a run, by step."""
    sizes: dict[tuple[int, str, str], int] = defaultdict(int)
    root = store.path(HOME, run_id)
    for path, size in store.sizes(HOME, run_id, suffix="").items():
        inside = path[len(root) + 1 :]
        if match := _MODEL.fullmatch(inside):
            step = int(match["step"] or match["best"])
            folder = "/".join((store.url, HOME, run_id, inside.rpartition("/")[0]))
            sizes[step, match["kind"] or "best", folder] += size
    return [ExportedModel(*names, size_bytes=total) for names, total in sorted(sizes.items())]
