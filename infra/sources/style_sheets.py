"""What style sheets change of what a page says: how words and lists look, and numbers before elements (CSS Lists 3)."""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
_NO_RULE = re.compile(r"/\*.*?(?:\*/|\Z)|<!--|-->|@[^;{@]*;", re.DOTALL)
_CONDITION = re.compile(
    r"@(?:media(?!\s*(?:only\s+)?(?:screen|all)\s*[,{])|supports)[^{@]*"
    r"\{(?:[^{}]++|\{(?:[^{}]++|\{[^{}]*+\})*+\})*+(?:\}|\Z)",
    re.I,
)
"""Rules that hold on some screens, or for some readers."""
_LARGE = re.compile(r"@media(?![^{]*(?:max-|print))[^{]*min-width", re.I)
_DECLARED = re.compile(
    r"(?<![\w-])(counter-reset|counter-increment|content|display|font|vertical-align|text-decoration|list-style|float|"
    r"top|position|(?:min-)?width|(?:padding|margin)(?:-left|-right|-inline(?:-start|-end)?)?)(?:-line|-type|-family)?\s*:((?:\"[^\"]*\"|'[^']*'|[^;\"'])*)",
    re.I,
)
RESET = "reset"
"""How the numbers of lists are turned off for all lists of a page: these have some where their items bring none."""
WAS, ROOM = "data-was", "data-room"
"""Attributes of an element: its tag, if it was renamed to be parsed, and what its sheets say of room beside it."""
_ROOM = re.compile(r"float|position|padding|margin|(?:min-)?width")
_COUNTING = ("counter-reset", "counter-increment", "content")
_COMPOUND = re.compile(r"(?:^|(>)| )(?=[\w.#*:])(\*|[\w-]*)((?:[.#][\w-]+|:first-child)*)")
_NAME = re.compile(r"[.#:][\w-]+")
_BEFORE = re.compile(r"::?before$", re.I)
_CHANGE = re.compile(r"([\w-]+)(?:\s+(-?\d{1,6}))?")
_TEXT = r"\"((?:[^\"\\]|\\.)*)\"|'((?:[^'\\]|\\.)*)'"
_CONTENT = re.compile(rf"{_TEXT}|counter(s?)\(\s*([\w-]+)\s*(?:,\s*(?:{_TEXT})\s*)?(?:,\s*([\w-]+)\s*)?\)", re.I)
_ESCAPE = re.compile(r"\\(?:([0-9a-fA-F]{1,6})\s?|(.))", re.DOTALL)


class _Compound(NamedTuple):
    """A part of a selector; `is_child`: of an element that fits the part before it, and not only within one."""

    tag: str
    classes: frozenset[str]
    """With their sign: classes (``.``), ids (``#``), and ``:first-child``."""
    is_child: bool

    @property
    def key(self) -> str:
        """Return an id or class of the elements that fit; else their tag."""
        return min(self.classes) if self.classes else self.tag or "*"

    def fits(self, tag: str, classes: set[str]) -> bool:
        """Whether an element of a tag and classes fits."""
        return self.tag in ("", "*", tag) and self.classes <= classes


class StyleRule(NamedTuple):
    """What a style sheet declares of the elements that fit a selector, or of what stands before them."""

    selector: tuple[_Compound, ...]
    is_before: bool
    declared: Mapping[str, str]

    @property
    def weight(self) -> tuple[int, int, int]:
        """How much it weighs against others: by its ids, then by its classes, then by its tags."""
        names = [name for part in self.selector for name in part.classes]
        ids, tags = sum(name[0] == "#" for name in names), (part.tag for part in self.selector)
        return ids, len(names) - ids, sum(tag not in ("", "*") for tag in tags)


class _Selectors:
    """Selectors of rules, which elements are matched with in their order: time grows with what they fit."""

    def __init__(self, rules: Sequence[StyleRule]) -> None:
        self._parts = defaultdict[str, dict[_Compound, dict[int, tuple[list[int], list[int]]]]](dict)
        """By key: parts of selectors; by what stands before: the rules that end with it, the beginning with it."""
        numbers = dict[tuple[int, _Compound], int]()
        """Beginnings of selectors, numbered, by the one before it and its last part; 0 is the empty one."""
        for index, rule in enumerate(rules):
            before = 0
            for part in rule.selector[:-1]:
                _, begun = self._parts[part.key].setdefault(part, {}).setdefault(before, ([], []))
                before = numbers.setdefault((before, part), len(numbers) + 1)
                if before not in begun:
                    begun.append(before)
            own = rule.selector[-1]
            self._parts[own.key].setdefault(own, {}).setdefault(before, ([], []))[0].append(index)
        self._path = list[tuple[Any, frozenset[int], frozenset[int]]]()
        """The elements that are open, with the beginnings that each fits, and that it or one around it fits."""

    def enter(self, element: Any) -> list[int]:
        """Return the indices of the rules that an element fits; its parent has been entered."""
        parent, tag = element.getparent(), element.get(WAS) or element.tag
        while self._path and self._path[-1][0] is not parent:
            self._path.pop()
        here, within = self._path[-1][1:] if self._path else (frozenset({0}), frozenset({0}))
        classes = {f".{name}" for name in element.get("class", "").split()} | {f"#{element.get('id')}"}
        classes |= {":first-child"} if element.getprevious() is None else set()
        found, fitted = list[int](), set[int]()
        for key in (tag, "*", *classes):
            for part, ends in self._parts.get(key, {}).items():
                if part.fits(tag, classes):
                    few, many = sorted((ends, here if part.is_child else within), key=len)
                    for number in (one for one in few if one in many):
                        found += ends[number][0]
                        fitted.update(ends[number][1])
        self._path.append((element, frozenset(fitted), within | fitted if fitted else within))
        return sorted(found)


def style_rules(sheets: Iterable[str], *, is_static: bool = False) -> list[StyleRule]:
    """Return the rules of style sheets that change what a page says, those whose selectors are simple.

    Elements that a page hides are read, since a click may show them; a mail or book (`is_static`) has no
    clicks, and its fonts count. The numbers of lists without a class are turned off by `RESET`.
    """
    found, read = [], [_NO_RULE.sub("", sheet) for sheet in sheets]
    conditions = (one for sheet in read for one in _CONDITION.findall(sheet) if _LARGE.match(one))
    # What small screens hide is shown on large ones.
    blocks = (names for one in conditions for names, it in _blocks(one) if it.get("display", "none")[:4] != "none")
    shown = {name for names in blocks for name in names}
    for sheet in read:
        for names, declared in _blocks(_CONDITION.sub("", sheet)):
            if not is_static:
                declared.pop("font", None)
            for selector in names:
                parts = list(_COMPOUND.finditer(own := _BEFORE.sub("", selector)))
                if parts and "".join(part[0] for part in parts) == own:
                    own_declared = dict(declared)
                    if (not is_static or selector in shown) and declared.get("display", "").lower().startswith("none"):
                        del own_declared["display"]
                    if not any(part[3] for part in parts) and declared.get("list-style", "").lower().startswith("none"):
                        # To reset all lists is a habit; what sets them up again may be a selector that is not read.
                        own_declared["list-style"] = RESET
                    named = ((part, frozenset(_NAME.findall(part[3]))) for part in parts)
                    simple = tuple(_Compound(part[2].lower(), names, bool(part[1])) for part, names in named)
                    found.append(StyleRule(simple, own != selector, own_declared))
    return found


def _blocks(sheet: str) -> Iterator[tuple[list[str], dict[str, str]]]:
    """Yield the selectors of each block that declares something, and what it declares."""
    for block in sheet.split("}"):
        selectors, _, said = block.rpartition("{")
        if declared := {name.lower(): text.strip() for name, text in _DECLARED.findall(said)}:
            names = re.sub(r"\s*([>,])\s*", r"\1", " ".join(selectors.rpartition("{")[2].split()))
            yield list(filter(None, names.split(","))), declared


def apply_styles(tree: Any, rules: Iterable[StyleRule]) -> None:
    """Give the elements of a page (lxml) what rules declare of them as styles of their own.

    Numbers that a browser shows before an element are written into it.
    """
    merged = dict[tuple[tuple[_Compound, ...], bool], Mapping[str, str]]()
    for one in rules:  # of one selector, the last place counts
        merged[one.selector, one.is_before] = {**merged.pop((one.selector, one.is_before), {}), **one.declared}
    rules = sorted((StyleRule(*key, said) for key, said in merged.items()), key=lambda rule: rule.weight)
    selectors, counters = _Selectors(rules), _Counters()
    # Sheets that count items themselves also turn off that lists do.
    counts_items = any("list-item" in rule.declared.get("counter-increment", "") for rule in rules)
    for element in tree.iter("*") if rules else ():
        declared: dict[tuple[bool, str], str] = {}
        for index in selectors.enter(element):
            declared |= {(rules[index].is_before, name): said for name, said in rules[index].declared.items()}
        own = {name: f"{name}:{said}" for (before, name), said in declared.items() if not before}
        if room := [own.pop(name) for name in list(own) if _ROOM.match(name)]:
            element.set(ROOM, "; ".join(room))
        if looks := [own[name] for name in own if name not in _COUNTING]:
            element.set("style", "; ".join([*looks, element.get("style", "")]))
        if not counts_items:
            counters.count_list(element)
        for is_before in (False, True) if declared else ():
            counters.reset(element, declared.get((is_before, "counter-reset"), ""))
            counters.increment(element, declared.get((is_before, "counter-increment"), ""))
        if said := counters.content(element, declared.get((True, "content"), "")).strip():
            element.text = f"{said} {(element.text or '').lstrip()}"
            if element.tag == "li":  # its own number is hidden somehow
                element.set("style", f"{element.get('style', '')}; list-style: none")


def integer(value: str | None, default: int) -> int:
    """Return the number that an attribute gives; `default`: it gives none."""
    return int(value) if value is not None and re.fullmatch(r"\s*-?\d{1,6}\s*", value) else default


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

    def count_list(self, element: Any) -> None:
        """Count a list's items, as it does itself."""
        if element.tag in ("ol", "ul"):
            down = element.get("reversed") is not None
            first = integer(element.get("start"), len(element.findall("li")) if down else 1)
            self._reaching(element, "list-item").append((element, first + (1 if down else -1)))
        elif element.tag == "li" and (values := self._reaching(element, "list-item")):
            listing, count = values.pop()
            step = -1 if listing.get("reversed") is not None else 1
            values.append((listing, integer(element.get("value"), count + step)))

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
    return _ESCAPE.sub(lambda sign: _character(int(sign[1], 16)) if sign[1] else sign[2], text)


def _character(code: int) -> str:
    is_text = 0x20 <= code < 0xD800 or 0xE000 <= code < 0xFFFE or 0xFFFF < code <= 0x10FFFF
    return chr(code) if is_text else "\ufffd"
