"""Conditions on exported answers: a field and a pattern, or a number to compare it with."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import translate

from memagent.errors import UsageError

FIELDS = (
    *("document", "title", "source", "question_id", "question", "answer", "found", "run_id", "policy_id", "review"),
    "confidence",
)
"""Fields that answers can be filtered by."""
_NUMBERS = ("confidence",)
_CONDITION = re.compile(r"(\w+)\s*(?:=|(?=[<>]))(.*)", re.DOTALL)
_COMPARISON = re.compile(r"([<>])\s*(\d*\.?\d+(?:e-?\d+)?)")

Condition = tuple[str, str]
"""A field and a pattern for its whole value, whatever its case, where ``*`` stands for any characters and ``?`` for
one. Of a number ``<0.8`` or ``>0.8``."""


def parse(items: Iterable[str]) -> list[Condition]:
    """Return conditions as they are written on the command line: ``field=pattern``, ``confidence<0.8``.

    Raises:
        UsageError: one is written otherwise.
    """
    found = [(item, _CONDITION.fullmatch(item)) for item in items]
    if wrong := [item for item, match in found if match is None]:
        raise UsageError(f"--where {wrong[0]!r}: write it as field=pattern, as in 'document=*.pdf'")
    return [(match[1], match[2]) for _, match in found if match is not None]


def passing(conditions: Sequence[Condition]) -> Callable[[Mapping[str, object]], bool]:
    """Return a function that tells whether a row passes all conditions. A number that is not known passes none.

    Raises:
        UsageError: there is no such field, or a number is not compared with one.
    """
    unknown = {name for name, _ in conditions} - set(FIELDS)
    if unknown:
        raise UsageError(f"--where {sorted(unknown)[0]}=...: one of {', '.join(FIELDS)}")
    tests = [(name, _comparison(name, words) if name in _NUMBERS else _pattern(words)) for name, words in conditions]
    return lambda row: all(test(row[name]) for name, test in tests)


def _pattern(words: str) -> Callable[[object], bool]:
    only_stars = words.replace("[", "[[]")
    pattern = re.compile(translate(only_stars), re.IGNORECASE)
    return lambda value: pattern.fullmatch(str(value)) is not None


def _comparison(name: str, words: str) -> Callable[[object], bool]:
    found = _COMPARISON.fullmatch(words.strip())
    if found is None:
        raise UsageError(f"--where {name}{words}: compare it with a number, as in '{name}<0.8' or '{name}>0.8'")
    below, limit = found[1] == "<", float(found[2])
    return lambda value: isinstance(value, float) and (value < limit if below else value > limit)
