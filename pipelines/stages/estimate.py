"""Estimate of a plan's work and time, for ``--dry-run``."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from infra.engines.cpu_format import parameters
from infra.processes import usable_cores
from infra.readers import ReaderSpec
from infra.store import Corpus, Store
from infra.tables.delta import Table
from infra.tables.runs import ENDED
from memagent.config import Config
from memagent.number_format import format_speed
from pipelines.stages.plan import Plan

_LEAST_CONVERSATIONS = 50
"""Shorter runs tell little about the pace of a long one."""
_GPU_FLOPS = 5e13
"""Share of a GPU's peak that bulk reading reaches, measured with small models; a rule of thumb."""


class Estimate(TypedDict):
    """What a run would read."""

    corpus: str
    dry_run: bool
    sources_to_ingest: int
    """New and changed ones, which a dry run leaves alone."""
    documents: int
    readings: int
    readings_answered_before: int
    readings_to_read: int
    segments: int
    conversations: int
    prompt_tokens: int
    output_tokens_at_most: int
    estimated_seconds: float | None
    """None: unknown."""
    estimate_from: str
    """The source of the estimate."""
    unmatched_questions: list[str]
    """Their texts: they are about documents of which none is in the corpus."""


def estimate(corpus: Corpus, reader: ReaderSpec, plan: Plan, config: Config) -> Estimate:
    """Count the readings, segments and tokens of a plan, and estimate its time.

    The time comes from the last run of the same policy on this store, its engine's start with it; before there is
    one, from the model's size without a start, and says so.
    """
    tokens = 0
    for question, left in plan.left.items():
        overhead = reader.scheme.prompts.overhead(reader.tokenizer.encode(question))
        tokens += left["tokens"] + (left["segments"] + left["readings"]) * overhead
    conversations, pending = plan.conversations, plan.counts["pending"]
    expected = pace(corpus.store, reader, config)
    start = expected.start_seconds if conversations else 0.0
    return {
        "corpus": corpus.name,
        "dry_run": True,
        "sources_to_ingest": 0,
        "documents": plan.counts["documents"],
        "readings": plan.counts["readings"],
        "readings_answered_before": plan.counts["answered"],
        "readings_to_read": pending,
        "segments": plan.segments,
        "conversations": conversations,
        "prompt_tokens": tokens,
        "output_tokens_at_most": plan.segments * reader.reading.memory_tokens + pending * reader.reading.answer_tokens,
        "estimated_seconds": round(conversations / expected.rate + start, 1) if expected.rate else None,
        "estimate_from": expected.source,
        "unmatched_questions": [question.text for question in plan.unmatched],
    }


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast the configured engines are expected to read."""

    rate: float | None
    """Conversations a second of all engines together; None: not known."""
    start_seconds: float
    """Seconds that an engine takes to start; 0 where no run has shown it."""
    source: str
    """The source of the figure."""


def pace(store: Store, reader: ReaderSpec, config: Config) -> Pace:
    """Expect the pace of the last run of the same policy on this store; before there is one, by the model's size."""
    return _by_last_run(store, reader, config) or _by_size(reader, config)


def _by_last_run(store: Store, reader: ReaderSpec, config: Config) -> Pace | None:
    runs = Table(store, "runs").read(columns=["run_id", "summary", "ended_at"], filters=ENDED).sort_by("ended_at")
    for row in reversed(runs.to_pylist()):
        summary = json.loads(row["summary"])
        if (
            summary.get("policy") == reader.policy.name
            and summary.get("engine") == config.engine.kind
            and summary.get("conversations", 0) >= _LEAST_CONVERSATIONS
            and summary.get("engine_seconds", 0) > 1
        ):
            engines = summary["config"]["pool"]["max_size"]
            rate = summary["conversations"] / summary["engine_seconds"] / engines * config.pool.max_size
            start = summary.get("stage_seconds", {}).get("read", 0.0) - summary["engine_seconds"]
            return Pace(rate, max(0.0, start), f"run {row['run_id']}")
    return None


def _by_size(reader: ReaderSpec, config: Config) -> Pace:
    """Two operations for a parameter and a token of a full segment, its memory read and written."""
    size = parameters(Path(reader.folder)) if config.engine.kind == "vllm" else 0
    if not size:
        return Pace(None, 0.0, "no run of this policy yet: the first one gives the rate")
    # On CPU one core is left to scheduling, and a matrix product shows what the others compute.
    cores = max(1, usable_cores() - 1)
    flops = _GPU_FLOPS * config.pool.gpus if config.pool.gpus else format_speed().flops * cores
    tokens = reader.reading.segment_tokens + 2 * reader.reading.memory_tokens
    rate = flops / (2 * size * tokens) * config.pool.max_size
    return Pace(
        rate,
        0.0,
        f"the model's {size / 1e6:.0f}M parameters, within a factor of three; a first run gives the rate",
    )
