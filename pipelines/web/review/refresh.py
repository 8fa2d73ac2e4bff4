"""Bring the index up to date with the tables, file by file: what was read is not read again.

Rows are taken as often as they come: after a compaction the same ones stand in new files.
"""

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator

import pyarrow as pa
import pyarrow.compute as pc

from infra.store import Corpus, Store
from infra.tables.corpora import corpora, forgotten
from infra.tables.delta import Table
from infra.tables.rows import FailureRow, FeedbackRow
from infra.tables.runs import ENDED, SHOWN
from infra.tables.training_schemas import FEEDBACK
from infra.tables.visibility import hidden_runs, withheld_runs
from pipelines.web.review.index import AnswerIndex, add_verdicts, corpus_id, forget, microseconds, take_waiting
from pipelines.web.review.intake import ANSWERS, DOCUMENTS, take_answers, take_documents, take_failure

_log = logging.getLogger("memagent.review")
_ROWS = 4_000
"""Rows of a transaction: a verdict that comes meanwhile waits no longer."""
_EVERY = 5.0


class Refresher:
    """Keeps an index up to date in a thread of its own."""

    def __init__(self, store: Store, index: AnswerIndex, forget: Callable[[set[str]], None]) -> None:
        """Prepare; `forget` is told the readings of documents that were forgotten (`pipelines.forget`)."""
        self._store, self._index, self._forget = store, index, forget
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
        readings = {reading for corpus in corpora(self._store) for reading in self._forgotten(corpus)}
        if readings:
            self._forget(readings)
            self._index.clear()
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
            for corpus in corpora(self._store) if version is not None else ():
                if self._stop.is_set():
                    return
                self.busy = f"{name} of {corpus}"
                step(corpus)
            self._versions[name] = version
        self.busy = ""

    def _forgotten(self, corpus: str) -> list[str]:
        """Return the readings in the index that are of forgotten texts."""
        hashes = json.dumps(sorted(forgotten(Corpus(self._store, corpus))))
        rows = self._index.read().execute(
            "SELECT reading_id FROM subject JOIN item ON item.subject = subject.id JOIN detail ON detail.id = item.id "
            "WHERE subject.corpus = (SELECT id FROM corpus WHERE name = ?) AND content_hash IN "
            "(SELECT value FROM json_each(?))",
            (corpus, hashes),
        )
        return [row["reading_id"] for row in rows]

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
        with self._index.write() as connection:
            digest = microseconds(max(began)) if began else 0
            connection.execute("UPDATE corpus SET digest = ? WHERE id = ?", (digest, corpus_id(connection, corpus)))

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
