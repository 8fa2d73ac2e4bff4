"""memagent: read documents of any length with a memory of fixed size (MemAgent, arXiv 2507.02259)."""

__version__ = "0.1.0"
