"""The places that answers came from: as responses have them, and with the text around them."""

from collections.abc import Collection, Iterable

import pyarrow as pa
import pyarrow.dataset as ds
from pydantic import BaseModel

from infra.store import Corpus
from infra.tables.corpora import check_known
from infra.tables.delta import Table
from infra.tables.documents import present
from infra.tables.pages import PageNumbers
from infra.tables.rows import AnswerRow
from memagent.errors import UsageError
from memagent.records import Evidence
from pipelines.web.api.protocol import EvidencePlace
from pipelines.web.review.passages import DocumentTexts


class CitedPassage(BaseModel):
    """A place in a document, with the text around it."""

    place: EvidencePlace
    before: str
    text: str
    """The quote; the segment where the document does not say the answer verbatim."""
    after: str


class AnswerEvidence(BaseModel):
    """An answer, and the passages that it came from, best first."""

    question: str
    answer: str
    passages: list[CitedPassage]


def place(evidence: Evidence, document: str) -> EvidencePlace:
    """Return a piece of evidence as responses have it."""
    is_quoted = bool(evidence.quote)
    return EvidencePlace(
        document=document,
        quote=evidence.quote,
        quote_start=evidence.quote_start if is_quoted else None,
        quote_end=evidence.quote_end if is_quoted else None,
        segment=evidence.segment_index,
        segment_start=evidence.char_start,
        segment_end=evidence.char_end,
        page=evidence.page,
    )


def document_names(corpus: Corpus, hashes: Collection[str]) -> dict[str, str]:
    """Return the id of a document of a corpus that has a text now, by the text's hash."""
    columns = ["doc_id", "content_hash", "state", "seen_at"]
    wanted = pa.array(sorted(set(hashes)), pa.string())
    table = Table(corpus.store, "documents").read(corpus.name, columns, ds.field("content_hash").isin(wanted))
    return {row["content_hash"]: row["doc_id"] for row in present(table, "doc_id").to_pylist()}


def answer_evidence(corpus: Corpus, reading_id: str, around: int) -> AnswerEvidence:
    """Return the passages that an answer came from.

    Args:
        corpus: of the answer.
        reading_id: of the answer.
        around: characters before and after each place.

    Raises:
        UsageError: there is no such corpus or answer.
    """
    check_known(corpus)
    table = Table(corpus.store, "answers").read(corpus.name, filters=ds.field("reading_id") == reading_id)
    rows: list[AnswerRow] = table.to_pylist()
    if not rows:
        raise UsageError(
            f"corpus {corpus.name!r} has no answer of reading {reading_id!r}: take reading_id of an answer"
        )
    row, texts = rows[0], DocumentTexts(corpus.store)
    evidence = [Evidence(**one) for one in PageNumbers.cited_by(corpus, rows).cite(row["evidence"])]
    names = document_names(corpus, {one.content_hash for one in evidence})
    passages = _passages(corpus, evidence, names, texts=texts, around=around)
    return AnswerEvidence(question=row["question"], answer=row["answer"], passages=list(passages))


def _passages(
    corpus: Corpus, evidence: Iterable[Evidence], names: dict[str, str], *, texts: DocumentTexts, around: int
) -> Iterable[CitedPassage]:
    for one in evidence:
        text = texts.get(corpus.name, one.content_hash)
        if text is None:  # it was forgotten
            continue
        start, end = (one.quote_start, one.quote_end) if one.quote else (one.char_start, one.char_end)
        yield CitedPassage(
            place=place(one, names.get(one.content_hash, "")),
            before=text[max(0, start - around) : start],
            text=text[start:end],
            after=text[end : end + around],
        )
