"""The functions on the way of one answer in docs/architecture.md: each exists, and each reaches the next."""

import ast
import re
from functools import cache
from itertools import pairwise
from typing import NamedTuple

import pytest

from tests.support.pages import ROOT
from tools.house import WAYS, broken_calls, load, names_in

SECTION = "## The way of one answer"
ROW = re.compile(r"^\| (\d+) \| (.+) \| (.+) \|$", re.MULTILINE)
FUNCTION = re.compile(r"`([\w/]+\.py): ([\w.]+)`")


class Named(NamedTuple):
    """A function as the page names it."""

    path: str
    name: str
    """``function`` or ``Class.method``."""


def on_the_page() -> list[tuple[Named, list[Named]]]:
    """The functions of the page's rows, in order, each with the others that its row says it calls."""
    section = (ROOT / "docs" / "architecture.md").read_text().split(SECTION)[1].split("\n## ")[0]
    rows = []
    for number, function, text in ROW.findall(section):
        assert int(number) == len(rows) + 1
        (named,) = FUNCTION.findall(function)
        rows.append((Named(*named), [Named(*other) for other in FUNCTION.findall(text)]))
    return rows


@cache
def definitions(path: str) -> dict[str, ast.AST]:
    """The functions and classes of a module by name, its methods as ``Class.method``."""
    found: dict[str, ast.AST] = {}
    for node in ast.parse((ROOT / path).read_text()).body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found[node.name] = node
        if isinstance(node, ast.ClassDef):
            for inner in node.body:
                if isinstance(inner, (ast.FunctionDef, ast.AsyncFunctionDef)):
                    found[f"{node.name}.{inner.name}"] = inner
    return found


def reached(function: Named) -> set[str]:
    """The names that a function uses, itself or through what else of its module it uses."""
    known = definitions(function.path)
    seen: set[str] = set()
    left = [known[function.name]]
    while left:
        for word in set(names_in(left.pop())) - seen:
            seen.add(word)
            left += [node for name, node in known.items() if name.rpartition(".")[2] == word]
    return seen


def reaches(function: Named, other: Named) -> bool:
    """Whether a function calls or passes another one, or the class that has it; `self._generate` is a `generate`."""
    owner, _, name = other.name.rpartition(".")
    used = reached(function)
    return name in {word.lstrip("_") for word in used} or (bool(owner) and owner in used)


ROWS = on_the_page()


def test_an_answer_passes_ten_functions():
    assert len(ROWS) == 10
    assert ROWS[0][0] == ("pipelines/cli/ask.py", "ask")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0].name)
def test_each_function_exists_and_calls_the_others_of_its_row(row):
    function, others = row
    for named in (function, *others):
        assert named.name in definitions(named.path), named
    for other in others:
        assert reaches(function, other), f"{function} does not reach {other}"


@pytest.mark.parametrize(("row", "following"), list(pairwise(ROWS)), ids=lambda row: row[0].name)
def test_each_function_reaches_the_next(row, following):
    assert reaches(row[0], following[0]), f"{row[0]} does not reach {following[0]}"


def test_a_function_that_does_not_reach_another_is_noticed():
    functions = {function.name: function for row in ROWS for function in (row[0], *row[1])}
    for name, other in (("segment", "make_plan"), ("ask", "run_job"), ("Reading.run", "TurnWriter.add")):
        assert not reaches(functions[name], functions[other])


def test_each_way_is_as_short_as_it_may_be_and_each_of_its_functions_calls_the_next():
    modules = load()
    for most, way in WAYS.values():
        assert len(way) - 1 <= most and not broken_calls(way, modules)


def test_a_function_that_is_not_called_is_found():
    _, way = next(iter(WAYS.values()))
    assert broken_calls((way[0], "pipelines.operate.check.check"), load()) == ["pipelines.operate.check.check"]
