"""What a plan will take, without reading: the answer to ``--dry-run``."""

import json
import math
from pathlib import Path
from typing import Any

from safetensors import safe_open

from infra.cores import usable_cores
from infra.policies import Reader
from infra.store import Store
from infra.tables import Table
from memagent.config import Config
from pipelines.plan import Plan

_CORE_FLOPS = 3e10
_GPU_FLOPS = 5e13
"""What an engine gets out of a core or a GPU in bulk reading, as measured with small models; a rule of thumb."""


def estimate(store: Store, corpus: str, reader: Reader, plan: Plan, config: Config) -> dict[str, Any]:
    """Count the readings, segments and tokens of a plan, and estimate its time.

    The time comes from the last run of the same policy on this store, its engine's start with it; before there is
    one, from the model's size without a start, and says so.
    """
    pending = plan.pending
    overhead = {}
    tokens = 0
    for row in pending:
        question = row["question"]
        if question not in overhead:
            ids = reader.tokenizer.encode(question)
            overhead[question] = reader.scheme.prompts.overhead(ids)
        left = plan.left(row)
        share = left / row["segments"] if row["segments"] else 0
        tokens += round(row["tokens"] * share) + (left + 1) * overhead[question]
    conversations = plan.conversations
    rate, start, source = _rate(store, reader, config)
    if rate is None:
        rate, source = _rule_of_thumb(reader, config, tokens / max(1, conversations))
    return {
        "corpus": corpus,
        "dry_run": True,
        "documents": plan.documents,
        "readings": len(plan.rows),
        "readings_answered_before": len(plan.rows) - len(pending),
        "readings_to_read": len(pending),
        "segments": sum(plan.left(row) for row in pending),
        "conversations": conversations,
        "prompt_tokens": tokens,
        "output_tokens_at_most": (conversations - len(pending)) * reader.reading.memory_tokens
        + len(pending) * reader.reading.answer_tokens,
        "estimated_seconds": round(conversations / rate + (start if conversations else 0.0), 1) if rate else None,
        "estimate_from": source,
        "unmatched_questions": [question.question_id for question in plan.unmatched],
    }


def _rate(store: Store, reader: Reader, config: Config) -> tuple[float | None, float, str]:
    """Conversations a second of the last run that says something about this one, and the seconds that its engine took
    to start."""
    for row in reversed(
        Table(store, "runs").read(columns=["run_id", "summary", "ended_at"]).sort_by("ended_at").to_pylist()
    ):
        summary = json.loads(row["summary"])
        if (
            summary.get("policy") == reader.policy.name
            and summary.get("engine") == config.engine.kind
            and summary.get("conversations", 0) >= 50
            and summary.get("engine_seconds", 0) > 1
        ):
            engines = summary["config"]["pool"]["max_size"]
            rate = summary["conversations"] / summary["engine_seconds"] / engines * config.pool.max_size
            start = summary.get("stage_seconds", {}).get("read", 0.0) - summary["engine_seconds"]
            return rate, max(0.0, start), f"run {row['run_id']}"
    return None, 0.0, ""


def _rule_of_thumb(reader: Reader, config: Config, tokens: float) -> tuple[float | None, str]:
    """Conversations per second by the model's size: two operations for a parameter and a token."""
    parameters = _parameters(Path(reader.folder))
    if config.engine.kind != "vllm" or not parameters:
        return None, "no run of this policy yet: the first one gives the rate"
    flops = _GPU_FLOPS * config.pool.gpus if config.pool.gpus else _CORE_FLOPS * usable_cores()
    rate = flops / (2 * parameters * (tokens + reader.reading.memory_tokens)) * config.pool.max_size
    return rate, f"the model's {parameters / 1e6:.0f}M parameters, within a factor of three; a first run gives the rate"


def _parameters(folder: Path) -> int:
    total = 0
    for path in folder.glob("*.safetensors") if folder.is_dir() else ():
        with safe_open(path, framework="numpy") as weights:
            total += sum(math.prod(weights.get_slice(name).get_shape()) for name in weights.keys())  # noqa: SIM118
    return total
