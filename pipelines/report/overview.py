"""The report's first page: headline figures, metadata of the run, and the list of readings."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

from infra.store.rows import DocumentRow, FailureRow, PlannedReading
from memagent.records import Json
from pipelines.report.data import ReportedRun, ReportRow
from pipelines.report.details import timeline
from pipelines.report.html import size, when
from pipelines.views.formatting import breached, duration, number, pace, percent, withheld_by
from pipelines.views.memory import MemoryHistory
from pipelines.views.visible_answers import reader_warnings

_QUOTE = 240
"""Characters of a quote in the list."""


class KeyFigure(NamedTuple):
    """A headline figure."""

    label: str
    value: str
    note: str = ""
    tone: str = ""
    """A class of the style sheet."""


def overview(run: ReportedRun, rows: list[ReportRow], failures: list[FailureRow]) -> Json:
    """Return what the head and the provenance of the page are made of, as the template has it."""
    return {
        "run": run,
        "facts": _facts(run, rows, failures),
        "scores": run.summary.get("scores") or [],
        "origin": _origin(run),
        "policies": _shares(rows, "policy_id"),
        "configs": _shares(rows, "config_hash"),
        "settings": list(_settings(run.config)),
    }


def _facts(run: ReportedRun, rows: list[ReportRow], failures: list[FailureRow]) -> list[KeyFigure]:
    """Return the headline figures in their order on the page."""
    summary = run.summary
    counts = summary.get("readings") or {}
    total = counts.get("total", len(rows))
    found_count = counts.get("found", sum(bool(row.answer and row.answer["found"]) for row in rows))
    before = counts.get("answered_before", sum(row.state == "reused" for row in rows))
    failed = counts.get("failed", sum(row.state == "failed" for row in rows))
    segments, seconds = summary.get("segments") or 0, summary.get("seconds") or 0.0
    earlier = sum(failure["stage"] in ("ingest", "segment") for failure in failures)
    speed = f", {pace(summary)}" if pace(summary) else ""
    corrected = sum(row.review is not None and row.review.status == "corrected" for row in rows)
    return [
        KeyFigure("Documents", number(summary.get("documents") or 0)),
        KeyFigure(
            "Asked",
            number(total),
            f"{number(counts.get('read_now', 0))} read in this run, {number(before)} known before",
        ),
        KeyFigure("Answer found", percent(found_count, total), f"{number(found_count)} of {number(total)} asked"),
        KeyFigure(
            "Failures",
            number(failed),
            f"{number(earlier)} more when documents were taken in" if earlier else "questions without an answer",
            "bad" if failed else "",
        ),
        KeyFigure(
            "Checked by people",
            number(sum(row.review is not None for row in rows)),
            f"{number(corrected)} corrected",
        ),
        KeyFigure("Time", duration(seconds), f"{number(segments)} parts of documents{speed}"),
    ]


def _origin(run: ReportedRun) -> list[tuple[str, str]]:
    """Return the run's metadata as (label, value)."""
    summary = run.summary
    prompt, cached, output = (summary.get(key) or 0 for key in ("prompt_tokens", "cached_tokens", "output_tokens"))
    pairs = [
        ("Run", run.run_id),
        ("Kind", run.kind),
        ("Status", f"{run.status}, withheld" if withheld_by(summary) else run.status),
        ("Quality", "; ".join(breached(summary))),
        ("Corpus", run.corpus.name),
        ("Started", when(run.started_at)),
        ("Ended", when(run.ended_at)),
        ("Model", str(summary.get("policy") or "")),
        ("Model version", str(summary.get("policy_id") or "")),
        ("Engine", str(summary.get("engine") or "")),
        ("Engine time", duration(summary["engine_seconds"]) if summary.get("engine_seconds") else ""),
        ("Conversations", number(summary.get("conversations") or 0)),
        ("Tokens", f"{number(prompt)} read, {number(output)} written" if prompt else ""),
        ("From cache", f"{percent(cached, prompt)} of the tokens read" if prompt else ""),
    ]
    return [(label, value) for label, value in pairs if value]


def _shares(rows: list[ReportRow], key: Literal["policy_id", "config_hash"]) -> list[tuple[str, int]]:
    """Count the answers by value of `key`, most frequent first."""
    return Counter(str(row.answer[key]) for row in rows if row.answer).most_common()


def _settings(config: Json, prefix: str = "") -> Iterable[tuple[str, str]]:
    """Yield the configuration as dotted keys and values."""
    for key, value in config.items():
        if isinstance(value, dict) and value:
            yield from _settings(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


_ORIGIN = (
    *("policy_id", "config_hash", "run_id", "answered_at", "carried_from", "carried_segments", "content_hash"),
    *("conversations", "prompt_tokens", "cached_tokens", "output_tokens", "seconds"),
)


class FileListing:
    """Collects rows in the shape that ``dom.js`` reads (its FIELDS)."""

    def __init__(self, titles: Mapping[str, DocumentRow]) -> None:
        """`titles` by content hash: see `pipelines.report.data.load_titles`."""
        self._titles = titles
        self._numbers: dict[str, int] = {}
        self._questions: dict[tuple[str, str], int] = {}
        self.data: dict[str, list[Any]] = {"documents": [], "questions": [], "rows": []}

    def take(self, rows: list[ReportRow], room: int) -> list[ReportRow]:
        """Add rows while they and their details take at most `room` bytes; return the added rows."""
        used = 0
        for index, row in enumerate(rows):
            line = self._row(row)
            used += size(line) + (size(self.reading(row)) if row.answer else 0)
            if used > room:
                return rows[:index]
            self.data["rows"].append(line)
        return rows

    def document(self, content_hash: str, plan: PlannedReading | None = None) -> int:
        """Return the number of a document."""
        if content_hash not in self._numbers:
            self._numbers[content_hash] = len(self._numbers)
            document = self._titles.get(content_hash)
            doc_id = (plan and plan["doc_id"]) or (document and document["doc_id"]) or content_hash
            title = (plan and plan["title"]) or (document and document["title"]) or ""
            self.data["documents"].append(
                {
                    "id": doc_id,
                    "title": title if title != doc_id else "",
                    "source": (document and document["source"]) or "",
                    "chars": document["chars"] if document else None,
                    "warnings": (document and document["warnings"]) or [],
                }
            )
        return self._numbers[content_hash]

    def reading(self, row: ReportRow, history: MemoryHistory | None = None) -> Json:
        """Return what an opened reading shows: evidence, timeline and origin; documents are numbers."""
        evidence = [{**piece, "content_hash": self.document(piece["content_hash"])} for piece in row.evidence]
        answer = row.answer.items() if row.answer else ()
        origin = {key: value for key, value in answer if key in _ORIGIN and value not in (None, "")}
        told = timeline(row, history, self.document) if history else None
        return {"evidence": evidence, "timeline": told, "origin": origin}

    def _row(self, row: ReportRow) -> list[object]:
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
            plan["documents"],
            row.failure["reason"] if row.failure else "",
            row.evidence[0]["quote"][:_QUOTE] if row.evidence else "",
            [row.review.status, row.review.answer, [name for name in row.review.reviewers if name]]
            if row.review
            else None,
            row.evidence[0]["page"] if row.evidence else None,
            row.evidence[0]["verbatim"] if row.evidence else None,
            (answer["confidence_level"] if answer else None) or "",
            reader_warnings(answer, row.review) if answer else [],
        ]
