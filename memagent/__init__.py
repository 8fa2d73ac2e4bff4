"""memagent: read documents of any length with a memory of fixed size (MemAgent, arXiv 2507.02259)."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from memagent.config import Config, ReadingConfig, load_config
from memagent.errors import MemagentError, UsageError
from memagent.reading.conversations import ReadingSpec, Stream, from_text
from memagent.reading.engine import Completion, Engine, Sampling
from memagent.reading.loop import Reading, read
from memagent.reading.prompts import Prompts, Template, load_template
from memagent.reading.scripted import ScriptedEngine
from memagent.reading.segmenting import segments
from memagent.reading.tokens import Tokenizer, load_tokenizer
from memagent.records import Document, Evidence, Policy, Question, ReadingResult, Segment, Turn
from memagent.version import __version__ as __version__

if TYPE_CHECKING:
    from pipelines.archive import Answer, Answers, Archive

__all__ = [
    "Answer",
    "Answers",
    "Archive",
    "Completion",
    "Config",
    "Document",
    "Engine",
    "Evidence",
    "MemagentError",
    "Policy",
    "Prompts",
    "Question",
    "Reading",
    "ReadingConfig",
    "ReadingResult",
    "ReadingSpec",
    "Sampling",
    "ScriptedEngine",
    "Segment",
    "Stream",
    "Template",
    "Tokenizer",
    "Turn",
    "UsageError",
    "from_text",
    "load_config",
    "load_template",
    "load_tokenizer",
    "read",
    "segments",
]

_ABOVE = {"Answer": "pipelines.archive", "Answers": "pipelines.archive", "Archive": "pipelines.archive"}
"""Names that stand on the whole pipeline: their module is imported when they are asked for, not with this package."""


def __getattr__(name: str) -> Any:
    if name not in _ABOVE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_ABOVE[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
