"""Trainings that a person names: what a name stands for is kept beside the run, and nothing else goes on under it."""

import difflib
import json
import logging
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from pydantic import JsonValue

from infra.store import Store
from memagent.errors import TrainingError, UsageError
from memagent.records import Json
from memagent.rl.config import Recipe
from memagent.rl.dataset import dataset_name
from memagent.rl.reward import reward_code
from pipelines.training.checkpoints import HOME
from pipelines.training.settings import LAYOUT, TrainingRun

_log = logging.getLogger("memagent.training")
_FILE = "named.json"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_MOST = 8
"""Differing keys that a message shows."""
_CURRENT = {
    "checkpointing": "activation_checkpointing",
    "ranks": "world_size",
    "transfer": "weight_sync",
    "zero": "zero_stage",
}
"""Today's names of the keys of the layout."""


def check_name(name: str) -> str:
    """Return a name for a training, if it can be one; an empty one is none.

    Raises:
        UsageError: it cannot.
    """
    if not name:
        return name
    if not _NAME.fullmatch(name) or name.endswith(("-replay", ".")):
        plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name.removesuffix("-replay")).strip("-._")[:63]
        hint = f"; did you mean {plain!r}?" if plain and plain != name and _NAME.fullmatch(plain) else ""
        raise UsageError(
            f"a training cannot be called {name!r}: letters, digits, '.', '_' and '-', a letter or digit first, 63 at "
            f"most, and not '-replay' at the end{hint}"
        )
    if name == "last" or name.startswith("train-"):
        raise UsageError(
            f"a training cannot be called {name!r}: that is what `last` and runs without a name are called. "
            "A run without a name goes on by the command that began it"
        )
    return name


def named(run: TrainingRun, name: str) -> TrainingRun:
    """Return a run with a name, if there is one to give.

    Raises:
        UsageError: it cannot be a name.
    """
    return replace(run, given_name=check_name(name)) if name else run


def learnt(run: TrainingRun) -> dict[str, JsonValue]:
    """Return all that changes what a run learns, by key: ``learner.lr``, ``reading.gate``, ``data`` and so on."""
    reading = run.reader.reading.model_dump(mode="json")
    reading["template"] = Path(reading["template"]).name  # its folder may differ from machine to machine
    harvested = any(dataset_name(spec) == "qa" for spec in run.data)
    return {
        "model": run.reader.policy.policy_id,
        **_by_key(run.recipe),
        **{f"reading.{key}": value for key, value in reading.items()},
        "reading, with the template's wording (hash)": run.reader.config_hash,
        "data": ["file" if dataset_name(spec) == "file" else spec for spec in run.data],
        "text": [*run.texts],
        "question files (hashes)": [*run.files.hashes],
        "reward functions (hashes)": [*reward_code(run.recipe.reward.weights)],
        "version of the qa table": run.data_version if harvested else None,
    }


def _by_key(recipe: Recipe) -> dict[str, JsonValue]:
    """Return the recipe's keys that change what is learnt, as ``section.key``."""
    sections = recipe.model_dump(mode="json", exclude={"model", "reading", "engine", "pool", "audit"})
    sections["stage"] = {"seed": recipe.stage.seed}  # its length and what it keeps may change
    layout = {_CURRENT.get(key, key) for key in LAYOUT}
    return {
        f"{section}.{key}": value
        for section, keys in sections.items()
        for key, value in keys.items()
        if section != "learner" or key not in layout
    }


def claim(store: Store, run: TrainingRun) -> None:
    """Let a run have its name: for the first time, or to go on.

    Raises:
        UsageError: what goes by this name learns otherwise; the message has the keys that differ, with both values.
        TrainingError: what is kept of it cannot be read.
    """
    if not run.given_name:
        return
    now = learnt(run)
    try:
        then = json.loads(store.read_bytes(HOME, run.given_name, _FILE))
    except FileNotFoundError:
        if store.exists(HOME, run.given_name, "state.json"):
            raise UsageError(
                f"there is a run {run.given_name!r} that was not begun by --run: choose another name"
            ) from None
        if near := nearest(store, run.given_name):
            _log.warning("%r is a new training; to go on with %r, say --run %s", run.given_name, near, near)
        store.write_bytes(json.dumps(now, indent=1).encode(), HOME, run.given_name, _FILE)
        return
    except ValueError as error:
        raise TrainingError(f"what the training {run.given_name!r} was begun with cannot be read: {error}") from error
    _compare(run.given_name, then, now)


def _compare(name: str, then: Json, now: Mapping[str, JsonValue]) -> None:
    defaults = _by_key(Recipe())  # a key of a later version had no other value before it existed
    before = {key: then.get(key, defaults.get(key, value)) for key, value in now.items()}
    differing = [key for key in now if before[key] != now[key]]
    if not differing:
        return
    shown = [f"{key} was {json.dumps(before[key])} and is {json.dumps(now[key])}" for key in differing[:_MOST]]
    more = f"; and {len(differing) - _MOST} more" if len(differing) > _MOST else ""
    raise UsageError(
        f"the training {name!r} was begun with another recipe: {'; '.join(shown)}{more}. Give it what it was begun "
        "with to go on, or this one another --run. How it is spread over processes (ranks, ZeRO stage, token budget, "
        "placement) and its length may change"
    )


def named_runs(store: Store) -> list[str]:
    """Return the names that people gave to trainings, sorted."""
    return sorted(path.rsplit("/", 2)[-2] for path in store.list(HOME, suffix=f"/{_FILE}"))


def nearest(store: Store, name: str) -> str:
    """Return the name of another training that a new name looks like, or nothing."""
    return next(iter(difflib.get_close_matches(name, set(named_runs(store)) - {name}, 1, 0.8)), "")
