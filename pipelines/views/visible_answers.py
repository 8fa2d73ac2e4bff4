"""The newest answers that people are shown, and what is cited for them: one rule for terminal, files, pages, counts and
programs.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import datetime
from typing import NamedTuple, Self, cast

import pyarrow as pa
import pyarrow.compute as pc

from infra.store.buckets import WHOLE, Bucket, bucket_of, first_of_each
from infra.store.corpora import default_questions
from infra.store.delta import Table
from infra.store.documents import PageNumbers, current_documents, document_texts, present
from infra.store.location import Corpus
from infra.store.resume_points import policy_name, versions_of
from infra.store.runs import DigestReader, last_digest, sampled_runs, withheld_runs
from infra.store.schemas import AnswerRow, DocumentRow, EvidenceRow
from infra.store.segments import stream_of
from memagent.quality.verdicts import Review
from memagent.records import TextSpan

CONCATENATED = "all documents, concatenated"
"""What an answer over all documents is shown as the answer of."""
_NEEDED = (*("content_hash", "question", "scope", "policy_id", "config_hash", "run_id", "answered_at", "reading_id"),)


class AnswerRule(NamedTuple):
    """Decides which of several answers people are shown: the newest; but of the answers to a question of the last
    digest from before it, that which it counts: of its reader, or else the newest of other versions of its policy.
    """

    sampled: tuple[str, ...]
    """Runs whose answers are hidden, and `withheld` ones (`infra.store.runs`)."""
    withheld: tuple[str, ...]
    digest: DigestReader | None
    """Of the last digest."""

    @classmethod
    def of(cls, corpus: Corpus, released: Collection[str] = (), digest: DigestReader | None = None) -> Self:
        """Return a corpus's rule.

        Args:
            corpus: whose answers.
            released: withheld runs that are about to be shown.
            digest: of a digest that is about to be the last one.
        """
        last = last_digest(corpus) if digest is None else None
        return cls(
            tuple(sorted(sampled_runs(corpus))),
            tuple(sorted(withheld_runs(corpus).difference(released))),
            last.get("reader") if last else digest,
        )

    def ranks(self, answers: pa.Table) -> pa.Array:
        """Return ranks of answers to texts: of two, that of the higher rank counts, whichever is newer."""
        if self.digest is None:
            return pa.repeat(0, answers.num_rows)
        at, policy_id = answers["answered_at"], answers["policy_id"].cast(pa.string())
        same = pc.equal(answers["config_hash"].cast(pa.string()), self.digest["config_hash"])
        version = pc.is_in(policy_id, value_set=versions_of(policy_name(self.digest["policy_id"]), policy_id))
        mine = pc.equal(policy_id, self.digest["policy_id"])
        asked = pc.is_in(answers["question"].cast(pa.string()), pa.array(self.digest["questions"], pa.string()))
        counted = pc.if_else(pc.and_(asked, pc.and_(same, version)), pc.if_else(mine, 2, 1), 0)
        since = pa.scalar(datetime.fromisoformat(self.digest["since"]), at.type)
        return pc.if_else(pc.greater_equal(at, since), 3, counted)


def visible_answers(
    corpus: Corpus,
    bucket: Bucket | None,
    rule: AnswerRule,
    columns: Sequence[str] | None = None,
    *,
    withheld: bool = False,
) -> pa.Table:
    """Return the answer to each question that people are shown, oldest first.

    Args:
        corpus: whose answers.
        bucket: of texts, each with its own answers; None: those over all documents, concatenated. Texts that no
            document has any more are among them.
        rule: that of the corpus.
        columns: of ``answers``, besides those that the rule needs; None: all.
        withheld: return the newest answers of withheld runs instead, where they are newer than all others.
    """
    names = None if columns is None else list(dict.fromkeys([*_NEEDED, *(["stream"] * (bucket is None)), *columns]))
    chosen = pc.field("scope") == "archive" if bucket is None else bucket.contains("content_hash")
    answers = Table(corpus.store, "answers").read(corpus.name, names, chosen)
    unseen = pa.array(rule.sampled if withheld else (*rule.sampled, *rule.withheld), pa.string())
    answers = answers.filter(pc.invert(pc.is_in(answers["run_id"], value_set=unseen)))
    answers = answers.filter(pc.equal(answers["scope"], "archive" if bucket is None else "document"))
    answers = answers.append_column("rank", _archive_ranks(corpus, answers) if bucket is None else rule.ranks(answers))
    key = ["question"] if bucket is None else ["content_hash", "question"]
    # The id decides between two at the same time.
    order = [("rank", "descending"), ("answered_at", "descending"), ("reading_id", "ascending")]
    newest = first_of_each(answers, key, order).drop_columns("rank")
    if withheld:
        newest = newest.filter(pc.is_in(newest["run_id"], value_set=pa.array(rule.withheld, pa.string())))
    return newest.sort_by([("answered_at", "ascending"), ("reading_id", "ascending")])


def _archive_ranks(corpus: Corpus, answers: pa.Table) -> pa.Array:
    """Return ranks of answers over all documents: of several, that counts whose documents differ least from now's."""
    several = pc.count_distinct(answers["question"]).as_py() < answers.num_rows
    rows = answers.select(["reading_id", "scope", "stream", "content_hash"]).to_pylist() if several else []
    ranks = {name: -(unread + gone) for name, (unread, gone) in _differences(corpus, rows).items()}
    return pa.array([ranks.get(name, 0) for name in answers["reading_id"].to_pylist()], pa.int64())


def question_ids(corpus: Corpus) -> dict[str, str]:
    """Return the ids of a corpus's default questions by their texts: answers have those that were once asked by."""
    return {question.text: question.question_id for question in default_questions(corpus)}


def documents_with(corpus: Corpus, hashes: Collection[str]) -> list[DocumentRow]:
    """Return doc_id, content_hash, source and warnings of the documents that have one of some texts now."""
    wanted = pc.field("content_hash").isin(pa.array(sorted(set(hashes)), pa.string()))
    columns = ["doc_id", "content_hash", "source", "warnings", "state", "seen_at"]
    rows: list[DocumentRow] = present(Table(corpus.store, "documents").read(corpus.name, columns, wanted)).to_pylist()
    return rows


class CitedEvidence(EvidenceRow):
    """A piece of evidence, with where to look it up."""

    page: int | None
    """Of the PDF, from 1: where the quote begins, or the segment if there is no quote. None: no page is known."""
    document: str
    """Id of a document that has the text; empty: none has it any more."""


class Citations:
    """Cites what speaks for the answers of a corpus."""

    def __init__(self, corpus: Corpus, answers: Iterable[AnswerRow] | None = None, bucket: Bucket = WHOLE) -> None:
        """Prepare to cite for some answers; None: for those on the texts of a bucket."""
        texts = None
        if answers is not None:
            texts = {name for one in answers for name in (one["content_hash"], *_texts_of(one["evidence"] or ()))}
        self._corpus, self._pages = corpus, PageNumbers(corpus, bucket, texts)
        self._last = ("", "")
        """The last text that was looked up, after its hash."""

    def cite(self, answer: AnswerRow, review: Review | None = None, document: str = "") -> list[CitedEvidence]:
        """Return the evidence of an answer; where people corrected it, what they marked for theirs.

        Without the id of a `document` the answer is over all of them.
        """
        evidence: Sequence[EvidenceRow] = answer["evidence"] or ()
        if review is not None and review.status == "corrected":
            evidence = [piece for span in review.spans if (piece := self._marked(span))]
        texts = () if document else set(_texts_of(evidence))
        rows = documents_with(self._corpus, texts) if texts else ()
        names = {row["content_hash"]: row["doc_id"] for row in rows}
        return [
            {
                **piece,
                "page": self._pages.page(
                    piece["content_hash"], piece["quote_start"] if piece["quote"] else piece["char_start"], document
                ),
                "document": document or names.get(piece["content_hash"], ""),
            }
            for piece in evidence
        ]

    def _marked(self, span: TextSpan) -> EvidenceRow | None:
        """Return what a person marked as evidence; None: the text is gone."""
        name, text = self._last
        if name != span.content_hash:
            found = dict(document_texts(self._corpus, {span.content_hash}, bucket_of(span.content_hash)))
            self._last = name, text = span.content_hash, found.get(span.content_hash, "")
        quote = text[span.start : span.end]
        place = {"quote_start": span.start, "quote_end": span.end, "quote": quote, "verbatim": True}
        place |= {"content_hash": name, "segment_index": -1, "char_start": span.start, "char_end": span.end}
        return cast(EvidenceRow, place) if quote else None


def _texts_of(evidence: Sequence[EvidenceRow]) -> Iterator[str]:
    return (piece["content_hash"] for piece in evidence)


def archive_warnings(corpus: Corpus) -> list[str]:
    """Return what a reader of the concatenated texts of a corpus should know."""
    warned, columns = pc.field("warnings").is_valid(), ["doc_id", "content_hash", "state", "seen_at"]
    count = present(Table(corpus.store, "documents").read(corpus.name, columns, warned)).num_rows
    return [f"{count:,} document{'s have' if count > 1 else ' has'} warnings"] if count else []


def changed_since(corpus: Corpus, answers: Sequence[AnswerRow]) -> dict[str, str]:
    """Return by reading_id the warnings of answers over all documents, where these are others now or are not known."""
    return {
        name: f"of other documents than now: {unread:,} not read, {gone:,} gone or changed"
        if gone < _UNKNOWN
        else "its documents are not known: their list cannot be read"
        for name, (unread, gone) in _differences(corpus, answers).items()
        if unread or gone
    }


_UNKNOWN = 2**40  # more documents than any archive has: how many are gone of a list that cannot be read


def _differences(corpus: Corpus, answers: Sequence[AnswerRow]) -> dict[str, tuple[int, int]]:
    """Return for answers over all documents, by reading_id, how many of now were not read, and how many are gone."""
    result: dict[str, tuple[int, int]] = {}
    if whole := [answer for answer in answers if answer["scope"] == "archive"]:
        texts = current_documents(corpus, ["content_hash"], ordered=False)["content_hash"]
    for answer in whole:
        read = pa.array(stream_of(corpus, answer), pa.string())
        pairs = ((texts, read), (read, texts))
        unread, gone = (len(some.filter(pc.invert(pc.is_in(some, value_set=others)))) for some, others in pairs)
        result[answer["reading_id"]] = (unread, gone if len(read) else _UNKNOWN)
    return result


def reader_warnings(warnings: Sequence[str] | None, review: str | None) -> list[str]:
    """Return what speaks against a reader's answer, given its review; nothing where people settled that it is right."""
    return [] if review in ("accepted", "corrected") else list(warnings or ())
