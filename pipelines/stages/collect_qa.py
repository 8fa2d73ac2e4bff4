"""Collect candidates for training rows from what runs asked and answered. Ray Data jobs over plans and answers."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from infra.cluster.session import quiet_ray_data
from infra.store import Corpus, Store
from infra.tables.delta import Table
from infra.tables.plans import read_plan
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


def asked(store: Store, runs: Sequence[str], gold: bool | None = None) -> list[dict[str, Any]]:
    """Return what runs asked of which streams: a row a reading and run (`_ASKED`), oldest run first.

    Needs a Ray session. `reading_id` is the reading whose answer counted. A run without a plan asked nothing.

    Args:
        store: the store.
        runs: their ids, oldest first.
        gold: only what has gold, or has none; None: all.
    """
    blocks = [pa.table({"run_id": [run_id], "run": [at]}) for at, run_id in enumerate(runs)]
    rows = _job(blocks, _read_plan, store.url, gold)
    return sorted(rows, key=lambda row: (row["run"], row["reading_id"], row["question_id"]))


def load_answers(corpus: Corpus, readings: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return the answers of some readings (`_ANSWERS`) by reading_id; those that failed are absent.

    Needs a Ray session. The answers table is read once, file by file.
    """
    wanted = frozenset(readings)
    if not wanted:
        return {}
    root = corpus.store.delta_uri("answers").removeprefix("s3://")
    paths = [fragment.path for fragment in Table(corpus.store, "answers").fragments(corpus.name)]
    blocks = [pa.table({"path": [path if path.startswith(root) else f"{root}/{path}"]}) for path in paths]
    return {row["reading_id"]: row for row in _job(blocks, _read_answers, corpus.store.url, wanted)}


def gold_rows(rows: Sequence[Mapping[str, Any]], answers: Mapping[str, Mapping[str, Any]]) -> list[Qa]:
    """Make a row of each question with gold on a stream; the gold of the newest run counts.

    The pass rate is the share right among the readings, where there are two or more; one that failed is wrong.

    Args:
        rows: of `asked`, all with gold.
        answers: of `load_answers`.
    """
    groups: dict[tuple[str, str, tuple[str, ...]], list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        groups[row["question_id"], row["question"], tuple(row["stream"])].append(row)
    found = []
    for (_, question, stream), same in groups.items():
        gold = tuple(same[-1]["gold"])
        readings = {row["reading_id"]: answers.get(row["reading_id"]) for row in same}
        right = {k: v for k, v in readings.items() if v is not None and exact_match(v["answer"], gold)}
        shown = next(reversed(right or readings))
        rate = len(right) / len(readings) if len(readings) >= _LEAST_READINGS else None
        policy = (readings[shown] or {}).get("policy_id", "")
        found.append(
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
    return found


def agreed_rows(rows: Sequence[Mapping[str, Any]], answers: Mapping[str, Mapping[str, Any]]) -> list[Qa]:
    """Make a row of each question on a stream that was read several times, with the share that agreed.

    Args:
        rows: of `asked`, of the runs that sampled readings.
        answers: of `load_answers`.
    """
    groups: dict[tuple[str, tuple[str, ...]], set[str]] = defaultdict(set)
    for row in rows:
        groups[row["question"], tuple(row["stream"])].add(row["reading_id"])
    found = []
    for (question, stream), readings in groups.items():
        known = {name: answers[name] for name in sorted(readings) if name in answers}
        drawn = [(known[name]["answer"], known[name]["found"]) if name in known else None for name in sorted(readings)]
        said, share = agreement(drawn)
        same = {k: v for k, v in known.items() if normalise(v["answer"]) == normalise(said)}
        shown = next(iter(same), "")
        policy = same[shown]["policy_id"] if shown else ""
        found.append(
            Qa(
                question,
                (said,),
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
    return found


def feedback_rows(said: Sequence[Mapping[str, Any]]) -> tuple[list[Qa], dict[str, set[str]]]:
    """Make a row of each accepted or corrected answer; also return what was rejected, by qa_id, normalised.

    An answer that was corrected is rejected as well. Where it is what somebody else accepted, both are dropped.

    Args:
        said: of `infra.tables.qa.verdicts`.
    """
    found, rejected = [], defaultdict(set)
    for one in said:
        answer, verdict = one["of"], one["verdict"]
        right = answer["answer"] if verdict == "accepted" else one["answer"] or ""
        accepted = [answer | _places(answer)] if verdict == "accepted" else []
        row = Qa(
            answer["question"],
            (right,),
            tuple(answer["stream"]),
            documents=(),
            source="feedback",
            reading_id=answer["reading_id"],
            policy_id=answer["policy_id"],
            evidence=_evidence(accepted),
            spans=_spans(accepted),
        )
        if verdict != "rejected":
            found.append(row)
        if verdict != "accepted" and not (verdict == "corrected" and normalise(right) == normalise(answer["answer"])):
            rejected[row.qa_id].add(normalise(answer["answer"]))
    return found, dict(rejected)


def _job(blocks: list[pa.Table], read: Any, *arguments: Any) -> list[dict[str, Any]]:
    if not blocks:
        return []
    import ray.data

    quiet_ray_data()
    job = ray.data.from_arrow(blocks).map_batches(read, batch_size=None, batch_format="pyarrow", fn_args=arguments)
    return [row for batch in job.iter_batches(batch_size=None, batch_format="pyarrow") for row in batch.to_pylist()]


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
                rows += [row | _places(row) for i in mine for row in batch.slice(i, 1).to_pylist()]
    return pa.Table.from_pylist(rows, schema=_ANSWERS)


def _places(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return segments and characters of an answer's evidence: those of the quote, else of the whole segment."""
    places = answer["evidence"] or []
    quoted = [one["quote_start"] >= 0 for one in places]
    return {
        "hashes": [one["content_hash"] for one in places],
        "indices": [one["segment_index"] for one in places],
        "starts": [one["quote_start" if q else "char_start"] for one, q in zip(places, quoted, strict=True)],
        "ends": [one["quote_end" if q else "char_end"] for one, q in zip(places, quoted, strict=True)],
    }


def _evidence(answers: Iterable[Mapping[str, Any]]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted({at for one in answers for at in zip(one["hashes"], one["indices"], strict=True)}))


def _spans(answers: Iterable[Mapping[str, Any]]) -> tuple[TextSpan, ...]:
    columns = ((one["hashes"], one["starts"], one["ends"]) for one in answers)
    return tuple(sorted({TextSpan(*values) for lists in columns for values in zip(*lists, strict=True)}))
