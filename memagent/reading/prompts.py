"""Prompt templates as data, compiled to token ids.

A template file holds the wording of the two conversations of a reading (memory update and final
answer; MemAgent, arXiv 2507.02259, table 1) in both layouts. It is tokenised once; documents,
questions and memories are spliced in as ids. Its hash is part of every reading's identity.
"""

import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Literal

import regex

from memagent.errors import ConfigError
from memagent.reading.providers import TAGS, without_reasoning
from memagent.reading.tokens import Tokenizer
from memagent.records import stable_hash
from memagent.settings import read_shipped

Layout = Literal["question-first", "section-first"]
SHIPPED = Path(__file__).parent / "templates"
_SLOT = re.compile(r"\{(question|memory|segment)\}")
_SAYS_NOTHING = regex.compile(r"[\p{P}\p{Z}\p{C}\p{Sk}\p{M}]*")
"""An answer of punctuation; a sign, such as ✓ or €, is one."""
FRAME = ("before", "after", "end")
"""Keys of a template that are the model's, and in no file."""
_REQUIRED = {"update": {"question", "memory", "segment"}, "answer": {"question", "memory"}}


@dataclass(frozen=True, slots=True)
class Template:
    """The wording of a reading, as read from a template file."""

    name: str
    no_memory: str
    not_found: str
    update: dict[str, str]
    answer: dict[str, str]
    chat: bool = False
    """The rendered prompt is the text of one user message: for chat endpoints as it is, for engines that take token ids
    within the model's own chat template (`memagent.reading.chat`)."""
    stop: list[str] = field(default_factory=list)
    same: str = ""
    """What the policy writes when a segment changes nothing (``gate``)."""
    gate_hint: str = ""
    exit: str = ""
    """What the policy writes when it has read enough (``early_exit``)."""
    exit_hint: str = ""
    reasoning_end: str = ""
    """Text before this marker in a response is dropped, as before the closing tags that are known
    (`memagent.reading.providers.TAGS`)."""
    answer_pattern: str = ""
    """Regular expression; group 1 of its last match in the response is the answer."""
    before: str = ""
    """What the model's chat template has before a user's message."""
    after: str = ""
    """What it has after it."""
    end: str = ""
    """What it has after a response: its first token ends one."""

    @property
    def hash(self) -> str:
        """Hash of the whole wording."""
        whole = {name: getattr(self, name) for name in self.__dataclass_fields__}
        # Of a wording without a frame the hash is that of before there were frames: its readings stay valid.
        return stable_hash({name: value for name, value in whole.items() if value or name not in FRAME})


def load_template(name_or_path: str) -> Template:
    """Load a template by the name of a shipped file, or by path.

    Raises:
        ConfigError: no such file, or a key or slot is missing or unknown.
    """
    path, data = read_shipped(name_or_path, SHIPPED, "prompt template")
    known = {key.name: key for key in fields(Template) if key.name not in FRAME}
    for name in data:
        if name not in known:
            raise ConfigError(f"prompt template {path}: unknown key {name!r}; known: {', '.join(known)}")
    for name, key in known.items():
        if name not in data and key.default is MISSING and key.default_factory is MISSING:
            raise ConfigError(f"prompt template {path}: the key {name!r} is missing")
    template = Template(**data)
    for part, layouts in (("update", template.update), ("answer", template.answer)):
        for layout in ("question-first", "section-first"):
            if layout not in layouts:
                raise ConfigError(f"prompt template {path}: [{part}] has no {layout!r}")
            missing = _REQUIRED[part] - set(_SLOT.findall(layouts[layout]))
            if missing:
                slots = ", ".join("{" + slot + "}" for slot in sorted(missing))
                raise ConfigError(f"prompt template {path}: [{part}] {layout!r} lacks {slots}")
    return template


@dataclass(frozen=True, slots=True)
class Update:
    """The parsed response to an update prompt."""

    memory_ids: list[int]
    changed: bool
    done: bool
    """The policy needs no further segment (early exit)."""


class Prompts:
    """A template compiled for one tokenizer, layout and set of options."""

    def __init__(
        self, template: Template, tokenizer: Tokenizer, layout: Layout, *, gate: bool = False, early_exit: bool = False
    ) -> None:
        """Compile.

        Raises:
            ConfigError: a stop marker is not a token of the model, or an option that the template
                has no marker for is switched on.
        """
        if gate and not template.same:
            raise ConfigError(f"template {template.name!r} has no `same` marker: switch reading.gate off")
        if early_exit and not template.exit:
            raise ConfigError(f"template {template.name!r} has no `exit` marker: switch reading.early_exit off")
        self.template = template
        self.tokenizer = tokenizer
        stops = [*tokenizer.literal(template.end)[:1], *(_stop_id(tokenizer, template, stop) for stop in template.stop)]
        # A server that takes messages ends responses itself.
        self.stop_ids = tuple(dict.fromkeys(stops if template.chat else [*stops, *tokenizer.ends]))
        hints = {
            "{gate_hint}": template.gate_hint if gate else "",
            "{exit_hint}": template.exit_hint if early_exit else "",
        }
        self._frame = tokenizer.literal(template.before), tokenizer.literal(template.after)
        self._update = self.framed(compile_slots(template.update[layout], tokenizer, hints))
        self._answer = self.framed(compile_slots(template.answer[layout], tokenizer, hints))
        self.no_memory = tokenizer.literal(template.no_memory)
        self._same = tokenizer.literal(template.same) if gate else []
        self._exit = tokenizer.literal(template.exit) if early_exit else []
        ends = [f"{part[layout]}{template.after}".rstrip() for part in (template.update, template.answer)]
        self._not_found = _words(template.not_found)
        self._opened = next((opening for opening in TAGS if any(end.endswith(opening) for end in ends)), "")

    def framed(self, pieces: list[list[int] | str]) -> list[list[int] | str]:
        """Return a compiled message within the model's chat template."""
        before, after = self._frame
        return [*([before] if before else []), *pieces, *([after] if after else [])]

    def update(self, question: list[int], memory: list[int], segment: list[int]) -> list[int]:
        """Return the ids of a memory-update prompt."""
        return splice(self._update, {"question": question, "memory": memory, "segment": segment})

    def answer(self, question: list[int], memory: list[int]) -> list[int]:
        """Return the ids of the final-answer prompt."""
        return splice(self._answer, {"question": question, "memory": memory})

    def parse(self, prompt: list[int]) -> dict[str, list[int]] | None:
        """Parse a prompt into its slots; None if it was not made from this template.

        Exact where the template's literals are control tokens; otherwise a document that contains
        them is cut at the first place.
        """
        return _unsplice(self._update, prompt) or _unsplice(self._answer, prompt)

    def unchanged(self, memory: list[int]) -> list[int]:
        """Return the response that leaves the memory unchanged: the marker, or a copy of the memory."""
        return list(self._same or memory)

    def overhead(self, question: list[int]) -> int:
        """Tokens of an update prompt besides memory and segment."""
        return len(self.update(question, [], []))

    def read_update(self, response: list[int], memory: list[int]) -> Update:
        """Interpret a response to an update prompt, given the memory before it."""
        ids = self.body(response)
        enough = bool(self._exit) and ids[-len(self._exit) :] == self._exit
        if enough:
            ids = ids[: len(ids) - len(self._exit)]
        if not ids or ids == self._same:
            return Update(memory, changed=False, done=enough)
        return Update(ids, changed=ids != memory, done=enough)

    def read_answer(self, response: list[int]) -> tuple[str, bool]:
        """Interpret a response to the answer prompt: (answer, found). Not found gives an empty answer."""
        text = self.tokenizer.decode(self.body(response)).strip()
        if self.template.answer_pattern:
            matches = re.findall(self.template.answer_pattern, text, flags=re.DOTALL)
            if matches:
                text = str(matches[-1]).strip()
        words = _words(text)
        if words == self._not_found or (not words and _SAYS_NOTHING.fullmatch(text)):
            return "", False
        return text, True

    def memory_text(self, ids: list[int]) -> str:
        """Return a memory as text; no memory is an empty text."""
        return "" if ids == self.no_memory else self.tokenizer.decode(ids).strip()

    def body(self, response: list[int], *, cut: bool = False) -> list[int]:
        """Return a response without its end and its reasoning; none if it holds no text besides.

        If it was `cut` at its limit, what is left beside reasoning is a fragment, and not returned.
        """
        ids = list(response)
        if ids and ids[-1] in self.stop_ids:
            ids.pop()
        text = self._opened + self.tokenizer.decode(ids, special=True)
        said = without_reasoning(text, self.template.reasoning_end).strip()
        if said == text.strip():
            return ids if said else []
        if cut or not said:
            return []

        def left(start: int) -> str:
            return self.tokenizer.decode(ids[start:], special=True).strip()

        # The model's own ids are kept where a token begins with the text. They get fewer from left to right.
        start = bisect_right(range(len(ids)), -len(said), key=lambda start: -len(left(start))) - 1
        return ids[start:] if start >= 0 and left(start) == said else self.tokenizer.encode(said)


def compile_slots(text: str, tokenizer: Tokenizer, hints: Mapping[str, str]) -> list[list[int] | str]:
    """Turn a wording into token ids, with the names of its slots between them.

    Slots are ``{question}``, ``{memory}`` and ``{segment}``; the model's control tokens are recognised; `hints` are
    placeholders that are replaced by a text first.
    """
    for mark, hint in hints.items():
        text = text.replace(mark, hint)
    pieces: list[list[int] | str] = []
    for i, part in enumerate(_SLOT.split(text)):
        if i % 2:
            pieces.append(part)
        elif part:
            pieces.append(tokenizer.literal(part))
    return pieces


def splice(pieces: Sequence[list[int] | str], slots: Mapping[str, list[int]]) -> list[int]:
    """Fill the slots of a compiled wording."""
    ids: list[int] = []
    for piece in pieces:
        ids.extend(slots[piece] if isinstance(piece, str) else piece)
    return ids


def _unsplice(pieces: list[list[int] | str], ids: list[int]) -> dict[str, list[int]] | None:
    slots: dict[str, list[int]] = {}
    end, slot = 0, None
    for piece in pieces:
        if isinstance(piece, str):
            slot = piece
            continue
        start = _find(ids, piece, end)
        if start is None or (slot is None and start != end):
            return None
        if slot is not None:
            slots[slot], slot = ids[end:start], None
        end = start + len(piece)
    if slot is not None:
        slots[slot], end = ids[end:], len(ids)
    return slots if end == len(ids) else None


def _find(ids: list[int], part: list[int], start: int) -> int | None:
    for begin in range(start, len(ids) - len(part) + 1):
        if ids[begin : begin + len(part)] == part:
            return begin
    return None


def _stop_id(tokenizer: Tokenizer, template: Template, stop: str) -> int:
    stop_id = tokenizer.id(stop)
    if stop_id is None:
        raise ConfigError(
            f"template {template.name!r} ends responses with {stop!r}, which is not a token of this model. "
            "Choose another template with --set reading.template=NAME."
        )
    return stop_id


def _words(text: str) -> str:
    return re.sub(r"[\W_]+", " ", text.lower()).strip()
