"""Format numbers and texts for the terminal and for reports."""

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

# C0 and C1 controls (escape sequences begin with one), and marks that change the direction of text.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff]")


def plain(text: object) -> str:
    """Return `text` without terminal control characters and direction marks."""
    return _CONTROL.sub("", str(text).replace("\r\n", "\n").replace("\r", "\n").expandtabs(4))


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


def percent(part: float, whole: float) -> str:
    """Format a share; a dash if `whole` is 0."""
    return f"{100 * part / whole:.0f}%" if whole else "–"


def failures(summary: Mapping[str, Any]) -> dict[str, int]:
    """Count the failures in a run's summary by reason: readings, and sources of its ingest."""
    reasons = Counter(summary.get("failures_by_reason") or {})
    for reason, count in ((summary.get("ingest") or {}).get("quarantined") or {}).items():
        reasons[f"source: {reason}"] += count
    return dict(reasons)


def pace(summary: Mapping[str, Any]) -> str:
    """Format segments per second from a run's summary, without the engine's start; empty below one second."""
    segments, seconds = summary.get("segments") or 0, summary.get("engine_seconds") or 0.0
    return f"{segments / seconds:,.1f} a second once the engine was up" if segments and seconds >= 1 else ""
