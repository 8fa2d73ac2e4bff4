"""What a training run is made of: the recipe, the configuration under it, and its name."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from infra.readers import ReaderSpec
from infra.store import Store
from infra.tables.qa import qa_version
from memagent.config import Config, load_config
from memagent.errors import UsageError
from memagent.records import stable_hash
from memagent.rl.config import Recipe, load_recipe
from memagent.rl.dataset import DATASETS, dataset_name
from memagent.rl.reward import FUNCTIONS
from memagent.settings import as_settings

_RECIPE = ("model", "rollout", "reward", "loss", "learner", "stage")


@dataclass(frozen=True)
class Run:
    """A training run; the same choices give the same name, by which an interrupted run is found again."""

    name: str
    """Of the recipe, or its path."""
    sets: tuple[str, ...]
    """What was set over recipe and configuration."""
    recipe: Recipe
    config: Config
    reader: ReaderSpec
    data: tuple[str, ...]
    """Data sets: ``qa``, ``qa:CORPUS``, ``needles``, ``contracts=FOLDER``, or ``NAME=ARGUMENT`` of another package."""
    texts: tuple[str, ...]
    """Files and folders whose text needles are planted in."""
    model: Path
    """Folder of the policy that training begins with."""
    data_version: int | None
    """Delta version of the `qa` table."""

    @staticmethod
    def is_recipe(item: str) -> bool:
        """Tell whether a ``section.key=value`` string is about the recipe."""
        return item.split("=")[0].split(".")[0] in _RECIPE

    @property
    def run_id(self) -> str:
        """Name of the run."""
        recipe = self.recipe.first_keys()
        del recipe["engine"], recipe["pool"]
        # How long it goes on, and how often it says so, do not make another run of it.
        recipe["stage"] = {"seed": self.recipe.stage.seed}
        version = self.data_version if any(dataset_name(given) == "qa" for given in self.data) else None
        parts = (self.reader.policy.policy_id, self.reader.config_hash, recipe, self.data, self.texts, version)
        return f"train-{stable_hash(*parts)[:10]}"

    def reading_config(self, config: str | None = None) -> Config:
        """Return the configuration in which versions are compared: as bulk answering reads, not as training samples.

        Args:
            config: a configuration file.
        """
        others = [item for item in self.sets if not self.is_recipe(item)]
        return load_config(config, others, store=self.config.store, engine__model=self.recipe.model)


def prepare(
    name: str,
    data: Sequence[str],
    texts: Sequence[str] = (),
    store: str | None = None,
    sets: Sequence[str] = (),
    model: str | None = None,
) -> Run:
    """Make a run of a recipe's name or path, the data, and ``section.key=value`` strings over both.

    Raises:
        ConfigError: a key is unknown or wrong, or the model or what another package brings cannot be used.
        UsageError: the model is no folder that a learner could load, or there is no such data set.
    """
    own = [item for item in sets if Run.is_recipe(item)]
    recipe = load_recipe(name, own)
    for item in data:  # what cannot be used is refused before anything is started
        DATASETS.find(dataset_name(item))
    for function in recipe.reward.weights:
        FUNCTIONS.find(function)
    if model is not None:
        recipe = recipe.model_copy(update={"model": model})
    given = {"engine": {"dtype": recipe.learner.dtype, **recipe.engine}, "pool": recipe.pool, "reading": recipe.reading}
    others = [item for item in sets if item not in own]
    config = load_config(None, [*as_settings(given), *others], store=store, engine__model=recipe.model)
    if "://" not in config.store:
        config = config.model_copy(update={"store": str(Path(config.store).expanduser().resolve())})
    if config.engine.kind != "vllm":
        raise UsageError(
            "training samples with vLLM, which gives token ids and log-probabilities: --set engine.kind=vllm"
        )
    reader = ReaderSpec(config)
    version = qa_version(Store(config.store))
    places = [str(Path(text).expanduser().resolve()) for text in texts]
    folder = _folder(reader.folder)
    return Run(
        name,
        tuple(sets),
        recipe,
        config=config,
        reader=reader,
        data=tuple(data),
        texts=tuple(places),
        model=folder,
        data_version=version,
    )


def _folder(path: str) -> Path:
    """Return the model's folder; one of the Hugging Face hub is downloaded."""
    if Path(path).is_dir():
        return Path(path)
    from huggingface_hub import snapshot_download

    wanted = ["*.safetensors", "*.json", "tokenizer*", "merges.txt", "vocab*"]
    return Path(snapshot_download(path, allow_patterns=wanted))
