"""What reading has cost: tokens, engine time and money by run, question, policy or corpus.

A run's conversations are counted once, by the worker that logs them, and its summary has the sums. What a run that was
broken off had taken stands in its progress curve. A question's share is that of its answers; what no answer accounts
for (idle engines, failed readings) is a row of its own, so that all tables have the same total.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from operator import attrgetter
from typing import Literal, TypedDict, get_args

import pyarrow as pa
import pyarrow.compute as pc

from infra.store.buckets import buckets
from infra.store.corpora import check_known
from infra.store.delta import Table
from infra.store.documents import documents_count
from infra.store.location import Corpus, Store
from infra.store.runs import last_snapshot
from infra.store.schemas import RunRow
from memagent.config import Config
from memagent.errors import UsageError
from memagent.quality.cost import CostConfig, Usage
from memagent.records import Json
from pipelines.stages.read import usage_of
from pipelines.views.formatting import usage_of_run

By = Literal["run", "question", "policy", "corpus"]
_KINDS = ("ask", "digest", "backfill", "evaluate", "agreement")
"""Kinds of runs that read."""
_SUMS = ("prompt_tokens", "cached_tokens", "output_tokens", "engine_seconds")
REST = "(without an answer)"
"""Name of what no question's answers account for."""


class CostRow(TypedDict):
    """Cost of a run, question, policy or corpus."""

    name: str
    runs: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    engine_seconds: float
    """Sum over the engines; of a question its share of their busy time."""
    money: float | None
    """None: nothing has a price."""


class CostTable(TypedDict):
    """What was spent, the dearest first (runs: the newest first)."""

    by: By
    currency: str | None
    rows: list[CostRow]
    total: CostRow


@dataclass(frozen=True, slots=True)
class _Run:
    run_id: str
    corpus: str
    policy: str
    usage: Usage
    prices: CostConfig

    @property
    def money(self) -> float:
        return self.prices.money(self.usage)


@dataclass(slots=True)
class _Sum:
    usage: Usage = field(default_factory=Usage)
    money: float = 0.0
    runs: set[str] = field(default_factory=set)

    def add(self, usage: Usage, money: float, run_id: str) -> None:
        self.usage, self.money = self.usage + usage, self.money + money
        self.runs.add(run_id)


def cost(config: Config, corpus: str | None = None, by: By = "run", since: datetime | None = None) -> CostTable:
    """Return what the runs of a corpus, or of all, have cost since some time.

    Prices are those of `config`; where it has none, those that each run had.

    Raises UsageError: there is no such corpus or `by`, or the runs' prices are in different currencies.
    """
    if by not in get_args(By):
        raise UsageError(f"--by {by!r}: one of {', '.join(get_args(By))}")
    store = Store(config.store)
    if corpus is not None:
        check_known(Corpus(store, corpus))
    runs = _runs(store, corpus, since, config.cost)
    currencies = {run.prices.currency for run in runs if run.prices.has_price}
    if len(currencies) > 1:
        raise UsageError(f"runs have prices in {', '.join(sorted(currencies))}: give prices of one currency ([cost])")
    total = _Sum()
    for run in runs:
        total.add(run.usage, run.money, run.run_id)
    sums = _by_question(store, runs, total) if by == "question" else _by(runs, by)
    priced, rank = bool(currencies), attrgetter("money", "usage.engine_seconds", "usage.prompt_tokens")
    names = list(reversed(sums)) if by == "run" else sorted(sums, key=lambda name: rank(sums[name]), reverse=True)
    return {
        "by": by,
        "currency": currencies.pop() if priced else None,
        "rows": [_row(name, sums[name], priced) for name in names],
        "total": _row("total", total, priced),
    }


def _runs(store: Store, corpus: str | None, since: datetime | None, prices: CostConfig) -> list[_Run]:
    """Return the runs that have read anything, the earliest first."""
    chosen = pc.field("kind").isin(list(_KINDS))
    if since is not None:
        chosen &= pc.field("started_at") >= pa.scalar(since, pa.timestamp("us", tz="UTC"))
    rows: list[RunRow] = Table(store, "runs").read(corpus, filters=chosen).sort_by("started_at").to_pylist()
    found = [_run(store, row, prices) for row in rows]
    return [run for run in found if run.usage != Usage()]


def _run(store: Store, row: RunRow, prices: CostConfig) -> _Run:
    summary: Json = json.loads(row["summary"] or "{}")
    own = json.loads(row["config"] or "{}").get("cost") or {}
    broken_off = row["status"] in ("running", "stopped")
    usage = usage_of(last_snapshot(store, row["run_id"])) if broken_off else usage_of_run(summary)
    priced = prices if prices.has_price else CostConfig.model_validate(own)
    return _Run(row["run_id"], row["corpus"], str(summary.get("policy_id") or "unknown"), usage, priced)


def _by(runs: Sequence[_Run], by: By) -> dict[str, _Sum]:
    sums: dict[str, _Sum] = {}
    for run in runs:
        name = {"run": run.run_id, "policy": run.policy, "corpus": run.corpus}[by]
        sums.setdefault(name, _Sum()).add(run.usage, run.money, run.run_id)
    return sums


def _by_question(store: Store, runs: Sequence[_Run], total: _Sum) -> dict[str, _Sum]:
    sums: dict[str, _Sum] = {}
    answered = _Sum()
    by_id = {run.run_id: run for run in runs}
    columns = ["question", "run_id", *_SUMS]
    mine = pc.field("run_id").isin(pa.array(by_id, pa.string()))
    for corpus in (Corpus(store, name) for name in dict.fromkeys(run.corpus for run in runs)):
        for bucket in buckets(documents_count(corpus)):
            answers = Table(store, "answers").read(corpus.name, columns, mine & bucket.contains("content_hash"))
            grouped = answers.group_by(["question", "run_id"]).aggregate([(name, "sum") for name in _SUMS])
            for row in grouped.to_pylist():
                usage = Usage(*(row[f"{name}_sum"] or 0 for name in _SUMS))
                money = by_id[row["run_id"]].prices.money(usage)
                sums.setdefault(row["question"], _Sum()).add(usage, money, row["run_id"])
                answered.add(usage, money, row["run_id"])
    rest = total.usage.less(answered.usage)
    if rest != Usage():
        sums[REST] = _Sum(rest, max(0.0, total.money - answered.money), set(total.runs))
    return sums


def _row(name: str, found: _Sum, priced: bool) -> CostRow:
    usage = found.usage
    return {
        "name": name,
        "runs": len(found.runs),
        "prompt_tokens": usage.prompt_tokens,
        "cached_tokens": usage.cached_tokens,
        "output_tokens": usage.output_tokens,
        "engine_seconds": round(usage.engine_seconds, 2),
        "money": round(found.money, 6) if priced else None,
    }
