"""Policies: which model reads, and what names it."""

import hashlib
import json
from functools import cached_property
from pathlib import Path
from typing import Any

from memagent.config import Config, EngineConfig, ReadingConfig
from memagent.engine import Engine
from memagent.errors import ConfigError
from memagent.methods import config_hash, method
from memagent.nano import bundled
from memagent.prompts import Prompts, load_template
from memagent.reading import Scheme
from memagent.records import Policy, digest
from memagent.scripted import RULES_VERSION, ScriptedEngine
from memagent.tokens import Tokenizer, load_tokenizer

_HASHED = (".safetensors", "config.json", "tokenizer.json", "generation_config.json")


class Reader:
    """A policy together with how it reads: everything that a worker needs besides the store.

    Cheap to build and to send: the tokenizer and the prompts are made where they are used, the
    engine is made by `make_engine`.
    """

    def __init__(self, config: Config) -> None:
        """Resolve the model, its reading defaults and the prompt template.

        Raises:
            ConfigError: the model or the template cannot be used together or at all.
        """
        self.engine_config = config.engine
        self.engine_restarts = config.pool.engine_restarts
        self.policy = resolve_policy(config.engine)
        self.reading: ReadingConfig = config.reading_config(self.policy.defaults)
        self.template = load_template(self.reading.template)
        if config.engine.kind == "openai" and config.engine.protocol == "chat" and not self.template.chat:
            raise ConfigError(
                f"template {self.template.name!r} holds a model's own chat markers; engine.protocol = chat wants a "
                "template of plain text: --set reading.template=plain"
            )
        self.method = method(config.method, config.window_tokens)
        self.config_hash = config_hash(config.method, config.window_tokens, self.reading.hash(self.template.hash))
        self.goes_on = config.method == "memagent"
        """Whether a memory in the middle of a text says all that is needed to read on."""

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k not in ("tokenizer", "scheme")}

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The policy's tokenizer."""
        return load_tokenizer(self.engine_config.tokenizer or self.policy.path)

    @cached_property
    def scheme(self) -> Scheme:
        """The compiled prompts and the reading configuration."""
        reading = self.reading
        prompts = Prompts(
            self.template, self.tokenizer, reading.layout, gate=reading.gate, early_exit=reading.early_exit
        )
        return Scheme(prompts, reading)

    def make_engine(self) -> Engine:
        """Make the engine; it loads its weights when it is started."""
        config = self.engine_config
        if config.kind == "scripted" and config.scripted_process:
            from infra.engines.scripted import ScriptedProcess

            return ScriptedProcess(self.policy.path, self.reading, config)
        if config.kind == "scripted":
            return ScriptedEngine(self.scheme.prompts, delay=config.scripted_delay)
        if config.kind == "openai":
            from infra.engines.openai import OpenAIEngine

            return OpenAIEngine(self.policy.path, config, self.tokenizer)
        from infra.engines.vllm import VllmEngine

        return VllmEngine(self.policy.path, config)

    @property
    def max_model_len(self) -> int | None:
        """The context window: as configured, else the model's own; None where it is not known."""
        if self.engine_config.max_model_len or self.engine_config.kind == "scripted":
            return self.engine_config.max_model_len
        path = Path(self.policy.path) / "config.json"
        if not path.is_file():
            return None
        length = json.loads(path.read_text(encoding="utf-8")).get("max_position_embeddings")
        return int(length) if length else None


def resolve_policy(config: EngineConfig) -> Policy:
    """Find the model that a configuration names, and name its version.

    The id of a local model is a hash of its weights, configuration and tokenizer; a model on the
    Hugging Face hub goes by its commit; a served model by its name.
    """
    if config.kind == "scripted" and config.model == "nano":
        folder = bundled()
        return Policy(f"scripted@{RULES_VERSION}", "scripted", str(folder), _defaults(folder))
    folder = bundled(config.model) if config.model == "nano" else Path(config.model).expanduser()
    if folder.is_dir():
        return _local(config, folder)
    if config.kind == "openai":
        name = config.served_model or config.model
        return Policy(f"{name}@{digest(config.base_url, name)[:12]}", name, config.model)
    return _from_hub(config.model)


def _local(config: EngineConfig, folder: Path) -> Policy:
    # The name tells whose versions count as one policy: two folders called "model" are two policies.
    place = folder.resolve()
    name = "nano" if config.model == "nano" else f"{place.name}-{digest(str(place))[:6]}"
    if config.kind == "vllm" and not list(folder.glob("*.safetensors")):
        raise ConfigError(
            f"{folder} has no *.safetensors. Only safetensors are loaded; convert the model with "
            "save_pretrained(folder, safe_serialization=True)."
        )
    if config.kind == "scripted":
        return Policy(f"scripted@{RULES_VERSION}", "scripted", str(folder), _defaults(folder))
    return Policy(f"{name}@{_folder_hash(folder)}", name, str(place), _defaults(folder))


def _from_hub(model: str) -> Policy:
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HFValidationError

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


def _defaults(folder: Path) -> dict[str, Any]:
    path = folder / "reading.json"
    if not path.is_file():
        return {}
    try:
        data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from error
    return data


def _folder_hash(folder: Path) -> str:
    total = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if path.name.endswith(_HASHED):
            total.update(path.name.encode())
            with path.open("rb") as file:
                total.update(hashlib.file_digest(file, "sha256").digest())
    return total.hexdigest()[:12]
