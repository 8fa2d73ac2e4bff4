"""The `qa` table: training questions."""

from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from typing import Any, Literal, NotRequired, TypedDict

import pyarrow.compute as pc
import pyarrow.fs as pa_fs
from deltalake import DeltaTable

from infra.store.buckets import EVERY, one_of
from infra.store.corpora import tagger
from infra.store.delta import Table
from infra.store.documents import newest
from infra.store.location import Corpus, Store
from infra.store.schemas import QaRow, SpanRow, now
from memagent.quality.curation import SPLIT_VERSION, Qa, Split, families, split_of
from memagent.records import Json, TextSpan

_FIELDS = [field.name for field in fields(Qa)]
_MARKS = ("run_id", "harvested_at", "split_version")
"""Columns that say when and by which version a row was written; a row that differs in them alone is the same row."""
_TOLD = ["corpus", "qa_id", "answers"]


@dataclass(frozen=True, slots=True)
class QaWritten:
    """Counts of a write, in rows."""

    new: int
    changed: int
    removed: int


def read_qa(store: Store, corpus: str | None = None, split: Split | None = None) -> list[Qa]:
    """Return the current rows, of one corpus or of all, of one split or of all."""
    return [from_row(row) for row in read_rows(store, corpus, None if split is None else (split,))]


def read_rows(store: Store, corpus: str | None = None, splits: Collection[Split] | None = None) -> list[QaRow]:
    """Return the current rows of some splits as they are stored."""
    filters = EVERY if splits is None else one_of("split", splits)
    rows: list[QaRow] = Table(store, "qa").read(corpus, filters=filters).to_pylist()
    return rows


def taught_texts(store: Store, splits: Collection[Literal["train", "validation"]]) -> set[str]:
    """Return the content hashes of the texts that rows of some splits are asked of, in any corpus."""
    streams = Table(store, "qa").read(columns=["stream"], filters=one_of("split", splits))["stream"]
    return set(pc.list_flatten(streams.combine_chunks()).to_pylist())


def write_qa(corpus: Corpus, rows: Sequence[Qa], run_id: str, chosen_from: Container[str] | None = None) -> QaWritten:
    """Replace the rows of a corpus: new and changed ones are written, others are deleted.

    Earlier versions of the table keep deleted rows. If nothing changed, there is no new version.

    Args:
        chosen_from: ids of the stored rows that `rows` were chosen among; those that another run has written since
            stay. None: nothing else writes.
    """
    table, harvested_at = Table(corpus.store, "qa"), now()
    before = {row["qa_id"]: row for row in table.read(corpus.name).to_pylist()}
    after = {row.qa_id: to_row(corpus.name, row, run_id, harvested_at) for row in rows}
    new = [row for qa_id, row in after.items() if qa_id not in before]
    changed = [row for qa_id, row in after.items() if qa_id in before and not _same(row, before[qa_id])]
    removed = {one for one in before.keys() - after.keys() if chosen_from is None or one in chosen_from}
    table.upsert([*new, *changed])
    table.delete(corpus.name, qa_id=removed)
    return QaWritten(len(new), len(changed), len(removed))


def qa_version(store: Store) -> int | None:
    """Return the Delta version of the table, or None before its first row."""
    return Table(store, "qa").version()


def qa_corpora(store: Store) -> list[str]:
    """Return the corpora that have rows."""
    return sorted(set(Table(store, "qa").read(columns=["corpus"])["corpus"].to_pylist()))


def count_new(store: Store, since: int | None, corpus: str | None = None) -> int:
    """Return the number of rows, of one corpus or of all, that are new or have other answers since version `since`.

    None: the number of all rows.

    Raises deltalake.exceptions.DeltaError: there is no such version.
    """
    present = _answers(Table(store, "qa").read(corpus, columns=_TOLD))
    if since is None or not present:
        return len(present)
    delta = DeltaTable(store.delta_uri("qa"), version=since, storage_options=store.delta_options)
    files = pa_fs.SubTreeFileSystem(store.path("qa"), store.arrow)
    return len(present - _answers(delta.to_pyarrow_dataset(filesystem=files).to_table(columns=_TOLD)))


def to_row(corpus: str, qa: Qa, run_id: str, harvested_at: datetime) -> QaRow:
    """Return a row of the table (`infra.store.schemas.QA`)."""
    spans: list[SpanRow] = [{"content_hash": h, "char_start": start, "char_end": end} for h, start, end in qa.spans]
    return {
        "corpus": corpus,
        "qa_id": qa.qa_id,
        "question": qa.question,
        "answers": list(qa.answers),
        "stream": list(qa.stream),
        "documents": list(qa.documents),
        "source": qa.source,
        "reading_id": qa.reading_id,
        "policy_id": qa.policy_id,
        "share": qa.share,
        "pass_rate": qa.pass_rate,
        "evidence": [{"content_hash": name, "segment_index": index} for name, index in qa.evidence],
        "tags": list(qa.tags),
        "spans": spans or None,
        "split": split_of(qa.documents),
        "split_version": SPLIT_VERSION,
        "run_id": run_id,
        "harvested_at": harvested_at,
    }


def from_row(row: Mapping[str, Any]) -> Qa:
    """Return what a row of the table says."""
    values = {name: tuple(row[name]) if isinstance(row[name], list) else row[name] for name in _FIELDS}
    evidence = tuple((piece["content_hash"], piece["segment_index"]) for piece in row["evidence"])
    spans = tuple(TextSpan(span["content_hash"], span["char_start"], span["char_end"]) for span in row["spans"] or ())
    return Qa(**values | {"evidence": evidence, "spans": spans})


class CorpusIndex:
    """The documents of a corpus, by text: which document has it, and its tags.

    A text counts while a document that has it, or had it in an earlier version, is present.
    """

    def __init__(self, corpus: Corpus) -> None:
        columns = ["doc_id", "content_hash", "source", "state", "seen_at", "first_seen"]
        table = Table(corpus.store, "documents").read(corpus.name, columns)
        state = dict(zip(*(newest(table, "doc_id")[name].to_pylist() for name in ("doc_id", "state")), strict=True))
        rows = table.sort_by([(name, "ascending") for name in ("first_seen", "doc_id", "seen_at")]).to_pylist()
        family = families((row["doc_id"], row["content_hash"]) for row in rows)
        tags_of = tagger(corpus)
        self._tags: dict[str, set[str]] = {}
        self._document: dict[str, str] = {}
        self.current: set[str] = set()
        """Ids of the documents that are present."""
        for row in rows:
            self._tags.setdefault(row["content_hash"], set()).update(tags_of(row["source"]))
            if state[row["doc_id"]] == "present":
                self._document[row["content_hash"]] = family[row["doc_id"]]
                self.current.add(row["doc_id"])

    def tags(self, content_hash: str) -> set[str]:
        """Return the tags of a text: of all documents that have or had it."""
        return self._tags.get(content_hash, set())

    def place(self, qa: Qa) -> Qa:
        """Return a row with its documents and tags; without documents where one of them is gone."""
        there = all(name in self._document for name in qa.stream)
        documents = {self._document[name] for name in qa.stream} if there else set()
        tags = {tag for name in qa.stream for tag in self.tags(name)}
        return replace(qa, documents=tuple(sorted(documents)), tags=tuple(sorted(tags)))


def _same(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    return all(a[name] == b[name] for name in a if name not in _MARKS)


def _answers(table: Any) -> set[tuple[str, str, tuple[str, ...]]]:
    return {(row["corpus"], row["qa_id"], tuple(row["answers"])) for row in table.to_pylist()}


class HarvestSummary(TypedDict):
    """Summary of a harvest: training rows and their changes."""

    run_id: str
    corpus: str
    kind: str
    candidates: int
    rows: int
    new: int
    changed: int
    removed: int
    by_source: dict[str, int]
    by_split: dict[str, int]
    dropped: dict[str, int]
    """By reason."""
    qa_version: int | None
    seconds: NotRequired[float]
    export: NotRequired[str]
    """File that the rows were exported to."""


class TrainingSummary(TypedDict):
    """Summary of a training run."""

    run_id: str
    kind: str
    corpus: str
    policy: str
    parent: str
    """policy_id of the initial weights."""
    candidate: str
    """policy_id of the best weights; empty: none was better than the initial ones."""
    steps: int
    ended: str
    """Why it ended."""
    best_step: int
    validation: dict[str, Json | None]
    """before, best, last."""
    last: dict[str, float | None]
    """Metrics of the last step."""
    data: list[str]
    chosen_by: str
    """File of questions that chose the best weights; empty: none."""
    columns: dict[str, str]
    data_version: int | None
    config: Json
    report: NotRequired[str]
    promotion: NotRequired[Json]
