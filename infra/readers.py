"""Policies: the model that reads, and its version id."""

import json
import logging
import os
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from infra.models import fetch_folder, folder_hash, policy_file
from infra.store.location import Store
from infra.store.policies import fetch, policies, policy, promoted
from infra.store.schemas import PolicyRow
from memagent.config import Config, EngineConfig, ReadingConfig, reading_defaults
from memagent.errors import ConfigError
from memagent.nano import VERSIONS, bundled
from memagent.reading.baselines import config_hash, method
from memagent.reading.chat import for_model
from memagent.reading.conversations import ReadingSpec
from memagent.reading.engine import ENGINES, Engine, EngineRequest
from memagent.reading.prompts import load_template
from memagent.reading.scope import load_scope
from memagent.reading.scripted import RULES_VERSION
from memagent.reading.tokens import Tokenizer, load_tokenizer
from memagent.records import Policy, stable_hash

_log = logging.getLogger("memagent.models")
SHIPPED = "@shipped"
"""After a model's name or folder: that model itself, whichever version of its lineage is promoted."""


class ReaderSpec:
    """A policy with its reading configuration: everything that a worker needs besides the store.

    Cheap to build and to send: the tokenizer and the prompts are made where they are used, the
    engine is made by `make_engine`. The promoted version is looked up once, when this is built.
    """

    def __init__(self, config: Config) -> None:
        """Resolve the model, its reading defaults and the prompt template.

        Raises ConfigError: the model or the template cannot be used together or at all.
        """
        self.engine_config = config.engine
        self.engine_restarts = config.pool.engine_restarts
        self.watchdog_seconds = config.pool.watchdog_seconds
        self._store = Store(config.store)
        self.policy, row = _resolve(config.engine, self._store)
        self._kept_at = row and row["path"]
        self.reading: ReadingConfig = config.reading_config(self.policy.defaults)
        self.template = load_template(self.reading.template)
        if config.engine.kind == "openai" and config.engine.protocol == "chat":
            self._check_message()
        elif config.engine.kind != "scripted":
            given = config.engine.tokenizer or self.policy.path
            chat = self.reading.chat_options, self.reading.system_prompt
            self.template = for_model(self.template, str(bundled_version(given) or given), *chat)
        self.method = method(config.method, config.window_tokens)
        self.config_hash = config_hash(config.method, config.window_tokens, self.reading.hash(self.template.hash))
        self.goes_on = config.method == "memagent"
        """Whether a reading can continue from a memory in the middle of a text."""

    def _check_message(self) -> None:
        """Refuse what a server that takes messages cannot be given."""
        if not self.template.chat:
            raise ConfigError(
                f"template {self.template.name!r} holds a model's own chat markers; engine.protocol = chat wants a "
                "template of plain text: --set reading.template=plain"
            )
        if self.reading.system_prompt:
            raise ConfigError(
                "reading.system_prompt is of models in process; with engine.protocol = chat write it into a template "
                "of your own: --set reading.template=FILE.toml"
            )

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k not in ("tokenizer", "scheme", "folder")}

    @cached_property
    def folder(self) -> str:
        """The model's folder on this machine, or its name on the hub; a version on S3 is downloaded if necessary."""
        if self._kept_at is None:
            return self.policy.path
        return str(fetch_folder(self._store, self._kept_at, self.policy.policy_id))

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The policy's tokenizer.

        Raises:
            ConfigError: there is none, or it cannot be used; where it is given apart from the model, the key is named.
        """
        try:
            return load_tokenizer(self.tokenizer_source)
        except ConfigError as error:
            if self.engine_config.tokenizer is None:
                raise
            raise ConfigError(f"engine.tokenizer: {error}") from error

    @property
    def tokenizer_source(self) -> str:
        """Folder or hub name of the tokenizer: that of ``engine.tokenizer``, or the model's.

        Raises ConfigError: a served model's is not known.
        """
        given = self.engine_config.tokenizer
        if given is not None:
            return str(bundled_version(given) or given)
        if self.engine_config.kind == "openai" and not os.path.isdir(self.folder) and self.folder.count("/") != 1:
            raise ConfigError(
                f"engine openai: {self.folder!r} names no tokenizer, which counts a document's tokens: "
                "--set engine.tokenizer=NAME, a folder or a Hugging Face name (nano is at hand, and counts well enough "
                "where engine.protocol is text or chat)"
            )
        return self.folder

    @cached_property
    def scheme(self) -> ReadingSpec:
        """The compiled prompts, the reading configuration, and what the reader declares of itself.

        Raises ConfigError: the model's ``scope.json`` cannot be used.
        """
        # Of the folder, other engines may take tokenizer and reading defaults alone: a server has a model of its own.
        scope = load_scope(Path(self.folder)) if self.engine_config.kind == "vllm" else None
        return replace(ReadingSpec.compile(self.reading, self.template, self.tokenizer), scope=scope)

    def make_engine(self) -> Engine:
        """Make the engine; it loads its weights when it is started.

        Raises ConfigError: the package that brings the engine is not installed here, or cannot be imported.
        """
        return ENGINES.find(self.engine_config.kind)(self._engine_request())

    def make_local_engine(self) -> Engine:
        """Make the engine for this machine alone: for ``vllm`` the warm one, which the next commands use as well.

        Raises ConfigError: the package that brings the engine is not installed here, or cannot be imported.
        """
        if self.engine_config.kind != "vllm":
            return self.make_engine()
        from infra.engines.warm import WarmEngine

        return WarmEngine(self._engine_request(), self.policy.policy_id)

    def prepare_local_engine(self) -> None:
        """Begin to load the engine of `make_local_engine` in the background, where that takes long.

        Raises ConfigError: the model's folder is gone.
        """
        if self.engine_config.kind == "vllm":
            from infra.engines.warm import prepare

            prepare(self._engine_request(), self.policy.policy_id)

    def _engine_request(self) -> EngineRequest:
        return EngineRequest(self.folder, self.engine_config, lambda: self.tokenizer, lambda: self.scheme)

    @property
    def max_model_len(self) -> int | None:
        """The context window: as configured, or else the model's own; None if unknown."""
        if self.engine_config.max_model_len or self.engine_config.kind == "scripted":
            return self.engine_config.max_model_len
        path = Path(self.folder) / "config.json"
        if not path.is_file():
            return None
        length = json.loads(path.read_text(encoding="utf-8")).get("max_position_embeddings")
        return int(length) if length else None


def resolve_policy(config: EngineConfig, store: Store | None = None) -> Policy:
    """Find the model that a configuration names, and name its version.

    A lineage's name (``nano``), or its base model, means the promoted version, if there is
    one; ``NAME@PREFIX`` the version whose id begins so; ``NAME@shipped`` the model itself; ``nano@sft`` and
    ``nano@rl`` the two versions of nano that are shipped. Only vllm loads registered versions: the other engines, and
    a call without a store, take the model itself.

    The id of a local model is a hash of its weights, configuration and tokenizer; a model on the
    Hugging Face hub goes by its commit; a served model by its name, its address and what the server lists of it; the
    policy of an engine that another package brings by engine, model and ``engine.options``.

    Raises:
        ConfigError: there is no such model.
        UsageError: there is no such version, or several.
    """
    return _resolve(config, store)[0]


def _resolve(config: EngineConfig, store: Store | None) -> tuple[Policy, PolicyRow | None]:
    """Return the policy, and its row if it is a registered version."""
    row = _version(config.model, store) if config.kind == "vllm" and store is not None else None
    if row is None or store is None:
        return _itself(config), None
    folder = fetch(store, row)
    return Policy(row["policy_id"], row["name"], str(folder), reading_defaults(folder)), row


def _version(model: str, store: Store) -> PolicyRow | None:
    """Return the registered version that a model's name means; None: the model itself."""
    if model.endswith(SHIPPED):
        return None
    folder = Path(model).expanduser()
    if model != "nano" and os.path.isdir(folder):
        return None if policy_file(folder) else promoted(store, _folder_name(folder))
    if "@" not in model:
        return promoted(store, model)
    if bundled_version(model) and not any(row["policy_id"].startswith(model) for row in policies(store)):
        return None
    return policy(store, model)


def _itself(config: EngineConfig) -> Policy:
    """Return the policy of a model that is no registered version."""
    own = bundled_version(config.model)
    model = "nano" if own else config.model.removesuffix(SHIPPED)
    folder = own or Path(model).expanduser()
    if config.kind == "scripted" and os.path.isdir(folder):
        return Policy(f"scripted@{RULES_VERSION}", "scripted", str(folder), reading_defaults(folder))
    if config.kind == "openai":
        return _served(config, folder, model)
    if config.kind != "vllm":
        return _brought(config, folder, model)
    if os.path.isdir(folder):
        return _local(config, folder, model)
    return _from_hub(model)


def _served(config: EngineConfig, folder: Path, model: str) -> Policy:
    """Return the policy of a served model, identified by served name, address and the listed weights.

    A local folder gives tokenizer and reading defaults only: the server may have other weights.
    """
    from infra.engines.openai import listed_weights

    served = config.served_model or model
    # Two servers may use one name for different models, and versions of one name count as one policy.
    name = f"{served}-{stable_hash(config.base_url)[:6]}"
    version = stable_hash(config.base_url, served, listed_weights(config, served))[:12]
    return _policy(name, version, folder, model)


def _brought(config: EngineConfig, folder: Path, model: str) -> Policy:
    """Name the policy of an engine that another package brings: by engine, model and the engine's options.

    Other options are another policy and not another version of this one, whose answers would count: they may name
    another server or model. Other content of the model's folder is another version.
    """
    known = _folder_name(folder) if os.path.isdir(folder) and model != "nano" else model
    name = f"{config.kind}-{known}" + (f"-{stable_hash(config.options)[:6]}" if config.options else "")
    version = stable_hash(config.kind, folder_hash(folder) if os.path.isdir(folder) else model, config.options)[:12]
    return _policy(name, version, folder, model)


def _local(config: EngineConfig, folder: Path, model: str) -> Policy:
    if config.kind == "vllm" and not list(folder.glob("*.safetensors")):
        raise ConfigError(
            f"{folder} has no *.safetensors. Only safetensors are loaded; convert the model with "
            "save_pretrained(folder, safe_serialization=True)."
        )
    record = policy_file(folder)
    name = "nano" if model == "nano" else str(record["name"]) if record else _folder_name(folder)
    return _policy(name, folder_hash(folder), folder, model)


def _policy(name: str, version: str, folder: Path, model: str) -> Policy:
    path, defaults = (str(folder.resolve()), reading_defaults(folder)) if os.path.isdir(folder) else (model, {})
    return Policy(f"{name}@{version}", name, path, defaults)


def _folder_name(folder: Path) -> str:
    # Versions of one name count as one policy, and two folders called "model" are two policies.
    resolved = folder.resolve()
    return f"{resolved.name}-{stable_hash(str(resolved))[:6]}"


def bundled_version(model: str) -> Path | None:
    """Return the folder of the bundled version that is named so: by ``nano``, a label, or the beginning of its id."""
    name, _, version = model.removesuffix(SHIPPED).partition("@")
    if name != "nano":
        return None
    for label in VERSIONS:
        if version in ("", label) or folder_hash(bundled(label)).startswith(version):
            return bundled(label)
    return None


def _from_hub(model: str) -> Policy:
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HFValidationError

    _log.warning("%r is no folder: asking the Hugging Face hub for it", model)
    try:
        info = HfApi().model_info(model)
    except HFValidationError as error:
        raise ConfigError(f"{model!r} is neither a folder nor a Hugging Face name") from error
    except Exception as error:  # the hub raises its own and its HTTP client's errors
        raise ConfigError(
            f"{model!r} is no folder, and the Hugging Face hub does not give it ({type(error).__name__}). "
            "Check the name, the network and HF_TOKEN, or download the model and give its folder."
        ) from error
    return Policy(f"{model}@{(info.sha or 'main')[:12]}", model, model)
