"""memagent: read documents of any length with a memory of fixed size (MemAgent, arXiv 2507.02259)."""

from memagent.config import Config, ReadingConfig, load_config
from memagent.engine import Completion, Engine, Sampling
from memagent.errors import MemagentError, UsageError
from memagent.prompts import Prompts, Template, load_template
from memagent.reading import Reading, Scheme, Stream
from memagent.records import Document, Evidence, Outcome, Policy, Question, Segment, Turn
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
    "Outcome",
    "Policy",
    "Prompts",
    "Question",
    "Reading",
    "ReadingConfig",
    "Sampling",
    "Scheme",
    "Segment",
    "Stream",
    "Template",
    "Tokenizer",
    "Turn",
    "UsageError",
    "load_config",
    "load_template",
    "load_tokenizer",
    "segments",
]
