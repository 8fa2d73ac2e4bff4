"""The settings of a training run: recipe, configuration and data, and the run id from them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from infra.dataset_files import file_hash
from infra.models import local_folder
from infra.readers import ReaderSpec
from infra.store import Store
from infra.tables.qa import qa_version
from memagent.config import Config, ReadingConfig, load_config
from memagent.errors import ConfigError, UsageError
from memagent.records import stable_hash
from memagent.rl.config import Recipe, load_recipe
from memagent.rl.dataset import DATASETS, dataset_name
from memagent.rl.methods import METHODS
from memagent.rl.reward import check_rewards, reward_code
from memagent.settings import as_settings, beneath
from memagent.tasks.records import Columns, columns_of

LAYOUT = (
    "zero_stage",
    "world_size",
    "gpus",
    "cpus",
    "threads",
    "token_budget",
    "share_prefixes",
    "activation_checkpointing",
    "weight_sync",
    "placement",
    "restarts",
)
"""Keys of the learner that do not change what is learnt, but for rounding."""
_RECIPE = ("model", "rollout", "reward", "method", "audit", "loss", "learner", "stage")


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
        """Name the files of a run.

        Args:
            data: its data sets, those of files among them.
            validation: a file, or nothing.
            promotion: a file, or nothing.
            columns: ``question=NAME`` and so on (`memagent.tasks.records.columns_of`).

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
    """What a person calls the run (`pipelines.training.names`); empty: nothing."""

    @staticmethod
    def is_recipe(item: str) -> bool:
        """Return whether a ``section.key=value`` string sets a key of the recipe."""
        return item.split("=")[0].split(".")[0] in _RECIPE

    @property
    def run_id(self) -> str:
        """Id of the run: the name that a person gave it, or a hash of all that changes its result.

        How the learner is laid out over processes and memory does not (`LAYOUT`), so a run that ran out of memory is
        resumed with other keys of it. Nor do the run's length, its logging interval or the audit.
        """
        if self.given_name:
            return self.given_name
        recipe = self.recipe.model_dump(exclude={"audit": True, "engine": True, "pool": True, "learner": set(LAYOUT)})
        recipe["stage"] = {"seed": self.recipe.stage.seed}
        version = self.data_version if any(dataset_name(spec) == "qa" for spec in self.data) else None
        # A file is known by its content, wherever it is.
        data = ["file" if dataset_name(spec) == "file" else spec for spec in self.data]
        parts: tuple[object, ...] = (self.reader.policy.policy_id, self.reader.config_hash, recipe, data, self.texts)
        code = reward_code(self.recipe.reward.weights)
        parts += (version, *([self.files.hashes] if self.files.hashes else []), *([code] if code else []))
        return f"train-{stable_hash(*parts)[:10]}"

    def reading_config(self, config: str | None = None) -> Config:
        """Return the configuration for comparing versions: reading as in bulk answering, not as in rollouts.

        Engines are the recipe's, where neither environment, file nor overrides say otherwise: a model that needs two
        GPUs to sample needs them to be compared. The layout is each version's own (its ``reading.json``), so that what
        is promoted is read with as it was compared.

        Args:
            config: a configuration file.
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
    defaults = {
        "engine": {"dtype": recipe.learner.dtype, **recipe.engine},
        "pool": recipe.pool,
        "reading": recipe.reading,
    }
    overrides = [item for item in sets if not TrainingRun.is_recipe(item)]
    config = load_config(None, [*as_settings(defaults), *overrides], store=store, engine__model=recipe.model)
    if "://" not in config.store:
        config = config.model_copy(update={"store": str(Path(config.store).expanduser().resolve())})
    if config.engine.kind != "vllm":
        raise UsageError(
            "training samples with vLLM, which gives token ids and log-probabilities: --set engine.kind=vllm"
        )
    reader = ReaderSpec(config)
    _check_method(recipe, reader.reading)
    version = qa_version(Store(config.store))
    paths = [str(Path(text).expanduser().resolve()) for text in texts]
    folder = local_folder(reader.folder)
    return TrainingRun(
        name,
        tuple(sets),
        recipe,
        config=config,
        reader=reader,
        data=tuple(data),
        texts=tuple(paths),
        model=folder,
        data_version=version,
        files=files or DataFiles.of(data),
    )


def _check_method(recipe: Recipe, reading: ReadingConfig) -> None:
    """Refuse a method whose gates are off, or that cannot tell what an update did.

    Raises:
        ConfigError: saying what to set.
    """
    name = recipe.method.name
    wanted = dict.fromkeys(METHODS.find(name).needs, f"training method {name}")
    wanted |= {"early_exit": "reward exit"} if "exit" in recipe.reward.weights else {}
    for key, what in wanted.items():
        if not getattr(reading, key):
            raise ConfigError(f"{what} needs reading.{key}: --set reading.{key}=true")
    if name != "dapo" and reading.parallel_spans_of(recipe.rollout.segments) > 1:
        raise ConfigError(f"training method {name} reads in one span: --set reading.parallel_spans=1")
