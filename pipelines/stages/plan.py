"""Plan: which readings a run is about, which of them are done, and where the others go on.

The plan is the only place that decides what is read again. It uses no engine.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase

import pyarrow as pa

from infra.cluster.reading_worker import WorkItem
from infra.readers import ReaderSpec
from infra.store import Corpus, Store
from infra.tables.delta import Table
from infra.tables.documents import current_documents
from infra.tables.rows import AnswerRow, DocumentRow, PlannedReading, Scope, SegmentedRow
from infra.tables.schemas import PLAN
from infra.tables.segments import segment_hashes, segment_range
from infra.tables.turns import carry, resume_points
from memagent.records import Question, Turn, reading_id, stable_hash
from pipelines.stages.segment import places


@dataclass(slots=True)
class Plan:
    """The readings of a run."""

    rows: list[PlannedReading] = field(default_factory=list)
    """One per reading and question."""
    past: dict[str, list[Turn]] = field(default_factory=dict)
    """What the turn log holds of readings that go on, by reading_id."""
    places: dict[str, SegmentedRow] = field(default_factory=dict)
    """Where the segments of a document stand, by content hash."""
    unmatched: list[Question] = field(default_factory=list)
    """Questions about documents that are not in the corpus."""
    unsegmented: int = 0
    """Documents that are asked about and could not be segmented; the quarantine says why."""

    @property
    def documents(self) -> int:
        """Documents that are asked about; two of the same text count as two."""
        archives = {len(row["stream"]) for row in self.rows if row["scope"] == "archive"}
        return max(archives, default=len({row["doc_id"] for row in self.rows}))

    @property
    def pending(self) -> list[PlannedReading]:
        """Rows of the readings that are not answered, each reading once."""
        return list({row["reading_id"]: row for row in self.rows if row["state"] != "answered"}.values())

    @property
    def conversations(self) -> int:
        """Conversations that are still to be held: one a segment left, and the answer."""
        return sum(self.left(row) + 1 for row in self.pending)

    def left(self, row: PlannedReading) -> int:
        """Return how many segments of a reading are still to be read."""
        past = [turn for turn in self.past.get(row["reading_id"], []) if turn.kind in ("update", "carried")]
        lanes: dict[int, int] = {}
        for turn in past:
            lanes[turn.lane] = turn.step + 1
        return max(0, int(row["segments"]) - sum(lanes.values()))

    def items(self) -> list[WorkItem]:
        """Return the work: what a worker needs of each pending reading."""
        return [
            {
                "reading_id": row["reading_id"],
                "question": row["question"],
                "places": [segment_range(self.places[h]) for h in row["stream"]],
                "past": [asdict(turn) for turn in self.past.get(row["reading_id"], [])],
                "left": self.left(row),
            }
            for row in self.pending
        ]

    def table(self) -> pa.Table:
        """Return the rows as they are stored."""
        return pa.Table.from_pylist(self.rows, schema=PLAN)


def make_plan(
    corpus: Corpus,
    reader: ReaderSpec,
    questions: Sequence[Question],
    *,
    archive: bool = False,
    reread: bool = False,
) -> Plan:
    """Plan the readings of some questions over a corpus whose documents are segmented.

    An answer counts for a document as long as its text, the question and the reading configuration
    are the same and it was given by a version of the same policy; with `reread`, by this version.
    A reading that was begun goes on; a document that changed is read on from its first changed segment, with `reread`
    only from this version's own memory.
    """
    documents = current_documents(corpus, ["doc_id", "content_hash", "title"]).to_pylist()
    plan = Plan(places=places(corpus, reader, {d["content_hash"] for d in documents}))
    uncut = [d["doc_id"] for d in documents if d["content_hash"] not in plan.places]
    plan.unsegmented = sum(any(_asked_of(question, doc_id) for question in questions) for doc_id in uncut)
    documents = [d for d in documents if d["content_hash"] in plan.places]
    by_id = {d["doc_id"]: d for d in documents}
    for question in questions:
        if question.documents and all(name in by_id for name in question.documents):
            chosen = [by_id[name] for name in dict.fromkeys(question.documents)]
        else:
            chosen = [d for d in documents if _asked_of(question, d["doc_id"])]
        if not chosen:
            plan.unmatched.append(question)
        elif archive:
            plan.rows.append(_row(reader, question, chosen, plan=plan, scope="archive"))
        else:
            plan.rows.extend(_row(reader, question, [d], plan=plan, scope="document") for d in chosen)
    _mark_answered(corpus, reader, plan, reread)
    _find_beginnings(corpus, reader, plan, reread)
    return plan


def _asked_of(question: Question, doc_id: str) -> bool:
    return not question.documents or any(doc_id == p or fnmatchcase(doc_id, p) for p in question.documents)


def _row(
    reader: ReaderSpec, question: Question, documents: Sequence[DocumentRow], plan: Plan, scope: Scope
) -> PlannedReading:
    stream = [d["content_hash"] for d in documents]
    one = scope == "document"
    return {
        "reading_id": reading_id(stream, question.text, reader.policy.policy_id, reader.config_hash),
        "doc_id": documents[0]["doc_id"] if one else "",
        "title": documents[0]["title"] if one else f"{len(documents)} documents",
        "content_hash": stream[0] if one else stable_hash(stream),
        "stream": stream,
        "question_id": question.question_id,
        "question": question.text,
        "gold": list(question.answers) if question.answers is not None else None,
        "scope": scope,
        "state": "new",
        "segments": sum(plan.places[h]["segments"] for h in stream),
        "tokens": sum(plan.places[h]["tokens"] for h in stream),
        "answered_by": "",
        "carried_from": "",
        "carried_segments": 0,
    }


def _same(row: PlannedReading | AnswerRow) -> tuple[str, str]:
    return (row["content_hash"], row["question"])


def _mark_answered(corpus: Corpus, reader: ReaderSpec, plan: Plan, reread: bool) -> None:
    columns = ["reading_id", "content_hash", "question", "policy_id", "config_hash", "answered_at"]
    answers = Table(corpus.store, "answers").read(corpus.name, columns).sort_by("answered_at").to_pylist()
    exact = {row["reading_id"] for row in answers}
    family = {
        _same(row): row["reading_id"]
        for row in answers
        if row["config_hash"] == reader.config_hash and _name(row["policy_id"]) == reader.policy.name
    }
    for row in plan.rows:
        if row["reading_id"] in exact:
            row["state"], row["answered_by"] = "answered", row["reading_id"]
        elif not reread and _same(row) in family:
            row["state"], row["answered_by"] = "answered", family[_same(row)]


def _find_beginnings(corpus: Corpus, reader: ReaderSpec, plan: Plan, reread: bool) -> None:
    pending = {row["reading_id"]: row for row in plan.pending}
    plan.past = resume_points(corpus, pending)
    fresh = [row for row in pending.values() if row["reading_id"] not in plan.past]
    if reader.reading.lanes == 1 and reader.goes_on:  # the spans of lanes move with the length of the stream
        plan.past |= _carried(corpus, reader, plan, rows=fresh, reread=reread)
    for row in plan.rows:
        past = plan.past.get(row["reading_id"])
        if past and row["state"] == "new":
            row["state"] = "continued"
            carried = [turn for turn in past if turn.kind == "carried"]
            if carried:
                row["carried_from"], row["carried_segments"] = carried[-1].carried_from, carried[-1].step + 1


def _carried(
    corpus: Corpus, reader: ReaderSpec, plan: Plan, rows: list[PlannedReading], reread: bool
) -> dict[str, list[Turn]]:
    """Find, for readings not begun, an earlier reading of the same document as it was, and its memory."""
    earlier = _earlier(corpus, reader, rows, reread)
    if not earlier:
        return {}
    old_places = places(corpus, reader, {h for _, stream, _ in earlier.values() for h in stream})
    at = {**plan.places, **old_places}
    common: dict[tuple[tuple[str, ...], tuple[str, ...]], int] = {}  # questions on one document share it
    keep = {}
    for new, (old, *streams) in earlier.items():
        before, after = (tuple(stream) for stream in streams)
        if (before, after) not in common:
            common[before, after] = _common(corpus.store, before, after, at)
        keep[new] = (old, common[before, after])
    logs = resume_points(corpus, {old for old, kept in keep.values() if kept})
    carried = {new: carry(logs.get(old, []), new, kept) for new, (old, kept) in keep.items() if kept}
    return {new: turns for new, turns in carried.items() if turns}


def _earlier(
    corpus: Corpus, reader: ReaderSpec, rows: list[PlannedReading], reread: bool
) -> dict[str, tuple[str, list[str], list[str]]]:
    """Return reading_id -> (earlier reading_id, its stream, this stream) where there is an earlier one."""
    if not rows:
        return {}
    history: dict[str, str] = {}
    for document in Table(corpus.store, "documents").read(corpus.name, ["doc_id", "content_hash"]).to_pylist():
        history[document["content_hash"]] = document["doc_id"]
    columns = ["reading_id", "stream", "scope", "question", "policy_id", "config_hash", "answered_at"]
    by_what: dict[tuple[str, str], AnswerRow] = {}
    for answer in Table(corpus.store, "answers").read(corpus.name, columns).sort_by("answered_at").to_pylist():
        mine = answer["policy_id"] == reader.policy.policy_id
        same = mine or (not reread and _name(answer["policy_id"]) == reader.policy.name)
        if same and answer["config_hash"] == reader.config_hash:
            what = "archive" if answer["scope"] == "archive" else history.get(answer["stream"][0], "")
            by_what[what, answer["question"]] = answer
    found = {}
    for row in rows:
        what = "archive" if row["scope"] == "archive" else row["doc_id"]
        answer = by_what.get((what, row["question"]))
        if answer is not None:
            found[row["reading_id"]] = (answer["reading_id"], answer["stream"], row["stream"])
    return found


def _common(store: Store, old: Sequence[str], new: Sequence[str], at: Mapping[str, SegmentedRow]) -> int:
    """Count the segments that two streams share at their beginning."""
    count = 0
    for a, b in zip(old, new, strict=False):
        if a not in at or b not in at:
            return count
        if a == b:
            count += int(at[a]["segments"])
            continue
        for x, y in zip(segment_hashes(store, at[a]), segment_hashes(store, at[b]), strict=False):
            if x != y:
                return count
            count += 1
        return count
    return count


def _name(policy_id: str) -> str:
    return policy_id.rpartition("@")[0]


def groups(items: Iterable[WorkItem]) -> list[list[WorkItem]]:
    """Put the questions on one stream together, the longest work first."""
    by_stream: dict[tuple[str, ...], list[WorkItem]] = defaultdict(list)
    for item in items:
        by_stream[tuple(place["content_hash"] for place in item["places"])].append(item)
    return sorted(by_stream.values(), key=lambda group: -sum(item["left"] for item in group))
