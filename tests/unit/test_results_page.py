"""Results as records, and the two pages that are made of them."""

import argparse
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import page, record
from benchmarks.fault_trials import Outcome
from benchmarks.faults import rows_of
from benchmarks.page import LIST, PAGE, SECTIONS, Line, Section, Value, named, render, render_list, shown
from benchmarks.record import ROOT, Machine, Result, Row, dumps, load, loads, machine, result, write

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


def test_the_pages_are_what_the_records_give():
    records = named()
    assert PAGE.read_text(encoding="utf-8") == render(records), "run `python -m benchmarks.page`"
    assert LIST.read_text(encoding="utf-8") == render_list(records), "run `python -m benchmarks.page`"


def test_every_record_has_what_a_reader_needs_and_is_listed():
    records = named()
    listed = LIST.read_text(encoding="utf-8")
    assert len(records) >= 30
    for name, one in records.items():
        assert one.command and one.commit and one.date and one.rows, name
        assert name == f"{one.benchmark}-{record._slug(one.machine.label)}"
        assert f"[{name}]({name}.json)" in listed


def test_every_line_of_the_page_names_rows_that_exist():
    records = named()
    for line in [line for section in SECTIONS for line in section.lines]:
        one = records[line.record]
        rows = {(row.name, row.column): row for row in one.rows}
        for value in line.values.values():
            assert (value.row, value.column) in rows, f"{line.record}: {value}"
            assert not rows[value.row, value.column].earlier, f"{value}: measured with earlier weights"
        # The introduction says so of all.
        assert (one.machine.cores, one.machine.memory_gib) == (2, 24), line.record


def test_the_page_is_short():
    assert len(PAGE.read_text(encoding="utf-8").split()) <= 1500
    assert 25 <= sum(len(section.lines) for section in SECTIONS) <= 40


def test_a_missing_record_or_row_leaves_its_line_out(monkeypatch):
    lines = tuple(Line(name, name, {"": Value("a", "b")}) for name in ("kept", "other-row", "missing"))
    monkeypatch.setattr(page, "SECTIONS", (Section("First", "Text.", lines), Section("Second", "Text.", lines[1:])))
    made = render(
        {"kept": replace(MADE, rows=(Row("a", 1, column="b"),)), "other-row": replace(MADE, rows=(Row("a", 1),))}
    )
    assert made.endswith(
        "## First\n\nText.\n\n| what | value | record | command |\n| --- | --- | --- | --- |\n"
        "| kept | 1 | [kept](results/kept.json) | `python -m benchmarks.linear` |\n"
    )


def test_a_line_has_labels_notes_and_its_own_command(monkeypatch):
    values = {"be|fore": Value("a"), "after": Value("b", noted=True)}
    line = Line("x", "x", values, command=1)
    monkeypatch.setattr(page, "SECTIONS", (Section("S", "T", (line,)),))
    rows = (Row("a", 5.0, "%", n=40, note="no"), Row("b", 7.0, "%", note="+2.0 [1, 3]"))
    one = replace(MADE, command="first; second --label 'avx2, two cores' --times 3", rows=rows)
    assert (
        "| be\\|fore: 5.0% (n = 40); after: 7.0% (+2.0 [1, 3]) | [x](results/x.json) | `second --times 3` |"
        in render({"x": one})
    )


@given(st.lists(ROWS, max_size=4))
def test_a_record_comes_back_as_it_was(rows):
    made = replace(MADE, rows=tuple(rows))
    assert loads(dumps(made)) == made
    assert all(shown(row, noted=True) for row in rows)


def test_an_unknown_key_is_refused():
    with pytest.raises(TypeError, match="speed"):
        loads(dumps(MADE).replace('"rows"', '"speed": 1, "rows"'))


def test_how_a_value_is_shown():
    assert shown(Row("a", 0)) == "0"
    assert shown(Row("a", 15937)) == "15,937"
    assert shown(Row("a", 1227.0, "s", n=1)) == "1,227.0 s"
    assert shown(Row("a", 97.0, "%", interval=(91.5, 99.0), n=1000)) == "97.0% [91.5, 99] (n = 1,000)"
    assert shown(Row("a", 33.7, "ms", note="again")) == "33.7 ms"
    assert shown(Row("a", "equal to the bit", note="weights"), noted=True) == "equal to the bit (weights)"


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
