"""Real contracts (CUAD, The Atticus Project, CC BY 4.0): questions, where the answers stand, what to note."""

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from memagent.errors import UsageError
from memagent.tasks.teacher import NeedlePlace

Category = Literal["Document Name", "Agreement Date", "Governing Law"]
CATEGORIES: tuple[Category, ...] = get_args(Category)
HELD_OUT = 80

QUESTIONS: dict[Category, tuple[str, ...]] = {
    "Document Name": (
        "What is the name of the contract?",
        "The name of the contract",
        "What is the document name?",
        "What is this agreement called?",
        "What is the title of the contract?",
    ),
    "Agreement Date": (
        "What is the date of the contract?",
        "The date of the contract",
        "What is the agreement date?",
        "When was the agreement made?",
        "As of which date was the contract made?",
    ),
    "Governing Law": (
        "Which state's law governs the contract?",
        "Which state/country's law governs the interpretation of the contract?",
        "What is the governing law?",
        "Under which law is the agreement governed?",
        "Which law governs this agreement?",
    ),
}
"""Wordings of questions; the first of each is the usual one, the second the wording of CUAD."""

REWORDED: dict[Category, tuple[str, ...]] = {
    "Document Name": (
        "How is this document titled?",
        "What do the parties call this document?",
        "Tell me the heading of this agreement.",
        "Under which title did the parties sign this?",
    ),
    "Agreement Date": (
        "When did the parties sign this?",
        "On what day was this entered into?",
        "Tell me the day on which this was concluded.",
        "What day does this document bear?",
    ),
    "Governing Law": (
        "Whose laws apply here?",
        "Which jurisdiction's rules are used to interpret this?",
        "Tell me the law that the parties chose.",
        "Under the laws of which state would a dispute be decided?",
    ),
}
"""Wordings unseen in supervised training, like those of users. The last of each is in no training at all."""

_LAW_REACH = 120
_CLAUSE = re.compile(r"(?i)\b(?:governed|construed|interpreted|controlled)\b[^.]{0,150}\blaws?\b")
_MONTH = "(?:January|February|March|April|May|June|July|August|September|October|November|December)"
DATE = re.compile(
    rf"(?i){_MONTH}\s++\d{{1,2}}\s*+(?:(?:st|nd|rd|th)\s*+)?(?:,\s*+)?\d{{4}}"
    rf"|\d{{1,2}}\s*+(?:(?:st|nd|rd|th)\s*+)?(?:day\s++)?(?:of\s++)?{_MONTH}\s*+(?:,\s*+)?\d{{4}}"
    rf"|\d{{1,2}}/\d{{1,2}}/\d{{2,4}}"
)
_LATE = 20_000
"""Characters from the start beyond which a title or a date in passing is another document's."""


@dataclass(frozen=True, slots=True)
class Contract:
    """A contract with its gold answers."""

    name: str
    text: str
    answers: dict[Category, str]
    """Gold answers as CUAD gives them; empty: the contract does not say."""
    places: dict[Category, tuple[NeedlePlace, ...]]
    """Where a reader should note the answer; empty where none is verbatim."""
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
    gold = folder / "gold.jsonl"
    if not gold.is_file():
        raise UsageError(f"{folder} has no gold.jsonl. Give the folder that holds gold.jsonl and contracts/.")
    rows: dict[str, dict[str, tuple[str, list[str]]]] = {}
    for line in gold.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        rows.setdefault(row["file"], {})[row["category"]] = (row["answer"], row["spans"])
    contracts = []
    for name in sorted(rows):
        path = folder / "contracts" / name
        if path.is_file():
            contracts.append(_contract(name, path.read_text(encoding="utf-8", errors="replace"), rows[name]))
    if not contracts:
        raise UsageError(f"{folder}/contracts holds none of the files that {gold} names.")
    return contracts


def split(contracts: Sequence[Contract]) -> tuple[list[Contract], list[Contract]]:
    """Return (training, held out) contracts."""
    apart = held_out(contract.name for contract in contracts)
    return (
        [contract for contract in contracts if contract.name not in apart],
        [contract for contract in contracts if contract.name in apart],
    )


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


def law_places(text: str, start: int, end: int, answer: str) -> list[NeedlePlace]:
    """Return where a clause names its law: "laws of the State of Nevada", answered by "Nevada"."""
    clause = text[start:end]
    for match in _law_names(clause, answer):
        reach = max(0, match.start() - _LAW_REACH)
        laws = list(re.finditer(r"(?i)\blaws?\b", clause[reach : match.start()]))
        low = reach + laws[-1].start() if laws else match.start()
        return [_place(text, start + low, start + match.end(), start + match.start())]
    return []


def _contract(name: str, text: str, rows: dict[str, tuple[str, list[str]]]) -> Contract:
    answers: dict[Category, str] = {}
    places: dict[Category, tuple[NeedlePlace, ...]] = {}
    spans_of: dict[Category, tuple[tuple[int, int], ...]] = {}
    for category in CATEGORIES:
        answer, spans = rows.get(category, ("", []))
        answers[category] = answer
        where = [match.span() for span in spans if span.strip() for match in _spaced(span).finditer(text)]
        spans_of[category] = tuple(sorted(set(where)))
        places[category] = tuple(_notes(category, text, spans_of[category], answer))
    return Contract(name, text, answers, places=places, spans=spans_of)


def _notes(category: Category, text: str, spans: tuple[tuple[int, int], ...], answer: str) -> list[NeedlePlace]:
    if not answer:
        return []
    if category == "Governing Law":
        return [place for start, end in spans for place in law_places(text, start, end, answer)]
    places: list[NeedlePlace] = []
    for start, end in spans:
        if start < _LATE or not places:
            while end > start and text[end - 1] in " .,;:(\n\t":
                end -= 1
            if category == "Agreement Date" and (date := DATE.search(text, start, end)):
                start, end = date.span()
            places.append(_place(text, start, end, start))
    return places


def _law_names(clause: str, answer: str) -> list[re.Match[str]]:
    # Gold may say more than the clause does: "England, United Kingdom; Wales, United Kingdom".
    parts = [part.split(",")[0].strip() for part in answer.split(";")]
    for name in (answer, " and ".join(parts), parts[0]):
        if name and (matches := list(_spaced(name).finditer(clause))):
            return matches
    return []


def _place(text: str, start: int, end: int, value: int) -> NeedlePlace:
    return NeedlePlace(start, end, led(text, start, end), led(text, value, end))


def led(text: str, start: int, end: int) -> str:
    """Return a piece of `text` with the space before it, so that the note has the same tokens as the text."""
    return (" " if text[max(0, start - 1) : start] == " " else "") + text[start:end]


def other_laws(text: str, spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return clauses outside of the gold `spans` that read like a governing law: unfit as negatives."""
    gold = list(spans)
    return [
        match.span()
        for match in _CLAUSE.finditer(text)
        if not any(start < match.end() and match.start() < end for start, end in gold)
    ]


def _spaced(words: str) -> re.Pattern[str]:
    return re.compile(r"\s+".join(re.escape(word) for word in words.split()) or r"(?!)", re.IGNORECASE)
