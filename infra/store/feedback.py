"""The `feedback` table: people's verdicts on answers."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from infra.store.buckets import WHOLE, Bucket, one_of
from infra.store.data_files import write_data_file
from infra.store.delta import Table
from infra.store.location import Corpus, Store
from infra.store.schemas import AnswerRow, FeedbackRow
from memagent.quality.verdicts import Review, Verdict, VerdictKind, current, review
from memagent.records import TextSpan

FEEDBACK_CLAIM = "_feedback"
"""Claimed by who writes to the table (`infra.store.claims.used`): nobody forgets documents meanwhile."""
_ANSWER = ["corpus", "reading_id", "question", "content_hash", "stream", "policy_id", "answer", "found", "evidence"]


class FeedbackTarget(NamedTuple):
    """A question on a text: what verdicts are about, whichever reading answered it."""

    content_hash: str
    question: str


class JudgedAnswer(NamedTuple):
    """A verdict that counts, and the answer that it is about."""

    verdict: Verdict
    of: AnswerRow


def feedback_row(
    about: tuple[str, str], reviewer: str, given_at: datetime, verdict: VerdictKind = "withdrawn", answer: str = ""
) -> FeedbackRow:
    """Return a row that says something `about` a corpus's reading; without a verdict it takes back what was said."""
    return {
        "corpus": about[0],
        "reading_id": about[1],
        "verdict": verdict,
        "answer": answer,
        "given_at": given_at,
        "reviewer": reviewer,
        "comment": "",
        "spans": [],
        "decides": False,
    }


def verdict_of(row: FeedbackRow, given: str) -> Verdict:
    """Return what a row says of the answer `given`."""
    spans = tuple(TextSpan(span["content_hash"], span["char_start"], span["char_end"]) for span in row["spans"] or ())
    return Verdict(
        reading_id=row["reading_id"],
        kind=row["verdict"],
        given=given,
        answer=row["answer"] or "",
        given_at=row["given_at"],
        reviewer=row["reviewer"] or "",
        comment=row["comment"] or "",
        decides=bool(row["decides"]),
        spans=spans,
    )


def answers_of(store: Store, corpus: str | None, readings: Iterable[str], bucket: Bucket = WHOLE) -> list[AnswerRow]:
    """Return what verdicts need of the answers of some readings: of a corpus or of any, of documents in a bucket."""
    wanted = list(readings)
    if not wanted:
        return []
    filters = one_of("reading_id", wanted) & bucket.contains("content_hash")
    answers: list[AnswerRow] = Table(store, "answers").read(corpus, _ANSWER, filters).to_pylist()
    return answers


def judged(corpus: Corpus, bucket: Bucket = WHOLE) -> dict[FeedbackTarget, list[JudgedAnswer]]:
    """Return all verdicts on the answers of a corpus, or of a bucket of its documents, by text and question."""
    rows: dict[str, list[FeedbackRow]] = defaultdict(list)
    for row in Table(corpus.store, "feedback").read(corpus.name).to_pylist():
        rows[row["reading_id"]].append(row)
    by_asked: dict[FeedbackTarget, list[JudgedAnswer]] = defaultdict(list)
    for answer in answers_of(corpus.store, corpus.name, rows, bucket):
        key = FeedbackTarget(answer["content_hash"], answer["question"])
        by_asked[key] += [JudgedAnswer(verdict_of(row, answer["answer"]), answer) for row in rows[answer["reading_id"]]]
    return by_asked


def verdicts(corpus: Corpus) -> list[JudgedAnswer]:
    """Return the verdicts that count (`memagent.quality.verdicts.current`), also those that contradict each other."""
    counting = []
    for same in judged(corpus).values():
        answers = {each.of["reading_id"]: each.of for each in same}
        counting += [JudgedAnswer(each, answers[each.reading_id]) for each in current(each.verdict for each in same)]
    return sorted(counting, key=lambda each: each.verdict.reading_id)


def append_once(corpus: Corpus, rows: Sequence[FeedbackRow], writer: str) -> None:
    """Add a writer's rows that are not in the table yet; repeating a call whose outcome is unknown adds nothing.

    Each row is later than all that the writer gave to earlier calls.
    """
    name = f"{writer}-{corpus.name}"
    done = Table(corpus.store, "feedback").committed(name)
    new = [row for row in rows if _microseconds(row["given_at"]) > done]
    if new:
        file = write_data_file(corpus, "feedback", new)
        number = max(_microseconds(row["given_at"]) for row in new)
        Table(corpus.store, "feedback").commit_files(corpus.name, [file], writer=name, number=number)


def _microseconds(at: datetime) -> int:
    return (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


class Reviews:
    """What people said of the answers of a corpus, or of a bucket of it."""

    def __init__(self, corpus: Corpus, bucket: Bucket = WHOLE) -> None:
        self._judged: Mapping[FeedbackTarget, Collection[JudgedAnswer]] = judged(corpus, bucket)

    def of(self, answer: AnswerRow) -> Review | None:
        """Return what the verdicts on an answer's text and question come to for it; None: there are none."""
        same = self._judged.get(FeedbackTarget(answer["content_hash"], answer["question"]), ())
        return review([each.verdict for each in same], answer["answer"])

    def corrected(self, answers: pa.Table) -> pa.Table:
        """Return answers with the `answer` and `found` that people are shown.

        They have columns `content_hash`, `question`, `answer`, `found`, and any others.
        """
        texts = pa.array({asked.content_hash for asked in self._judged}, pa.string())
        judged = pc.is_in(answers["content_hash"], value_set=texts).combine_chunks()
        rows: list[AnswerRow] = answers.filter(judged).to_pylist()
        said = [(row, self.of(row)) for row in rows]
        shown = {
            "answer": [review.answer if review else row["answer"] for row, review in said],
            "found": [review.found(row["found"]) if review else row["found"] for row, review in said],
        }
        for name, values in shown.items() if rows else ():
            column = answers[name].combine_chunks()
            replaced = pc.replace_with_mask(column, judged, pa.array(values, column.type))
            answers = answers.set_column(answers.column_names.index(name), name, replaced)
        return answers
