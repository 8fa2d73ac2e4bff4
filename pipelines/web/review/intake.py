"""Take rows of the tables into the index, a group in one transaction. Taking a row again changes nothing."""

import json
import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Collection, Iterator
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from infra.store.corpora import corpora, load_record
from infra.store.delta import Table
from infra.store.location import Corpus, Store
from infra.store.resume_points import policy_name
from infra.store.runs import ENDED, SHOWN, DigestReader, hidden_runs, last_digest, withheld_runs
from infra.store.schemas import EVIDENCE, FEEDBACK, FailureRow, FeedbackRow
from memagent.records import LEVELS, stable_hash
from pipelines.views.visible_answers import CONCATENATED, AnswerRule, visible_answers
from pipelines.web.review.index import (
    TIME_BITS,
    UNKNOWN,
    AnswerIndex,
    Subject,
    add_verdicts,
    corpus_id,
    forget,
    microseconds,
    settle,
    take_waiting,
)

_DETAIL = 240
DOCUMENTS = ["content_hash", "doc_id", "title", "source", "media_type", "warnings", "state", "seen_at"]
ANSWERS = [
    *("reading_id", "question_id", "question", "scope", "content_hash", "answer", "found", "evidence", "run_id"),
    *("confidence", "confidence_level", "warnings", "policy_id", "config_hash", "answered_at"),
]


def take_documents(connection: sqlite3.Connection, corpus: int, batch: pa.Table) -> None:
    """Take rows of `documents` (columns `DOCUMENTS`)."""
    rows = zip(*(batch[name].to_pylist() for name in DOCUMENTS), strict=True)
    connection.execute("CREATE TEMP TABLE IF NOT EXISTS touched (content_hash TEXT PRIMARY KEY) WITHOUT ROWID")
    connection.execute("DELETE FROM touched")
    connection.executemany(
        "INSERT OR IGNORE INTO touched VALUES (?)", [(name,) for name in batch["content_hash"].to_pylist()]
    )
    connection.executemany(
        "INSERT INTO version VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET "
        "title = excluded.title, warnings = excluded.warnings, source = excluded.source, "
        "present = excluded.present, seen_at = excluded.seen_at "
        # Of two at the same time, a present document's counts, not its superseded version's.
        "WHERE excluded.seen_at > seen_at OR (excluded.seen_at = seen_at AND excluded.present >= present)",
        [
            (
                corpus,
                name,
                doc,
                title or "",
                source or "",
                kind or "",
                "; ".join(warnings or ()),
                state == "present",
                microseconds(seen),
            )
            for name, doc, title, source, kind, warnings, state, seen in rows
        ],
    )
    _subjects(connection, corpus)


def _subjects(connection: sqlite3.Connection, corpus: int) -> None:
    """Bring the subjects of the texts in `touched` up to date, and which of their items are shown."""
    connection.execute(
        "INSERT INTO subject (corpus, content_hash, doc_id, title, copies, present) "
        "SELECT ?1, content_hash, COALESCE(MIN(CASE WHEN present THEN doc_id END), MIN(doc_id)), '', "
        "SUM(present), MAX(present) FROM version JOIN touched USING (content_hash) WHERE corpus = ?1 "
        "GROUP BY content_hash ON CONFLICT DO UPDATE SET doc_id = excluded.doc_id, copies = excluded.copies, "
        "present = excluded.present",
        (corpus,),
    )
    mine = "SELECT id FROM subject JOIN touched USING (content_hash) WHERE corpus = ?1"
    of_subject = "version.corpus = subject.corpus AND version.content_hash = subject.content_hash"
    for statement in (
        f"UPDATE subject SET title = (SELECT title FROM version WHERE {of_subject} "
        f"AND version.doc_id = subject.doc_id) WHERE id IN ({mine})",
        f"DELETE FROM names WHERE rowid IN ({mine})",
        "INSERT INTO names (rowid, name) SELECT subject.id, GROUP_CONCAT(version.doc_id || ' ' || version.title, ' ') "
        f"FROM subject JOIN version ON {of_subject} AND version.present WHERE subject.id IN ({mine}) GROUP BY 1",
    ):
        connection.execute(statement, (corpus,))
    _show(
        connection, "subject IN (SELECT id FROM subject JOIN touched USING (content_hash) WHERE corpus = ?)", (corpus,)
    )


def _count_for(connection: sqlite3.Connection, corpus: int, reader: DigestReader) -> None:
    """Note whose answers the last digest counts, and show these, unless it is noted: each run changes the table."""
    since = microseconds(datetime.fromisoformat(reader["since"])) << TIME_BITS
    if connection.execute("SELECT 1 FROM corpus WHERE id = ? AND since = ?", (corpus, since)).fetchone():
        return
    name, questions = reader_name(reader["policy_id"], reader["config_hash"]), json.dumps(reader["questions"])
    _add_readers(connection, {name})
    connection.execute(
        "UPDATE corpus SET since = ?, questions = ?, reader = (SELECT id FROM reader WHERE name = ?) WHERE id = ?",
        (since, questions, name, corpus),
    )
    counted = "text IN (SELECT value FROM json_each(?))"
    connection.execute(f"UPDATE question SET counted = {counted} WHERE corpus = ?", (questions, corpus))
    several = "SELECT subject, question FROM item WHERE reader > 0 GROUP BY 1, 2 HAVING MIN(reader) < MAX(reader)"
    _show(connection, f"(subject, question) IN ({several})", ())


def _show(connection: sqlite3.Connection, where: str, values: tuple[Any, ...]) -> None:
    """Set which items are shown, as `pipelines.views.visible_answers` has it, if a document has the text."""
    connection.execute(
        "UPDATE item SET shown = (SELECT present FROM subject WHERE subject.id = item.subject) AND id = ("
        "SELECT other.id FROM item AS other JOIN corpus ON corpus.id = other.corpus "
        "JOIN question ON question.id = other.question "
        "LEFT JOIN reader AS its ON its.id = other.reader LEFT JOIN reader AS mine ON mine.id = corpus.reader "
        "WHERE other.subject = item.subject AND other.question = item.question AND other.state < 2 "
        "ORDER BY CASE WHEN other.id >= corpus.since THEN 3 WHEN NOT question.counted THEN 0 "
        "WHEN its.id = mine.id THEN 2 WHEN its.kin = mine.kin THEN 1 ELSE 0 END DESC, other.id DESC LIMIT 1) "
        f"WHERE state < 2 AND {where}",
        values,
    )


def take_answers(connection: sqlite3.Connection, corpus: int, batch: pa.Table, part: str) -> None:
    """Take rows of `answers` (columns `ANSWERS`) from a file. Of a reading's answers the first given counts."""
    rows: dict[str, tuple[Any, ...]] = {}
    for row in sorted(_rows(batch), key=lambda row: row[-1]):
        rows.setdefault(row[0], row)
    known = connection.execute(  # two runs at once may answer a reading twice, and compacted files repeat rows
        "SELECT detail.id, reading_id, answered_at FROM detail JOIN item USING (id) WHERE item.corpus = ? "
        "AND reading_id IN (SELECT value FROM json_each(?))",
        (corpus, json.dumps(list(rows))),
    ).fetchall()
    later = []
    for row in known:
        answered_at = microseconds(rows[row["reading_id"]][-1])
        if answered_at < row["answered_at"]:  # its file was listed after that of the later answer
            later.append(row["id"])
            continue
        if answered_at == row["answered_at"]:
            connection.execute("UPDATE detail SET part = ? WHERE id = ?", (part, row["id"]))
        del rows[row["reading_id"]]
    forget(connection, later)
    connection.execute(
        "CREATE TEMP TABLE IF NOT EXISTS fresh (id INTEGER PRIMARY KEY, reading_id, question_id, question, archive, "
        "content_hash, answer, state, quote, verbatim, run_id, confidence, level, warnings, reader)"
    )
    connection.execute("DELETE FROM fresh")
    free = _FreeIds(connection)
    connection.executemany(
        f"INSERT INTO fresh VALUES ({', '.join('?' * 15)})",
        [(free.take(microseconds(answered_at)), *row) for *row, answered_at in rows.values()],
    )
    _add_readers(connection, {row[0] for row in connection.execute("SELECT reader FROM fresh WHERE NOT archive")})
    for statement in _TAKE:
        connection.execute(statement, {"corpus": corpus, "archive": CONCATENATED, "part": part})
    _show(connection, "(subject, question) IN (SELECT i.subject, i.question FROM item AS i JOIN fresh USING (id))", ())
    judged = connection.execute(
        "SELECT DISTINCT item.subject, item.question FROM item JOIN fresh USING (id) "
        "JOIN verdict ON verdict.subject = item.subject AND verdict.question = item.question"
    ).fetchall()
    settle(connection, [Subject(*row) for row in judged])


_TAKE = (
    "INSERT INTO question (corpus, text, question_id, counted) SELECT :corpus, question, MIN(question_id), question IN "
    "(SELECT value FROM corpus JOIN json_each(corpus.questions) WHERE corpus.id = :corpus) FROM fresh WHERE true "
    "GROUP BY question ON CONFLICT DO NOTHING",
    "INSERT INTO subject (corpus, content_hash, doc_id, title, copies, present) "
    "SELECT :corpus, content_hash, '', CASE WHEN archive THEN :archive ELSE '' END, 1, archive FROM fresh WHERE true "
    "GROUP BY content_hash ON CONFLICT DO NOTHING",
    "INSERT INTO detail (id, reading_id, answer, quote, verbatim, run_id, warnings, part) "
    "SELECT id, reading_id, answer, quote, verbatim, run_id, warnings, :part FROM fresh",
    "INSERT INTO words (rowid, answer) SELECT id, answer FROM fresh",
    "INSERT OR REPLACE INTO names (rowid, name) SELECT subject.id, subject.title FROM fresh JOIN subject "
    "ON subject.corpus = :corpus AND subject.content_hash = fresh.content_hash WHERE fresh.archive",
    "INSERT INTO item (id, corpus, question, subject, shown, state, answered_at, confidence, level, reader) "
    f"SELECT fresh.id, :corpus, question.id, subject.id, 0, state, fresh.id >> {TIME_BITS}, confidence, level, "
    "COALESCE(reader.id, 0) FROM fresh LEFT JOIN reader ON reader.name = fresh.reader AND NOT archive "
    "JOIN question ON question.corpus = :corpus AND question.text = fresh.question "
    "JOIN subject ON subject.corpus = :corpus AND subject.content_hash = fresh.content_hash",
)


class _FreeIds:
    """Gives out ids of items, by their time."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._next: dict[int, int] = {}
        self._given: set[int] = set()

    def take(self, at: int) -> int:
        """Return an id for a time in microseconds."""
        first = at << TIME_BITS
        if first not in self._next:
            inside = (first, first + (1 << TIME_BITS))
            last = self._connection.execute("SELECT MAX(id) FROM item WHERE id >= ? AND id < ?", inside).fetchone()[0]
            self._next[first] = first if last is None else last + 1
        item = self._next[first]
        # So many answers at one time that they reach into the next.
        while item in self._given or (
            item >> TIME_BITS != at and self._connection.execute("SELECT 1 FROM item WHERE id = ?", (item,)).fetchone()
        ):
            item += 1
        self._next[first] = item + 1
        self._given.add(item)
        return item


def _add_readers(connection: sqlite3.Connection, names: Collection[str]) -> None:
    for name in names:
        policy_id, config_hash = name.rsplit(" ", 1)
        kin = reader_name(policy_name(policy_id), config_hash)
        connection.execute("INSERT OR IGNORE INTO reader (name, kin) VALUES (?, ?)", (name, kin))


def reader_name(policy_id: str, config_hash: str) -> str:
    """Return what a model and a configuration are known by in the index."""
    return f"{policy_id} {config_hash}"


def _rows(batch: pa.Table) -> Iterator[tuple[Any, ...]]:
    first = pc.list_slice(batch["evidence"].combine_chunks(), 0, 1, return_fixed_size_list=True)
    pieces = first.flatten() if len(first) else pa.array([], EVIDENCE)
    columns = {name: batch[name].to_pylist() for name in ANSWERS if name != "evidence"}
    columns["quote"] = [text or "" for text in pc.struct_field(pieces, "quote").to_pylist()]
    columns["verbatim"] = [int(value is not False) for value in pc.struct_field(pieces, "verbatim").to_pylist()]
    columns["archive"] = [scope == "archive" for scope in columns["scope"]]
    columns["found"] = [int(bool(found)) for found in columns["found"]]
    columns["confidence"] = [UNKNOWN if value is None else round(value, 6) for value in columns["confidence"]]
    columns["level"] = [LEVELS.index(value) if value else -1 for value in columns["confidence_level"]]
    columns["warnings"] = ["; ".join(value or ()) for value in columns["warnings"]]
    columns["reader"] = list(map(reader_name, columns["policy_id"], columns["config_hash"]))
    names = (
        *("reading_id", "question_id", "question", "archive", "content_hash", "answer", "found", "quote"),
        *("verbatim", "run_id", "confidence", "level", "warnings", "reader", "answered_at"),
    )
    return zip(*(columns[name] for name in names), strict=True)


def take_failure(connection: sqlite3.Connection, corpus: int, row: FailureRow) -> None:
    """Take a reading that failed, as a row of `quarantine` names it."""
    doc_id, _, text = row["item"].partition(" ? ")
    values = (corpus, text, stable_hash(text)[:12])
    connection.execute("INSERT OR IGNORE INTO question (corpus, text, question_id) VALUES (?, ?, ?)", values)
    question = connection.execute("SELECT id FROM question WHERE corpus = ? AND text = ?", (corpus, text)).fetchone()
    known = connection.execute(
        "SELECT content_hash FROM version WHERE corpus = ? AND doc_id = ? ORDER BY present DESC, seen_at DESC",
        (corpus, doc_id),
    ).fetchone()
    content_hash = known["content_hash"] if known else f"failed:{doc_id}"
    connection.execute(
        "INSERT OR IGNORE INTO subject (corpus, content_hash, doc_id, title, copies, present) "
        "VALUES (?, ?, ?, '', 1, 1)",
        (corpus, content_hash, doc_id),
    )
    subject = connection.execute(
        "SELECT id FROM subject WHERE corpus = ? AND content_hash = ?", (corpus, content_hash)
    ).fetchone()
    at = microseconds(row["at"])
    item = _FreeIds(connection).take(at)
    connection.execute(
        "INSERT INTO detail (id, reading_id, answer, quote, run_id) VALUES (?, '', ?, ?, ?)",
        (item, row["reason"], (row["detail"] or "")[:_DETAIL], row["run_id"]),
    )
    connection.execute(
        "INSERT INTO item (id, corpus, question, subject, shown, state, answered_at) VALUES (?, ?, ?, ?, 1, 2, ?)",
        (item, corpus, question["id"], subject["id"], at),
    )


_log = logging.getLogger("memagent.review")
_ROWS = 4_000
"""Rows of a transaction: a verdict that comes meanwhile waits no longer."""
_EVERY = 5.0


class Refresher:
    """Keeps an index up to date in a thread of its own."""

    def __init__(self, store: Store, index: AnswerIndex, forget: Callable[[str, Collection[str]], None]) -> None:
        """Prepare; `forget` is told corpora and the hashes of their forgotten texts (`pipelines.operate.forget`)."""
        self._store, self._index, self._forget = store, index, forget
        self._told: dict[str, frozenset[str]] = {}
        self._versions: dict[str, int | None] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="review-refresh", daemon=True)
        self.busy = ""
        """What is being read now, to be shown; empty: all is read."""

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End after the file that is being read."""
        self._stop.set()
        self._thread.join()

    def once(self) -> None:
        """Read what is new in the tables; begin anew where documents were forgotten."""
        if self.follow_forgettings():
            self._versions = {}
        steps: tuple[tuple[str, Callable[[str], None]], ...] = (
            ("documents", self._documents),
            ("answers", self._answers),
            ("quarantine", self._failures),
            ("feedback", self._feedback),
            ("runs", self._digest),
        )
        for name, step in steps:
            version = Table(self._store, name).version()
            if version is None or version == self._versions.get(name):
                continue
            for corpus in corpora(self._store):
                if self._stop.is_set():
                    return
                self.busy = f"{name} of {corpus}"
                step(corpus)
            self._versions[name] = version
        self.busy = ""

    def follow_forgettings(self) -> bool:
        """Tell of forgotten texts, and clear the index if it is older than a forgetting or has anything of its texts.

        Return whether it is empty now.
        """
        stale, counts = False, dict[str, int]()
        known = dict(map(tuple, self._index.read().execute("SELECT name, forgettings FROM corpus")))
        for name in corpora(self._store):
            record = load_record(Corpus(self._store, name))
            hashes, counts[name] = frozenset(record.get("forgotten", ())), record.get("forgettings", 0)
            if hashes and hashes != self._told.get(name):
                self._forget(name, hashes)
                self._told[name] = hashes
            older = known.get(name, counts[name]) != counts[name]
            stale = stale or older or self._has_any(name, json.dumps(sorted(hashes)))
        if stale:
            self._index.clear()
        if stale or counts.keys() - known.keys():
            with self._index.write() as connection:
                connection.executemany("INSERT OR IGNORE INTO corpus (name, forgettings) VALUES (?, ?)", counts.items())
        return not self._index.read().execute("SELECT 1 FROM version UNION SELECT 1 FROM item").fetchone()

    def _has_any(self, corpus: str, hashes: str) -> bool:
        found = self._index.read().execute(
            "SELECT 1 FROM subject JOIN item ON item.subject = subject.id WHERE subject.corpus = "
            "(SELECT id FROM corpus WHERE name = ?1) AND content_hash IN (SELECT value FROM json_each(?2)) UNION ALL "
            "SELECT 1 FROM waiting WHERE corpus = ?1 AND json_extract(row, '$.content_hash') IN "
            "(SELECT value FROM json_each(?2))",
            (corpus, hashes),
        )
        return found.fetchone() is not None

    def _run(self) -> None:
        while not self._stop.is_set():
            began = time.monotonic()
            try:
                self.once()
            except Exception as error:  # the review server shows what it has; the store may be back the next time
                self.busy = ""
                _log.warning("the review server cannot read the store now: %s: %s", type(error).__name__, error)
            self._stop.wait(max(_EVERY, 10 * (time.monotonic() - began)))

    def _documents(self, corpus: str) -> None:
        for _, batch in self._new(corpus, "documents", DOCUMENTS):
            with self._index.write() as connection:
                take_documents(connection, corpus_id(connection, corpus), batch)
        self._archives(corpus)

    def _answers(self, corpus: str) -> None:
        target = Corpus(self._store, corpus)
        hidden, withheld = (
            pa.array(sorted(runs), pa.string()) for runs in (hidden_runs(target), withheld_runs(target))
        )
        for part, batch in self._new(corpus, "answers", ANSWERS):
            run_ids = batch["run_id"].cast(pa.string())
            kept = pc.unique(run_ids.filter(pc.is_in(run_ids, value_set=withheld))).to_pylist()
            if len(hidden):
                batch = batch.filter(pc.invert(pc.is_in(run_ids, value_set=hidden)))
            with self._index.write() as connection:
                connection.executemany(
                    "INSERT OR IGNORE INTO kept VALUES (?, ?, ?)",
                    [(f"answers/{corpus}/{part}", corpus, run_id) for run_id in kept],
                )
                take_answers(connection, corpus_id(connection, corpus), batch, part)
                take_waiting(connection)
        self._archives(corpus)

    def _archives(self, corpus: str) -> None:
        """Show of several answers over all documents to a question the one that `visible_answers` gives."""
        subjects = "SELECT s.id FROM subject AS s JOIN corpus AS c ON c.id = s.corpus WHERE doc_id = '' AND name = ?"
        mine = f"state < 2 AND subject IN ({subjects})"
        several = f"SELECT 1 FROM item WHERE {mine} GROUP BY question HAVING COUNT(*) > 1"
        if self._index.read().execute(several, [corpus]).fetchone():
            target = Corpus(self._store, corpus)
            shown = visible_answers(target, None, AnswerRule.of(target), ["reading_id"])["reading_id"].to_pylist()
            ids = "SELECT detail.id FROM detail JOIN json_each(?) ON value = reading_id"
            with self._index.write() as connection:
                connection.execute(f"UPDATE item SET shown = id IN ({ids}) WHERE {mine}", (json.dumps(shown), corpus))

    def _feedback(self, corpus: str) -> None:
        for _, batch in self._new(corpus, "feedback", [name for name in FEEDBACK.names if name != "corpus"]):
            columns = [pa.array([corpus] * batch.num_rows), *batch.columns]
            rows: list[FeedbackRow] = pa.table(columns, ["corpus", *batch.column_names]).to_pylist()
            with self._index.write() as connection:
                add_verdicts(connection, rows)

    def _failures(self, corpus: str) -> None:
        """Take the readings that failed; those that have an answer since are no longer in the table."""
        read = pc.field("stage") == "read"
        rows: list[FailureRow] = Table(self._store, "quarantine").read(corpus, filters=read).to_pylist()
        with self._index.write() as connection:
            number = corpus_id(connection, corpus)
            old = connection.execute("SELECT id FROM item WHERE corpus = ? AND state = 2", (number,)).fetchall()
            forget(connection, [row["id"] for row in old])
            last = {row["item"]: row for row in sorted(rows, key=lambda row: row["at"])}
            for row in last.values():
                take_failure(connection, number, row)

    def _digest(self, corpus: str) -> None:
        """Note when the last digest that is not withheld began: what was answered since is new. Read the files again
        that have answers of digests which are no longer withheld.
        """
        withheld = json.dumps(sorted(withheld_runs(Corpus(self._store, corpus))))
        with self._index.write() as connection:
            again = connection.execute(
                "DELETE FROM kept WHERE corpus = ? AND run_id NOT IN (SELECT value FROM json_each(?)) RETURNING path",
                (corpus, withheld),
            ).fetchall()
            connection.executemany("DELETE FROM seen WHERE path = ?", [(row["path"],) for row in again])
        if again:
            self._versions.pop("answers", None)
        chosen = (pc.field("kind") == "digest") & ENDED & SHOWN
        began = Table(self._store, "runs").read(corpus, ["started_at"], chosen)["started_at"].to_pylist()
        last = last_digest(Corpus(self._store, corpus))
        with self._index.write() as connection:
            digest, number = microseconds(max(began)) if began else 0, corpus_id(connection, corpus)
            connection.execute("UPDATE corpus SET digest = ? WHERE id = ?", (digest, number))
            if last and (reader := last.get("reader")):
                _count_for(connection, number, reader)

    def _new(self, corpus: str, name: str, columns: list[str]) -> Iterator[tuple[str, pa.Table]]:
        """Yield the path and the rows of a table's files that were not read yet, some thousands at once."""
        table = Table(self._store, name)
        for fragment in table.fragments(corpus):
            path = f"{name}/{corpus}/{fragment.path}"
            if self._index.read().execute("SELECT 1 FROM seen WHERE path = ?", (path,)).fetchone():
                continue
            for batch in fragment.to_batches(schema=table.schema, columns=columns, batch_size=_ROWS):
                if batch.num_rows:
                    yield fragment.path, pa.Table.from_batches([batch])
                if self._stop.is_set():
                    return
            with self._index.write() as connection:
                connection.execute("INSERT OR IGNORE INTO seen VALUES (?)", (path,))
