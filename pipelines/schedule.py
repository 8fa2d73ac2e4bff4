"""The scheduled runs of a corpus: what became of each, and what was not told yet."""

import json
from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import islice
from typing import Literal, TypedDict

import pyarrow as pa
import pyarrow.compute as pc

from infra.store.claims import is_alive
from infra.store.delta import Table
from infra.store.location import Corpus
from infra.store.schemas import Ended, RunRow, now
from memagent.quality.schedule import Digest, Problem, RunState, ScheduleConfig, ScheduledRun, scheduled_runs
from memagent.records import Json
from pipelines.views.formatting import status_of

_DIGESTS = pc.field("kind") == "digest"
_TOLD = 400
"""Scheduled runs of which it is remembered what was told."""
_WATCHED = 2
"""Newest scheduled runs that are watched: later ones were told of, or are history."""


class ScheduledRunStatus(TypedDict):
    """A scheduled run, as plain data."""

    date: str
    state: RunState
    late: bool
    run_id: str
    ended_at: str
    """Empty: it has not ended, or another run did the rest."""
    readings: int
    failed: int
    unread: int


class Notice(TypedDict):
    """Something that somebody should hear of a scheduled run."""

    corpus: str
    problem: Problem
    run: ScheduledRunStatus


def _digests(corpus: Corpus, since: datetime) -> Iterator[Digest]:
    """Yield the digests since some time, and the readings of each that failed and have no answer yet."""
    failed = Counter(
        Table(corpus.store, "quarantine")
        .read(corpus.name, ["run_id"], pc.field("stage") != "ingest")["run_id"]
        .to_pylist()
    )
    chosen = _DIGESTS & (pc.field("started_at") >= pa.scalar(since, pa.timestamp("us", tz="UTC")))
    columns = ["run_id", "started_at", "ended_at", "status", "summary", "withheld"]
    rows: list[RunRow] = Table(corpus.store, "runs").read(corpus.name, columns, chosen).to_pylist()
    for row in rows:
        summary = json.loads(row["summary"] or "{}")
        readings = summary.get("readings") or {}
        yield Digest(
            row["run_id"],
            row["started_at"],
            # A paused one of which another run did the rest is not done when it ended, but with that run.
            None if readings.get("unread") and row["status"] == "completed" else row["ended_at"],
            status=_verdict(corpus, row, {**summary, "failures_by_reason": {"": failed[row["run_id"]]}}),
            readings=readings.get("total", 0),
            failed=failed[row["run_id"]],
            unread=readings.get("unread", 0) if row["status"] == "paused" else 0,
            withheld=bool(row["withheld"]),
        )


def _verdict(corpus: Corpus, row: RunRow, summary: Json) -> Ended | Literal["running", "stopped"]:
    """Return how a digest ended, by its row and by its summary as of now."""
    if row["status"] == "running":
        return "running" if is_alive(corpus.store, row["run_id"]) else "stopped"
    status = status_of(summary)
    return row["status"] if "paused" in (status, row["status"]) or row["status"] == "stopped" else status


def scheduled_runs_of(corpus: Corpus, config: ScheduleConfig, count: int) -> list[ScheduledRunStatus]:
    """Return the newest scheduled runs of a corpus, the newest first; none before its first digest."""
    return [_status(scheduled) for scheduled in _scheduled_runs(corpus, config, count)]


def _scheduled_runs(corpus: Corpus, config: ScheduleConfig, count: int) -> list[ScheduledRun]:
    """Return the newest scheduled runs. Summaries of older digests are not read."""
    begun = Table(corpus.store, "runs").read(corpus.name, ["started_at"], _DIGESTS)["started_at"].to_pylist()
    if not begun:
        return []
    since = now() - timedelta(days=count + 1)
    found = scheduled_runs(list(_digests(corpus, since)), config, now(), first=config.of(min(begun)))
    return list(islice(found, count))


def notices(corpus: Corpus, config: ScheduleConfig) -> list[Notice]:
    """Return what is to be told of the newest scheduled runs and was not told yet."""
    newest = _scheduled_runs(corpus, config, _WATCHED)
    told = _told(corpus)
    return [
        {"corpus": corpus.name, "problem": problem, "run": _status(scheduled)}
        for scheduled in newest
        for problem in scheduled.problems
        if problem not in told.get(scheduled.day.isoformat(), [])
    ]


def note_told(notice: Notice, corpus: Corpus) -> None:
    """Remember that something was told."""

    def change(before: bytes | None) -> bytes:
        told = _parsed(before or b"{}")
        scheduled = notice["run"]["date"]
        told[scheduled] = sorted({*told.get(scheduled, []), notice["problem"]})
        return json.dumps(dict(sorted(told.items())[-_TOLD:]), indent=1).encode()

    corpus.store.update_bytes(change, "runs", f"{corpus.name}.json")


def _told(corpus: Corpus) -> dict[str, list[str]]:
    try:
        return _parsed(corpus.store.read_bytes("runs", f"{corpus.name}.json"))
    except FileNotFoundError:
        return {}


def _parsed(data: bytes) -> dict[str, list[str]]:
    """Return what was told, by day; nothing where the file is damaged: it is told again."""
    try:
        told = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    days = told.items() if isinstance(told, dict) else ()
    return {day: problems for day, problems in days if isinstance(problems, list)}


def _status(scheduled: ScheduledRun) -> ScheduledRunStatus:
    digest = scheduled.digest
    return {
        "date": scheduled.day.isoformat(),
        "state": scheduled.state,
        "late": scheduled.late,
        "run_id": digest.run_id if digest else "",
        "ended_at": digest.ended_at.isoformat(timespec="seconds") if digest and digest.ended_at else "",
        "readings": digest.readings if digest else 0,
        "failed": digest.failed if digest else 0,
        "unread": digest.unread if digest else 0,
    }
