"""The questions of a promotion check: of the promotion split, with gold from people or from the question's author."""

import json
import logging
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Literal

from infra.maintenance.erasure import PROMOTIONS
from infra.models import cache_folder
from infra.sources.dataset_files import DatasetFile
from infra.store.corpora import check_known
from infra.store.delta import Table
from infra.store.documents import document_texts
from infra.store.location import Corpus, Store, file_system
from infra.store.policies import policies
from infra.store.qa import from_row, read_rows, taught_texts
from infra.store.schemas import POLICIES_OF, PolicyRow, QaRow
from memagent.evaluation.records import Columns, columns_of
from memagent.evaluation.ruler import write_jsonl
from memagent.evaluation.texts import Sample, Whole
from memagent.quality.curation import VOUCHED, Qa, Split, families
from memagent.records import half, stable_hash
from memagent.rl.dataset import dataset_name
from memagent.rl.promotion import PromotionSpec

_log = logging.getLogger("memagent.promotion")
_TASK = "questions"
_OTHERS: dict[Split, tuple[Literal["train", "validation"], ...]] = {
    "promotion": ("train", "validation"),
    "validation": ("train",),
}
"""Splits whose texts a question of a split must not be of."""
_COUNTS = ("there", "asked", "unvouched", "trained_on", "without_text")


@dataclass(frozen=True, slots=True)
class PromotionTarget:
    """A question of a check."""

    group: str
    document: str
    """The cluster of its documents: documents that one question is asked of together are in one."""
    earlier: bool = False
    """Its gold is from before the incumbent was promoted, so nothing that taught the candidate can have made it."""


@dataclass(frozen=True, slots=True)
class Questions:
    """Questions as a file of samples."""

    path: Path | None
    """None: there are none."""
    counts: dict[str, int]
    """Questions in the tables and files (``there``), asked (``asked``), and left out: not vouched for by people
    (``unvouched``), on a text that is trained on in some corpus or file (``trained_on``), or whose documents are gone
    (``without_text``)."""
    asked: dict[str, PromotionTarget] = field(default_factory=dict)
    """By the evaluation's sample_id."""
    texts: tuple[str, ...] = ()
    """Content hashes of what they are asked of."""


@dataclass(frozen=True, slots=True)
class _Question:
    where: str
    """Its corpus or file."""
    qa: Qa
    earlier: bool = False

    @property
    def documents(self) -> list[str]:
        return [f"{self.where}/{name}" for name in self.qa.documents or self.qa.stream]


def find_questions(
    store: Store,
    spec: PromotionSpec,
    split: Split,
    since: datetime | None = None,
    trained_files: Sequence[tuple[str, Columns | None]] = (),
) -> Questions:
    """Write the questions of a split of the spec's corpora, and of its files, to a file of samples.

    The file is named by its content. The promotion questions decide; the validation questions choose, without the
    files. Questions on texts of `trained_files`, by which the candidate was made, are left out. If there are too
    many, the choice depends only on the seed and their ids, and takes as many documents as there are: a further
    document tells more than a further question on one. They are scored by token F1, since exact containment would
    reward an answer that repeats the document. `since` says when the incumbent was promoted.

    Raises:
        UsageError: a file cannot be read.
    """
    counts = Counter(dict.fromkeys(_COUNTS, 0))
    questions: list[_Question] = []
    text_of: dict[str, Callable[[str], str]] = {}
    for corpus in dict.fromkeys(spec.corpora):
        check_known(Corpus(store, corpus))
        questions += _harvested(read_rows(store, corpus, [split]), since, counts)
    for name in dict.fromkeys(spec.data if split == "promotion" else ()):
        file = DatasetFile(name, columns_of(spec.columns))
        text_of[name] = file.text
        counts["there"] += len(file.rows)
        questions += [_Question(name, row, earlier=since is not None) for row in file.rows]
    # A text may be in two corpora under two names, and the names decide on the split.
    taught = taught_texts(store, _OTHERS[split]) if questions else set()
    for name, columns in trained_files if questions else ():
        known_by = columns_of(spec.columns) if columns is None else columns
        taught.update(*(row.stream for row in DatasetFile(name, known_by).rows))
    unseen = [one for one in questions if taught.isdisjoint(one.qa.stream)]
    chosen = _choose(unseen, spec.questions, spec.seed)
    samples = list(_samples(store, chosen, text_of))
    counts += Counter(
        asked=len(samples), trained_on=len(questions) - len(unseen), without_text=len(chosen) - len(samples)
    )
    known = {name: counts[name] for name in _COUNTS}
    if not samples:
        return Questions(None, known)
    path = _file(store, split, [sample for _, sample in samples])
    # Documents that one question is asked of together are a family, as documents with one text are.
    clusters = families((name, f"{one.where}/{one.qa.qa_id}") for one in chosen for name in one.documents)
    asked = {
        f"{path.stem}-{sample.sample_id}": PromotionTarget(
            f"questions of {_shown(one.where, text_of)}", clusters[one.documents[0]], one.earlier
        )
        for one, sample in samples
    }
    texts = tuple(sorted({name for one, _ in samples for name in one.qa.stream}))
    return Questions(path, known, asked, texts)


def _shown(where: str, files: Collection[str]) -> str:
    """Return a file's name without its folders, if no other file has it, or a corpus's name."""
    name = where.rsplit("/", 1)[-1]
    return name if where in files and sum(path.rsplit("/", 1)[-1] == name for path in files) == 1 else where


def trained_files(store: Store, version: PolicyRow) -> list[tuple[str, Columns | None]]:
    """Return the files of questions by which a version and those before it were trained or chosen, and their columns.

    Files that are gone are left out. Columns are None where an earlier release did not keep them.
    """
    known, line = {row["policy_id"]: row for row in policies(store)}, [version]
    while line[-1]["parent"] in known:
        line.append(known.pop(line[-1]["parent"]))
    runs = {one["run_id"] for one in line}
    found: dict[tuple[str, Columns | None], None] = {}
    for row in Table(store, "runs").read(POLICIES_OF, ["run_id", "summary"]).to_pylist():
        summary = json.loads(row["summary"])
        if row["run_id"] not in runs or "data" not in summary:
            continue
        columns = Columns(**summary["columns"]) if "columns" in summary else None
        paths = [spec.partition("=")[2] for spec in summary["data"] if dataset_name(spec) == "file"]
        for path in filter(None, (*paths, summary.get("chosen_by"))):
            if file_system(path).exists(path.removeprefix("s3://")):
                found[path, columns] = None
            else:
                _log.warning("%s is gone: its texts cannot be left out of the promotion check's questions", path)
    return list(found)


def _harvested(rows: Sequence[QaRow], since: datetime | None, counts: Counter[str]) -> Iterator[_Question]:
    vouched = [row for row in rows if row["source"] in VOUCHED]
    counts += Counter(there=len(rows), unvouched=len(rows) - len(vouched))
    for row in vouched:
        earlier = since is not None and row["harvested_at"] is not None and row["harvested_at"] <= since
        yield _Question(row["corpus"], from_row(row), earlier)


def _choose(questions: Sequence[_Question], most: int, seed: int) -> list[_Question]:
    """Choose by lot: a question of each document, then a second one, and so on."""
    drawn = sorted(questions, key=lambda one: stable_hash(seed, one.where, one.qa.qa_id))
    turn: Counter[str] = Counter()
    ranked = []
    for one in drawn:
        document = min(one.documents)
        ranked.append((turn[document], one))
        turn[document] += 1
    return [one for _, one in sorted(ranked, key=lambda item: item[0])[:most]]


def _samples(
    store: Store, questions: Sequence[_Question], text_of: dict[str, Callable[[str], str]]
) -> Iterator[tuple[_Question, Sample]]:
    texts: dict[tuple[str, str], str] = {}
    hashes: dict[str, set[str]] = defaultdict(set)
    for one in questions:
        hashes[one.where].update(one.qa.stream)
    for where, names in hashes.items():
        if where in text_of:
            texts |= {(where, name): text_of[where](name) for name in names}
        else:
            texts |= {(where, name): text for name, text in document_texts(Corpus(store, where), names)}
    for one in questions:
        parts = [texts.get((one.where, name)) for name in one.qa.stream]
        text = "\n\n".join(part for part in parts if part is not None)
        if None in parts or not text.strip() or half(text + one.qa.question + "".join(one.qa.answers)):
            continue
        sample = Sample(
            sample_id=f"{one.where}/{one.qa.qa_id}",
            task=_TASK,
            length=0,
            pieces=Whole(text),
            question=one.qa.question,
            answers=one.qa.answers,
            match="f1",
        )
        yield one, sample


def _file(store: Store, split: Split, samples: list[Sample]) -> Path:
    """Write samples to a file on this machine, and to the store."""
    name = f"{split}.jsonl"
    with tempfile.TemporaryDirectory() as folder:
        aside = Path(folder) / name
        write_jsonl(samples, aside)
        data = aside.read_bytes()
    parts = (PROMOTIONS, stable_hash(data.decode("ascii"))[:12], name)
    path = Path(store.write_bytes(data, *parts))
    if store.is_s3:
        path = Path(Store(str(cache_folder())).write_bytes(data, *parts))
    return path
