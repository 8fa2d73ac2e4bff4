"""Training data from a few hundred contracts, varied by cutting, swapping, planting and removing clauses."""

import random
import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace

from examples.nano.batching import Example, Tree
from examples.nano.contract_places import Fact, NeedlePlace, led, note_places, other_laws
from examples.nano.needle_data import BRANCHES, Turns
from memagent.evaluation.contracts import CATEGORIES, DATE, QUESTIONS, Category, Contract
from memagent.evaluation.needles import plant
from memagent.reading.segmenting import segments
from memagent.records import Segment

_MONTHS = (
    "January", "February", "March", "April", "May", "June",
    "July", "August", "September", "October", "November", "December",
)  # fmt: skip
_NAMES = """
Alabama, Alaska, Arizona, Arkansas, California, Colorado, Connecticut, Delaware, Florida, Georgia, Hawaii,
Idaho, Illinois, Indiana, Iowa, Kansas, Kentucky, Louisiana, Maine, Maryland, Massachusetts, Michigan,
Minnesota, Mississippi, Missouri, Montana, Nebraska, Nevada, New Hampshire, New Jersey, New Mexico, New
York, North Carolina, North Dakota, Ohio, Oklahoma, Oregon, Pennsylvania, Rhode Island, South Carolina,
South Dakota, Tennessee, Texas, Utah, Vermont, Virginia, Washington, West Virginia, Wisconsin, Wyoming,
England and Wales, England, Scotland, Ireland, Canada, Ontario, British Columbia, Quebec, Alberta, France,
Germany, Switzerland, Italy, Spain, Japan, China, Hong Kong, Singapore, India, Australia, New South Wales,
Victoria, New Zealand, Israel, Brazil, Mexico, Sweden, Norway, Denmark, Finland, Poland, Austria, Belgium
"""
_STATES = tuple(" ".join(name.split()) for name in _NAMES.split(","))
_CLAUSES = (
    "This Agreement shall be governed by and construed in accordance with the laws of the State of {law}.",
    "This Agreement is governed by the laws of {law}, without regard to its conflict of laws principles.",
    "Governing Law. The laws of the State of {law} shall govern this Agreement and its interpretation.",
    "This Agreement and all disputes arising hereunder shall be construed under the law of {law}.",
    "The validity and performance of this Agreement shall be governed by {law} law.",
    "The parties agree that this contract is to be interpreted according to the internal laws of {law}.",
    "This Agreement shall be deemed made in, and governed by the laws of, {law}.",
)
_DISTANT = (
    "The Company is a corporation organized and existing under the laws of the State of {law}.",
    "The supplier shall comply with all applicable laws of {law}.",
    "Any action shall be brought in the courts of {law}, as permitted by law.",
    "a limited liability company duly formed under the laws of {law}, with its principal office there.",
)
_HARD = re.compile(r"(?i)\blaws?\b|\bdated\b|\bgovern|\bagreement,? (?:is|was|dated)|\d{4}\b|\bexhibit\b")
_REACH = 5000
"""Characters around the place that a window is cut from."""
_NOTES = 2
"""Turns of a segment that are preferred to be notes, where it has any."""


class ContractData:
    """Windows of contracts and the gold answers in them, varied at each draw."""

    def __init__(self, turns: Turns, contracts: Sequence[Contract], texts: Sequence[str], seed: int) -> None:
        self._turns = turns
        self._contracts = list(contracts)
        self._texts = texts
        self.rng = random.Random(seed)
        self._places = {k.name: {c: note_places(k, c) for c in CATEGORIES} for k in self._contracts}
        self._with = {c: [k for k in self._contracts if self._places[k.name][c]] for c in CATEGORIES}
        self._notes = {c: [p for k in self._with[c] for p in self._places[k.name][c]] for c in CATEGORIES}

    def tree(self, segment_tokens: int) -> Tree:
        """Return one segment of a window and `BRANCHES` update turns on it."""
        while True:
            text, places, unsure = self._window()
            cut = list(segments("", text, self._turns.prompts.tokenizer, segment_tokens))
            segment = self._chosen(cut, places)
            if len(segment.token_ids) > segment_tokens:
                continue
            examples = self._branches(segment, places, unsure)
            if len(examples) >= BRANCHES:
                return self._turns.tree(examples[:BRANCHES], segment)

    def answers(self, count: int) -> list[Tree]:
        """Return answer turns, each a tree without a common prefix."""
        rng = self.rng
        trees: list[Tree] = []
        while len(trees) < count:
            category = rng.choice(CATEGORIES)
            note = self._varied_note(category)
            noted = note if rng.random() < 0.85 else None
            fact = Fact(rng.choice(QUESTIONS[category]), (note,))
            if example := self._turns.answer(fact, noted, "contract"):
                trees.append(Tree([], [example]))
        return trees

    def _window(self) -> tuple[str, dict[Category, list[NeedlePlace]], list[tuple[int, int]]]:
        """Return a text, the places in it, and the spans that are neither right nor wrong."""
        rng = self.rng
        draw = rng.random()
        if draw < 0.08:
            return self._planted()
        if draw < 0.3:  # the clause of the governing law
            contract = rng.choice(self._with["Governing Law"])
            around = rng.choice(self._places[contract.name]["Governing Law"]).start
        elif draw < 0.72:  # the beginning: title and date
            contract = rng.choice(self._contracts)
            around = 0
        elif draw < 0.87:  # what resembles an answer but is none
            contract = rng.choice(self._contracts)
            hits = [match.start() for match in _HARD.finditer(contract.text)]
            around = rng.choice(hits) if hits else 0
        else:
            contract = rng.choice(self._contracts)
            around = rng.randrange(len(contract.text))
        return self._cut(contract, around)

    def _cut(
        self, contract: Contract, around: int
    ) -> tuple[str, dict[Category, list[NeedlePlace]], list[tuple[int, int]]]:
        rng = self.rng
        low = 0 if around == 0 and rng.random() < 0.6 else max(0, around - rng.randrange(_REACH // 2))
        if around == 0 and rng.random() < 0.3:  # begin within the lines above the title
            first = min((p.start for p in self._places[contract.name]["Document Name"]), default=0)
            low = rng.randrange(first + 1) if first < _REACH else 0
        high = min(len(contract.text), low + _REACH)
        window = contract.text[low:high]
        edited = _Edited(window, self._edits(contract, low, high))
        places = {
            category: [
                edited.place(p.start - low, p.end - low, len(p.value.strip()))
                for p in self._places[contract.name][category]
                if low <= p.start and p.end <= high
            ]
            for category in CATEGORIES
        }
        gold = [(start - low, end - low) for start, end in contract.spans["Governing Law"]]
        unsure = [(edited.at(start), edited.at(end)) for start, end in other_laws(window, gold)]
        return edited.text, places, unsure

    def _edits(self, contract: Contract, low: int, high: int) -> list[tuple[int, int, str]]:
        """Choose what to swap in a window: governing laws, and dates in all their occurrences."""
        rng = self.rng
        edits: list[tuple[int, int, str]] = []
        if rng.random() < 0.6:
            new = rng.choice(_STATES)
            for place in self._places[contract.name]["Governing Law"]:
                if low <= place.start and place.end <= high:
                    old = place.value.strip()
                    name = new.upper() if old.isupper() else new
                    edits.append((place.end - len(old) - low, place.end - low, name))
        if rng.random() < 0.6:
            swapped: dict[str, str] = {}
            for match in DATE.finditer(contract.text, low, high):
                old = match.group()
                date = swapped.setdefault(" ".join(old.split()), self._date_like(old))
                edits.append((match.start() - low, match.end() - low, date))
        return edits

    def _date_like(self, old: str) -> str:
        """Return another date in the form of `old`."""
        rng = self.rng
        parts = re.split(r"(\d+|[A-Za-z]+)", old)
        for i, part in enumerate(parts):
            if part.isdigit():
                parts[i] = str(rng.randint(1990, 2022)) if len(part) == 4 else str(rng.randint(1, 28))
            elif part.capitalize() in _MONTHS:
                month = rng.choice(_MONTHS)
                parts[i] = month.upper() if part.isupper() else month
        if "/" in old:
            parts[1] = str(rng.randint(1, 12))
        return "".join(parts)

    def _planted(self) -> tuple[str, dict[Category, list[NeedlePlace]], list[tuple[int, int]]]:
        """Plant a clause of our own wording, and what resembles it, in another text."""
        rng = self.rng
        source = rng.choice(self._texts)
        start = rng.randrange(max(1, len(source) - _REACH))
        text = source[start : start + rng.randrange(200, _REACH // 2)]
        law = rng.choice(_STATES)
        wording = rng.choice(_CLAUSES)
        clause = wording.format(law=law)
        sentences = [rng.choice(_DISTANT).format(law=rng.choice(_STATES)) for _ in range(rng.randint(0, 2))]
        present = rng.random() < 0.7
        text, spans = plant(text, [clause, *sentences] if present else sentences, rng)
        if not present:
            return text, {category: [] for category in CATEGORIES}, []
        law_start = spans[0][0] + wording.index("{law}")
        before = [m.start() for m in re.finditer(r"(?i)\blaws?\b", text[spans[0][0] : law_start])]
        begin = spans[0][0] + before[-1] if before else law_start
        place = NeedlePlace(begin, law_start + len(law), " " + text[begin : law_start + len(law)], " " + law)
        return text, {"Document Name": [], "Agreement Date": [], "Governing Law": [place]}, []

    def _chosen(self, cut: list[Segment], places: dict[Category, list[NeedlePlace]]) -> Segment:
        telling = [s for s in cut if any(Fact("", tuple(p)).update(s, None) for p in places.values())]
        return self.rng.choice(telling if telling and self.rng.random() < 0.75 else cut)

    def _branches(
        self, segment: Segment, places: dict[Category, list[NeedlePlace]], unsure: list[tuple[int, int]]
    ) -> list[Example]:
        rng = self.rng
        order = [*CATEGORIES, *CATEGORIES, *CATEGORIES]
        doubtful = any(start < segment.char_end and segment.char_start < end for start, end in unsure)
        examples: list[Example] = []
        for category in order:
            known = Fact(rng.choice(QUESTIONS[category]), tuple(places[category]))
            local = known.update(segment, None)
            if category == "Governing Law" and doubtful and not local:
                continue
            if not local and any(p.note in segment.text for p in known.places):
                continue  # the same words beside the gold place: neither right nor wrong
            noted: NeedlePlace | None = None
            if rng.random() < (0.15 if local else 0.2):
                noted = rng.choice([*known.places, self._varied_note(category)])
                known = replace(known, places=(*known.places, noted))
            if example := self._turns.update(known, segment, noted, category.split()[-1].lower()):
                examples.append(example)
        rng.shuffle(examples)
        # Most segments of a contract hold nothing; without some preference there is too little to note.
        examples.sort(key=lambda example: not example.kind.endswith("/note"))
        first, rest = examples[:_NOTES], examples[_NOTES:]
        rng.shuffle(rest)
        return first + rest

    def _varied_note(self, category: Category) -> NeedlePlace:
        rng = self.rng
        place = rng.choice(self._notes[category])
        note, value = place.note, place.value
        if category == "Governing Law" and rng.random() < 0.7:
            law = rng.choice(_STATES)
            cut = note.rindex(value)
            note, value = note[:cut] + value.replace(value.strip(), law), value.replace(value.strip(), law)
        if category == "Agreement Date" and rng.random() < 0.7:
            note = value = DATE.sub(lambda match: self._date_like(match.group()), note)
        return NeedlePlace(-1, -1, note, value)


class _Edited:
    """A text after some swaps, with a map of its offsets."""

    def __init__(self, text: str, edits: list[tuple[int, int, str]]) -> None:
        pieces: list[str] = []
        self._old, self._new = [0], [0]
        end_before = length = 0
        for start, end, new in sorted(edits):
            if start < end_before:
                continue
            pieces += [text[end_before:start], new]
            length += start - end_before + len(new)
            end_before = end
            self._old.append(end)
            self._new.append(length)
        self.text = "".join([*pieces, text[end_before:]])

    def at(self, old: int) -> int:
        """Return the place in the new text of one in the old text, which must not lie within a swap."""
        i = bisect_right(self._old, old) - 1
        return self._new[i] + old - self._old[i]

    def place(self, start: int, end: int, value: int) -> NeedlePlace:
        """Return the place that stood at `start` to `end` and closed with `value` characters of answer."""
        first, last = self.at(start), self.at(end)
        begin = self.at(end - value)
        return NeedlePlace(first, last, led(self.text, first, last), led(self.text, begin, last))
