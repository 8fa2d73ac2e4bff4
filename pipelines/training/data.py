"""The exercises of a run: one course for training, one for validation."""

import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from infra.store import Corpus, Store
from infra.tables.corpora import corpora
from infra.tables.documents import document_texts, standing_texts
from infra.tables.qa import read_qa
from memagent.curation import Split
from memagent.errors import TrainingError, UsageError
from memagent.nano.texts import load_texts
from memagent.rl.dataset import Dataset, Mixed
from memagent.rl.sources import ContractCourse, Cut, NeedleCourse, RowCourse, fit_rows, halves
from pipelines.training.settings import Run

_SIDES: tuple[Split, ...] = ("train", "validation")
_VALIDATION_SEED = 1_000_003
"""Added to the seed, so that validation asks other needles than training."""


@dataclass(frozen=True, slots=True)
class Courses:
    """What a run learns from, and what it is validated with."""

    learnt: Dataset
    held: Dataset
    gone: int = 0
    """Harvested rows that are left out, since their documents are no longer there."""


def courses(run: Run) -> Courses:
    """Return the courses of a run.

    Raises:
        UsageError: a course is unknown, or its data are missing or of one answer only.
    """
    if not run.data:
        raise UsageError("train on what? --data qa, --data needles or --data contracts=FOLDER; several are mixed")
    parts = [_course(run, name) for name in run.data]
    learnt = _mixed([part.learnt for part in parts], run.recipe.stage.seed)
    return Courses(learnt, _mixed([part.held for part in parts], _VALIDATION_SEED), sum(part.gone for part in parts))


def _mixed(parts: list[Dataset], seed: int) -> Dataset:
    return parts[0] if len(parts) == 1 else Mixed(tuple(parts), (1.0,) * len(parts), seed)


def _course(run: Run, name: str) -> Courses:
    recipe = run.recipe
    cut = Cut(run.reader.tokenizer, run.reader.reading, recipe.rollout.segments)
    seed, other = recipe.stage.seed, _VALIDATION_SEED
    kind, _, value = name.partition("=")
    if kind == "needles":
        learnt, held = halves(_texts(run.texts))
        return Courses(NeedleCourse(cut, learnt, seed), NeedleCourse(cut, held, other))
    if kind == "contracts":
        folder = Path(value)
        return Courses(ContractCourse(cut, folder, seed), ContractCourse(cut, folder, other, validation=True))
    if kind.split(":")[0] == "qa":
        return _rows(run, cut, kind.partition(":")[2] or None)
    raise UsageError(f"no course {name!r}. There are: qa, qa:CORPUS, needles, contracts=FOLDER.")


def _rows(run: Run, cut: Cut, corpus: str | None) -> Courses:
    store, stage = Store(run.config.store), run.recipe.stage
    there = {text for name in corpora(store) for text in standing_texts(Corpus(store, name))}
    rows = {side: read_qa(store, corpus, split=side) for side in _SIDES}
    kept = {side: [row for row in rows[side] if there.issuperset(row.stream)] for side in _SIDES}
    gone = sum(len(rows[side]) - len(kept[side]) for side in _SIDES)
    if gone and not kept["train"]:
        raise UsageError(f"the documents of all {gone} harvested rows are gone: ingest them again, or harvest others")
    learnt = fit_rows(kept["train"], 0.0, 1.0)
    if not kept["validation"]:
        raise UsageError("no harvested row is on the validation side: harvest more documents")
    text = lru_cache(maxsize=256)(_reader(store))
    held = RowCourse(cut, kept["validation"], text, _VALIDATION_SEED)
    return Courses(RowCourse(cut, learnt, text, stage.seed), held, gone)


def _reader(store: Store) -> Callable[[str], str]:
    def text(content_hash: str) -> str:
        for corpus in corpora(store):
            for _, found in document_texts(Corpus(store, corpus), [content_hash]):
                return found
        raise TrainingError(f"the document {content_hash} of a harvested row is gone: memagent harvest CORPUS again")

    return text


@lru_cache(maxsize=2)
def _texts(paths: tuple[str, ...]) -> list[str]:
    return load_texts([Path(path) for path in paths or (sysconfig.get_paths()["purelib"],)])
