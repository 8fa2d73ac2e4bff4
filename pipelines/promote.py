"""The promotion check: a candidate and the promoted policy read the same fixed tests; the better one is promoted.

The tests are needles in texts of training length and many times longer, and harvested questions that are held out
from training. Evaluations resume, so calling it again reads nothing twice.
"""

import json
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict, cast

from infra.cluster.progress import Progress
from infra.cluster.session import ray_session
from infra.models import cache_folder
from infra.readers import SHIPPED, ReaderSpec, resolve_policy
from infra.store import Corpus, Store
from infra.tables.delta import Table
from infra.tables.documents import document_texts
from infra.tables.policies import policy, promote, promoted, refuse
from infra.tables.rows import QaRow, ResultRow
from memagent.config import Config
from memagent.errors import ConfigError, MemagentError, UsageError
from memagent.records import stable_hash
from memagent.rl.promotion import GateSpec, Group, decide
from memagent.tasks.ruler import write_jsonl
from memagent.tasks.sample import Sample
from memagent.tasks.suites import Suite
from memagent.tasks.texts import Whole
from pipelines.evaluate import evaluate, run_results

__all__ = ["GateSpec", "compare_policies", "run_gate"]

_VALIDATION = "validation questions"
_COLUMNS = ["qa_id", "question", "answers", "stream", "split"]


class GroupRecord(TypedDict):
    """Scores of one group of samples: means, failed readings, and the paired test (`memagent.stats.Paired`)."""

    name: str
    candidate: float
    incumbent: float
    candidate_failed: int
    incumbent_failed: int
    difference: float
    low: float
    high: float
    p: float
    n: int
    better: int
    worse: int
    method: str


class GateRecord(TypedDict):
    """A comparison of two policies; JSON in the `gate` column of `policies`."""

    candidate: str
    incumbent: str
    promoted: bool
    reason: str
    overall: GroupRecord
    groups: list[GroupRecord]
    runs: dict[str, dict[str, str]]
    """Run ids by suite and side."""
    validation: dict[str, int]
    spec: dict[str, Any]
    seconds: float


def run_gate(
    config: Config,
    candidate_id: str,
    incumbent: str | None = None,
    gate: GateSpec | None = None,
    show: Progress | None = None,
) -> GateRecord:
    """Compare a candidate with the promoted policy, and promote or refuse it; return the record.

    Args:
        config: how both read. `engine.model` is the base model of the lineage, or a version of it.
        candidate_id: policy_id or a prefix of it.
        incumbent: policy to compare with; by default the promoted version, or the base model of the lineage.
        gate: the tests.
        show: is called with the progress counts.

    Raises:
        UsageError: there is no such candidate, it was refused or is already promoted, there are no tests, or another
            version was promoted meanwhile.
        MemagentError: an engine cannot be started, or all readings of a policy failed. No status has changed.
    """
    store = Store(config.store)
    row = policy(store, candidate_id)
    name, candidate = row["name"], row["policy_id"]
    if row["status"] == "promoted":
        raise UsageError(f"{candidate} is promoted already")
    if row["status"] == "refused":
        raise UsageError(f"{candidate} was refused ({row['reason']}): memagent policies promote {candidate} --force")
    _check_engine(config)
    current = promoted(store, name)
    current_id = current["policy_id"] if current else None
    incumbent = incumbent or current_id or _base_model(config, name)
    record = compare_policies(config, candidate, incumbent, gate=gate, show=show)
    if record["promoted"]:
        promote(store, candidate, record["reason"], dict(record), instead_of=current_id)
    else:
        refuse(store, candidate, record["reason"], dict(record))
    return record


def compare_policies(
    config: Config, candidate: str, incumbent: str, gate: GateSpec | None = None, show: Progress | None = None
) -> GateRecord:
    """Read the tests with two policies and decide between them; no status changes.

    Raises:
        UsageError: both are the same policy, they cannot be compared, or there are no tests.
        MemagentError: an engine cannot be started, or all readings of a policy failed.
    """
    gate, began = gate or GateSpec(), time.monotonic()
    _check_engine(config)
    configs = _configs(config, candidate, incumbent)
    readers = {side: ReaderSpec(settings) for side, settings in configs.items()}
    ids = {side: reader.policy.policy_id for side, reader in readers.items()}
    if ids["candidate"] == ids["incumbent"]:
        raise UsageError(f"{candidate} and {incumbent} are one policy: {ids['candidate']}")
    if len({reader.tokenizer.fingerprint for reader in readers.values()}) > 1:
        raise UsageError(f"{ids['candidate']} and {ids['incumbent']} have different tokenizers: no test fits both")
    questions = validation_questions(Store(config.store), gate)
    suites = _suites(gate, readers["incumbent"].reading.segment_tokens, questions)
    if not suites:
        raise UsageError("the gate has no tests: give kinds of needles, or corpora with validation questions")
    groups, runs = [], {}
    with ray_session(config.ray):
        for name, suite in suites.items():
            results = {side: _read(suite, configs[side], gate, show) for side in configs}
            runs[name] = {side: run_id for side, (run_id, _) in results.items()}
            groups += _groups(name, results["candidate"][1], results["incumbent"][1])
    record = {
        **ids,
        **decide(groups, gate.alpha).as_dict(),
        "runs": runs,
        "validation": questions.counts,
        "spec": gate.model_dump(mode="json"),
        "seconds": round(time.monotonic() - began, 1),
    }
    return cast(GateRecord, record)


@dataclass(frozen=True, slots=True)
class Questions:
    """Validation questions as a file."""

    path: Path | None
    """None: there are none."""
    counts: dict[str, int]
    """Questions in the tables (``there``), asked (``asked``), and whose documents are gone (``without_text``)."""


def validation_questions(store: Store, gate: GateSpec) -> Questions:
    """Write the validation questions of the gate's corpora to a file of samples, named by a hash of its content.

    If there are too many, the choice depends only on the seed and their ids. They are scored by token F1, since exact
    containment would reward an answer that repeats the document.
    """
    rows: list[QaRow] = [
        cast(QaRow, row | {"corpus": corpus})
        for corpus in dict.fromkeys(gate.corpora)
        for row in Table(store, "qa").read(corpus, _COLUMNS).to_pylist()
        if row["split"] == "validation"
    ]
    rows.sort(key=lambda row: stable_hash(gate.seed, row["corpus"], row["qa_id"]))
    chosen = rows[: gate.questions]
    samples = list(_samples(store, chosen))
    counts = {"there": len(rows), "asked": len(samples), "without_text": len(chosen) - len(samples)}
    return Questions(_file(store, samples) if samples else None, counts)


def _samples(store: Store, rows: list[QaRow]) -> Iterator[Sample]:
    texts: dict[tuple[str, str], str] = {}
    for corpus in {row["corpus"] for row in rows}:
        hashes = {name for row in rows if row["corpus"] == corpus for name in row["stream"]}
        texts |= {(corpus, name): text for name, text in document_texts(Corpus(store, corpus), hashes)}
    for row in rows:
        parts = [texts.get((row["corpus"], name)) for name in row["stream"]]
        text = "\n\n".join(part for part in parts if part is not None)
        if None in parts or not text.strip() or not _encodable(text + row["question"] + "".join(row["answers"])):
            continue
        yield Sample(
            sample_id=f"{row['corpus']}/{row['qa_id']}",
            task=_VALIDATION,
            length=0,
            pieces=Whole(text),
            question=row["question"],
            answers=tuple(row["answers"]),
            match="f1",
        )


def _file(store: Store, samples: list[Sample]) -> Path:
    """Write samples to a file on this machine, and to the store."""
    with tempfile.TemporaryDirectory() as folder:
        aside = Path(folder) / "validation.jsonl"
        write_jsonl(samples, aside)
        data = aside.read_bytes()
    parts = ("gates", stable_hash(data.decode("ascii"))[:12], "validation.jsonl")
    path = Path(store.write_bytes(data, *parts))
    if store.is_s3:
        path = Path(Store(str(cache_folder())).write_bytes(data, *parts))
    return path


def _suites(gate: GateSpec, segment_tokens: int, questions: Questions) -> dict[str, Suite]:
    suites = {}
    if gate.kinds:
        lengths = gate.lengths_for(segment_tokens)
        suites["needles"] = Suite("needles", kinds=gate.kinds, lengths=lengths, n=gate.n, seed=gate.seed)
    if questions.path is not None:
        suites["validation"] = Suite("files", data=(str(questions.path),), n=questions.counts["asked"], seed=gate.seed)
    return suites


def _read(suite: Suite, config: Config, gate: GateSpec, show: Progress | None) -> tuple[str, list[ResultRow]]:
    """Evaluate a policy on a suite; return the run's id and the judged samples."""
    texts = gate.texts if suite.is_made else ()
    summary = evaluate(suite, config, texts=texts, show=show)
    if summary["carried_segments"]:  # samples never change, so the memory is another version's
        raise MemagentError(f"{summary['policy_id']} started from another version's memory, so its scores do not count")
    rows = run_results(Store(config.store), summary["run_id"]).to_pylist()
    if all(row["answer"] is None for row in rows):
        reasons = json.dumps(summary["failures_by_reason"])
        raise MemagentError(
            f"all {len(rows)} readings of {summary['policy_id']} failed ({reasons}), so nothing was decided: "
            "see memagent quarantine"
        )
    return summary["run_id"], rows


def _groups(suite: str, candidate: list[ResultRow], incumbent: list[ResultRow]) -> list[Group]:
    """Group the samples of a suite: needles by length, shortest first."""
    sides = [{row["sample_id"]: row for row in rows} for rows in (candidate, incumbent)]
    if sides[0].keys() != sides[1].keys():
        raise MemagentError("the policies were not given the same samples: run the gate again")
    sample_ids: dict[str, list[str]] = {}
    for sample_id, row in sorted(sides[0].items(), key=lambda item: item[1]["length"]):
        name = f"needles at {row['length']:,} tokens" if suite == "needles" else _VALIDATION
        sample_ids.setdefault(name, []).append(sample_id)
    return [
        Group(name, *(tuple(_score(side[sample_id]) for sample_id in members) for side in sides))
        for name, members in sample_ids.items()
    ]


def _score(row: ResultRow) -> float | None:
    return None if row["answer"] is None else float(row["score"])


def _check_engine(config: Config) -> None:
    if config.engine.kind != "vllm":
        raise UsageError("versions of a policy are compared with vllm, which loads their weights: --engine vllm")


def _configs(config: Config, candidate: str, incumbent: str) -> dict[str, Config]:
    """Return how both read: each by its own defaults, and a model that comes without any by the candidate's."""
    configs = {"candidate": _with_model(config, candidate), "incumbent": _with_model(config, incumbent)}
    defaults = {side: ReaderSpec(settings).policy.defaults for side, settings in configs.items()}
    if not defaults["incumbent"]:
        reading = {**defaults["candidate"], **config.reading}
        configs["incumbent"] = configs["incumbent"].model_copy(update={"reading": reading})
    return configs


def _with_model(config: Config, model: str) -> Config:
    return config.model_copy(update={"engine": config.engine.model_copy(update={"model": model})})


def _base_model(config: Config, name: str) -> str:
    """Return the name of a lineage's base model."""
    if name == "nano":
        return f"nano{SHIPPED}"
    model = config.engine.model.removesuffix(SHIPPED) + SHIPPED
    try:
        base = resolve_policy(_with_model(config, model).engine).name
    except ConfigError:
        base = ""
    if base != name:
        raise UsageError(f"no version of {name!r} is promoted yet: give --model with its base model, to compare with")
    return model


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
