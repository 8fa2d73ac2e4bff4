"""Results as records, and the page that is made of them."""

import argparse
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import record
from benchmarks.fault_trials import Outcome
from benchmarks.faults import rows_of
from benchmarks.page import HEADLINES, PAGE, SECTIONS, cell, render
from benchmarks.record import FOLDER, ROOT, Machine, Result, Row, dumps, load, loads, machine, result, write

MACHINE = Machine("avx2, two cores", "A processor", 2, ("avx2",), 24, "float32")
MADE = Result("linear", "Cost by length", "python -m benchmarks.linear", "abc1234", "2030-01-02", MACHINE, (), seed=0)
OPTIONS = argparse.Namespace(record=None, label=None)

ROWS = st.builds(
    Row,
    name=st.text(min_size=1),
    value=st.one_of(st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text(min_size=1)),
    unit=st.sampled_from(["", "%", "s"]),
    column=st.text(),
    interval=st.none() | st.tuples(st.floats(0, 1), st.floats(1, 2)),
    n=st.none() | st.integers(0),
    note=st.text(),
    earlier=st.booleans(),
    commit=st.sampled_from(["", "abc1234"]),
)


def test_the_page_is_what_the_records_give():
    assert PAGE.read_text(encoding="utf-8") == render(load(FOLDER)), "run `python -m benchmarks.page`"


def test_every_record_has_what_a_reader_needs():
    results = load(FOLDER)
    assert len({(one.benchmark, one.machine.label) for one in results}) == len(results) >= 30
    listed = {name for group in SECTIONS.values() for name in group}
    for one in results:
        assert one.command and one.commit and one.date and one.rows, one.benchmark
        assert one.benchmark in listed, f"{one.benchmark}: give it a place in benchmarks.page.SECTIONS"
        assert (FOLDER / f"{one.benchmark}-{record._slug(one.machine.label)}.json").exists()


def test_the_headlines_come_first():
    head = PAGE.read_text(encoding="utf-8").split("\n## ")[0]
    shown = [line for line in head.splitlines() if line.startswith("| ")][2:]
    assert len(shown) == 10
    names = {(one.benchmark, row.name) for one in load(FOLDER) for row in one.rows}
    assert sum((benchmark, name) in names for _, benchmark, name in HEADLINES) >= 10


@given(st.lists(ROWS, max_size=4))
def test_a_record_comes_back_as_it_was(rows):
    made = replace(MADE, rows=tuple(rows))
    assert loads(dumps(made)) == made
    render([made])


def test_an_unknown_key_is_refused():
    with pytest.raises(TypeError, match="speed"):
        loads(dumps(MADE).replace('"rows"', '"speed": 1, "rows"'))


def test_how_a_value_is_shown():
    assert cell(Row("a", 0)) == "0"
    assert cell(Row("a", 15937)) == "15,937"
    assert cell(Row("a", 97.0, "%", interval=(91.5, 99.0), earlier=True)) == "97.0% [91.5, 99] †"
    assert cell(Row("a", 33.7, "ms")) == "33.7 ms"
    assert cell(Row("a", "equal to the bit")) == "equal to the bit"


@pytest.mark.parametrize(
    ("of", "head", "line"),
    [
        (lambda name, column: "aaa" if column == "lost" else "", "|  | lost (`aaa`) | double |", "| worker | 0 | 0 |"),
        (lambda name, column: "aaa" if name == "worker" else "", "|  | lost | double |", "| worker (`aaa`) | 0 | 0 |"),
    ],
)
def test_a_commit_stands_where_all_that_it_names_has_it(of, head, line):
    cells = [(name, column) for name in ("driver", "worker") for column in ("lost", "double")]
    rows = tuple(Row(name, 0, column=column, commit=of(name, column)) for name, column in cells)
    page = render([replace(MADE, rows=rows)])
    assert head in page and line in page and "| driver | 0 | 0 |" in page


def test_machines_stand_side_by_side_and_rows_carry_their_commit():
    of = Row("time a segment, of 10 segments against of 1,000", 1.01)
    other = replace(MADE, machine=replace(MACHINE, label="avx512, two cores"), rows=(replace(of, value=1.02),))
    page = render([replace(MADE, rows=(replace(of, commit="fff0000"), Row("k", 1, column="a|b"))), other])
    assert "| what | avx2, two cores | avx512, two cores | command |" in page
    assert "| 1.01 (`fff0000`) | 1.02 (`abc1234`) |" in page
    assert "a\\|b" in page


def test_the_command_has_no_path_of_a_machine(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["x.py", "--data", str(tmp_path), f"--store={tmp_path}/none", "--times", "3"])
    made = result("growth", "Growth", [Row("a", 1)], OPTIONS)
    assert made.command == "python -m benchmarks.growth --data FOLDER --store=FILE --times 3"
    assert made.commit and made.seed == 0
    assert str(ROOT) not in dumps(made)


def test_the_class_of_a_machine():
    found = machine()
    assert found.label == machine("mine").label.replace("mine", found.label)
    assert f"core{'s' if found.cores > 1 else ''}" in found.label
    assert found.memory_gib > 0


def test_a_record_is_replaced_or_added_to(tmp_path: Path):
    first = replace(MADE, rows=(Row("a", 1), Row("b", 2)))
    path = write(first, tmp_path)
    assert path is not None and path.name == "linear-avx2-two-cores.json"
    later = replace(MADE, commit="def5678", rows=(Row("b", 3),))
    write(later, tmp_path, keep=True)
    (one,) = load(tmp_path)
    assert one.rows == (Row("b", 3), Row("a", 1, commit="abc1234"))
    write(later, tmp_path)
    assert load(tmp_path) == [later]
    assert write(replace(later, benchmark=""), tmp_path) is None


def test_every_benchmark_writes_a_record():
    for path in (ROOT / "benchmarks").glob("*.py"):
        text = path.read_text()
        if "__main__" in text and path.stem != "page":
            assert "arguments(parser)" in text and "write(" in text, path.name


def test_a_fault_that_no_run_survived_leaves_nothing_of_an_earlier_record(tmp_path):
    def cells(outcomes, failures):
        rows = tuple(rows_of("driver killed", outcomes, failures))
        (one,) = [loads(write(replace(MADE, rows=rows), tmp_path, keep=True).read_text())]
        return {row.column: row.value for row in one.rows}

    good = cells([Outcome(lost=0, double=0, differing=0, again=0.01, recovered=2.0)], 0)
    bad = cells([], 3)
    assert good["lost"] == 0 and set(bad) == set(good) and bad["failed"] == 3 and bad["lost"] == "no run ended well"
