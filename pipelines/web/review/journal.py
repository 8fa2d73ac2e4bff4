"""Verdicts on their way to the `feedback` table: on this machine's disk before a page says that they are given.

Verdicts that come at once are written in one transaction. A thread of its own commits them to the table in groups, in
the order of their times; what a kill leaves behind is committed at the next start. The table knows the time of the last
one that was committed (a Delta application transaction), so none is committed twice.
"""

import json
import logging
import secrets
import sqlite3
import threading
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from filelock import FileLock

from infra.store.claims import used
from infra.store.corpora import forgotten
from infra.store.delta import MANY, Table
from infra.store.feedback import FEEDBACK_CLAIM, append_once
from infra.store.location import Corpus, Store
from infra.store.schemas import FeedbackRow
from pipelines.web.review.index import microseconds, moment

_log = logging.getLogger("memagent.review")
_PAUSE = 1.0
_GROUP = 500
_SCHEMA = """
PRAGMA journal_mode = WAL;
CREATE TABLE IF NOT EXISTS verdict (
  given_at INTEGER PRIMARY KEY, rows TEXT NOT NULL, stored INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE IF NOT EXISTS writer (name TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS verdict_left ON verdict (stored) WHERE stored = 0;
CREATE TABLE IF NOT EXISTS session (
  id TEXT PRIMARY KEY, reviewer TEXT NOT NULL, csrf TEXT NOT NULL, ends INTEGER NOT NULL
) WITHOUT ROWID;
"""


class JournalRow(FeedbackRow):
    """A row of `feedback`, and the text that it is about, so that it goes when that is forgotten."""

    content_hash: str


@dataclass(slots=True)
class _Waiting:
    """A verdict that somebody gives now."""

    rows: Sequence[JournalRow]
    given_at: int = 0


class VerdictJournal:
    """A database beside the user's other data: losing it would lose verdicts that are not in the store yet."""

    def __init__(self, path: Path, store: Store) -> None:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.path, self._store = path, store
        self._lock = threading.Lock()
        self._turn, self._file = threading.Lock(), FileLock(path.with_name(f"{path.name}.lock"), thread_local=False)
        self._connection = sqlite3.connect(path, timeout=30, isolation_level=None, check_same_thread=False)
        self._connection.executescript(_SCHEMA)
        self._connection.execute("PRAGMA synchronous = FULL")  # a commit that has returned is on the disk
        path.chmod(0o600)
        self._connection.execute(
            "INSERT INTO writer SELECT ? WHERE NOT EXISTS (SELECT 1 FROM writer)", (f"review-{secrets.token_hex(8)}",)
        )
        self._writer: str = self._connection.execute("SELECT name FROM writer").fetchone()[0]
        self._waiting: list[_Waiting] = []
        self._commits = 0
        self._stop = threading.Event()
        self._given = threading.Event()
        self._thread = threading.Thread(target=self._run, name="review-journal", daemon=True)
        self.trouble = ""
        """Why verdicts cannot be brought to the table now; empty: they can."""

    def start(self) -> None:
        """Begin to commit, with what is left."""
        self._given.set()
        self._thread.start()

    def stop(self) -> None:
        """Commit what is left, if the store lets us, and end."""
        self._stop.set()
        self._given.set()
        self._thread.join()
        self.close()

    def close(self) -> None:
        """Close the database, without bringing anything to the table."""
        self._connection.close()

    def add(self, rows: Sequence[JournalRow]) -> datetime:
        """Write rows, one of each corpus, as one verdict; return their time, which no other verdict has.

        When this returns the rows are on the disk.
        """
        mine = _Waiting(rows)
        self._waiting.append(mine)
        with self._lock:
            if not mine.given_at:  # else another one has written it with theirs
                group = self._waiting[:]
                try:
                    self._write(group)
                except BaseException:
                    self._waiting.remove(mine)  # the others try themselves
                    raise
                del self._waiting[: len(group)]
        self._given.set()
        return moment(mine.given_at)

    def _write(self, group: Sequence[_Waiting]) -> None:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            last = self._connection.execute("SELECT MAX(given_at) FROM verdict").fetchone()[0] or 0
            first = max(microseconds(datetime.now(UTC)), last + 1)
            values = [
                (first + number, json.dumps([{**row, "given_at": first + number} for row in each.rows]))
                for number, each in enumerate(group)
            ]
            self._connection.executemany("INSERT INTO verdict (given_at, rows) VALUES (?, ?)", values)
            self._connection.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:  # SQLite has ended it itself where the disk is full
                self._connection.execute("ROLLBACK")
            raise
        for number, each in enumerate(group):
            each.given_at = first + number

    def find(self, given_at: datetime) -> list[JournalRow]:
        """Return the rows of a verdict that was given on these review pages; empty: there is none."""
        with self._lock:
            found = self._connection.execute(
                "SELECT rows FROM verdict WHERE given_at = ?", (microseconds(given_at),)
            ).fetchone()
        return _rows(found[0]) if found else []

    def left(self) -> list[JournalRow]:
        """Return the rows that are not in the table yet, oldest first."""
        return [row for _, text in self._left(-1) for row in _rows(text)]

    def flush(self) -> int:
        """Commit what is left to the table; return how many verdicts. Those on forgotten texts are dropped instead.

        Raises RunningError: a run has the whole store for itself; it may be forgetting what they are about.
        """
        with self._turn, self._file:  # one at a time, also of another review server on this machine
            if not self._left():
                return 0
            with used(Corpus(self._store, FEEDBACK_CLAIM), self._writer, wait=False, show=None):
                return self._flush()

    def _flush(self) -> int:
        group = self._left()
        if group:
            by_corpus: dict[str, list[JournalRow]] = defaultdict(list)
            for row in (row for _, text in group for row in _rows(text)):
                by_corpus[row["corpus"]].append(row)
            for name, rows in by_corpus.items():  # no others: people go on giving verdicts meanwhile
                gone = forgotten(Corpus(self._store, name))
                if len(kept := [row for row in rows if row.get("content_hash") not in gone]) < len(rows):
                    self.forget(name, gone)
                append_once(Corpus(self._store, name), kept, self._writer)
            self._commits += 1
            if self._commits % MANY == 0:
                for name in by_corpus:
                    Table(self._store, "feedback").compact(name)
            with self._lock:
                self._connection.execute("BEGIN")
                self._connection.executemany(
                    "UPDATE verdict SET stored = 1 WHERE given_at = ?", [(at,) for at, _ in group]
                )
                self._connection.execute("COMMIT")
        return len(group)

    def forget(self, corpus: str, hashes: Collection[str]) -> None:
        """Delete a corpus's verdicts on some texts, by their content hashes; the same verdicts in others stay."""
        self._connection.execute("PRAGMA secure_delete = ON")
        with self._lock, self._connection:
            self._connection.execute("BEGIN IMMEDIATE")
            found = self._connection.execute(
                "SELECT given_at, rows FROM verdict WHERE json_extract(rows, '$[0].content_hash') IN "
                "(SELECT value FROM json_each(?))",
                (json.dumps(sorted(hashes)),),
            ).fetchall()
            kept = [(json.dumps([r for r in json.loads(text) if r["corpus"] != corpus]), at) for at, text in found]
            self._connection.executemany("UPDATE verdict SET rows = ? WHERE given_at = ?", kept)
            dropped = self._connection.execute("DELETE FROM verdict WHERE rows = '[]'").rowcount
        with self._lock:
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        if dropped:
            _log.info("%d verdicts on forgotten documents of %s are dropped", dropped, corpus)

    def open_session(self, key: str, reviewer: str, csrf: str, ends: datetime) -> None:
        """Keep a session by the hash of its secret; forget those that ended."""
        with self._lock:
            self._connection.execute("DELETE FROM session WHERE ends < ?", (microseconds(datetime.now(UTC)),))
            self._connection.execute(
                "INSERT INTO session VALUES (?, ?, ?, ?)", (key, reviewer, csrf, microseconds(ends))
            )

    def session(self, key: str) -> tuple[str, str] | None:
        """Return a session's reviewer and CSRF token; None: there is none, or it has ended."""
        now = microseconds(datetime.now(UTC))
        with self._lock:
            row = self._connection.execute(
                "SELECT reviewer, csrf FROM session WHERE id = ? AND ends > ?", (key, now)
            ).fetchone()
        return (row[0], row[1]) if row else None

    def use_link(self, key: str, ends: datetime) -> bool:
        """Note that a login link is used, until it is invalid anyway; return whether it was not yet."""
        with self._lock:
            done = self._connection.execute(
                "INSERT INTO session VALUES (?, '', '', ?) ON CONFLICT DO NOTHING", (key, microseconds(ends))
            )
            return done.rowcount == 1

    def close_session(self, key: str) -> None:
        """Forget a session."""
        with self._lock:
            self._connection.execute("DELETE FROM session WHERE id = ?", (key,))

    def _left(self, most: int = _GROUP) -> list[tuple[int, str]]:
        with self._lock:
            return self._connection.execute(
                "SELECT given_at, rows FROM verdict WHERE stored = 0 ORDER BY given_at LIMIT ?", (most,)
            ).fetchall()

    def _run(self) -> None:
        pause = timedelta(seconds=_PAUSE)
        while True:
            self._given.wait()
            self._stop.wait(pause.total_seconds())  # others that come meanwhile go with it
            self._given.clear()
            ending = self._stop.is_set()  # asked after the clearing, which may have taken the call to stop
            try:
                while self.flush():
                    pass
                self.trouble, pause = "", timedelta(seconds=_PAUSE)
            except Exception as error:  # they are on the disk, and the store may be back the next time
                self.trouble = f"{type(error).__name__}: {error}"
                _log.warning("verdicts wait for the store: %s", self.trouble)
                pause = min(2 * pause, timedelta(minutes=1))
                self._given.set()
            if ending:
                return


def _rows(text: str) -> list[JournalRow]:
    rows: list[JournalRow] = json.loads(text)
    for row in rows:
        row["given_at"] = moment(int(row["given_at"]))  # type: ignore[call-overload]
    return rows
