"""The promotion check: a candidate and the promoted policy read the same fixed tests; the better one is promoted.

The tests are needles in texts of training length and many times longer, and harvested questions of the promotion split,
on which nothing was trained or chosen. Evaluations resume, so calling it again reads nothing twice.
"""

import json
import logging
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from infra.cluster.session import lazy_ray
from infra.readers import SHIPPED, ReaderSpec, resolve_policy
from infra.store.claims import used
from infra.store.location import Corpus, Store
from infra.store.policies import policies, policy, promote, promoted, refuse
from infra.store.runs import new_run_id
from infra.store.schemas import PolicyRow, ResultRow
from memagent.config import Config
from memagent.errors import ConfigError, MemagentError, UsageError
from memagent.evaluation.suites import Suite
from memagent.records import Progress
from memagent.rl.promotion import Decision, PlannedGroup, PowerRecord, PromotionSpec, QuestionGroup, decide, state
from pipelines.evaluate import evaluate, run_results
from pipelines.promotion_questions import Questions, find_questions, trained_files

__all__ = ["PromotionSpec", "compare_policies", "run_promotion"]

_log = logging.getLogger("memagent.promotion")
_COMPARED = 1_000
"""Added to the seed of the needles that are compared by, which are not those that promotion is decided on."""
_NEEDLE_DISCORDANCE = 0.1
"""Of needles, for the power that is stated before reading: two versions find most of the same ones."""


class PromotionRecord(Decision):
    """A comparison of two policies; JSON in the `promotion` column of `policies`."""

    candidate: str
    incumbent: str
    runs: dict[str, dict[str, str]]
    """Run ids by suite and side."""
    questions: dict[str, int]
    """Counts (`pipelines.promotion_questions.Questions`)."""
    power: PowerRecord
    """As stated before reading."""
    tested_on: list[str]
    """Names of the needles and of the texts, by which later checks know what was looked at before."""
    spec: dict[str, Any]
    seconds: float


def run_promotion(
    config: Config,
    candidate_id: str,
    incumbent: str | None = None,
    spec: PromotionSpec | None = None,
    show: Progress | None = None,
) -> PromotionRecord:
    """Compare a candidate with the promoted policy, and promote or refuse it; return the record.

    The incumbent is by default the promoted version, or the base model of the lineage: `engine.model` is that, or a
    version of it.

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
    since = current["changed_at"] if current and incumbent == current_id else None
    spec = spec or PromotionSpec()
    with used(Corpus(store, "_promotion"), new_run_id(), wait=config.wait, show=show):
        questions = find_questions(store, spec, "promotion", since, trained_files=trained_files(store, row))
        record = _compare(config, (candidate, incumbent), spec, questions=questions, show=show)
    if record["promoted"]:
        promote(store, candidate, record["reason"], dict(record), instead_of=current_id)
    else:
        refuse(store, candidate, record["reason"], dict(record))
    return record


def compare_policies(
    config: Config, candidate: str, incumbent: str, spec: PromotionSpec | None = None, show: Progress | None = None
) -> PromotionRecord:
    """Read tests like the promotion check's with two policies and decide between them; no status changes.

    These are validation questions and needles of another seed: who chooses among versions by them has not looked at
    what decides on promotion.

    Raises:
        UsageError: both are the same policy, they cannot be compared, or there are no tests.
        MemagentError: an engine cannot be started, or all readings of a policy failed.
    """
    spec = spec or PromotionSpec()
    spec = spec.model_copy(update={"seed": spec.seed + _COMPARED})
    store = Store(config.store)
    with used(Corpus(store, "_promotion"), new_run_id(), wait=config.wait, show=show):
        questions = find_questions(store, spec, "validation")
        return _compare(config, (candidate, incumbent), spec, questions=questions, show=show)


def _compare(
    config: Config, models: tuple[str, str], spec: PromotionSpec, questions: Questions, show: Progress | None
) -> PromotionRecord:
    began = time.monotonic()
    _check_engine(config)
    configs = _configs(config, *models)
    readers = {side: ReaderSpec(settings) for side, settings in configs.items()}
    ids = {side: reader.policy.policy_id for side, reader in readers.items()}
    if ids["candidate"] == ids["incumbent"]:
        raise UsageError(f"{models[0]} and {models[1]} are one policy: {ids['candidate']}")
    if len({reader.tokenizer.fingerprint for reader in readers.values()}) > 1:
        raise UsageError(f"{ids['candidate']} and {ids['incumbent']} have different tokenizers: no test fits both")
    suites = _suites(spec, readers["incumbent"].reading.segment_tokens, questions)
    if not suites:
        raise UsageError(
            "the promotion check has no tests: give kinds of needles, or corpora with promotion questions that people "
            "answered (memagent feedback) or that came with answers"
        )
    tested_on = _names(suites, questions)
    look = _look(policies(Store(config.store)), ids["incumbent"], tested_on)
    power = state(_planned(suites, spec, questions), alpha=spec.alpha, look=look, correlation=spec.correlation)
    stated = (
        f"a gain of {power['gain']:.0%} is found with a probability of {power['power']:.0%} (n={power['questions']:,} "
        f"in {power['documents']:,} documents, level {power['alpha']:.2g})"
    )
    _log.log(logging.WARNING if power["warning"] else logging.INFO, "%s", power["warning"] or stated)
    groups, runs = [], {}
    with lazy_ray(config.ray):
        for name, suite in suites.items():
            results = {side: _read(suite, configs[side], spec, show) for side in configs}
            runs[name] = {side: run_id for side, (run_id, _) in results.items()}
            groups += _groups(spec, questions, results["candidate"][1], results["incumbent"][1])
    return {
        "candidate": ids["candidate"],
        "incumbent": ids["incumbent"],
        **decide(groups, power["alpha"], spec.correlation),
        "runs": runs,
        "questions": questions.counts,
        "power": power,
        "tested_on": tested_on,
        "spec": spec.model_dump(mode="json"),
        "seconds": round(time.monotonic() - began, 1),
    }


def _look(rows: Sequence[PolicyRow], incumbent: str, tested_on: Sequence[str]) -> int:
    """Return the number of this look, from 1: how many candidates were compared with the same policy on any of this."""
    earlier = [row["promotion"] for row in rows if row["promotion"]]
    mine = set(tested_on)
    same = [record for record in earlier if record.get("incumbent") == incumbent]
    return 1 + sum(not mine.isdisjoint(record["tested_on"]) for record in same)


def _names(suites: dict[str, Suite], questions: Questions) -> list[str]:
    """Name the needles, whose first ones are the same however many there are, and the texts of the questions."""
    made = [suites["needles"]] if "needles" in suites else []
    pairs = [(one.seed, kind, length) for one in made for kind in one.kinds for length in one.lengths]
    return ["/".join(map(str, pair)) for pair in pairs] + [name[:12] for name in questions.texts]


def _planned(suites: dict[str, Suite], spec: PromotionSpec, questions: Questions) -> list[PlannedGroup]:
    planned = []
    if needles := suites.get("needles"):
        of_a_length = (1,) * (needles.n * len(needles.kinds))
        planned += [PlannedGroup(of_a_length, spec.needle_margin, _NEEDLE_DISCORDANCE)] * len(needles.lengths)
    for group in dict.fromkeys(one.group for one in questions.asked.values()):
        sizes = Counter(one.document for one in questions.asked.values() if one.group == group)
        planned.append(PlannedGroup(tuple(sizes.values()), spec.margin, spec.discordance))
    return planned


def _suites(spec: PromotionSpec, segment_tokens: int, questions: Questions) -> dict[str, Suite]:
    suites = {}
    if spec.kinds:
        lengths = spec.lengths_for(segment_tokens)
        suites["needles"] = Suite("needles", kinds=spec.kinds, lengths=lengths, n=spec.n, seed=spec.seed)
    if questions.path is not None:
        suites["questions"] = Suite("files", data=(str(questions.path),), n=questions.counts["asked"], seed=spec.seed)
    return suites


def _read(suite: Suite, config: Config, spec: PromotionSpec, show: Progress | None) -> tuple[str, list[ResultRow]]:
    """Evaluate a policy on a suite; return the run's id and the judged samples."""
    texts = spec.texts if suite.is_made else ()
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


def _groups(
    spec: PromotionSpec, questions: Questions, candidate: list[ResultRow], incumbent: list[ResultRow]
) -> list[QuestionGroup]:
    """Group the samples of a suite: needles by length, shortest first; questions by corpus.

    The earlier questions of a corpus are a group once more: a batch of wrong gold teaches the candidate and is asked of
    it, but does not reach what stood before.
    """
    sides = [{row["sample_id"]: row for row in rows} for rows in (candidate, incumbent)]
    if sides[0].keys() != sides[1].keys():
        raise MemagentError("the policies were not given the same samples: run the promotion check again")

    def group(name: str, members: list[str], margin: float) -> QuestionGroup:
        rows = ([side[sample_id] for sample_id in members] for side in sides)
        ours, theirs = (tuple(None if row["answer"] is None else float(row["score"]) for row in side) for side in rows)
        documents = tuple(questions.asked[one].document if one in questions.asked else one for one in members)
        return QuestionGroup(name, ours, theirs, documents, margin=margin, small=spec.small_groups)

    needles: dict[str, list[str]] = defaultdict(list)
    asked: dict[str, list[str]] = defaultdict(list)
    for sample_id, row in sorted(sides[0].items(), key=lambda item: item[1]["length"]):
        if sample_id in questions.asked:
            asked[questions.asked[sample_id].group].append(sample_id)
        else:
            needles[f"needles at {row['length']:,} tokens"].append(sample_id)
    groups = [group(name, members, spec.needle_margin) for name, members in needles.items()]
    for name, members in asked.items():
        groups.append(group(name, members, spec.margin))
        earlier = [one for one in members if questions.asked[one].earlier]
        if 0 < len(earlier) < len(members):
            part = group(f"earlier {name}", earlier, spec.margin)
            groups.append(replace(part, small="observe", part=True))
    return groups


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
