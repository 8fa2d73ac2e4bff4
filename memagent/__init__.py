"""memagent: read documents of any length with a memory of fixed size (MemAgent, arXiv 2507.02259)."""

from memagent.config import Config, ReadingConfig, load_config
from memagent.conversations import ReadingSpec, Stream
from memagent.engine import Completion, Engine, Sampling
from memagent.errors import MemagentError, UsageError
from memagent.prompts import Prompts, Template, load_template
from memagent.reading import Reading, read
from memagent.records import Document, Evidence, Policy, Question, ReadingResult, Segment, Turn
from memagent.scripted import ScriptedEngine
from memagent.segmenting import segments
from memagent.tokens import Tokenizer, load_tokenizer

__version__ = "0.1.0"

__all__ = [
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
    "load_config",
    "load_template",
    "load_tokenizer",
    "read",
    "segments",
]
