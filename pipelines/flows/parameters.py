"""The parameters that callers of a flow may set.

The operator, who starts the process, decides which code runs and which servers get which key: by the options of
`memagent up`, or by ``MEMAGENT_CONFIG_FILE`` in a worker's environment. A flow's caller decides what is read and how.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from infra.store.location import Store
from memagent.config import Config, load_config
from memagent.errors import ConfigError
from memagent.evaluation.suites import Suite
from memagent.reading.engine import ENGINES
from memagent.records import Json
from memagent.rl.promotion import PromotionSpec
from memagent.rl.reward import is_place
from memagent.settings import put_setting, read_toml
from pipelines.training.settings import TrainingRun

RESERVED = (
    "engine.trust_remote_code",
    "engine.base_url",
    "engine.api_key_env",
    "engine.options",
    "ray",
    "reward_functions",
)
"""Keys and sections that only the operator sets. So is ``engine.kind`` if it names an engine of another package, which
may send a key from this process's environment to a server."""
_CODE = ("engine.model", "engine.tokenizer")
"""Keys that would load other remote code if the operator trusts the configured model's."""


def settings_for(config: str | None, sets: Sequence[str] | None, store: str | None) -> Config:
    """Return the operator's configuration with a caller's file, ``section.key=value`` strings and store over it.

    Raises ConfigError: a parameter sets a reserved key, a key is unknown or wrong, or the store cannot be reached.
    """
    check(config, sets)
    if any(item.partition("=")[0].strip() == "store" for item in sets or ()):
        raise ConfigError("parameter sets: the store is a parameter of its own: give it as `store`")
    settings = load_config(config, list(sets or ()), store=store)
    Store(settings.store).check_reachable()
    return settings


def check(
    config: str | None = None,
    sets: Sequence[str] | None = None,
    engine: Mapping[str, Any] | None = None,
    rewards: Iterable[str] = (),
) -> None:
    """Check that a configuration file, ``section.key=value`` strings, and a recipe's engine keys and rewards set no
    reserved keys, and name no code that the operator has not allowed.

    Raises ConfigError: naming parameter and key.
    """
    operators = load_config()
    configured = operators.engine
    for name in rewards:
        if is_place(name) and name not in operators.reward_functions:
            raise ConfigError(
                f"recipe: the reward {name} would import code that the operator has not allowed. The allowed ones are "
                "listed as reward_functions in the file that MEMAGENT_CONFIG_FILE names in a worker's environment"
            )
    reserved = (*RESERVED, *_CODE) if configured.trust_remote_code else RESERVED
    settings: Json = {}
    for item in sets or ():
        put_setting(settings, item)
    by_parameter = {"sets": settings, "config": read_toml(config) if config else {}, "recipe": {"engine": engine or {}}}
    for parameter, data in by_parameter.items():
        section = data.get("engine")
        kind = section.get("kind") if isinstance(section, Mapping) else None
        foreign = isinstance(kind, str) and kind != configured.kind and ENGINES.origin(kind)
        refused = (*reserved, "engine.kind") if foreign else reserved
        for key in _keys(data):
            if any(key == name or key.startswith(f"{name}.") for name in refused):
                raise ConfigError(
                    f"{parameter}: {key} is not for a flow's parameters. The operator sets it: by an option of "
                    "`memagent up`, or in the file that MEMAGENT_CONFIG_FILE names in a worker's environment"
                )


def _keys(data: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield the dotted keys of nested data, sections included."""
    for key, value in data.items():
        yield f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from _keys(value, f"{prefix}{key}.")


Value = str | int | bool | Sequence[str] | None


def command(name: str, *words: str, **options: Value) -> list[str]:
    """Return a command line of `memagent` that prints JSON: no word of a caller is an option, whatever it begins with.

    A list repeats its option, True and False are ``--name`` and ``--no-name``; None and empty values are left out.
    """
    argv = [*name.split(), "--json"]
    for name, value in options.items():
        flag = f"--{name.rstrip('_').replace('_', '-')}"
        if isinstance(value, bool):
            argv.append(flag if value else f"--no-{flag[2:]}")
        elif isinstance(value, str | int):
            argv += [f"{flag}={value}"] if value != "" else []
        else:
            argv += [f"{flag}={item}" for item in value or ()]
    return [*argv, "--", *words] if words else argv


def digest(corpus: str, run_id: str) -> list[str]:
    """Digest a corpus by its default questions; the answers stay in the store."""
    return command("digest", corpus, run_id=run_id, answers=False)


def ask(corpus: str, run_id: str, questions_file: str, archive: bool) -> list[str]:
    """Ask the questions of a file of a corpus; the answers stay in the store."""
    more = {"archive": True} if archive else {}
    return command("ask", corpus, run_id=run_id, fetch=False, answers=False, questions=questions_file, **more)


def optimize(corpus: str, retention_days: float) -> list[str]:
    """Compact a corpus's files."""
    return command("optimize", corpus, retention_days=str(retention_days))


def ingest(corpus: str, sources: Sequence[str], run_id: str) -> list[str]:
    """Take sources into a corpus."""
    return command("ingest", corpus, *sources, run_id=run_id)


def evaluate(suite: Suite, texts: Sequence[str], run_id: str) -> list[str]:
    """Read a suite and score the answers."""
    return command(
        "evaluate",
        suite=suite.name,
        n=suite.n,
        seed=suite.seed,
        run_id=run_id,
        kinds=",".join(suite.kinds),
        lengths=",".join(map(str, suite.lengths)),
        data=suite.data,
        text=texts,
        control=suite.control,
    )


def harvest(corpus: str, samples: int, run_id: str) -> list[str]:
    """Make training rows from answers."""
    return command("harvest", corpus, agreement=samples, run_id=run_id)


def train(run: TrainingRun) -> list[str]:
    """Train a stage."""
    files = run.files
    columns = [f"{name}={value}" for name, value in asdict(files.columns).items() if value]
    return command(
        "train",
        recipe=run.name,
        data=run.data,
        text=run.texts,
        set=run.sets,
        validation=files.validation,
        promotion=files.promotion,
        columns=columns,
        run=run.given_name,
    )


def promote(candidate: str, spec: PromotionSpec) -> list[str]:
    """Run the promotion check on a candidate."""
    keys = spec.model_dump(exclude_defaults=True)
    plain = {key: ",".join(map(str, value)) if isinstance(value, tuple) else value for key, value in keys.items()}
    return command("policies promote", candidate, check=[f"{key}={value}" for key, value in plain.items()])
