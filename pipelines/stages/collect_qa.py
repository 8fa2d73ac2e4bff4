"""Collect candidates for training rows from what runs asked and answered: jobs over plans and answers."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple, TypedDict, cast

import pyarrow.compute as pc

from infra.cluster.jobs import run_job
from infra.store.buckets import buckets, one_of
from infra.store.delta import Table
from infra.store.feedback import JudgedAnswer
from infra.store.location import Corpus, Store
from infra.store.plans import read_plan
from infra.store.schemas import EvidenceRow, Scope
from memagent.evaluation.metrics import exact_match
from memagent.quality.curation import Qa, agreement
from memagent.quality.verdicts import Verdict, as_meant, disputed
from memagent.records import TextSpan

KINDS = ("ask", "digest")
"""Kinds of runs that people start. Not evaluations: a policy must not be trained on what it is scored with."""
_LEAST_READINGS = 2
"""Fewest readings that give a rate."""
_COLUMNS = ["reading_id", "answered_by", "question_id", "question", "stream", "doc_id", "scope", "gold"]
_FEW = 8
"""Plans that are read in this process."""
_ROWS = 10_000
"""Rows that are Python objects at once."""


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


class Place(NamedTuple):
    """Where a piece of an answer's evidence is: a segment, and the characters of the quote or of the segment."""

    content_hash: str
    segment_index: int
    char_start: int
    char_end: int


class AnswerWithGold(TypedDict):
    """An answer, as far as a training row depends on it."""

    reading_id: str
    policy_id: str
    answer: str
    found: bool
    places: list[Place]


def asked(store: Store, runs: Sequence[str], gold: bool | None = None) -> list[AskedRow]:
    """Return what runs asked of which streams: a row a reading and run, oldest run first, as the runs are given.

    Needs a Ray session if the runs are many. A run without a plan asked nothing. With `gold` only what has gold, or has
    none.
    """
    read = partial(_read_plan, store=store, gold=gold)
    rows = [row for plan in run_job(read, list(enumerate(runs)), store, local=len(runs) <= _FEW) for row in plan]
    return sorted(rows, key=lambda row: (row["run"], row["reading_id"], row["question_id"]))


def load_answers(corpus: Corpus, readings: Iterable[str]) -> dict[str, AnswerWithGold]:
    """Return the answers of some readings by reading_id; those that failed are absent."""
    wanted = set(readings)
    if not wanted:
        return {}
    columns = ["reading_id", "policy_id", "answer", "found", "evidence"]
    table, mine = Table(corpus.store, "answers"), one_of("reading_id", wanted)
    answers: dict[str, AnswerWithGold] = {}
    for bucket in buckets(table.count(corpus.name)):  # the quotes of one bucket are held at a time
        found = table.read(corpus.name, columns, mine & bucket.contains("content_hash"))
        for batch in found.to_batches(max_chunksize=_ROWS):
            answers |= {row["reading_id"]: row | {"places": _places(row.pop("evidence"))} for row in batch.to_pylist()}
    return answers


def gold_rows(rows: Sequence[AskedRow], answers: Mapping[str, AnswerWithGold]) -> list[Qa]:
    """Make a row for each question with gold on a stream; the gold of the newest run counts.

    The pass rate is the share right among the readings, where there are two or more; one that failed is wrong.
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
        made = Qa(question, gold, stream, (), "gold", reading_id=shown, policy_id=policy, pass_rate=rate)
        qa.append(_located(made, right.values()))
    return qa


def agreed_rows(rows: Sequence[AskedRow], answers: Mapping[str, AnswerWithGold]) -> list[Qa]:
    """Make a row for each question on a stream that runs sampled several readings of, with the share that agreed."""
    groups: dict[tuple[str, tuple[str, ...]], set[str]] = defaultdict(set)
    for row in rows:
        groups[row["question"], tuple(row["stream"])].add(row["reading_id"])
    qa = []
    for (question, stream), readings in groups.items():
        known = {name: answers[name] for name in sorted(readings) if name in answers}
        drawn = [(known[name]["answer"], known[name]["found"]) if name in known else None for name in sorted(readings)]
        agreed, share = agreement(drawn)
        same = {k: v for k, v in known.items() if as_meant(v["answer"]) == as_meant(agreed)}
        shown = next(iter(same), "")
        policy = same[shown]["policy_id"] if shown else ""
        made = Qa(question, (agreed,), stream, (), "agreement", reading_id=shown, policy_id=policy, share=share)
        qa.append(_located(made, same.values()))
    return qa


def feedback_rows(judged: Sequence[JudgedAnswer]) -> tuple[list[Qa], dict[str, set[str]], set[str]]:
    """Make a row for each accepted or corrected answer; also return what was rejected, by qa_id, as meant, and the
    qa_ids on which people contradict each other. An answer that was corrected is rejected as well.
    """
    qa: list[Qa] = []
    rejected: dict[str, set[str]] = defaultdict(set)
    said: dict[str, list[Verdict]] = defaultdict(list)
    for verdict, answer in judged:
        accepted = _places(answer["evidence"]) if verdict.kind == "accepted" else []
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
        said[row.qa_id].append(verdict)
        wrong = verdict.given if verdict.kind == "corrected" else verdict.wrong
        if wrong is not None and (verdict.right is None or as_meant(wrong) != as_meant(verdict.right)):
            rejected[row.qa_id].add(as_meant(wrong))
    return qa, dict(rejected), {name for name, verdicts in said.items() if disputed(verdicts)}


def _read_plan(run: tuple[int, str], store: Store, gold: bool | None) -> list[AskedRow]:
    number, run_id = run
    try:
        plan = read_plan(Corpus(store, ""), run_id, _COLUMNS)
    except FileNotFoundError:
        return []
    if gold is not None:
        plan = plan.filter(pc.is_valid(plan["gold"]) if gold else pc.is_null(plan["gold"]))
    rows = [{**row, "reading_id": row["answered_by"] or row["reading_id"], "run": number} for row in plan.to_pylist()]
    return cast(list[AskedRow], rows)


def _places(evidence: Sequence[EvidenceRow] | None) -> list[Place]:
    """Return segments and characters of an answer's evidence: those of a quote that says it, else of the segment."""
    places = []
    for piece in evidence or ():
        start, end = piece["char_start"], piece["char_end"]
        if piece["quote_start"] >= 0 and piece["verbatim"]:
            start, end = piece["quote_start"], piece["quote_end"]
        places.append(Place(piece["content_hash"], piece["segment_index"], start, end))
    return places


def _evidence(places: Iterable[Place]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted({(place.content_hash, place.segment_index) for place in places}))


def _spans(places: Iterable[Place]) -> tuple[TextSpan, ...]:
    return tuple(sorted({TextSpan(place.content_hash, place.char_start, place.char_end) for place in places}))


def _located(row: Qa, answers: Iterable[AnswerWithGold]) -> Qa:
    places = [place for answer in answers for place in answer["places"]]
    return replace(row, evidence=_evidence(places), spans=_spans(places))
