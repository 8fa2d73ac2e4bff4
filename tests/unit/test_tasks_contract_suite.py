import json

import pytest

from memagent.errors import UsageError
from memagent.evaluation.contracts import ENTITIES, QUESTIONS, YES_NO, contract_samples, held_out, load_contracts, split

TEXT = "LEASE AGREEMENT made by Ann.\nIt is governed by the laws of Ohio.\nAnn may audit."


def clause(file, category, **values):
    return {
        "file": file,
        "category": category,
        "question": f"CUAD asks  {category}?",
        "answer": "",
        "spans": [],
    } | values


def folder_of(path, rows, texts):
    (path / "contracts").mkdir(parents=True)
    for name, text in texts.items():
        (path / "contracts" / name).write_text(text, encoding="utf-8")
    (path / "gold.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def rows_of(file):
    rows = [clause(file, category) for category in ENTITIES]
    rows[0] |= {"answer": "Lease Agreement", "spans": ["LEASE AGREEMENT", "LEASE AGREEMENT"]}
    rows[6] |= {"question": None}
    rows[7] |= {"answer": "Ohio", "spans": ["laws of Ohio", "not in the text"]}
    return rows + [clause(file, category, answer="No") for category in YES_NO]


def test_a_contract_asks_all_41(tmp_path):
    folder = folder_of(tmp_path / "d", rows_of("a.txt"), {"a.txt": TEXT})
    found = {one.task: one for one in contract_samples(folder)}
    assert len(found) == len(ENTITIES) + len(YES_NO) == 41
    assert {one.text() for one in found.values()} == {TEXT}
    assert {one.match for one in found.values()} == {"contract"}
    for category, wordings in QUESTIONS.items():
        assert found[category].question == wordings[0]
    assert found["Audit Rights"].question == "CUAD asks Audit Rights?"
    assert (
        found["Notice Period To Terminate Renewal"].question
        == "What is the notice period required to terminate renewal?"
    )
    law, name, blank = found["Governing Law"], found["Document Name"], found["Parties"]
    assert (law.answers, law.facts, law.depth) == (("Ohio",), ("laws of Ohio",), TEXT.index("laws") / len(TEXT))
    assert law.about == {"category": "Governing Law", "kind": "entity", "document": "a.txt", "clauses": 2}
    assert (name.facts, name.depth) == (("LEASE AGREEMENT",), 0)
    assert (blank.answers, blank.facts, blank.depth) == (("",), (), None)
    assert found["Insurance"].about["kind"] == "yes/no"


def test_only_the_held_out_contracts_and_only_what_is_wanted(tmp_path):
    names = [f"{i}.txt" for i in range(100)]
    rows = [row for name in names for row in rows_of(name)[:2]]
    folder = folder_of(tmp_path / "d", rows, dict.fromkeys(names, TEXT))
    found = list(contract_samples(folder, ["Document Name"]))
    assert list(contract_samples(folder, ["Document Name"], 1)) == found[:1] != found
    assert {one.task for one in found} == {"Document Name"}
    assert len(found) == 80
    assert {one.about["document"] for one in found} == held_out(names)
    assert {one.about["document"] for one in found} == {one.name for one in split(load_contracts(folder))[1]}
    with pytest.raises(UsageError, match="No category of CUAD: Color"):
        list(contract_samples(folder, ["Color"]))
    assert {one.task for one in contract_samples(folder, ["entity"])} <= set(ENTITIES)
    everything = [one.sample_id for one in contract_samples(folder)]
    assert [one.sample_id for one in contract_samples(folder, ["yes/no", "entity"])] == everything


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"file": None}, "line 2, field 'file': missing"),
        ({"file": "../a.txt"}, "line 2, field 'file': '../a.txt' is no name"),
        ({"category": 3}, "line 2, field 'category': a number"),
        ({"category": "Color"}, "line 2, field 'category': 'Color' is no category"),
        ({"answer": None}, "line 2, field 'answer': missing"),
        ({"spans": "Ann"}, "line 2, field 'spans': a text; a list"),
        ({"spans": [1]}, "line 2, field 'spans[0]': a number"),
        ({"question": 1}, "line 2, field 'question': a number"),
        ({"category": "Parties"}, "line 2, field 'category': 'a.txt/Parties' is the one of another record"),
    ],
)
def test_malformed_gold_is_named_with_line_and_field(tmp_path, change, said):
    row = clause("a.txt", "Insurance", answer="No") | change
    row = {key: value for key, value in row.items() if value is not None}
    folder = folder_of(tmp_path / "d", [clause("a.txt", "Parties"), row], {"a.txt": TEXT})
    with pytest.raises(UsageError) as error:
        list(contract_samples(folder))
    assert f"{folder / 'gold.jsonl'}, {said}" in str(error.value)


def test_a_folder_that_lacks_something(tmp_path):
    with pytest.raises(UsageError, match=r"has no gold\.jsonl"):
        list(contract_samples(tmp_path))
    folder = folder_of(tmp_path / "d", [clause("b.txt", "Parties"), clause("a.txt", "Parties")], {"a.txt": TEXT})
    with pytest.raises(UsageError, match=r"lacks 1 contracts of gold\.jsonl, first 'b\.txt'"):
        list(contract_samples(folder))
    (folder / "contracts" / "b.txt").write_bytes(b"one\ntwo \xff")
    with pytest.raises(UsageError, match=r"b\.txt, line 2: byte 0xff is not UTF-8"):
        list(contract_samples(folder))
    broken = folder_of(tmp_path / "e", [clause("a.txt", "Insurance", answer="No", question=None)], {"a.txt": TEXT})
    with pytest.raises(UsageError, match="field 'question': Insurance has none"):
        list(contract_samples(broken))
