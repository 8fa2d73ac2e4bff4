"""The exercises of a run: one course for training, one for validation."""

import sysconfig
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

from infra.documents import document_texts
from infra.qa import read_qa
from infra.store import Store
from memagent.errors import TrainingError, UsageError
from memagent.harvest import Qa, Split
from memagent.nano.texts import load_texts
from memagent.rl.courses import ContractCourse, Cut, NeedleCourse, halves
from memagent.rl.exercises import Course, Mixed
from memagent.rl.rows import RowCourse, fit_rows
from pipelines.training.settings import Run

_VALIDATION_SEED = 1_000_003
"""Added to the seed, so that validation asks other needles than training."""


def courses(run: Run) -> tuple[Course, Course]:
    """Return the courses of training and of validation.

    Raises:
        UsageError: a course is unknown, or its data are missing or of one answer only.
    """
    if not run.data:
        raise UsageError("train on what? --data qa, --data needles or --data contracts=FOLDER; several are mixed")
    pairs = [_course(run, name) for name in run.data]
    seed = run.recipe.stage.seed
    return _mixed([pair[0] for pair in pairs], seed), _mixed([pair[1] for pair in pairs], _VALIDATION_SEED)


def _mixed(parts: list[Course], seed: int) -> Course:
    return parts[0] if len(parts) == 1 else Mixed(tuple(parts), (1.0,) * len(parts), seed)


def _course(run: Run, name: str) -> tuple[Course, Course]:
    recipe = run.recipe
    cut = Cut(run.reader.tokenizer, run.reader.reading, recipe.rollout.segments)
    seed, other = recipe.stage.seed, _VALIDATION_SEED
    kind, _, value = name.partition("=")
    if kind == "needles":
        learnt, held = halves(_texts(run.texts))
        return NeedleCourse(cut, learnt, seed), NeedleCourse(cut, held, other)
    if kind == "contracts":
        folder = Path(value)
        return ContractCourse(cut, folder, seed), ContractCourse(cut, folder, other, validation=True)
    if kind.split(":")[0] == "qa":
        return _rows(run, cut, kind.partition(":")[2] or None)
    raise UsageError(f"no course {name!r}. There are: qa, qa:CORPUS, needles, contracts=FOLDER.")


def _rows(run: Run, cut: Cut, corpus: str | None) -> tuple[Course, Course]:
    store, stage = Store(run.config.store), run.recipe.stage
    learnt = fit_rows(_known(store, corpus, "train"), 0.0, 1.0)
    held = _known(store, corpus, "validation")
    if not held:
        raise UsageError("no harvested row is on the validation side: harvest more documents")
    text = lru_cache(maxsize=256)(_reader(store))
    return RowCourse(cut, learnt, text, stage.seed), RowCourse(cut, held, text, _VALIDATION_SEED)


def _known(store: Store, corpus: str | None, split: Split) -> list[Qa]:
    return read_qa(store, corpus, split=split)


def _reader(store: Store) -> Callable[[str], str]:
    from infra.corpora import corpora

    def text(content_hash: str) -> str:
        for corpus in corpora(store):
            for _, found in document_texts(store, corpus, [content_hash]):
                return found
        raise TrainingError(f"the document {content_hash} of a harvested row is gone: memagent harvest CORPUS again")

    return text


@lru_cache(maxsize=2)
def _texts(paths: tuple[str, ...]) -> list[str]:
    return load_texts([Path(path) for path in paths or (sysconfig.get_paths()["purelib"],)])
