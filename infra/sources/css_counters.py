"""Numbers that style sheets write before elements, such as clauses and items of lists (CSS Lists 3, counters)."""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from infra.sources.base import counted

STYLES = {
    **{"lower-alpha": "lowerLetter", "lower-latin": "lowerLetter", "upper-alpha": "upperLetter"},
    **{"upper-latin": "upperLetter", "lower-roman": "lowerRoman", "upper-roman": "upperRoman", "none": "none"},
}
"""Kinds of numbers in style sheets -> those of `counted`; any other is decimal."""
_COUNTS = re.compile(r"(?<![\w-])(counter-reset|counter-increment|content)\s*:((?:\"[^\"]*\"|'[^']*'|[^;\"'])*)", re.I)
_COMPOUND = re.compile(r"(?:^|(>)| )(?=[\w.*])(\*|[\w-]*)((?:\.[\w-]+)*)")
_BEFORE = re.compile(r"::?before$", re.I)
_CHANGE = re.compile(r"([\w-]+)(?:\s+(-?\d{1,6}))?")
_TEXT = r"\"((?:[^\"\\]|\\.)*)\"|'((?:[^'\\]|\\.)*)'"
_CONTENT = re.compile(rf"{_TEXT}|counter(s?)\(\s*([\w-]+)\s*(?:,\s*(?:{_TEXT})\s*)?(?:,\s*([\w-]+)\s*)?\)", re.I)
_ESCAPE = re.compile(r"\\(?:([0-9a-fA-F]{1,6})\s?|(.))", re.DOTALL)


class _Compound(NamedTuple):
    """A part of a selector; `is_child`: of an element that fits the part before it, and not only within one."""

    tag: str
    classes: frozenset[str]
    is_child: bool

    def fits(self, element: Any) -> bool:
        return self.tag in ("", "*", element.tag) and self.classes <= set(element.get("class", "").split())


class CounterRule(NamedTuple):
    """A rule that counts elements, or writes a count before them."""

    selector: tuple[_Compound, ...]
    is_before: bool
    declared: Mapping[str, str]

    @property
    def key(self) -> str:
        """Return a class of the elements that fit or, after ``>``, of their parents; else their tag."""
        *others, own = self.selector
        if own.classes:
            return f".{min(own.classes)}"
        if own.is_child and others and others[-1].classes:
            return f">{min(others[-1].classes)}"
        return own.tag or "*"

    def fits(self, element: Any) -> bool:
        """Whether an element fits the selector; of several that it may be within, the nearest counts."""
        *others, own = self.selector
        if not own.fits(element):
            return False
        is_child = own.is_child
        for part in reversed(others):
            above = islice(element.iterancestors(), 1 if is_child else None)
            if (element := next(filter(part.fits, above), None)) is None:
                return False
            is_child = part.is_child
        return True


def counter_rules(rules: Iterable[tuple[str, str]]) -> list[CounterRule]:
    """Return those of a style sheet's rules (selectors, declarations) that count; of selectors, such as are simple."""
    found = []
    for selectors, said in rules:
        declared = {name.lower(): value for name, value in _COUNTS.findall(said)}
        for selector in re.sub(r"\s*([>,])\s*", r"\1", " ".join(selectors.split())).split(","):
            parts = list(_COMPOUND.finditer(own := _BEFORE.sub("", selector)))
            if declared and parts and "".join(part[0] for part in parts) == own:
                simple = [_Compound(part[2], frozenset(part[3].split(".")[1:]), part[1] is not None) for part in parts]
                found.append(CounterRule(tuple(simple), own != selector, declared))
    return found if any("counter" in said for rule in found for said in rule.declared.values()) else []


def write_counters(tree: Any, rules: Sequence[CounterRule]) -> None:
    """Write into the elements of a page (lxml) the numbers that a browser shows before them."""
    by_key = defaultdict[str, list[int]](list)
    for index, rule in enumerate(rules):
        by_key[rule.key].append(index)
    counters = _Counters()
    for element in tree.iter("*") if rules else ():
        names, parent = element.get("class", "").split(), element.getparent()
        outer = parent.get("class", "").split() if parent is not None else ()
        keys = {*(f".{name}" for name in names), *(f">{name}" for name in outer), element.tag, "*"}
        declared: dict[tuple[bool, str], str] = {}
        for index in sorted(index for key in keys for index in by_key.get(key, ())):
            if rules[index].fits(element):
                declared |= {(rules[index].is_before, name): said for name, said in rules[index].declared.items()}
        for is_before in (False, True) if declared else ():
            counters.reset(element, declared.get((is_before, "counter-reset"), ""))
            counters.increment(element, declared.get((is_before, "counter-increment"), ""))
        if said := counters.content(element, declared.get((True, "content"), "")).strip():
            element.text = f"{said} {(element.text or '').lstrip()}"
            if element.tag == "li" and parent.tag == "ol":  # its own numbers are hidden somehow
                parent.set("style", f"list-style: none; {parent.get('style', '')}")


class _Counters:
    """Counters by name, the innermost last: the element in which each holds, and its value."""

    def __init__(self) -> None:
        self._values = defaultdict[str, list[tuple[Any, int]]](list)

    def _reaching(self, element: Any, name: str) -> list[tuple[Any, int]]:
        values, above = self._values[name], set(element.iterancestors())
        while values and values[-1][0] not in above:
            values.pop()
        return values

    def reset(self, element: Any, said: str) -> None:
        for name, value in _CHANGE.findall(said):
            values = self._reaching(element, name)
            if values and values[-1][0] is element.getparent():
                values.pop()
            values.append((element.getparent(), int(value or 0)))

    def increment(self, element: Any, said: str) -> None:
        for name, step in _CHANGE.findall(said):
            values = self._reaching(element, name) or self._values[name]
            holder, value = values.pop() if values else (element.getparent(), 0)
            values.append((holder, value + int(step or 1)))

    def content(self, element: Any, said: str) -> str:
        """Return a text with counters; empty where it has none."""
        parts = _CONTENT.findall(said)
        if not any(name for _, _, _, name, *_ in parts):
            return ""
        return "".join(
            self._shown(element, name, style, f"{left}{right}" if every else None) if name else _unescaped(a or b)
            for a, b, every, name, left, right, style in parts
        )

    def _shown(self, element: Any, name: str, style: str, between: str | None) -> str:
        values = [value for _, value in self._reaching(element, name)] or [0]
        kind = STYLES.get(style.lower(), "decimal")
        numbers = [counted(value, kind) for value in values]
        return numbers[-1] if between is None else _unescaped(between).join(numbers)


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(lambda sign: chr(min(int(sign[1], 16), 0x10FFFF)) if sign[1] else sign[2], text)
