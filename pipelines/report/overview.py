"""The report's first page: headline figures, the origin of the run, and the list of readings."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Literal

from infra.tables.rows import DocumentRow, FailureRow, PlannedReading
from pipelines.formatting import duration, number, pace, percent
from pipelines.report.data import Row, Run
from pipelines.report.html import size


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


_ORIGIN = (
    "policy_id",
    "config_hash",
    "run_id",
    "answered_at",
    "carried_from",
    "carried_segments",
    "content_hash",
    "conversations",
    "prompt_tokens",
    "cached_tokens",
    "output_tokens",
    "seconds",
)


class Listing:
    """Collects rows in the shape that ``dom.js`` reads (its FIELDS)."""

    def __init__(self, titles: Mapping[str, DocumentRow]) -> None:
        """Take titles of documents by content hash; see `pipelines.report.data.load_titles`."""
        self._titles = titles
        self._numbers: dict[str, int] = {}
        self._questions: dict[tuple[str, str], int] = {}
        self.data: dict[str, list[Any]] = {"documents": [], "questions": [], "rows": []}

    def take(self, rows: list[Row], room: int) -> list[Row]:
        """Add rows while they and what stands behind their answers take at most `room` bytes; return these."""
        used = 0
        for at, row in enumerate(rows):
            line = self._row(row)
            used += size(line) + (size(self.reading(row)) if row.answer else 0)
            if used > room:
                return rows[:at]
            self.data["rows"].append(line)
        return rows

    def document(self, content_hash: str, plan: PlannedReading | None = None) -> int:
        """Return the number of a document."""
        if content_hash not in self._numbers:
            self._numbers[content_hash] = len(self._numbers)
            known = self._titles.get(content_hash)
            name = (plan and plan["doc_id"]) or (known and known["doc_id"]) or content_hash
            title = (plan and plan["title"]) or (known and known["title"]) or ""
            self.data["documents"].append(
                {
                    "id": name,
                    "title": title if title != name else "",
                    "source": (known and known["source"]) or "",
                    "chars": known["chars"] if known else None,
                }
            )
        return self._numbers[content_hash]

    def reading(self, row: Row, timeline: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return what is seen when an answered reading is opened."""
        if timeline is not None:
            changes = [
                {**change, "document": self.document(change["document"]) if change["document"] else -1}
                for change in timeline["changes"]
            ]
            timeline = {**timeline, "changes": changes}
        evidence = [{**spot, "content_hash": self.document(spot["content_hash"])} for spot in row.evidence]
        known = row.answer.items() if row.answer else ()
        origin = {key: value for key, value in known if key in _ORIGIN and value not in (None, "")}
        return {"evidence": evidence, "timeline": timeline, "origin": origin}

    def _row(self, row: Row) -> list[Any]:
        plan, answer = row.plan, row.answer
        key = (plan["question_id"], plan["question"])
        if key not in self._questions:
            self._questions[key] = len(self._questions)
            self.data["questions"].append({"id": key[0], "text": key[1]})
        return [
            row.reading_id,
            -1 if plan["scope"] == "archive" else self.document(plan["content_hash"], plan),
            self._questions[key],
            answer["answer"] if answer else "",
            int(answer["found"] or False) if answer else 0,
            plan["gold"],
            row.right,
            plan["segments"],
            len(row.evidence),
            row.state,
            len(plan["stream"] or []),
            row.failure["reason"] if row.failure else "",
        ]
