"""The figures at the head of the report, and where the run came from."""

import json
from collections import Counter
from collections.abc import Iterable
from datetime import datetime
from typing import Any, Literal

from infra.tables.rows import FailureRow
from pipelines.formatting import duration, number, pace, percent
from pipelines.report.data import Row, Run


def facts(run: Run, rows: list[Row], failures: list[FailureRow]) -> list[dict[str, str]]:
    """Return the figures in the order they are read: ``label``, ``value``, ``note``, ``tone``."""
    said = run.summary
    counts = said.get("readings") or {}
    total = counts.get("total", len(rows))
    found = counts.get("found", sum(bool(row.answer and row.answer["found"]) for row in rows))
    before = counts.get("answered_before", sum(row.state == "reused" for row in rows))
    failed = counts.get("failed", sum(row.state == "failed" for row in rows))
    prompt, cached, output = (said.get(key) or 0 for key in ("prompt_tokens", "cached_tokens", "output_tokens"))
    segments, seconds = said.get("segments") or 0, said.get("seconds") or 0.0
    earlier = sum(failure["stage"] in ("ingest", "segment") for failure in failures)
    speed = f", {pace(said)}" if pace(said) else ""
    return [
        _fact("Documents", number(said.get("documents") or 0)),
        _fact(
            "Readings", number(total), f"{number(counts.get('read_now', 0))} read in this run, {number(before)} reused"
        ),
        _fact("Answer found", percent(found, total), f"{number(found)} of {number(total)} readings"),
        _fact(
            "Failures",
            number(failed),
            f"{number(earlier)} more when documents were taken in" if earlier else "readings without an answer",
            "bad" if failed else "",
        ),
        _fact("Tokens", number(prompt + output), f"{number(prompt)} read, {number(output)} written"),
        _fact(
            "Prefix cache", percent(cached, prompt), "of the tokens read came from it" if prompt else "no tokens read"
        ),
        _fact("Time", duration(seconds), f"{number(segments)} segments{speed}"),
    ]


def origin(run: Run) -> list[tuple[str, str]]:
    """Return what the run was: label, value."""
    said = run.summary
    pairs = [
        ("Run", run.run_id),
        ("Kind", run.kind),
        ("Status", run.status),
        ("Corpus", run.corpus),
        ("Started", when(run.started_at)),
        ("Ended", when(run.ended_at)),
        ("Policy", str(said.get("policy") or "")),
        ("Policy id", str(said.get("policy_id") or "")),
        ("Engine", str(said.get("engine") or "")),
        ("Engine time", duration(said["engine_seconds"]) if said.get("engine_seconds") else ""),
        ("Conversations", number(said.get("conversations") or 0)),
    ]
    return [(label, value) for label, value in pairs if value]


def shares(rows: list[Row], key: Literal["policy_id", "config_hash", "run_id"]) -> list[tuple[str, int]]:
    """Return how many answers have each value of `key`, the most frequent first."""
    return Counter(str(row.answer[key]) for row in rows if row.answer).most_common()


def settings(config: dict[str, Any], prefix: str = "") -> Iterable[tuple[str, str]]:
    """Yield the configuration as dotted keys and values."""
    for key, value in config.items():
        if isinstance(value, dict) and value:
            yield from settings(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def when(value: datetime | None) -> str:
    """Write a time of the tables."""
    return "" if value is None else f"{value:%Y-%m-%d %H:%M:%S} UTC"


def figure(value: float | None) -> str:
    """Write a score."""
    return "–" if value is None else f"{value:.3f}"


def _fact(label: str, value: str, note: str = "", tone: str = "") -> dict[str, str]:
    return {"label": label, "value": value, "note": note, "tone": tone}
