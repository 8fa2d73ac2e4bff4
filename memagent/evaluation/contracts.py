"""Real contracts (CUAD, The Atticus Project, CC BY 4.0, arXiv 2103.06268): questions, where the answers stand, what to
note. CUAD is a folder: gold.jsonl beside contracts/.
"""

import hashlib
import re
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from memagent.errors import UsageError
from memagent.evaluation.texts import Sample, Whole
from memagent.questions import FileRow, RowNames, json_rows, read_text


@dataclass(frozen=True, slots=True)
class Gold:
    """CUAD's annotation of one category in one contract."""

    file: str
    category: str
    question: str
    """CUAD's wording; empty if the file gives none."""
    answer: str
    """Empty: the contract does not say."""
    spans: tuple[str, ...]
    """Annotated clauses, some not verbatim."""
    row: FileRow


def read_gold(folder: Path) -> Iterator[Gold]:
    """Yield the rows of CUAD's ``gold.jsonl``, lazily.

    Raises:
        UsageError: it is missing or malformed: names file, line and field.
    """
    path = folder / "gold.jsonl"
    if not path.is_file():
        raise UsageError(f"{folder} has no gold.jsonl. Give the folder that holds gold.jsonl and contracts/.")
    names = RowNames()
    for row in json_rows(path):
        file, category = row.text("file"), row.text("category")
        if Path(file).name != file:
            raise row.wrong("file", f"{file!r} is no name of a file in contracts/.")
        names.add(row, "category", f"{file}/{category}")
        question = "" if row.values.get("question") is None else " ".join(row.text("question").split())
        spans = row.texts("spans", blank=True) if row.list("spans") else ()
        answer = row.text("answer", blank=True).strip()
        kept = tuple(span for span in spans if span.strip())
        yield Gold(file, category, question=question, answer=answer, spans=kept, row=row)


Category = Literal["Document Name", "Agreement Date", "Governing Law"]
CATEGORIES: tuple[Category, ...] = get_args(Category)
HELD_OUT = 80

_DATA = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
QUESTIONS: dict[Category, tuple[str, ...]] = {name: tuple(_DATA["questions"][name]) for name in CATEGORIES}
"""Wordings of questions; the first of each is the usual one, the second the wording of CUAD."""
REWORDED: dict[Category, tuple[str, ...]] = {name: tuple(_DATA["reworded"][name]) for name in CATEGORIES}
"""Wordings unseen in supervised training, like those of users. The last of each is in no training at all."""
GROUPS: dict[str, tuple[str, ...]] = {name: tuple(categories) for name, categories in _DATA["categories"].items()}
"""Names for all categories of a sort."""
ENTITIES, YES_NO = GROUPS["entity"], GROUPS["yes/no"]
"""Categories whose gold is a name, place, date or duration, blank where the contract does not say; and those whose gold
is Yes or No: is there such a clause?"""
_QUESTIONS: dict[str, str] = {name: wordings[0] for name, wordings in QUESTIONS.items()} | _DATA["descriptions"]
_MONTH = "(?:January|February|March|April|May|June|July|August|September|October|November|December)"
DATE = re.compile(
    rf"(?i){_MONTH}\s++\d{{1,2}}\s*+(?:(?:st|nd|rd|th)\s*+)?(?:,\s*+)?\d{{4}}"
    rf"|\d{{1,2}}\s*+(?:(?:st|nd|rd|th)\s*+)?(?:day\s++)?(?:of\s++)?{_MONTH}\s*+(?:,\s*+)?\d{{4}}"
    rf"|\d{{1,2}}/\d{{1,2}}/\d{{2,4}}"
)


@dataclass(frozen=True, slots=True)
class Contract:
    """A contract with its gold answers."""

    name: str
    text: str
    answers: dict[Category, str]
    """Gold answers as CUAD gives them; empty: the contract does not say."""
    spans: dict[Category, tuple[tuple[int, int], ...]]
    """Where the gold clauses stand, all occurrences, for taking them out."""


def held_out(names: Iterable[str], count: int = HELD_OUT) -> set[str]:
    """Return the names kept for evaluation: the `count` smallest by hash, whatever the order."""
    return set(sorted(set(names), key=lambda name: hashlib.sha256(name.encode()).hexdigest())[:count])


def load_contracts(folder: Path) -> list[Contract]:
    """Read ``gold.jsonl`` and ``contracts/`` of a folder, ordered by name.

    Raises:
        UsageError: the folder does not hold them.
    """
    rows: dict[str, dict[str, Gold]] = {}
    for gold in read_gold(folder):
        rows.setdefault(gold.file, {})[gold.category] = gold
    files = [path for name in sorted(rows) if (path := folder / "contracts" / name).is_file()]
    if not files:
        raise UsageError(f"{folder}/contracts holds none of the files that gold.jsonl names.")
    return [_contract(file.name, file.read_text(encoding="utf-8", errors="replace"), rows[file.name]) for file in files]


def split(contracts: Sequence[Contract]) -> tuple[list[Contract], list[Contract]]:
    """Return (training, held out) contracts."""
    apart = held_out(contract.name for contract in contracts)
    training = [contract for contract in contracts if contract.name not in apart]
    return training, [contract for contract in contracts if contract.name in apart]


def remove_answer(text: str, spans: Iterable[tuple[int, int]]) -> str:
    """Return `text` without the characters of `spans`, which may overlap."""
    pieces: list[str] = []
    end_before = 0
    for start, end in sorted(spans):
        if start > end_before:
            pieces.append(text[end_before:start])
        end_before = max(end_before, end)
    pieces.append(text[end_before:])
    return "".join(pieces)


def _contract(name: str, text: str, rows: dict[str, Gold]) -> Contract:
    contract = Contract(name, text, {}, spans={})
    for category in CATEGORIES:
        gold = rows.get(category)
        answer = gold.answer if gold else ""
        where = {match.span() for span in (gold.spans if gold else ()) for match in spaced(span).finditer(text)}
        contract.answers[category], contract.spans[category] = answer, tuple(sorted(where))
    return contract


def spaced(words: str) -> re.Pattern[str]:
    """Return a pattern for words in any case and with any white space between them."""
    return re.compile(r"\s+".join(re.escape(word) for word in words.split()) or r"(?!)", re.IGNORECASE)


def contract_samples(
    folder: str | Path, categories: Iterable[str] | None = None, count: int | None = None
) -> Iterator[Sample]:
    """Yield the samples of the held-out contracts (`memagent.evaluation.contracts.held_out`), by contract and category.

    `categories` are names of CUAD's or of `GROUPS`, and `count` the first contracts that are read; by default all.

    The question is the first wording that training used for its three categories, else CUAD's own. Gold is one text,
    blank where the contract does not say; `contract_match.right` judges by ``about["category"]``. Facts
    are the annotated clauses that stand in the text verbatim, and ``about["clauses"]`` is how many were annotated: gold
    may be blank where there is a clause that gives no answer (an expiration "upon completion of the work").

    Raises:
        UsageError: the folder does not hold gold.jsonl and the contracts that it names, or they are malformed, or a
            category is not one of CUAD's.
    """
    folder = Path(folder)
    wanted = {category for name in categories or GROUPS for category in GROUPS.get(name, (name,))}
    if unknown := sorted(wanted - {*ENTITIES, *YES_NO}):
        known = ", ".join((*GROUPS, *ENTITIES, *YES_NO))
        raise UsageError(f"No category of CUAD: {', '.join(unknown)}. Known are {known}.")
    by_file: dict[str, list[Gold]] = {}
    for gold in read_gold(folder):
        if gold.category not in ENTITIES and gold.category not in YES_NO:
            raise gold.row.wrong("category", f"{gold.category!r} is no category of CUAD.")
        by_file.setdefault(gold.file, []).append(gold)
    if missing := sorted(file for file in by_file if not (folder / "contracts" / file).is_file()):
        # Which contracts are held out hangs on all of their names.
        raise UsageError(f"{folder / 'contracts'} lacks {len(missing)} contracts of gold.jsonl, first {missing[0]!r}.")
    for file in sorted(held_out(by_file))[:count]:
        text = read_text(folder / "contracts" / file, "contract")
        whole = Whole(text)
        for gold in by_file[file]:
            if gold.category in wanted:
                yield _sample(gold, text, whole)


def _sample(gold: Gold, text: str, whole: Whole) -> Sample:
    question = _QUESTIONS.get(gold.category) or gold.question
    if not question:
        raise gold.row.wrong("question", f"{gold.category} has none.")
    facts = tuple(dict.fromkeys(span for span in gold.spans if span in text))
    return Sample(
        sample_id=f"{gold.file}/{gold.category}",
        task=gold.category,
        length=0,
        pieces=whole,
        question=question,
        answers=(gold.answer,),
        match="contract",
        facts=facts,
        depth=min(text.index(fact) for fact in facts) / len(text) if facts else None,
        about={
            "category": gold.category,
            "kind": "entity" if gold.category in ENTITIES else "yes/no",
            "document": gold.file,
            "clauses": len(gold.spans),
        },
    )
