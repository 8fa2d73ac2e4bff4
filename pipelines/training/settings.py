"""The settings of a training run: recipe, configuration and data, and the run id from them."""

import difflib
import json
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from pydantic import JsonValue

from infra.models import local_folder
from infra.readers import ReaderSpec
from infra.sources.dataset_files import file_hash
from infra.store.location import Store
from infra.store.qa import qa_version
from memagent.config import Config, load_config
from memagent.errors import TrainingError, UsageError
from memagent.evaluation.records import Columns, columns_of
from memagent.records import Json, stable_hash
from memagent.rl.config import Recipe, load_recipe
from memagent.rl.dataset import DATASETS, dataset_name
from memagent.rl.footprint import check_family
from memagent.rl.reward import check_rewards, reward_code
from memagent.settings import as_settings, beneath
from pipelines.training.checkpoints import HOME

_log = logging.getLogger("memagent.training")
_FILE = "named.json"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_MOST = 8
"""Differing keys that a message shows."""
LAYOUT = (
    *("zero_stage", "world_size", "gpus", "cpus", "threads", "token_budget", "share_prefixes"),
    *("activation_checkpointing", "weight_sync", "placement", "restarts"),
)
"""Keys of the learner that do not change what is learnt, but for rounding."""
_RECIPE = ("model", "rollout", "reward", "audit", "loss", "learner", "stage")


@dataclass(frozen=True)
class DataFiles:
    """Question files of the user: those that are trained on are data sets, ``file=PATH``."""

    validation: str = ""
    """What weights are chosen by; empty: a part of each data set that is held out."""
    promotion: str = ""
    """What the candidate is compared with the promoted version on."""
    columns: Columns = field(default_factory=Columns)
    """Columns of all these files, where they are of no known format."""
    hashes: tuple[str, ...] = ()
    """Of the files that training depends on: those that are trained on, and that of validation."""

    @classmethod
    def of(
        cls, data: Sequence[str], validation: str = "", promotion: str = "", columns: Sequence[str] = ()
    ) -> "DataFiles":
        """Name the files of a run: those among its data sets, and those of validation and promotion, if any.

        Raises:
            UsageError: one cannot be read, or two are the same.
        """
        trained = [spec.partition("=")[2] for spec in data if dataset_name(spec) == "file"]
        known: dict[str, str] = {}
        for path in filter(None, (*trained, validation, promotion)):
            content = file_hash(path)
            if content in known:
                raise UsageError(
                    f"{path} has the content of {known[content]}: training, validation and promotion need questions of "
                    "their own"
                )
            known[content] = path
        hashes = tuple(content for content, path in known.items() if path != promotion)
        return cls(absolute(validation), absolute(promotion), columns_of(columns), hashes)


def absolute(path: str) -> str:
    """Return a path as it is from any folder; a URL, or nothing, as it is."""
    return path if not path or "://" in path else str(Path(path).expanduser().resolve())


@dataclass(frozen=True)
class TrainingRun:
    """A training run. The same settings give the same run id, by which an interrupted run is resumed."""

    name: str
    """Name or path of the recipe."""
    sets: tuple[str, ...]
    """``section.key=value`` overrides of recipe and configuration."""
    recipe: Recipe
    config: Config
    reader: ReaderSpec
    data: tuple[str, ...]
    """Data sets: ``file=FILE``, ``qa``, ``qa:CORPUS``, ``needles``, ``contracts=FOLDER``, or ``NAME=ARGUMENT`` of
    another package."""
    texts: tuple[str, ...]
    """Files and folders whose text the needles are planted in."""
    model: Path
    """Model folder of the initial policy."""
    data_version: int | None
    """Delta version of the `qa` table."""
    files: DataFiles = field(default_factory=DataFiles)
    given_name: str = ""
    """What a person calls the run (`pipelines.training.settings`); empty: nothing."""
    replay: str = ""
    """Id of the run whose recorded rollouts are trained on; empty: none."""

    @staticmethod
    def is_recipe(item: str) -> bool:
        """Return whether a ``section.key=value`` string sets a key of the recipe."""
        return item.split("=")[0].split(".")[0] in _RECIPE

    @property
    def run_id(self) -> str:
        """Id of the run: the name that a person gave it, or a hash of all that changes its result.

        How the learner is laid out over processes and memory does not (`LAYOUT`), so a run that ran out of memory is
        resumed with other keys of it. Nor do the run's length, its logging interval or the audit. Replays are for
        comparing, so one with another layout is another run, unless it has a name.
        """
        known = learnt(self) | ({"layout": self.recipe.learner.model_dump(mode="json")} if self.replay else {})
        return (self.given_name or f"train-{stable_hash(known)[:10]}") + ("-replay" if self.replay else "")

    def reading_config(self, config: str | None = None) -> Config:
        """Return the configuration for comparing versions: reading as in bulk answering, not as in rollouts.

        Engines are the recipe's, where neither environment, file nor overrides say otherwise: a model that needs two
        GPUs to sample needs them to be compared. The layout is each version's own (its ``reading.json``), so that what
        is promoted is read with as it was compared.
        """
        engines = beneath({"engine": self.recipe.engine, "pool": self.recipe.pool}, config)
        sets = [*engines, *(item for item in self.sets if not self.is_recipe(item))]
        return load_config(config, sets, store=self.config.store, engine__model=self.recipe.model)


def prepare(
    name: str,
    data: Sequence[str],
    texts: Sequence[str] = (),
    store: str | None = None,
    sets: Sequence[str] = (),
    model: str | None = None,
    files: DataFiles | None = None,
) -> TrainingRun:
    """Make a run from a recipe's name or path, the data, and ``section.key=value`` overrides.

    Raises:
        ConfigError: a key is unknown or wrong, or the model or a registered extension cannot be used.
        UsageError: the engine is not vLLM, or there is no such data set.
    """
    recipe = load_recipe(name, [item for item in sets if TrainingRun.is_recipe(item)])
    for item in data:  # fail before anything is started
        if dataset_name(item) not in DATASETS and (Path(item).suffix or Path(item).exists()):
            raise UsageError(
                f"no data set {item!r}: a file of questions is given by --dataset {item}, or becomes training rows "
                f"of a corpus by memagent qa import CORPUS {item}"
            )
        DATASETS.find(dataset_name(item))
    check_rewards(recipe.reward.weights)
    if model is not None:
        recipe = recipe.model_copy(update={"model": model})
    engine = {"dtype": recipe.learner.dtype, **recipe.engine}
    defaults = as_settings({"engine": engine, "pool": recipe.pool, "reading": recipe.reading})
    overrides = [item for item in sets if not TrainingRun.is_recipe(item)]
    config = load_config(None, [*defaults, *overrides], store=store, engine__model=recipe.model)
    config = config.model_copy(update={"store": absolute(config.store)})
    if config.engine.kind != "vllm":
        raise UsageError("training samples with vLLM, which gives token ids and probabilities: --set engine.kind=vllm")
    reader = ReaderSpec(config)
    _ = reader.scheme  # a template that does not fit the model is said before anything is started
    folder = local_folder(reader.folder)
    check_family(str(json.loads((folder / "config.json").read_text(encoding="utf-8")).get("model_type", "")))
    return TrainingRun(
        name,
        tuple(sets),
        recipe,
        config=config,
        reader=reader,
        data=tuple(data),
        texts=tuple(map(absolute, texts)),
        model=folder,
        data_version=qa_version(Store(config.store)),
        files=files or DataFiles.of(data),
    )


def check_name(name: str) -> str:
    """Return a name for a training, if it can be one.

    Raises:
        UsageError: it cannot.
    """
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
    """Return a run with a name; an empty one is none.

    Raises:
        UsageError: it cannot be a name.
    """
    return replace(run, given_name=check_name(name)) if name else run


def learnt(run: TrainingRun) -> dict[str, JsonValue]:
    """Return all that changes what a run learns, by key: ``learner.lr``, ``reading.gate``, ``data`` and so on."""
    reading = run.reader.reading.model_dump(mode="json")
    reading["template"] = Path(reading["template"]).name  # its folder may differ from machine to machine
    return {
        "model": run.reader.policy.policy_id,
        **_by_key(run.recipe),
        **{f"reading.{key}": value for key, value in reading.items()},
        "reading, with the template's wording (hash)": run.reader.config_hash,
        # A file is known by its content, wherever it is.
        "data": ["file" if dataset_name(spec) == "file" else spec for spec in run.data],
        "text": [*run.texts],
        "question files (hashes)": [*run.files.hashes],
        "reward functions (hashes)": [*reward_code(run.recipe.reward.weights)],
        "replayed run": run.replay,
        "version of the qa table": run.data_version if "qa" in map(dataset_name, run.data) else None,
    }


def _by_key(recipe: Recipe) -> dict[str, JsonValue]:
    """Return the recipe's keys that change what is learnt, as ``section.key``."""
    unused = {"loss"} if recipe.rollout.teacher else set()
    sections = recipe.model_dump(mode="json", exclude={"model", "reading", "engine", "pool", "audit", *unused})
    stage = {"seed": recipe.stage.seed}  # what it keeps may change, and its length where that changes no step
    if recipe.learner.lr_schedule != "constant":
        stage["max_steps"] = recipe.stage.max_steps
    sections["stage"] = stage
    return {
        f"{section}.{key}": value
        for section, keys in sections.items()
        for key, value in keys.items()
        if section != "learner" or key not in LAYOUT
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
        then = json.loads(store.read_bytes(HOME, run.run_id, _FILE))
    except FileNotFoundError:
        if store.exists(HOME, run.run_id, "state.json"):
            raise UsageError(f"run {run.given_name!r} was not begun by --run: choose another name") from None
        for near in difflib.get_close_matches(run.given_name, named_runs(store), 1, 0.8):
            _log.warning("%r is a new training; to go on with %r, say --run %s", run.given_name, near, near)
        store.write_bytes(json.dumps(now, indent=1).encode(), HOME, run.run_id, _FILE)
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
        "placement) may change, and so may its length at a constant learning rate"
    )


def named_runs(store: Store) -> list[str]:
    """Return the names that people gave to trainings, without replays, sorted."""
    found = [path.rsplit("/", 2)[-2] for path in store.list(HOME, suffix=f"/{_FILE}")]
    return sorted(name for name in found if not name.endswith("-replay"))
