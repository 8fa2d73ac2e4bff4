"""The index of the review pages: what the tables say of answers, without texts, in SQLite. It can always be rebuilt.

An item's id is the time of its answer and a count, so that a range of ids is a range of time, and the newest come last.
"""

import json
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

from infra.store.schemas import FeedbackRow
from memagent.quality.verdicts import Verdict, VerdictKind, judges, review
from memagent.records import TextSpan

VERSION = "11"
"""Of the schema: an index of another version is made anew."""
REVIEWS = ("open", "accepted", "corrected", "rejected", "disputed")
STATES = ("not found", "found", "failed")
UNKNOWN = 2.0
"""The confidence of items of which none is known."""
_BUSY_SECONDS = 30
_TABLES = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name <> 'note' AND name NOT LIKE 'words%' "
_TABLES += "AND name NOT LIKE 'names%'"
"""All but the version, and the indexes of words and names, which leave no word behind where they are made anew."""
_NAMES = "CREATE VIRTUAL TABLE names USING fts5 (name, columnsize = 0)"
"""Ids and titles of the documents that have a subject's text now, by its row."""
TIME_BITS = 12
"""Bits of an id below the microseconds."""


class Subject(NamedTuple):
    """What an item is about: a text and a question, by their rows."""

    subject: int
    question: int


class AnswerIndex:
    """The database. Reading is open to all threads at once, writing to one at a time."""

    def __init__(self, path: Path) -> None:
        """Open the database; make it anew if it is missing, damaged, or of another version."""
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.path = path
        self._threads = threading.local()
        self._writing = threading.RLock()
        if not self._usable():
            for suffix in ("", "-wal", "-shm"):
                path.with_name(path.name + suffix).unlink(missing_ok=True)
            path.touch(mode=0o600)  # SQLite gives its other files the mode of this one
            with self.write() as connection:
                connection.executescript((files("pipelines.web.review") / "schema.sql").read_text(encoding="utf-8"))
                connection.execute(_NAMES)
                connection.execute("INSERT INTO note VALUES ('version', ?)", (VERSION,))

    def read(self) -> sqlite3.Connection:
        """Return this thread's connection."""
        connection: sqlite3.Connection | None = getattr(self._threads, "connection", None)
        if connection is None:
            connection = sqlite3.connect(self.path, timeout=_BUSY_SECONDS, isolation_level=None)
            connection.row_factory = sqlite3.Row
            connection.execute("PRAGMA synchronous = NORMAL")  # the tables and the journal are what must not be lost
            connection.execute("PRAGMA cache_size = -32000")
            connection.execute("PRAGMA mmap_size = 1073741824")
            self._threads.connection = connection
        return connection

    @contextmanager
    def write(self) -> Iterator[sqlite3.Connection]:
        """Hold a transaction for the body."""
        with self._writing:
            connection = self.read()
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
            except BaseException:
                connection.rollback()
                raise
            connection.commit()

    def clear(self) -> None:
        """Forget everything: nothing of it stays in the file."""
        with self.write() as connection:
            connection.execute("PRAGMA secure_delete = ON")
            for (table,) in connection.execute(_TABLES).fetchall():
                connection.execute(f"DELETE FROM {table}")  # noqa: S608  (our own names)
            connection.execute("INSERT INTO words (words) VALUES ('delete-all')")
            connection.execute("DROP TABLE names")
            connection.execute(_NAMES)
        with self._writing:
            self.read().execute("VACUUM")
            self.read().execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def _usable(self) -> bool:
        if not self.path.exists():
            return False
        self.path.chmod(0o600)
        try:
            connection = sqlite3.connect(self.path)
            try:
                row = connection.execute("SELECT value FROM note WHERE name = 'version'").fetchone()
            finally:
                connection.close()
        except sqlite3.DatabaseError:
            return False
        return row is not None and row[0] == VERSION


def microseconds(at: datetime) -> int:
    """Return a time as whole microseconds since 1970."""
    at = at if at.tzinfo else at.replace(tzinfo=UTC)
    since = at - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def moment(value: int) -> datetime:
    """Return the time of whole microseconds since 1970."""
    return datetime.fromtimestamp(value // 1_000_000, UTC).replace(microsecond=value % 1_000_000)


def corpus_id(connection: sqlite3.Connection, name: str) -> int:
    """Return a corpus's row; make it if it is missing."""
    connection.execute("INSERT OR IGNORE INTO corpus (name) VALUES (?)", (name,))
    return int(connection.execute("SELECT id FROM corpus WHERE name = ?", (name,)).fetchone()[0])


def add_verdicts(connection: sqlite3.Connection, rows: Iterable[FeedbackRow]) -> None:
    """Add rows of `feedback` and bring the items that they are about up to date. Repeating it changes nothing."""
    touched: set[Subject] = set()
    for row in rows:
        item = connection.execute(
            "SELECT corpus, subject, question, answer FROM detail JOIN item USING (id) "
            "WHERE reading_id = ? AND corpus = (SELECT id FROM corpus WHERE name = ?)",
            (row["reading_id"], row["corpus"]),
        ).fetchone()
        given_at = microseconds(row["given_at"])
        if item is None:
            text = json.dumps({**row, "given_at": given_at})
            values = (row["corpus"], row["reading_id"], given_at, text)
            connection.execute("INSERT OR REPLACE INTO waiting VALUES (?, ?, ?, ?)", values)
            continue
        about = Subject(item["subject"], item["question"])
        said = (row["reviewer"] or "", row["verdict"], item["answer"], row["answer"] or "", row["comment"] or "")
        spans = json.dumps([(s["content_hash"], s["char_start"], s["char_end"]) for s in row["spans"] or ()])
        added = (item["corpus"], *about, row["reading_id"], given_at, *said, bool(row["decides"]), spans)
        connection.execute("INSERT OR IGNORE INTO verdict VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", added)
        touched.add(about)
    settle(connection, touched)


def take_waiting(connection: sqlite3.Connection) -> None:
    """Add the verdicts whose readings were not indexed when they came, where they are now."""
    rows = connection.execute(
        "SELECT row FROM waiting WHERE EXISTS (SELECT 1 FROM detail WHERE detail.reading_id = waiting.reading_id)"
    ).fetchall()
    known: list[FeedbackRow] = [json.loads(row["row"]) for row in rows]
    for row in known:
        row["given_at"] = moment(int(row["given_at"]))  # type: ignore[call-overload]
        connection.execute("DELETE FROM waiting WHERE reading_id = ?", (row["reading_id"],))
    add_verdicts(connection, known)


def settle(connection: sqlite3.Connection, subjects: Iterable[Subject]) -> None:
    """Write what the verdicts on some texts and questions come to into their items: words of both answers find them."""
    for pair in subjects:
        verdicts = verdicts_on(connection, pair)
        people = sorted(judges(verdicts))
        connection.execute("DELETE FROM judge WHERE subject = ? AND question = ?", pair)
        connection.executemany("INSERT INTO judge VALUES (?, ?, ?)", [(name, *pair) for name in people])
        for item in connection.execute(
            "SELECT id, answer, shown_answer FROM item JOIN detail USING (id) "
            "WHERE subject = ? AND question = ? AND state < 2",
            pair,
        ).fetchall():
            found = review(verdicts, item["answer"])
            status, other = (REVIEWS.index(found.status), found.answer) if found else (0, "")
            shown = other if found and found.status == "corrected" and other != item["answer"] else None
            state = STATES.index("found" if (item["answer"] if shown is None else shown) else "not found")
            values = (state, status, len(people), item["id"])
            connection.execute("UPDATE item SET state = ?, review = ?, reviewers = ? WHERE id = ?", values)
            if shown == item["shown_answer"]:
                continue
            before, now = (f"{item['answer']} {other or ''}" for other in (item["shown_answer"], shown))
            connection.execute("INSERT INTO words (words, rowid, answer) VALUES ('delete', ?, ?)", (item["id"], before))
            connection.execute("INSERT INTO words (rowid, answer) VALUES (?, ?)", (item["id"], now))
            connection.execute("UPDATE detail SET shown_answer = ? WHERE id = ?", (shown, item["id"]))


def verdicts_on(connection: sqlite3.Connection, pair: Subject) -> list[Verdict]:
    """Return all verdicts on a text and question, oldest first."""
    rows = connection.execute(
        "SELECT * FROM verdict WHERE subject = ? AND question = ? ORDER BY given_at", pair
    ).fetchall()
    return [_verdict(row) for row in rows]


def forget(connection: sqlite3.Connection, ids: Sequence[int]) -> None:
    """Delete items."""
    connection.executemany("DELETE FROM item WHERE id = ?", [(item,) for item in ids])
    connection.executemany("DELETE FROM detail WHERE id = ?", [(item,) for item in ids])


def _verdict(row: Mapping[str, object]) -> Verdict:
    kind: VerdictKind = row["kind"]  # type: ignore[assignment]
    return Verdict(
        reading_id=str(row["reading_id"]),
        kind=kind,
        given=str(row["given"]),
        answer=str(row["answer"]),
        given_at=moment(int(row["given_at"])),  # type: ignore[call-overload]
        reviewer=str(row["reviewer"]),
        comment=str(row["comment"]),
        decides=bool(row["decides"]),
        spans=tuple(TextSpan(*span) for span in json.loads(str(row["spans"]))),
    )
