"""Contracts: gold answers found in the text, held-out names, clauses taken out."""

import json

import pytest

from examples.nano.contract_places import law_places, note_places, other_laws
from memagent.errors import UsageError
from memagent.evaluation.contracts import (
    CATEGORIES,
    DATE,
    HELD_OUT,
    held_out,
    load_contracts,
    remove_answer,
    split,
)

CLAUSE = "This Agreement is governed by the laws of the State of Nevada, whatever its rules of conflict say."
TEXT = f"""CO-BRANDING AGREEMENT

Dated as of May 8, 2014, between One Inc., a corporation under the laws of Delaware, and Two Inc.

{CLAUSE}

Executed on May  8,
2014.
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "contracts").mkdir()
    rows = []
    for name, text, law in (("a.txt", TEXT, "Nevada"), ("b.txt", TEXT.replace(CLAUSE, ""), "")):
        (tmp_path / "contracts" / name).write_text(text, encoding="utf-8")
        spans = [CLAUSE] if law else []
        for category, answer, found in (
            ("Document Name", "CO-BRANDING AGREEMENT", ["CO-BRANDING AGREEMENT"]),
            ("Agreement Date", "5/8/14", ["May 8, 2014"]),
            ("Governing Law", law, spans),
        ):
            rows.append({"file": name, "category": category, "answer": answer, "spans": found})
    (tmp_path / "gold.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return tmp_path


def test_places_are_verbatim_and_end_with_the_value(folder):
    contract = load_contracts(folder)[0]
    for places in (note_places(contract, category) for category in CATEGORIES):
        assert places
        for place in places:
            assert contract.text[place.start : place.end] == place.note.strip()
            assert place.note.endswith(place.value)
    law = note_places(contract, "Governing Law")[0]
    assert (law.note, law.value) == (" laws of the State of Nevada", " Nevada")


def test_white_space_within_a_span_does_not_matter(folder):
    dates = note_places(load_contracts(folder)[0], "Agreement Date")
    assert [" ".join(place.note.split()) for place in dates] == ["May 8, 2014", "May 8, 2014"]


def test_a_missing_clause_has_no_place(folder):
    contract = load_contracts(folder)[1]
    assert contract.answers["Governing Law"] == ""
    assert note_places(contract, "Governing Law") == ()
    assert contract.spans["Governing Law"] == ()


def test_taking_the_clause_out_leaves_the_rest(folder):
    contract = load_contracts(folder)[0]
    without = remove_answer(contract.text, contract.spans["Governing Law"])
    assert "Nevada" not in without and "Delaware" in without
    assert len(without) == len(contract.text) - len(CLAUSE)


def test_spans_to_take_out_may_overlap():
    assert remove_answer("0123456789", [(2, 5), (4, 7), (2, 3)]) == "01789"
    assert remove_answer("abc", []) == "abc"


def test_held_out_names_do_not_depend_on_order():
    names = [f"contract {i}.txt" for i in range(410)]
    assert held_out(names) == held_out(reversed(names))
    assert len(held_out(names)) == HELD_OUT
    assert held_out(names) <= set(names)


def test_split_keeps_the_two_apart(folder):
    training, kept = split(load_contracts(folder))
    assert not training and {contract.name for contract in kept} == {"a.txt", "b.txt"}


@pytest.mark.parametrize(
    ("clause", "answer", "note"),
    [
        ("governed by the law of England and Wales.", "England, UK; Wales, UK", "law of England and Wales"),
        ("SHALL BE GOVERNED BY THE LAWS OF THE STATE OF NEW YORK.", "New York", "LAWS OF THE STATE OF NEW YORK"),
        ("interpreted under Texas law.", "Texas", "Texas"),
    ],
)
def test_the_law_is_named_in_many_ways(clause, answer, note):
    [place] = law_places(clause, 0, len(clause), answer)
    assert place.note.strip() == note


def test_a_law_that_the_clause_does_not_name_has_no_place():
    assert law_places(CLAUSE, 0, len(CLAUSE), "Utah") == []


def test_other_governing_clauses_are_seen():
    gold = (TEXT.index(CLAUSE), TEXT.index(CLAUSE) + len(CLAUSE))
    assert other_laws(TEXT, [gold]) == []
    assert len(other_laws(TEXT, [])) == 1


@pytest.mark.parametrize("text", ["May 8, 2014", "8th day of May, 2014", "the 8 May 2014", "5/8/14", "MAY 8TH 2014"])
def test_dates_are_found(text):
    assert DATE.search(f"on {text} the")


def test_a_folder_without_gold_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"gold\.jsonl"):
        load_contracts(tmp_path)
    (tmp_path / "gold.jsonl").write_text("", encoding="utf-8")
    with pytest.raises(UsageError, match=r"gold\.jsonl, line 1: the file is empty"):
        load_contracts(tmp_path)
    row = {"file": "a.txt", "category": "Governing Law", "answer": "", "spans": []}
    (tmp_path / "gold.jsonl").write_text(json.dumps(row), encoding="utf-8")
    with pytest.raises(UsageError, match="none of the files"):
        load_contracts(tmp_path)
