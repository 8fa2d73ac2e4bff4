"""Format numbers and texts for the terminal and for reports."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from memagent.quality.cost import CostConfig, Usage
from memagent.records import ProgressCounts

if TYPE_CHECKING:
    from infra.store.schemas import Ended

# C0 and C1 controls (escape sequences begin with one), and marks that change the direction of text.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff]")


RUN_ID_CHARS = 22
"""Of the run ids that are made: a table shows them whole, to be copied."""
_PROGRESS = ("documents", "readings", "segments")
_SHOWN_AS = {
    "readings": "answers",
    "segments": "parts",
    "segment": "split",
    "policy": "model",
    "readings_answered_before": "answered before",
    "readings_to_read": "to be read",
    "conversations": "calls of the model",
}
"""What people are shown for the names of counts and stages: a reading gives one answer, a segment is a part."""


def shown_as(name: str) -> str:
    """Return the name of a count, unit or stage as people are shown it."""
    return _SHOWN_AS.get(name, plain(name))


def plain(text: object) -> str:
    """Return `text` without terminal control characters and direction marks."""
    return _CONTROL.sub("", str(text).replace("\r\n", "\n").replace("\r", "\n").expandtabs(4))


def one_line(text: object) -> str:
    """Return a text as it can stand in one line."""
    return " ".join(plain(text).split())


NOT_VERBATIM = "not word for word"
"""Mark of a quote that supports an answer, and does not say it word for word."""


def cited(quote: str, page: int | None = None, *, verbatim: bool = True, document: str = "") -> str:
    """Format a quote on one line, with its document, page and mark, if any: “The code is 4711.” (a.pdf, p. 3)."""
    said = f"“{one_line(quote)}”" if quote else ""
    return f"{said} {cited_notes(quote, page, verbatim=verbatim, document=document)}".strip()


def cited_notes(quote: str, page: int | None, *, verbatim: bool, document: str = "") -> str:
    """Return what stands after a quote: (a.pdf, p. 3, not word for word)."""
    notes = (
        [one_line(document)] * bool(document)
        + [f"p. {page}"] * (page is not None)
        + [NOT_VERBATIM] * (bool(quote) and not verbatim)
    )
    return f"({', '.join(notes)})" if notes else ""


def doubt(review: str, warnings: Sequence[str] = ()) -> str:
    """Return in brackets, to stand behind an answer, its warnings, and its review where people do not call it right."""
    said = [*([review] if review in ("rejected", "disputed") else []), *warnings]
    return f" [{'; '.join(said)}]" if said else ""


def number(value: float) -> str:
    """Format a count: 950, 12,345, 1.23 M."""
    for unit, size in ((" G", 10**9), (" M", 10**6)):
        if abs(value) >= size:
            return f"{value / size:.3g}{unit}" if value < 1000 * size else f"{value / size:,.0f}{unit}"
    return f"{value:,.0f}"


def duration(seconds: float) -> str:
    """Format a duration: 0.8 s, 42 s, 3 min 05 s, 2 h 10 min."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60:,} h {minutes % 60:02d} min"


def plural(count: int, what: str) -> str:
    """Return a count of things: 1 document, 2,000 documents."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def percent(part: float, whole: float) -> str:
    """Format a share; a dash if `whole` is 0."""
    return f"{100 * part / whole:.0f}%" if whole else "–"


def rounded(confidence: float | None) -> float | None:
    """Return a confidence without the digits that a 32-bit number does not have."""
    return None if confidence is None else round(confidence, 6)


def work_of(snapshot: ProgressCounts) -> tuple[str, float, float]:
    """Return the unit of a run's progress, and how many are done and how many there are, by its newest counts."""
    if "total" in snapshot:
        return "source", snapshot.get("done", 0), snapshot["total"]
    if "documents_total" in snapshot and "segments_total" not in snapshot:
        return "document", snapshot.get("documents", 0), snapshot["documents_total"]
    return "segment", snapshot.get("segments", 0), snapshot.get("segments_total", 0)


def counts_of(snapshot: ProgressCounts) -> list[tuple[str, str]]:
    """Return the counts of a run's progress as people are shown them, with their names."""
    counts: Mapping[str, Any] = snapshot
    known = {"sources": ("done", "total"), **{name: (name, f"{name}_total") for name in _PROGRESS}}
    return [
        (shown_as(name), number(counts[done]) + (f" of {number(counts[total])}" if counts.get(total) else ""))
        for name, (done, total) in known.items()
        if done in counts
    ]


def failures(summary: Mapping[str, Any]) -> dict[str, int]:
    """Count the failures in a run's summary by reason: readings, and sources of its ingest."""
    reasons = Counter(summary.get("failures_by_reason") or {})
    for reason, count in ((summary.get("ingest") or {}).get("quarantined") or {}).items():
        reasons[f"source: {reason}"] += count
    return dict(reasons)


def unanswered(summary: Mapping[str, Any]) -> str:
    """Return why readings and sources of a run have no answer, with their numbers; empty: all have one."""
    reasons = failures(summary) | {"the budget is spent": summary["readings"].get("unread", 0)}
    return ", ".join(f"{reason} ({count:,})" for reason, count in reasons.items() if count)


_READINGS_FAILED = "2%"
"""Of readings may fail where ``max_failed`` is empty; of sources all but one."""
EXIT_STATUS = {"completed": 0, "failed": 1, "paused": 3, "withheld": 4, "completed with warnings": 5}
"""Of a command, by how its run ended; withheld: it ended well, and its answers are not shown yet."""


def status_of(summary: Mapping[str, Any]) -> "Ended":
    """Return how a run ended, by its summary: the one verdict of commands, tables, schedules and flows.

    Failures are warnings as long as they are within ``max_failed`` of the run's configuration. A summary of an ingest
    alone is given as ``{"ingest": ..., "documents": ..., "config": ...}``, where `documents` are those it has read.
    """
    readings = summary.get("readings") or {}
    if readings.get("unread"):
        return "paused"
    failed, ingest = sum((summary.get("failures_by_reason") or {}).values()), summary.get("ingest") or {}
    refused, unread = sum((ingest.get("quarantined") or {}).values()), ingest.get("unread") or 0
    if not failed and not refused:
        return "completed"
    limit, documents = (summary.get("config") or {}).get("max_failed") or "", summary.get("documents") or 0
    of_all = [(refused, refused + documents), (unread, ingest.get("sources") or 0)]  # unread ones may keep documents
    sources = any(_is_beyond(limit, *each) if limit else 0 < each[0] == each[1] for each in of_all)
    readings_ = _is_beyond(limit or _READINGS_FAILED, failed, max(failed, readings.get("total") or 0))
    return "failed" if sources or readings_ else "completed with warnings"


def _is_beyond(limit: str, failed: int, total: int) -> bool:
    return failed > (float(limit[:-1]) / 100 * total if limit.endswith("%") else int(limit))


def exit_status(summary: Mapping[str, Any]) -> int:
    """Return a run's exit status (`EXIT_STATUS`)."""
    status = status_of(summary)
    return EXIT_STATUS["withheld" if status != "paused" and withheld_by(summary) else status]


def withheld_by(summary: Mapping[str, Any]) -> list[str]:
    """Return the withheld runs whose answers a run counts; none: it is not withheld."""
    return list((summary.get("checks") or {}).get("withheld") or ())


def says_withheld(corpus: str, run_id: str, withheld: Mapping[str, int]) -> str:
    """Say that answers which a run counts are withheld (how many, by the withheld run that gave them), how they are
    seen, and how they are accepted.
    """
    count = sum(withheld.values())
    are, them = ("is", "it") if count == 1 else ("are", "them")
    return (
        f"{count:,} of these answers {are} withheld with {', '.join(withheld)}, and `answers` does not show {them}. "
        f"See: memagent answers {corpus} --run {run_id}. "
        f"Accept: {'; '.join(f'memagent release {run}' for run in withheld)}"
    )


def breached(summary: Mapping[str, Any]) -> list[str]:
    """Say which limits of the quality checks a run is beyond, or why else it is withheld."""
    checks = summary.get("checks") or {}
    said = [f"{breach['check']}: {breach['says']}" for breach in checks.get("breaches") or ()]
    return said or ["it counts answers of a withheld digest"] * bool(checks.get("withheld"))


def cost_of(summary: Mapping[str, Any]) -> str:
    """Format the engine time of a run's summary, and its price where there is one; empty: it had no engine."""
    seconds = summary.get("engine_uptime") or 0.0
    if not seconds:
        return ""
    prices = CostConfig.model_validate((summary.get("config") or {}).get("cost") or {})
    usage = usage_of_run(summary)
    price = f", {prices.money(usage):,.2f} {prices.currency}" if prices.has_price else ""
    return f"{duration(seconds)} of engines{price}"


def usage_of_run(summary: Mapping[str, Any]) -> Usage:
    """Return what a run took, by its summary."""
    prompt, cached, output = (summary.get(name) or 0 for name in ("prompt_tokens", "cached_tokens", "output_tokens"))
    return Usage(prompt, cached, output, summary.get("engine_uptime") or 0.0)


def pace(summary: Mapping[str, Any]) -> str:
    """Format segments per second from a run's summary, without the engine's start; empty below one second."""
    segments, seconds = summary.get("segments") or 0, summary.get("engine_seconds") or 0.0
    return f"{segments / seconds:,.1f} a second once the engine was up" if segments and seconds >= 1 else ""
