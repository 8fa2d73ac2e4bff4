"""What can be configured. Parsed before anything heavy is imported; unknown keys are refused.

Values come from, in rising order of precedence: the defaults below, the model folder's
``reading.json`` (reading keys only), the TOML file that ``$MEMAGENT_CONFIG_FILE`` names, a TOML file,
``--set section.key=value``, command-line options.
"""

import json
import math
import re
from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, Field, JsonValue, ValidationError, field_validator, model_validator

from memagent.errors import ConfigError
from memagent.quality.cost import CostConfig
from memagent.quality.quality_checks import QualityConfig
from memagent.quality.schedule import ScheduleConfig
from memagent.reading.engine import ENGINES
from memagent.reading.prompts import Layout
from memagent.reading.segmenting import CUTTING_VERSION, Boundary
from memagent.records import Json, stable_hash
from memagent.registry import Registry
from memagent.settings import Section, environment, merge, put, put_setting, read_toml

_T = TypeVar("_T", bound=BaseModel)


class ReadingConfig(Section):
    """How a document is read. Part of every reading's identity."""

    segment_tokens: int = Field(5000, ge=16)
    """Tokens of a segment at most (MemAgent, arXiv 2507.02259, section 3: 5,000)."""
    boundary: Boundary = "soft"
    """Cut at the end of a paragraph or sentence, or hard at the limit; never within a grapheme cluster."""
    memory_tokens: int = Field(1024, ge=1)
    """Tokens of the memory at most."""
    answer_tokens: int = Field(1024, ge=1)
    """Tokens of the final answer at most."""
    template: str = "plain"
    """Prompt template: the name of a shipped one, or a path to a TOML file. ``plain`` is a message, which stands within
    the model's own chat template, or as it is where the model has none."""
    chat_options: dict[str, JsonValue] = Field({"enable_thinking": False})
    """Variables of the model's chat template; a template ignores those that it does not know."""
    system_prompt: str = ""
    """A system message before the prompt; empty: none, or the one that the model's chat template has."""
    layout: Layout = "question-first"
    """question-first as in the paper; section-first shares a segment's prefix among questions."""
    parallel_spans: int = Field(1, ge=1)
    """Spans of a stream that are read side by side; their memories are then read as a short stream."""
    span_segments: int = Field(0, ge=0)
    """A stream of more segments is read in as many spans as keep each within this length; 0: `parallel_spans` alone
    decides. So one very long document does not take as long as all others together."""
    gate: bool = False
    """The policy may say that a segment changes nothing (GRU-Mem, arXiv 2602.10560)."""
    early_exit: bool = False
    """The policy may say that it has read enough (GRU-Mem, arXiv 2602.10560)."""
    repetitions: int = Field(12, ge=0)
    """A response that says the same so many times in a row is ended; an update by it changes nothing. 0: never."""
    temperature: float = Field(0.0, ge=0)
    """Sampling temperature; 0 is greedy."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Nucleus sampling."""
    seed: int = 0
    """Seed of sampling at temperatures above 0."""

    def hash(self, template_hash: str) -> str:
        """Hash of everything here, of the prompt wording and of the rules by which texts are cut."""
        # A key that is off is left out: answers of before it existed stay valid.
        # Of the chat template, what is made of these keys is in the template's hash.
        unset = {"template", "chat_options", "system_prompt"} | (set() if self.span_segments else {"span_segments"})
        return stable_hash(self.model_dump(exclude=unset), template_hash, CUTTING_VERSION)

    def parallel_spans_of(self, segments: int) -> int:
        """Return in how many spans a stream of so many segments is read, at least one."""
        return max(self.parallel_spans, math.ceil(segments / self.span_segments) if self.span_segments else 1)


_FEW_CONVERSATIONS = 20_000


class EngineConfig(Section):
    """What continues the prompts."""

    kind: str = "vllm"
    """vllm in process, openai for any compatible server, scripted for tests and dry runs; or one that an installed
    package brings (`memagent.reading.engine.ENGINES`)."""
    keep_alive: float = Field(300.0, ge=0)
    """vllm, on one machine: seconds for which the engine stays after a command, for the next one of the same user with
    the same model and settings; 0: it ends with the command."""
    options: dict[str, JsonValue] = Field(default_factory=dict)
    """Keys of an engine that another package brings: plain data, part of what names its policy, and kept with each run.
    A secret does not belong here; name the environment variable that holds it."""
    model: str = "nano"
    """``nano`` (bundled), a folder in Hugging Face format, or a Hugging Face name."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Number format of weights and activations. auto: the model's own (on a GPU, float32 is slow); on a CPU float32
    instead of a 16-bit format where it is faster, as timed on this processor (`memagent doctor` says which)."""
    max_model_len: int | None = Field(None, ge=64)
    """Context window in tokens; by default the model's own."""
    max_num_seqs: int = Field(256, ge=1)
    """Sequences that the engine runs at once."""
    max_num_batched_tokens: int | None = Field(None, ge=64)
    """Tokens that one step of the engine takes at most, of all sequences; by default vLLM's own for work in bulk (8,192
    or 16,384, by the GPU), and on CPU 768, or `max_num_seqs` if that is more."""
    tensor_parallel: int = Field(1, ge=1)
    """GPUs that one engine's weights are spread over."""
    gpu_memory: float = Field(0.9, gt=0, le=1)
    """Share of a GPU's memory for one engine."""
    sleep_mode: bool = False
    """Let the engine give its GPU memory back while a learner uses the GPU (`learner.placement` shared sets it)."""
    lora_rank: int = Field(0, ge=0)
    """Rank of the LoRA adapters that may be loaded beside the weights (`learner.weight_sync` adapters sets it)."""
    kv_cache_gib: int = Field(1, ge=1)
    """GiB for the key-value cache of the CPU build."""
    enforce_eager: bool | None = None
    """Skip graph capture and compilation; by default on CPU only."""
    trust_remote_code: bool = False
    """Run code that comes with a model. Off unless you trust its author."""
    tokenizer: str | None = None
    """Folder or name of the tokenizer where it is not the model's, as with ``openai``."""
    base_url: str = "http://127.0.0.1:8000/v1"
    """openai: the server's address."""
    api_key_env: str = "OPENAI_API_KEY"
    """openai: the environment variable that holds the key. Keys are never written down."""
    served_model: str | None = None
    """openai: the model's name at the server, where it differs from ``model``."""
    protocol: Literal["ids", "text", "chat"] = "ids"
    """openai: completions with token ids (vLLM, SGLang), completions with text, or chat."""
    timeout_seconds: float = Field(600.0, gt=0)
    """openai: how long one request may take."""
    scripted_delay: float = Field(0.0, ge=0)
    """scripted: seconds that one conversation takes, to imitate an engine."""
    scripted_process: bool = False
    """scripted: run in a process of its own, which can be killed as a real engine's can."""

    @field_validator("kind")
    @classmethod
    def _known(cls, kind: str) -> str:
        if kind not in ENGINES:
            raise ValueError(ENGINES.unknown(kind))
        return kind


class PoolConfig(Section):
    """The engines of a run."""

    min_size: int = Field(1, ge=1)
    """Engines at the start."""
    max_size: int = Field(1, ge=1)
    """Engines at most."""
    cpus: float = Field(1.0, ge=0)
    """Ray CPUs reserved for one engine."""
    gpus: float = Field(0.0, ge=0)
    """Ray GPUs reserved for one engine; set it to engine.tensor_parallel on GPU machines."""
    nodes: int = Field(1, ge=1)
    """Nodes over which one engine's GPUs may be spread, where no node has enough; they should have a fast network."""
    inflight: int = Field(256, ge=1)
    """Readings that one engine works on at once."""
    engine_restarts: int = Field(3, ge=0)
    """How often a dead engine is started again before it is retired."""
    watchdog_seconds: float = Field(1800.0, gt=0)
    """An engine that has not answered a conversation for so long counts as dead."""

    @model_validator(mode="after")
    def _sizes(self) -> "PoolConfig":
        if self.max_size < self.min_size:
            raise ValueError(f"pool.max_size {self.max_size} is below pool.min_size {self.min_size}")
        if self.nodes > 1 and (self.gpus < self.nodes or self.gpus % 1):
            raise ValueError(
                f"pool.nodes = {self.nodes} spreads an engine over GPUs: set pool.gpus to engine.tensor_parallel, "
                f"not {self.gpus:g}"
            )
        return self


class IngestConfig(Section):
    """How sources become documents."""

    text_column: str = "text"
    """Column with the text in csv, json lines and parquet; each row is a document."""
    id_column: str | None = None
    """Column with the document's id; by default the row's number."""
    title_column: str | None = "title"
    """Column with the title, where there is one."""
    max_bytes: int = Field(512 * 2**20, ge=1)
    """Largest source, before and after decompression, and most characters of the text that comes out of it; a larger
    one goes to quarantine."""
    max_ratio: float = Field(200.0, gt=1)
    """Largest ratio of decompression, and of characters of text to bytes of the source; beyond it a source counts as a
    bomb. Small sources are let off: a page of blanks compresses well."""
    parse_seconds: float = Field(120.0, gt=0)
    """Seconds that a parser may take for a page, line or row, or for a text that it reads at once, as HTML; beyond it
    the source goes to quarantine."""
    source_seconds: float = Field(3600.0, gt=0)
    """Seconds that a parser may take for all of one source; beyond it the source goes to quarantine, and the
    documents read till then stay."""
    max_refused: int = Field(100, ge=0)
    """Rows of one source that are named in quarantine; the others are counted in one row."""
    retry_failed: bool = False
    """Parse sources that failed in an earlier run, though nothing about them has changed since."""
    keep_deleted: bool = False
    """Keep documents whose source is gone."""
    confine: bool = True
    """Parse without network, without writing, and with no files but the source, where the system can confine a process
    so (``memagent doctor`` says); false only for a parser of your own that needs them."""


class RayConfig(Section):
    """Where Ray runs."""

    address: str | None = None
    """Address of a running cluster (``auto``, ``ray://...``); by default Ray starts in this process."""
    jobs_address: str | None = None
    """Address of a cluster's Jobs API (``http://host:8265``); flows then submit their work to it."""
    python: str | None = None
    """Interpreter of the cluster that jobs run with; by default this one's path."""
    job_cpus: float = Field(0.0, ge=0)
    """CPUs that a job asks for its driver, to run on a worker node; 0: it runs on the head node."""
    job_memory_gib: float = Field(2.0, gt=0)
    """GiB of memory that it asks for besides, where `job_cpus` is set."""
    cpus: int | None = Field(None, ge=1)
    """CPUs of the in-process Ray; by default all."""
    runtime_env: Json = Field(default_factory=dict)
    """Ray runtime environment for the cluster, for example ``{"pip": [...]}`` or ``{"image_uri": "..."}``."""


class LoggingConfig(Section):
    """What runs say on standard error and in their logs."""

    format: Literal["text", "json"] = "text"
    """json: an object a line, with run, corpus, policy, reading and worker, for programs that collect logs."""
    level: Literal["info", "warning"] = "warning"
    """info also tells of stages, and of each reading that failed."""


# As text: they read by a configuration, and names must be checked without loading them.
METHODS: Registry[Callable[..., Any]] = Registry(
    "memagent.reading.baselines",
    "method",
    {
        "memagent": "memagent.reading.loop:Reading",
        "truncate": "memagent.reading.baselines:Truncate",
        "bm25": "memagent.reading.baselines:BM25",
        "map-reduce": "memagent.reading.baselines:MapReduce",
    },
)
"""How a text is read: by the agent, or by a baseline to compare it with."""


class Config(Section):
    """The whole configuration."""

    store: str = ".memagent"
    """Folder or ``s3://`` URL where everything is kept."""
    engine: EngineConfig = EngineConfig()
    reading: Json = Field(default_factory=dict)
    """Reading keys given by the user; completed with the model's defaults by `reading_config`."""
    method: str = "memagent"
    """How a text longer than the window is read: segment by segment, or by a baseline to compare that with
    (`METHODS`)."""
    window_tokens: int | None = Field(None, ge=16)
    """Tokens of text in one conversation of the other methods; by default reading.segment_tokens."""
    pool: PoolConfig = PoolConfig()
    ingest: IngestConfig = IngestConfig()
    ray: RayConfig = RayConfig()
    logging: LoggingConfig = LoggingConfig()
    cost: CostConfig = CostConfig()
    quality: QualityConfig = QualityConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    max_failed: str = Field("", coerce_numbers_to_str=True)
    """How many of a run's readings, and of its sources and rows of tables together, may fail: a number, or a percent as
    in ``5%``. With more the run has failed, with fewer it is completed with warnings. Empty: 2% of the readings, and
    all sources but one."""
    flush_seconds: float = Field(30.0, gt=0)
    """An engine's turns are written at least this often: work that a crash can cost. A run that is shorter than three
    hours writes them more often, after one part in 400 of its time so far, but not more than twice a second."""
    commit_seconds: float = Field(5.0, gt=0)
    """Answers are committed this often."""
    wait: bool = True
    """Wait for a run that reads the same documents for the same questions, or is the same training; else an error."""
    reward_functions: tuple[str, ...] = ()
    """Rewards, ``module:function``, that the callers of flows may train with: others would import code of their choice.
    """

    @field_validator("store")
    @classmethod
    def _named(cls, store: str) -> str:
        if not store.strip():
            raise ValueError("it is empty: give a folder or an s3:// URL")
        return store

    @field_validator("max_failed")
    @classmethod
    def _limit(cls, limit: str) -> str:
        if limit and not re.fullmatch(r"\d+|\d+(\.\d+)?%", limit):
            raise ValueError(f"{limit!r}: write a number or a percent, as in 3 or 5%")
        return limit

    @field_validator("method")
    @classmethod
    def _known(cls, method: str) -> str:
        if method not in METHODS:
            raise ValueError(METHODS.unknown(method))
        return method

    def public(self) -> Json:
        """Return it as plain data that may be kept and shown: without what could be a secret."""
        data = self.model_dump()
        data["engine"]["base_url"] = without_login(self.engine.base_url)
        data["engine"]["options"] = without_login(self.engine.options)
        environment = data["ray"]["runtime_env"]
        if "env_vars" in environment:
            environment["env_vars"] = dict.fromkeys(environment["env_vars"], "(not kept)")
        return data

    def runs_here(self, conversations: int) -> bool:
        """Tell whether so many conversations run on one engine beside the command's process, without Ray.

        That is where no cluster is named, one engine of one machine is asked for, and they are at most 20,000: some
        minutes on two cores. Then Ray costs more than a second worker process is worth.
        """
        one = self.pool.max_size == self.pool.nodes == 1
        return one and not self.ray.address and conversations <= _FEW_CONVERSATIONS

    def reading_config(self, model_defaults: Json) -> ReadingConfig:
        """Complete the reading section with the defaults of a model folder."""
        return validate(ReadingConfig, {**model_defaults, **self.reading}, "reading.")


def without_login(value: Any) -> Any:
    """Return plain data whose addresses hold no user and password."""
    if isinstance(value, dict):
        return {key: without_login(item) for key, item in value.items()}
    if isinstance(value, list):
        return [without_login(item) for item in value]
    return re.sub(r"//[^/@]*@", "//", value) if isinstance(value, str) else value


def load_config(path: str | None = None, sets: list[str] | None = None, **overrides: Any) -> Config:
    """Build the configuration.

    Args:
        path: a TOML file, or None.
        sets: ``section.key=value`` strings; values are TOML, and plain words count as strings.
        overrides: dotted keys with ``__`` for the dot, as given by command-line options; None is skipped.

    Raises:
        ConfigError: naming the key and what is wrong with it.
    """
    data = environment()
    if path is not None:
        merge(data, read_toml(path))
    for item in sets or []:
        put_setting(data, item)
    for name, value in overrides.items():
        if value is not None:
            put(data, name.replace("__", "."), value)
    config = validate(Config, data, "")
    validate(ReadingConfig, config.reading, "reading.")
    return config


def reading_defaults(folder: Path) -> Json:
    """Return the reading keys that a model folder's ``reading.json`` sets; none where there is no such file.

    Raises:
        ConfigError: it is no JSON object.
    """
    path = folder / "reading.json"
    if not path.is_file():
        return {}
    try:
        data: Json = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: {error}") from error
    if not isinstance(data, dict):
        raise ConfigError(f"{path} is no JSON object")
    return data


def validate(model: type[_T], data: Json, prefix: str) -> _T:
    """Make a configuration of plain data; a ConfigError names every key that is wrong, after `prefix`."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        lines = []
        for problem in error.errors():
            key = prefix + ".".join(str(part) for part in problem["loc"])
            text = (
                _no_such_key(model, problem["loc"])
                if problem["type"] == "extra_forbidden"
                else problem["msg"].removeprefix("Value error, ")
            )
            lines.append(f"{key.rstrip('.') or 'configuration'}: {text}")
        raise ConfigError("; ".join(lines)) from error


def _no_such_key(model: type[BaseModel], key: tuple[int | str, ...]) -> str:
    section: Any = model
    for name in key[:-1]:
        section = getattr(section, "model_fields", {}).get(name)
        section = section and section.annotation
    near = get_close_matches(str(key[-1]), getattr(section, "model_fields", ()), n=1)
    return f"no such key; did you mean {near[0]}?" if near else "no such key"
