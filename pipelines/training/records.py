"""Records of training runs: the summary of a finished run, and look-ups by run id."""

import re
import subprocess
from collections import defaultdict
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import cast

from infra.store.location import Store
from infra.store.policies import policies
from infra.store.qa import TrainingSummary
from infra.store.runs import resolve
from infra.store.schemas import POLICIES_OF, PolicyRow
from memagent.version import __version__
from pipelines.training.checkpoints import HOME, METRICS, Checkpoints, State
from pipelines.training.settings import TrainingRun

_ROOT = Path(__file__).parents[2]


def summary_of(run: TrainingRun, checkpoints: Checkpoints, state: State, policy_id: str) -> TrainingSummary:
    """Return the summary of a run."""
    validations = [{"step": row["step"], **row["validation"]} for row in checkpoints.metrics if "validation" in row]
    last = checkpoints.metrics[-1] if checkpoints.metrics else {}
    summary = {
        **state.counts,
        "run_id": checkpoints.run_id,
        "kind": "train",
        "corpus": POLICIES_OF,
        "policy": run.reader.policy.name,
        "parent": run.reader.policy.policy_id,
        "candidate": policy_id,
        "steps": state.step,
        "ended": state.done,
        "best_step": state.best_step,
        "validation": {
            "before": validations[0] if validations else None,
            "best": next((row for row in validations if row["step"] == state.best_step), None),
            "last": validations[-1] if validations else None,
        },
        "last": {
            name: last.get(name) for name in ("reward", "strict", "lenient", "logprob_diff", "entropy", "kept_share")
        },
        "data": list(run.data),
        "chosen_by": run.files.validation,
        "columns": asdict(run.files.columns),
        "data_version": run.data_version,
        "config": {"recipe": run.recipe.model_dump(), **run.config.public()},
    }
    return cast(TrainingSummary, summary)  # has the counts as further keys


def code_version() -> str:
    """Return the commit if run from a git checkout, else the version of the package."""
    if (_ROOT / ".git").exists():
        git = subprocess.run(["git", "-C", str(_ROOT), "rev-parse", "HEAD"], capture_output=True, text=True)
        if git.returncode == 0:
            return git.stdout.strip()
    return __version__


def training_runs(store: Store) -> list[str]:
    """Return the ids of all training runs that have metrics, sorted by last write."""
    paths = store.list(HOME, suffix=f"/{METRICS}")
    return [path.rsplit("/", 2)[-2] for path in sorted(paths, key=lambda path: (store.fs.modified(path), path))]


def find_training(store: Store, run: str) -> str:
    """Return the run id, which may be given by its beginning; ``last`` is the run that wrote last.

    Raises:
        UsageError: there is no such run; the message lists the runs.
    """
    return resolve(run, training_runs(store), store.url, "training run")


def candidate_of(store: Store, run_id: str, policy_id: str) -> PolicyRow | None:
    """Return the registered version that a run produced, by its policy id, or by the run's id if that is empty."""
    rows = policies(store)
    return next(
        (row for row in rows if policy_id and row["policy_id"] == policy_id),
        next((row for row in rows if not policy_id and row["run_id"] == run_id), None),
    )


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
