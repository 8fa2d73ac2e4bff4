"""The thirteen tasks of RULER (NVIDIA/RULER, arXiv 2404.06654), at any length, in the product's own wording."""

from memagent.evaluation.ruler.kinds import KINDS, DraftRequest, Kind, find_kind
from memagent.evaluation.ruler.make import make_samples, write_jsonl
from memagent.evaluation.ruler.qa import Asked
from memagent.evaluation.texts import Paragraph

__all__ = ["KINDS", "Asked", "DraftRequest", "Kind", "Paragraph", "find_kind", "make_samples", "write_jsonl"]
