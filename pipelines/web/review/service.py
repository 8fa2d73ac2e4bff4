"""The review server without its pages: what people do there, on the index, the journal and the tables."""

import json
import os
import sqlite3
import subprocess
import tempfile
import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import IO, Literal
from urllib.parse import unquote

import platformdirs
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from infra.store.delta import Table
from infra.store.feedback import feedback_row
from infra.store.location import Corpus, Store
from infra.store.runs import new_run_id
from infra.store.schemas import ANSWERS, AnswerRow, EvidenceRow, FeedbackRow, SpanRow
from infra.system.processes import end_process, ends_with_us, environment_of_children
from memagent.config import Config
from memagent.errors import MemagentError, UsageError
from memagent.quality.verdicts import ABSENT, Verdict, right_answer
from memagent.reading.folding import locate
from memagent.records import TextSpan, mended, stable_hash
from pipelines.views.formatting import EXIT_STATUS, plain
from pipelines.views.passages import DocumentTexts, Pages
from pipelines.views.visible_answers import changed_since
from pipelines.web.review import listing
from pipelines.web.review.index import AnswerIndex, Subject, add_verdicts, verdicts_on
from pipelines.web.review.intake import Refresher
from pipelines.web.review.journal import JournalRow, VerdictJournal
from pipelines.web.review.listing import ListedAnswer

_AT_ONCE = 1
_KEPT = 20
_LAST_BYTES = 4_000


@dataclass
class Job:
    """A command that was started here."""

    run_id: str
    what: str
    process: "subprocess.Popen[bytes]"
    log: IO[bytes] = field(repr=False)
    questions: IO[str] = field(repr=False)
    """A file that only this user can read: other users of the machine see every command line."""

    @property
    def state(self) -> str:
        """How far it is: running, or how it ended, by its exit status."""
        status = self.process.poll()
        ended = next((word for word, code in EXIT_STATUS.items() if code == status), "failed")
        return "running" if status is None else ended

    def last_lines(self) -> str:
        """Return the end of what it has printed."""
        size = os.fstat(self.log.fileno()).st_size
        data = os.pread(self.log.fileno(), _LAST_BYTES, max(0, size - _LAST_BYTES))
        return plain(data.decode("utf-8", "replace")).strip()


class Jobs:
    """The commands that were started here, one running at a time."""

    def __init__(self, config: Config) -> None:
        self._environment = {**environment_of_children(), "MEMAGENT_CONFIG": config.model_dump_json(exclude_unset=True)}
        self._lock = threading.Lock()
        self.started: list[Job] = []
        """Newest first."""

    def ask(self, corpus: str, questions: Sequence[str], *, archive: bool) -> Job:
        """Ask questions of a corpus. Raises UsageError: another command is running."""
        options = ["--archive"] if archive else []
        return self._start("ask", corpus, options, f"ask {corpus}: {'; '.join(questions)}", questions)

    def digest(self, corpus: str) -> Job:
        """Update a corpus and the answers to its default questions, as the nightly digest does.

        Raises UsageError: another command is running.
        """
        return self._start("digest", corpus, [], f"digest {corpus}")

    def stop(self) -> None:
        """End what is running."""
        for job in self.started:
            end_process(job.process)
            self._close(job)

    def _close(self, job: Job) -> None:
        """Delete the files of a command that is not shown any more."""
        job.log.close()
        job.questions.close()

    def _start(
        self, command: str, corpus: str, options: Sequence[str], what: str, questions: Sequence[str] = ()
    ) -> Job:
        run_id = new_run_id()
        with self._lock:
            if sum(job.state == "running" for job in self.started) >= _AT_ONCE:
                raise UsageError("a run that was started here is still running: wait until it has ended")
            log = tempfile.TemporaryFile()  # noqa: SIM115  (they live as long as the job is shown)
            file = tempfile.NamedTemporaryFile("w", encoding="utf-8", suffix=".jsonl")  # noqa: SIM115
            file.writelines(f"{json.dumps({'question': question})}\n" for question in dict.fromkeys(questions))
            file.flush()
            asked = [f"--questions={file.name}"] if questions else []
            line = ends_with_us("memagent", command, *options, *asked, f"--run-id={run_id}", "--", corpus)
            process = subprocess.Popen(
                line, env=self._environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
            job = Job(run_id, what, process, log, file)
            self.started.insert(0, job)
            for old in self.started[_KEPT:]:
                self._close(old)
            del self.started[_KEPT:]
        return job


Said = Literal["accepted", "corrected", "rejected", "absent", "comment"]
"""What a person can say; absent: the document does not say."""
MOST_CHARS = 4_000
"""Of an answer or a comment."""


@dataclass(frozen=True, slots=True)
class Opinion:
    """What a person says of an answer, as the page sends it."""

    said: Said
    answer: str = ""
    comment: str = ""
    span: tuple[int, int] | None = None
    """Where the document says the answer."""
    decides: bool = False
    shown: str | None = None
    """The correction that the page showed in place of the reader's answer; None: it showed the reader's."""


class ReviewService:
    """One review server on one store. Close it with `stop`."""

    def __init__(self, config: Config, cache: Path | None = None, data: Path | None = None) -> None:
        """Open index and journal, by default in the user's cache and data folders; runs that are started here have the
        same configuration.
        """
        self.config = config
        self.store = Store(config.store)
        index, journal = _files(self.store, cache, data)
        self.index, self.journal = AnswerIndex(index), VerdictJournal(journal, self.store)
        self.refresher = Refresher(self.store, self.index, self._forget)
        self.texts, self.pages, self.jobs = DocumentTexts(self.store), Pages(), Jobs(config)

    def start(self) -> None:
        """Keep index and table up to date from now on; take up what an earlier review server was about to store."""
        with self.index.write() as connection:
            add_verdicts(connection, self.journal.left())
        self.journal.start()
        self.refresher.start()

    def stop(self) -> None:
        """Bring all verdicts to the store, and end."""
        self.refresher.stop()
        self.journal.stop()
        self.jobs.stop()

    def answer(self, item: ListedAnswer) -> AnswerRow | None:
        """Return the answer of an item with its evidence; None: it failed, or is gone."""
        chosen = (pc.field("content_hash") == item.content_hash) & (pc.field("reading_id") == item.reading_id)
        part = self.index.read().execute("SELECT part FROM detail WHERE id = ?", (item.id,)).fetchone()["part"]
        rows: list[AnswerRow]
        try:
            rows = self._in_part(part, chosen) if part else []
        except (FileNotFoundError, pa.ArrowNotImplementedError):  # it was compacted, or rewritten by a deletion
            rows = Table(self.store, "answers").read(item.corpus, filters=chosen).to_pylist()
        return rows[0] if rows else None

    def outdated(self, item: ListedAnswer, row: AnswerRow | None = None) -> list[str]:
        """Return the warning of an answer over all documents that are others now; `row`: the answer, if it is known."""
        if row is None and not item.doc_id and item.state != "failed":
            row = self.answer(item)
        return [*changed_since(Corpus(self.store, item.corpus), [row] if row else []).values()]

    def _in_part(self, part: str, chosen: pc.Expression) -> list[AnswerRow]:
        path, schema = self.store.path("answers", unquote(part)), ANSWERS.remove(ANSWERS.get_field_index("corpus"))
        table = pq.read_table(path, schema=schema, filters=chosen, filesystem=self.store.arrow, partitioning=None)
        rows: list[AnswerRow] = table.to_pylist()
        return rows

    def verdicts(self, item: ListedAnswer) -> list[Verdict]:
        """Return all verdicts on an item's text and question, oldest first."""
        return verdicts_on(self.index.read(), self._subject(item))

    def give(self, item: ListedAnswer, opinion: Opinion, reviewer: str, document: str | None = None) -> datetime:
        """Take a verdict; when this returns it is on the disk, and lists show it. Return its time, which names it.

        The answer was marked in `document`, by its content hash; by default in the item's own.

        Raises UsageError: there is nothing to judge, or the opinion is incomplete.
        """
        if item.state == "failed":
            raise UsageError("this reading failed: there is no answer to judge")
        written, comment = mended(opinion.answer.strip()), mended(opinion.comment.strip())
        shown = opinion.shown and mended(opinion.shown)
        if max(len(written), len(comment), len(shown or "")) > MOST_CHARS:
            raise UsageError(f"answers and comments have at most {MOST_CHARS:,} characters")
        if opinion.said == "corrected" and not written:
            raise UsageError("write the right answer, or select it in the document; or say “Not in the document”")
        if opinion.said == "comment" and not comment:
            raise UsageError("the comment is empty")
        if opinion.said == "accepted" and shown is not None:
            written = shown
            opinion = replace(opinion, said="corrected" if written else "absent", answer=written, span=None)
        row: FeedbackRow = {
            **feedback_row((item.corpus, item.reading_id), reviewer, item.answered_at),  # the journal gives it its time
            "verdict": "corrected" if opinion.said == "absent" else opinion.said,
            "comment": comment,
            "decides": opinion.decides and opinion.said != "comment",
        }
        if opinion.said == "corrected" and (answer := right_answer(written)):
            row["answer"], row["spans"] = answer, self._spans(item, opinion, document)
        elif opinion.said == "rejected" and shown is not None:
            row["answer"] = shown or ABSENT
        return self._keep(row, item)

    def undo(self, given_at: datetime, reviewer: str) -> ListedAnswer:
        """Take back a verdict: what the same person said of the answer before counts again. Return its item.

        Raises UsageError: it is not this person's verdict, or not their last one on this answer.
        """
        rows = [row for row in self.journal.find(given_at) if row["reviewer"] == reviewer]
        item = listing.find(self.index.read(), rows[0]["corpus"], rows[0]["reading_id"]) if rows else None
        if item is None or rows[0]["verdict"] == "comment":
            raise UsageError("there is no verdict of yours to undo")
        mine = [
            each
            for each in self.verdicts(item)
            if each.reviewer == reviewer and each.reading_id == item.reading_id and each.kind != "comment"
        ]
        if not mine or mine[-1].given_at != given_at:
            raise UsageError("you have said something else of this answer since: undo that first")
        row = feedback_row((item.corpus, item.reading_id), reviewer, item.answered_at)
        if len(mine) > 1:
            before = mine[-2]
            row |= {"verdict": before.kind, "answer": before.answer, "comment": before.comment}
            row |= {"decides": before.decides, "spans": [_span_row(span) for span in before.spans]}
        self._keep(row, item)
        return item

    def _forget(self, corpus: str, hashes: Collection[str]) -> None:
        """Let nothing of forgotten documents stay here: neither verdicts on them nor their texts."""
        self.journal.forget(corpus, hashes)
        self.texts, self.pages = DocumentTexts(self.store), Pages()

    def _keep(self, row: FeedbackRow, item: ListedAnswer) -> datetime:
        """Write a verdict to the journal and the index: for each corpus that has the reading."""
        known = self.index.read().execute(
            "SELECT DISTINCT corpus.name FROM detail JOIN item USING (id) JOIN corpus ON corpus.id = item.corpus "
            "WHERE reading_id = ?",
            (row["reading_id"],),
        )
        everywhere: list[JournalRow] = [
            {**row, "corpus": each["name"], "content_hash": item.content_hash} for each in known
        ]
        given_at = self.journal.add(everywhere)
        given: list[JournalRow] = [{**each, "given_at": given_at} for each in everywhere]
        with self.index.write() as connection:
            add_verdicts(connection, given)
        return given_at

    def _spans(self, item: ListedAnswer, opinion: Opinion, document: str | None) -> list[SpanRow]:
        """Return where the right answer stands: the words that were selected, else the first place that says it."""
        content_hash = document or item.content_hash
        text = self.texts.get(item.corpus, content_hash)
        if text is None:
            return []
        span = opinion.span
        if span is None or not 0 <= span[0] < span[1] <= len(text) or span[1] - span[0] > MOST_CHARS:
            span = locate(opinion.answer, text)
        if span is None:
            return []
        return [_span_row(TextSpan(content_hash, *span))]

    def _subject(self, item: ListedAnswer) -> Subject:
        row = self.index.read().execute("SELECT subject, question FROM item WHERE id = ?", (item.id,)).fetchone()
        if row is None:  # since the request began
            raise UsageError("this answer was forgotten, or is being listed anew: open the list again")
        return Subject(row["subject"], row["question"])


def _span_row(span: TextSpan) -> SpanRow:
    return {"content_hash": span.content_hash, "char_start": span.start, "char_end": span.end}


def _files(store: Store, cache: Path | None = None, data: Path | None = None) -> tuple[Path, Path]:
    """Return where this machine keeps the index and the journal of a store's review pages."""
    name = f"{stable_hash(store.url)[:16]}.sqlite"
    folders = cache or platformdirs.user_cache_path("memagent") / "review"
    return folders / name, (data or platformdirs.user_data_path("memagent") / "review") / name


def follow_forgettings(store: Store) -> None:
    """Delete what this user's review pages keep on this machine of forgotten texts, whether a server runs or not.

    Raises MemagentError: a file of theirs is damaged.
    """
    index, path = _files(store)
    if not (index.exists() or path.exists()):
        return
    try:
        journal = VerdictJournal(path, store)
        try:
            Refresher(store, AnswerIndex(index), journal.forget).follow_forgettings()
        finally:
            journal.close()
    except sqlite3.DatabaseError as error:
        raise MemagentError(
            f"{path} or {index} may hold verdicts on forgotten documents, and cannot be cleaned ({error}): end the "
            "review server and delete both, which loses verdicts that are not in the store yet; then forget again"
        ) from error


def quotes(answer: AnswerRow | None) -> list[EvidenceRow]:
    """Return the pieces of an answer's evidence."""
    return (answer["evidence"] or []) if answer else []
