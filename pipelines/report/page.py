"""Render the report of a run as one HTML file.

All text of documents, questions and models is JSON in inert script elements, which the page's script turns into text
nodes. The content security policy has the hashes of that script and of the style sheet: nothing else runs, and nothing
is fetched.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple
from urllib.parse import urlsplit

from infra.store.claims import used
from infra.store.location import Corpus, Store
from infra.store.runs import new_run_id
from infra.store.schemas import DocumentRow, FailureRow, PlannedReading
from memagent.errors import UsageError
from memagent.records import Json
from pipelines.report.data import ReportedRun, ReportRow, load_failures, load_progress, load_rows, load_run, load_titles
from pipelines.report.details import gather, timeline
from pipelines.report.html import asset, embed, sheet, size, when, write_sheet
from pipelines.views.formatting import breached, duration, number, pace, percent, withheld_by
from pipelines.views.memory import MemoryHistory
from pipelines.views.visible_answers import archive_warnings, reader_warnings

LIMIT_BYTES = 20 * 2**20
"""Small enough to open quickly and to be sent by mail."""
_ROWS_SHARE = 0.75
"""Share of the room for answers and evidence, which take precedence over memories and documents."""
_FAILURES_MOST = 1_000
_DETAIL_CHARS = 2_000
_FRAME_BYTES = 30_000
"""Size of the page without scripts, styles and data."""
_SCRIPTS = ("dom.js", "diff.js", "table.js", "matrix.js", "document.js", "reading.js", "chart.js", "main.js")


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
    summary = run.summary
    counts = {} if run.forgotten(rows) else summary.get("readings") or {}
    total = counts.get("total", len(rows))
    said = [row for row in rows if row.answer]
    # Of a run with more than the page lists, what the reader found.
    found_count = counts["found"] if len(rows) < total and "found" in counts else sum(row.found for row in said)
    before = counts.get("answered_before", sum(row.state == "reused" for row in rows))
    failed = counts.get("failed", sum(row.state == "failed" for row in rows))
    unread = counts.get("unread", sum(row.state == "unread" for row in rows))
    read = counts.get("read_now", total - before - failed - unread)
    segments, seconds = summary.get("segments") or 0, summary.get("seconds") or 0.0
    earlier = sum(failure["stage"] in ("ingest", "segment") for failure in failures)
    speed = f", {pace(summary)}" if pace(summary) else ""
    corrected = sum(row.review is not None and row.review.status == "corrected" for row in rows)
    return [
        KeyFigure("Documents", number(summary.get("documents") or 0)),
        KeyFigure(
            "Asked",
            number(total),
            f"{number(read)} read in this run, {number(before)} known before"
            + (f", {number(unread)} not read" if unread else ""),
            "bad" if unread else "",
        ),
        KeyFigure(
            "Answer found",
            percent(found_count, total - unread),
            f"{number(found_count)} of {number(total - unread)} {'read' if unread else 'asked'}",
        ),
        KeyFigure(
            "Failures",
            number(failed),
            f"{number(earlier)} more when documents were taken in" if earlier else "questions that failed",
            "bad" if failed else "",
        ),
        KeyFigure(
            "Checked by people", number(sum(row.review is not None for row in rows)), f"{number(corrected)} corrected"
        ),
        KeyFigure("Time", duration(seconds), f"{number(segments)} parts of documents{speed}"),
    ]


def _origin(run: ReportedRun) -> list[tuple[str, str]]:
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
        ("Engine time", duration(summary["engine_uptime"]) if summary.get("engine_uptime") else ""),
        ("Conversations", number(summary.get("conversations") or 0)),
        ("Tokens", f"{number(prompt)} read, {number(output)} written" if prompt else ""),
        ("From cache", f"{percent(cached, prompt)} of the tokens read" if prompt else ""),
    ]
    return [(label, value) for label, value in pairs if value]


def _shares(rows: list[ReportRow], key: Literal["policy_id", "config_hash"]) -> list[tuple[str, int]]:
    """Count the answers by value of `key`, most frequent first."""
    return Counter(str(row.answer[key]) for row in rows if row.answer).most_common()


def _settings(config: Json, prefix: str = "") -> Iterable[tuple[str, str]]:
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

    def __init__(self, titles: Mapping[tuple[str, str], DocumentRow]) -> None:
        """`titles`: see `pipelines.report.data.load_titles`."""
        self._titles = titles
        self._numbers: dict[tuple[str, str], int] = {}
        """By content hash and doc_id; of any document with the text, where that is empty."""
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
        """Return the number of a document: of the one that is planned, else of the first with the text."""
        plan = plan if plan and plan["content_hash"] == content_hash else None
        key = (content_hash, plan["doc_id"] if plan else "")
        if key not in self._numbers:
            self._numbers[key] = number = len(self.data["documents"])
            of_text = self._numbers.setdefault((content_hash, ""), number)
            document = self._titles.get(key) or self._titles.get((content_hash, ""))
            doc_id = (plan and plan["doc_id"]) or (document and document["doc_id"]) or content_hash
            title = (plan and plan["title"]) or (document and document["title"]) or ""
            self.data["documents"].append(
                {
                    "id": doc_id,
                    "title": title if title != doc_id else "",
                    "source": (document and document["source"]) or "",
                    "chars": document["chars"] if document else None,
                    "warnings": (document and document["warnings"]) or [],
                    "text": of_text,
                }
            )
        return self._numbers[key]

    def reading(self, row: ReportRow, history: MemoryHistory | None = None) -> Json:
        """Return what an opened reading shows: evidence, timeline and origin; documents are numbers."""
        plan = row.plan if row.plan["scope"] == "document" else None
        document = partial(self.document, plan=plan)
        evidence = [{**piece, "content_hash": document(piece["content_hash"])} for piece in row.evidence]
        answer = row.answer.items() if row.answer else ()
        origin = {key: value for key, value in answer if key in _ORIGIN and value not in (None, "")}
        told = timeline(row, history, document) if history else None
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
            int(row.found),
            plan["gold"],
            row.right,
            plan["segments"] if answer else 0,
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
            reader_warnings(answer["warnings"], row.review.status if row.review else None) if answer else [],
        ]


def build(store: Store, run_id: str, limit: int = LIMIT_BYTES, review_url: str = "") -> str:
    """Return the report of a finished run as HTML of about `limit` bytes at most.

    Raises UsageError: the store does not know the run, or `review_url` is no address.
    """
    review, run = _address(review_url), load_run(store, run_id)
    failures = load_failures(run)
    rows = load_rows(run, failures)
    titles = load_titles(run.corpus, _hashes(rows))
    style = asset("report.css")
    script = '(() => {\n"use strict";\n' + "\n".join(map(asset, _SCRIPTS)) + "\n})();\n"
    total = max(len(rows), (run.summary.get("readings") or {}).get("total") or 0)
    data: Json = {
        "readings": total,
        "unread": (run.summary.get("readings") or {}).get("unread") or 0,
        "corpus": run.corpus.name,
        "progress": load_progress(store, run_id),
        "failures": [_failure(failure, run) for failure in failures[:_FAILURES_MOST]],
        "failureCounts": _failure_counts(failures, run),
        "leftOut": {"rows": 0, "memories": 0, "documents": 0, "limit": ""},
        "forgotten": run.forgotten(rows),
        "review": review,
        "warnings": archive_warnings(run.corpus),
    }
    room = max(0, limit - len(style) - len(script) - size(data) - _FRAME_BYTES)
    listing = FileListing(titles)
    listed = listing.take(rows, int(room * _ROWS_SHARE))
    room -= size(listing.data) + sum(size(listing.reading(row)) for row in listed if row.answer)
    lengths = {content_hash: row["chars"] or 0 for (content_hash, _), row in titles.items()}
    details = gather(run.corpus, listed, chars=lengths, room=max(0, room))
    changing = {content_hash for history in details.memories.values() for content_hash in history.documents}
    titles |= load_titles(run.corpus, changing - lengths.keys())
    readings = [
        (place, embed(listing.reading(row, details.memories.get(row.reading_id))))
        for place, row in enumerate(listed)
        if row.answer
    ]
    documents = [(listing.document(name), embed(passages)) for name, passages in details.documents.items()]
    data["leftOut"] = {
        "rows": total - data["forgotten"] - len(listed),
        "memories": details.memories_left_out,
        "documents": details.documents_left_out,
        "limit": f"{limit / 2**20:.3g} MiB",
    }
    return sheet(
        "template.html.j2",
        style,
        script,
        **overview(run, rows, failures),
        data=embed({**data, **listing.data}),
        readings=readings,
        documents=documents,
    )


def write(store: Store, run_id: str, path: str | Path, limit: int = LIMIT_BYTES, review_url: str = "") -> Path:
    """Write the report of a finished run to `path` atomically; return the path.

    Its readings link to the review server at the address `review_url`, if there is one.

    Raises UsageError: the store does not know the run, or the file cannot be written.
    """
    return write_sheet(Path(path), build(store, run_id, limit, review_url))


def write_to_store(store: Store, run_id: str) -> str:
    """Write the report beside the run's other files; return its path or URL."""
    with used(Corpus(store, "_reports"), new_run_id(), wait=True, show=None):
        path = store.write_bytes(build(store, run_id).encode("utf-8"), "runs", run_id, "report.html")
    return f"s3://{path}" if store.is_s3 else path


def _address(review_url: str) -> str:
    parts = urlsplit(review_url)
    if review_url and (parts.scheme not in ("http", "https") or not parts.netloc):
        raise UsageError(f"--review-url {review_url!r}: give a review server's address, as in http://127.0.0.1:4300")
    return review_url.rstrip("/")


def _hashes(rows: list[ReportRow]) -> set[str]:
    """Return the content hashes of the documents that the page names; of a large archive, those with evidence."""
    streams = {content_hash for row in rows for content_hash in row.plan["stream"] or [row.plan["content_hash"]]}
    return streams | {piece["content_hash"] for row in rows for piece in row.evidence}


def _failure(failure: FailureRow, run: ReportedRun) -> Json:
    """Return a quarantine row as ``main.js`` reads it; `mine`: of this run, not of an earlier ingest."""
    row: Json = {**failure}
    shown = {name: (row[name] or "")[:_DETAIL_CHARS] for name in ("stage", "item", "reason", "detail")}
    return {**shown, "mine": failure["run_id"] == run.run_id, "at": when(failure["at"])}


def _failure_counts(failures: list[FailureRow], run: ReportedRun) -> list[Json]:
    counts = Counter((f["stage"], f["reason"], f["run_id"] == run.run_id) for f in failures)
    return [
        {"stage": stage, "reason": reason, "mine": mine, "count": count}
        for (stage, reason, mine), count in counts.most_common()
    ]
