"""The errors of memagent.

    MemagentError
    ├── UsageError            wrong use; the message says what to do (exit status 2)
    │   └── ConfigError       a configuration key or value that cannot be used
    ├── ItemError             one document, reading or row cannot be worked on; becomes a quarantine row
    │   └── SourceError       a source cannot be read or parsed
    ├── TrainingError         a training step cannot be taken; the last good checkpoint stays
    └── EngineError           the engine did not answer
        ├── RequestError      this request failed and will fail again
        ├── RetryableError    this request may succeed when it is sent again
        ├── EngineDied        the engine is gone; it must be started again
        └── EmptyResponse     a reading has no answer, since responses held no text

Each error is classified once, where it enters the product.
"""

from collections.abc import Mapping


class MemagentError(Exception):
    """Base of all errors that memagent raises on purpose."""


class UsageError(MemagentError):
    """Wrong use. The message says what to do."""


class ConfigError(UsageError):
    """A configuration key or value that cannot be used."""


class ItemError(MemagentError):
    """One item cannot be worked on; it becomes a quarantine row and the others go on."""


class SourceError(ItemError):
    """A source cannot be read or parsed.

    `reason` is a short stable word (``empty``, ``binary``, ``encrypted``, ``too-large``, ...) that
    quarantine rows are counted by.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail

    def __reduce__(self) -> tuple[type["SourceError"], tuple[str, str]]:
        return (type(self), (self.reason, self.detail))


class TrainingError(MemagentError):
    """A training step cannot be taken. The last good checkpoint stays."""


class EngineError(MemagentError):
    """The engine did not answer."""


class RequestError(EngineError):
    """This request failed and will fail again when it is sent again."""


class RetryableError(EngineError):
    """This request may succeed when it is sent again, `after` so many seconds where the server says that."""

    def __init__(self, message: str, after: float = 0.0) -> None:
        super().__init__(message)
        self.after = after


class EngineDied(EngineError):
    """The engine is gone and must be started again."""


class EmptyResponse(EngineError):
    """A reading has no answer, and "not found" would not be true: responses held no text besides reasoning."""


EXTRAS: Mapping[str, str] = {
    "vllm": "cpu",  # or gpu
    "openai": "openai",
    "openpyxl": "office",
    "striprtf": "office",
    "bm25s": "evaluate",
    "dateutil": "evaluate",
    "matplotlib": "evaluate",
    "scipy": "evaluate",
    "oxmsg": "office",
    "rapidocr_onnxruntime": "ocr",
    "PIL": "review",
    "multipart": "review",
    "starlette": "serve",
    "uvicorn": "serve",
    "mcp": "serve",
    "mcp_types": "serve",
    "prometheus_client": "serve",
    "prefect": "flows",
    "deepspeed": "train",
    "safetensors": "cpu",  # or gpu
    "torch": "cpu",  # or gpu
    "transformers": "train",
}
"""Top module of a package -> extra."""


def missing_extra(error: BaseException) -> str | None:
    """Return what to install for a module that is missing; None: the error is another one."""
    module = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    if module not in EXTRAS:
        return None
    besides = " (or 'memagent[gpu]')" if EXTRAS[module] == "cpu" else ""
    return f"{module} is not installed: pip install 'memagent[{EXTRAS[module]}]'{besides}"
