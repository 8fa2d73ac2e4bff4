"""What style sheets change of what a page says: how words and lists look, and numbers before elements (CSS Lists 3)."""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any, NamedTuple

from infra.sources.base import counted

_KINDS = {
    **{"lower-alpha": "lowerLetter", "lower-latin": "lowerLetter", "upper-alpha": "upperLetter"},
    **{"upper-latin": "upperLetter", "lower-roman": "lowerRoman", "upper-roman": "upperRoman", "none": "none"},
    **{"lower-greek": "lowerGreek", "decimal": "decimal", "decimal-leading-zero": "decimalZero"},
    **dict.fromkeys(("disc", "circle", "square"), BULLET := "bullet"),
}
"""Kinds of numbers in style sheets -> those of `counted`."""
_LIST_STYLE = re.compile(r"(?<![\w-])list-style(?:-type)?\s*:([^;]*)", re.I)
_NO_RULE = re.compile(
    r"/\*.*?(?:\*/|\Z)|<!--|-->|@[^;{@]*;|@media[^{@]*\{(?:[^{}]*\{[^{}]*\})*[^{}]*\}", re.DOTALL | re.I
)
_DECLARED = re.compile(
    r"(?<![\w-])(counter-reset|counter-increment|content|display|vertical-align|text-decoration|list-style)"
    r"(?:-line|-type)?\s*:((?:\"[^\"]*\"|'[^']*'|[^;\"'])*)",
    re.I,
)
_COUNTING = ("counter-reset", "counter-increment", "content")
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


class StyleRule(NamedTuple):
    """What a style sheet declares of the elements that fit a selector, or of what stands before them."""

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

    @property
    def weight(self) -> tuple[int, int]:
        """How much it weighs against others: by its classes, then by its tags."""
        return sum(len(part.classes) for part in self.selector), sum(
            part.tag not in ("", "*") for part in self.selector
        )

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


def style_rules(sheets: Iterable[str], *, is_mail: bool = False) -> list[StyleRule]:
    """Return the rules of style sheets that change what a page says, those whose selectors are simple.

    Elements that a page hides are read, since a click may show them; a mail (`is_mail`) has no clicks.
    """
    found = []
    for block in (block for sheet in sheets for block in _NO_RULE.sub("", sheet).split("}")):
        selectors, _, said = block.rpartition("{")
        declared = {name.lower(): text.strip() for name, text in _DECLARED.findall(said)}
        if not is_mail or not declared.get("display", "").lower().startswith("none"):
            declared.pop("display", None)
        names = re.sub(r"\s*([>,])\s*", r"\1", " ".join(selectors.rpartition("{")[2].split())) if declared else ""
        for selector in filter(None, names.split(",")):
            parts = list(_COMPOUND.finditer(own := _BEFORE.sub("", selector)))
            if parts and "".join(part[0] for part in parts) == own:
                simple = [_Compound(part[2], frozenset(part[3].split(".")[1:]), part[1] is not None) for part in parts]
                found.append(StyleRule(tuple(simple), own != selector, declared))
    return found


def apply_styles(tree: Any, rules: Iterable[StyleRule]) -> None:
    """Give the elements of a page (lxml) what rules declare of them as styles of their own.

    Numbers that a browser shows before an element are written into it.
    """
    rules, by_key = sorted(rules, key=lambda rule: rule.weight), defaultdict[str, list[int]](list)
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
        own = [f"{name}:{said}" for (before, name), said in declared.items() if not before and name not in _COUNTING]
        if own:
            element.set("style", "; ".join([*own, element.get("style", "")]))
        for is_before in (False, True) if declared else ():
            counters.reset(element, declared.get((is_before, "counter-reset"), ""))
            counters.increment(element, declared.get((is_before, "counter-increment"), ""))
        if said := counters.content(element, declared.get((True, "content"), "")).strip():
            element.text = f"{said} {(element.text or '').lstrip()}"
            if element.tag == "li":  # its own number is hidden somehow
                element.set("style", f"{element.get('style', '')}; list-style: none")


def list_style(element: Any) -> str:
    """Return the kind of numbers that an element's style asks for; empty: it asks for none."""
    given = [word for said in _LIST_STYLE.findall(element.get("style", "")) for word in said.lower().split()]
    return next((_KINDS[word] for word in reversed(given) if word in _KINDS), "")


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
        kind = _KINDS.get(style.lower(), "decimal")
        numbers = [counted(value, kind) for value in values]
        return numbers[-1] if between is None else _unescaped(between).join(numbers)


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(lambda sign: chr(min(int(sign[1], 16), 0x10FFFF)) if sign[1] else sign[2], text)
