"""The pages of documents that have pages: where in a PDF a piece of evidence stands."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence

import pyarrow.compute as pc

from infra.store.buckets import WHOLE, Bucket, one_of
from infra.store.delta import Table
from infra.store.location import Corpus
from infra.store.rows import AnswerRow, EvidenceRow

_COLUMNS = ["doc_id", "content_hash", "page_starts"]


class CitedEvidence(EvidenceRow):
    """A piece of evidence with its page."""

    page: int | None
    """Of the PDF, from 1: where the quote begins, or the segment if there is no quote. None: no page is known."""


class PageNumbers:
    """Page numbers in the PDFs of a corpus."""

    def __init__(self, corpus: Corpus, bucket: Bucket = WHOLE, texts: Iterable[str] | None = None) -> None:
        """Read where pages begin, also of earlier versions; of some texts or a bucket. As Arrow, 8 bytes a page."""
        chosen = pc.field("page_starts").is_valid() & bucket.contains("content_hash")
        if texts is not None:
            chosen &= one_of("content_hash", texts)
        table = Table(corpus.store, "documents").read(corpus.name, _COLUMNS, chosen)
        self._starts = table["page_starts"].combine_chunks()
        names = zip(table["content_hash"].to_pylist(), table["doc_id"].to_pylist(), strict=True)
        self._rows = {name: row for row, name in enumerate(names)}
        self._texts = {content_hash: row for (content_hash, _), row in self._rows.items()}

    @classmethod
    def cited_by(cls, corpus: Corpus, answers: Iterable[AnswerRow]) -> "PageNumbers":
        """Return the page numbers in the documents that some answers' evidence is in."""
        return cls(corpus, texts=(piece["content_hash"] for answer in answers for piece in answer["evidence"] or ()))

    def page(self, content_hash: str, char: int, document: str = "") -> int | None:
        """Return the page of a character, from 1; None: the document has no pages, or they are not known.

        Without the id of a document it is that of any document with this text.
        """
        row = self._rows.get((content_hash, document)) if document else self._texts.get(content_hash)
        return None if row is None else max(1, bisect_right(self._starts[row].values.to_numpy(), char))

    def bounds(self, content_hash: str, char: int) -> tuple[int, int, int | None] | None:
        """Return the page of a character, from 1, with its first character and the next page's; None: as `page`."""
        if (number := self.page(content_hash, char)) is None:
            return None
        starts = self._starts[self._texts[content_hash]].as_py()
        return number, starts[number - 1], starts[number] if number < len(starts) else None

    def cite(self, evidence: Sequence[EvidenceRow] | None, document: str = "") -> list[CitedEvidence]:
        """Return the evidence of an answer with its pages; `document` as for `page`."""
        return [{**piece, "page": self._page_of(piece, document)} for piece in evidence or ()]

    def _page_of(self, piece: EvidenceRow, document: str) -> int | None:
        quoted = piece["quote_start"] is not None and piece["quote_start"] >= 0
        return self.page(piece["content_hash"], piece["quote_start"] if quoted else piece["char_start"], document)
