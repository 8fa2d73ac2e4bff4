"""Collect candidates for training rows from what runs asked and answered. Ray Data jobs over plans and answers."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypedDict

import pyarrow as pa
import pyarrow.compute as pc

from infra.cluster.session import quiet_ray_data
from infra.store import Corpus, Store
from infra.tables.delta import Table
from infra.tables.feedback import JudgedAnswer
from infra.tables.plans import read_plan
from infra.tables.rows import EvidenceRow, Scope
from memagent.curation import Qa, agreement
from memagent.metrics import exact_match, normalise
from memagent.records import TextSpan

KINDS = ("ask", "digest")
"""Kinds of runs that people start. Not evaluations: a policy must not be trained on what it is scored with."""
_LEAST_READINGS = 2
"""Fewest readings that give a rate."""
_COLUMNS = ["reading_id", "answered_by", "question_id", "question", "stream", "doc_id", "scope", "gold"]
_ASKED = pa.schema(
    [
        *((name, pa.string()) for name in ("reading_id", "question_id", "question", "doc_id", "scope")),
        ("stream", pa.list_(pa.string())),
        ("gold", pa.list_(pa.string())),
        ("run", pa.int64()),  # its place among the runs
    ]
)
_ANSWERS = pa.schema(
    [
        *((name, pa.string()) for name in ("reading_id", "policy_id", "answer")),
        ("found", pa.bool_()),
        ("hashes", pa.list_(pa.string())),
        ("indices", pa.list_(pa.int32())),
        ("starts", pa.list_(pa.int64())),
        ("ends", pa.list_(pa.int64())),
    ]
)


class AskedRow(TypedDict):
    """A reading that a run asked for."""

    reading_id: str
    """Of the reading whose answer counted."""
    question_id: str
    question: str
    doc_id: str
    scope: Scope
    stream: list[str]
    gold: list[str] | None
    run: int
    """The run's place among the runs, 0 the oldest."""


class Places(TypedDict):
    """Where an answer's evidence is, column by column."""

    hashes: list[str]
    indices: list[int]
    """Of segments."""
    starts: list[int]
    ends: list[int]
    """Characters of the document."""


class GivenAnswer(Places):
    """An answer, as far as a training row depends on it."""

    reading_id: str
    policy_id: str
    answer: str
    found: bool


def asked(store: Store, runs: Sequence[str], gold: bool | None = None) -> list[AskedRow]:
    """Return what runs asked of which streams: a row a reading and run, oldest run first.

    Needs a Ray session. A run without a plan asked nothing.

    Args:
        store: the store.
        runs: their ids, oldest first.
        gold: only what has gold, or has none; None: all.
    """
    blocks = [pa.table({"run_id": [run_id], "run": [number]}) for number, run_id in enumerate(runs)]
    rows: list[AskedRow] = [row for batch in _job(blocks, _read_plan, store.url, gold) for row in batch.to_pylist()]
    return sorted(rows, key=lambda row: (row["run"], row["reading_id"], row["question_id"]))


def load_answers(corpus: Corpus, readings: Iterable[str]) -> dict[str, GivenAnswer]:
    """Return the answers of some readings by reading_id; those that failed are absent.

    Needs a Ray session. The answers table is read once, file by file.
    """
    wanted = frozenset(readings)
    if not wanted:
        return {}
    root = corpus.store.delta_uri("answers").removeprefix("s3://")
    paths = [fragment.path for fragment in Table(corpus.store, "answers").fragments(corpus.name)]
    blocks = [pa.table({"path": [path if path.startswith(root) else f"{root}/{path}"]}) for path in paths]
    answers: dict[str, GivenAnswer] = {}
    for batch in _job(blocks, _read_answers, corpus.store.url, wanted):
        answers |= {row["reading_id"]: row for row in batch.to_pylist()}
    return answers


def gold_rows(rows: Sequence[AskedRow], answers: Mapping[str, GivenAnswer]) -> list[Qa]:
    """Make a row for each question with gold on a stream; the gold of the newest run counts.

    The pass rate is the share right among the readings, where there are two or more; one that failed is wrong.

    Args:
        rows: of `asked`, all with gold.
        answers: of `load_answers`.
    """
    groups: dict[tuple[str, str, tuple[str, ...]], list[AskedRow]] = defaultdict(list)
    for row in rows:
        groups[row["question_id"], row["question"], tuple(row["stream"])].append(row)
    qa = []
    for (_, question, stream), same in groups.items():
        gold = tuple(same[-1]["gold"] or ())
        readings = {row["reading_id"]: answers.get(row["reading_id"]) for row in same}
        right = {k: v for k, v in readings.items() if v is not None and exact_match(v["answer"], gold)}
        shown = next(reversed(right or readings))
        rate = len(right) / len(readings) if len(readings) >= _LEAST_READINGS else None
        shown_answer = readings[shown]
        policy = shown_answer["policy_id"] if shown_answer else ""
        qa.append(
            Qa(
                question,
                gold,
                stream,
                documents=(),
                source="gold",
                reading_id=shown,
                policy_id=policy,
                share=None,
                pass_rate=rate,
                evidence=_evidence(right.values()),
                spans=_spans(right.values()),
            )
        )
    return qa


def agreed_rows(rows: Sequence[AskedRow], answers: Mapping[str, GivenAnswer]) -> list[Qa]:
    """Make a row for each question on a stream that was read several times, with the share that agreed.

    Args:
        rows: of `asked`, of the runs that sampled readings.
        answers: of `load_answers`.
    """
    groups: dict[tuple[str, tuple[str, ...]], set[str]] = defaultdict(set)
    for row in rows:
        groups[row["question"], tuple(row["stream"])].add(row["reading_id"])
    qa = []
    for (question, stream), readings in groups.items():
        known = {name: answers[name] for name in sorted(readings) if name in answers}
        drawn = [(known[name]["answer"], known[name]["found"]) if name in known else None for name in sorted(readings)]
        agreed, share = agreement(drawn)
        same = {k: v for k, v in known.items() if normalise(v["answer"]) == normalise(agreed)}
        shown = next(iter(same), "")
        policy = same[shown]["policy_id"] if shown else ""
        qa.append(
            Qa(
                question,
                (agreed,),
                stream,
                documents=(),
                source="agreement",
                reading_id=shown,
                policy_id=policy,
                share=share,
                pass_rate=None,
                evidence=_evidence(same.values()),
                spans=_spans(same.values()),
            )
        )
    return qa


def feedback_rows(judged: Sequence[JudgedAnswer]) -> tuple[list[Qa], dict[str, set[str]]]:
    """Make a row for each accepted or corrected answer; also return what was rejected, by qa_id, normalised.

    An answer that was corrected is rejected as well. Where it is what somebody else accepted, both are dropped.

    Args:
        judged: of `infra.tables.feedback.verdicts`.
    """
    qa: list[Qa] = []
    rejected: dict[str, set[str]] = defaultdict(set)
    for verdict, answer in judged:
        accepted = [_places(answer["evidence"])] if verdict.kind == "accepted" else []
        row = Qa(
            answer["question"],
            (verdict.right or "",),
            tuple(answer["stream"]),
            documents=(),
            source="feedback",
            reading_id=answer["reading_id"],
            policy_id=answer["policy_id"],
            evidence=_evidence(accepted),
            spans=verdict.spans or _spans(accepted),
        )
        if verdict.right is not None:
            qa.append(row)
        changed = verdict.kind == "corrected" and normalise(verdict.answer) != normalise(answer["answer"])
        if verdict.kind == "rejected" or changed:
            rejected[row.qa_id].add(normalise(answer["answer"]))
    return qa, dict(rejected)


def _job(blocks: list[pa.Table], read: Callable[..., pa.Table], *arguments: object) -> Iterator[pa.Table]:
    if not blocks:
        return
    import ray.data

    quiet_ray_data()
    job = ray.data.from_arrow(blocks).map_batches(read, batch_size=None, batch_format="pyarrow", fn_args=arguments)
    yield from job.iter_batches(batch_size=None, batch_format="pyarrow")


def _read_plan(block: pa.Table, url: str, gold: bool | None) -> pa.Table:
    rows = []
    for run in block.to_pylist():
        try:
            plan = read_plan(Corpus(Store(url), ""), run["run_id"], _COLUMNS)
        except FileNotFoundError:
            continue
        if gold is not None:
            plan = plan.filter(pc.is_valid(plan["gold"]) if gold else pc.is_null(plan["gold"]))
        for row in plan.to_pylist():
            rows.append(row | {"reading_id": row["answered_by"] or row["reading_id"], "run": run["run"]})
    return pa.Table.from_pylist(rows, schema=_ASKED)


def _read_answers(block: pa.Table, url: str, wanted: frozenset[str]) -> pa.Table:
    import pyarrow.parquet as pq

    columns = ["reading_id", "policy_id", "answer", "found", "evidence"]
    rows = []
    for path in block["path"].to_pylist():
        with pq.ParquetFile(path, filesystem=Store(url).arrow) as file:
            for batch in file.iter_batches(columns=columns):
                # A merge writes strings as views, which pyarrow 26 can neither filter nor take.
                mine = [i for i, name in enumerate(batch["reading_id"].to_pylist()) if name in wanted]
                rows += [row | _places(row["evidence"]) for i in mine for row in batch.slice(i, 1).to_pylist()]
    return pa.Table.from_pylist(rows, schema=_ANSWERS)


def _places(evidence: Sequence[EvidenceRow] | None) -> Places:
    """Return segments and characters of an answer's evidence: those of the quote, else of the whole segment."""
    pieces = evidence or ()
    ranges = [
        (piece["quote_start"], piece["quote_end"])
        if piece["quote_start"] >= 0
        else (piece["char_start"], piece["char_end"])
        for piece in pieces
    ]
    return {
        "hashes": [piece["content_hash"] for piece in pieces],
        "indices": [piece["segment_index"] for piece in pieces],
        "starts": [start for start, _ in ranges],
        "ends": [end for _, end in ranges],
    }


def _evidence(answers: Iterable[Places]) -> tuple[tuple[str, int], ...]:
    segments = {segment for places in answers for segment in zip(places["hashes"], places["indices"], strict=True)}
    return tuple(sorted(segments))


def _spans(answers: Iterable[Places]) -> tuple[TextSpan, ...]:
    columns = ((places["hashes"], places["starts"], places["ends"]) for places in answers)
    return tuple(sorted({TextSpan(*values) for lists in columns for values in zip(*lists, strict=True)}))
