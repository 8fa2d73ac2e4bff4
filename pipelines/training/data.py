"""The data of a training run, made by name (`memagent.rl.dataset.DATASETS`)."""

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import combinations

from infra.sources.dataset_files import DatasetFile, split_rows
from infra.store.buckets import one_of
from infra.store.corpora import corpora
from infra.store.delta import Table
from infra.store.documents import default_texts, document_texts
from infra.store.location import Corpus, Store
from infra.store.qa import read_qa
from infra.store.schemas import AnswerRow
from infra.store.segments import fitting, segment_bounds
from memagent.errors import TrainingError, UsageError
from memagent.evaluation.metrics import exact_match
from memagent.quality.curation import Qa, Split
from memagent.rl.audit import audit
from memagent.rl.config import AuditKind
from memagent.rl.dataset import (
    DATASETS,
    Cut,
    Dataset,
    DatasetRequest,
    DatasetSplits,
    LoggedReading,
    Mixed,
    dataset_name,
)
from memagent.rl.sources import RowDataset, fit_rows
from pipelines.stages.make_samples import haystack
from pipelines.training.settings import TrainingRun
from pipelines.views.memory import histories

_log = logging.getLogger("memagent.training")
_OTHER_WORDS: dict[AuditKind, float] = {"gold-missing": 0.2}
"""People's gold and corrections may be in other words than their documents'."""
_ANSWER = ["corpus", "reading_id", "content_hash", "scope", "segments", "answer", "evidence"]
_SIDES: tuple[Split, ...] = ("train", "validation")
_VALIDATION_SEED = 1_000_003
"""A different seed from training's, so that validation has other needles."""


def splits(run: TrainingRun) -> DatasetSplits:
    """Return a run's training and validation datasets; several data sets are mixed evenly.

    Raises:
        UsageError: a data set is unknown, its data are missing or of one answer only, or a question is in two of the
            files for training, validation and promotion.
    """
    if not run.data:
        raise UsageError(
            "no training data: give --dataset FILE, --data qa, --data needles or --data contracts=FOLDER; repeat to mix"
        )
    parts = [_make(run, spec) for spec in run.data]
    validation = _mixed([part.validation for part in parts], _VALIDATION_SEED)
    rows = {"training": [row for part in parts if isinstance(part.train, RowDataset) for row in part.train.rows]}
    if run.files.validation:
        held_out = DatasetFile(run.files.validation, run.files.columns)
        validation = RowDataset(_cut(run), held_out.rows, held_out.text, _VALIDATION_SEED, alone=True)
        rows["validation"] = held_out.rows
    if run.files.promotion:
        rows["promotion"] = DatasetFile(run.files.promotion, run.files.columns).rows
    _check_apart(rows)
    return DatasetSplits(
        _mixed([part.train for part in parts], run.recipe.stage.seed),
        validation,
        sum(part.gone for part in parts),
        {kind: share for part in parts for kind, share in part.allowed.items()},
    )


def _check_apart(rows: Mapping[str, Sequence[Qa]]) -> None:
    """Refuse a question on a text that is asked for two purposes; warn of a text that is asked of for two."""
    for first, second in combinations(rows, 2):
        known = {row.qa_id for row in rows[first]}
        both = [row for row in rows[second] if row.qa_id in known]
        if both:
            raise UsageError(
                f"{len(both)} of {len(rows[second])} questions for {second} are for {first} as well, for example "
                f"{both[0].question!r}: give each question to one file"
            )
        texts = {name for row in rows[first] for name in row.stream}
        shared = texts.intersection(name for row in rows[second] for name in row.stream)
        if shared:
            _log.warning("%d texts are for %s and for %s: scores on them are too good", len(shared), first, second)


def audited(run: TrainingRun) -> DatasetSplits:
    """Return a run's datasets after their audit (`memagent.rl.audit`); what a reward pays on purpose is a warning.

    Raises:
        UsageError: as `splits`; or tasks violate what none may, more of them than the recipe allows.
    """
    data, weights = splits(run), run.recipe.reward.weights
    report = audit((data.train, data.validation), weights, run.recipe.audit.tasks)
    for warning in (*report.refuse({**data.allowed, **run.recipe.audit.allowed}, weights), *report.left_out):
        _log.warning("%s", warning)
    return data


def harvested(request: DatasetRequest) -> DatasetSplits:
    """Return the harvested rows of a corpus (the request's argument), or of all.

    Raises:
        UsageError: a split has no rows, or all training rows have the same answer.
    """
    store, corpus = Store(request.store_url), request.argument or None
    present = {text for name in corpora(store) for text in default_texts(Corpus(store, name))}
    rows = {side: read_qa(store, corpus, split=side) for side in _SIDES}
    kept = {side: [row for row in rows[side] if present.issuperset(row.stream)] for side in _SIDES}
    gone = sum(len(rows[side]) - len(kept[side]) for side in _SIDES)
    if gone and not kept["train"]:
        raise UsageError(f"the documents of all {gone} harvested rows are gone: ingest them again, or harvest others")
    train = fit_rows(kept["train"], taught=request.taught)
    readings = logged_readings(store, train, request.cut) if request.taught else {}
    if not kept["validation"] and request.taught:
        kept["validation"] = train  # the teacher's training validates nothing
    if not kept["validation"]:
        raise UsageError("no harvested row is on the validation side: harvest more documents")

    @lru_cache(maxsize=256)
    def text(content_hash: str) -> str:
        for name in corpora(store):
            for _, document in document_texts(Corpus(store, name), [content_hash]):
                return document
        raise TrainingError(f"the document {content_hash} of a harvested row is gone: memagent harvest CORPUS again")

    validation = RowDataset(request.cut, kept["validation"], text, request.validation_seed)
    data = RowDataset(request.cut, train, text, request.seed, readings=readings)
    return DatasetSplits(data, validation, gone, _OTHER_WORDS)


def logged_readings(store: Store, rows: Sequence[Qa], cut: Cut) -> dict[str, LoggedReading]:
    """Return the readings that gave rows their answers, by reading_id, as far as the teacher can follow them.

    They are of one document, in one span, answered as the row does, and are whole in the turn log, with no memory that
    was cut off. No more segments changed the memory than a task may have.
    """
    gold = {row.reading_id: row.answers for row in rows if row.reading_id}
    answers: dict[str, dict[str, AnswerRow]] = defaultdict(dict)
    for answer in Table(store, "answers").read(None, _ANSWER, one_of("reading_id", gold)).to_pylist():
        right = exact_match(answer["answer"], gold[answer["reading_id"]])
        if answer["scope"] == "document" and right:
            answers[answer["corpus"]].setdefault(answer["reading_id"], answer)
    found: dict[str, LoggedReading] = {}
    for name, of in answers.items():
        corpus = Corpus(store, name)
        bounds = segment_bounds(corpus, {answer["content_hash"] for answer in of.values()})
        for reading_id, history in histories(corpus, of).items():
            answer = of[reading_id]
            cut_at = fitting(bounds[answer["content_hash"]], answer["segments"], answer["evidence"])
            steps = [one.step for one in history.read]
            whole = history.spans == 1 and not history.answer_cut and steps == list(range(len(steps)))
            changes = {change.segment: change.after for change in history.changes if not change.cut}
            if cut_at and whole and len(changes) == len(history.changes) <= cut.most:
                found[reading_id] = LoggedReading(answer["content_hash"], cut_at[: len(steps)], changes)
    _log.info("the teacher follows the logged readings of %d of %d harvested rows", len(found), len(rows))
    return found


def from_file(request: DatasetRequest) -> DatasetSplits:
    """Return the questions of the file that is the request's argument; a tenth is held out, texts and all.

    Raises:
        UsageError: the file cannot be read, or nothing can be held out, or all have one answer.
    """
    file = DatasetFile(request.argument, request.columns)
    train, validation = split_rows(file.rows) if request.split else (file.rows, file.rows)
    return DatasetSplits(
        RowDataset(request.cut, fit_rows(train), lru_cache(maxsize=256)(file.text), request.seed, alone=True),
        RowDataset(request.cut, validation, file.text, request.validation_seed, alone=True),
    )


def _make(run: TrainingRun, spec: str) -> DatasetSplits:
    name = dataset_name(spec)
    request = DatasetRequest(
        argument=spec[len(name) + 1 :],
        cut=_cut(run),
        texts=lambda: haystack(run.texts),
        seed=run.recipe.stage.seed,
        validation_seed=_VALIDATION_SEED,
        store_url=run.config.store,
        columns=run.files.columns,
        split=not run.files.validation,
        taught=run.recipe.rollout.teacher,
    )
    return DATASETS.find(name)(request)


def _cut(run: TrainingRun) -> Cut:
    return Cut(run.reader.tokenizer, run.reader.reading, run.recipe.rollout.segments)


def _mixed(parts: list[Dataset], seed: int) -> Dataset:
    return parts[0] if len(parts) == 1 else Mixed(tuple(parts), (1.0,) * len(parts), seed)
