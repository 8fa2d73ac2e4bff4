"""Evaluations from end to end with the scripted reader: samples, reading, scores, causes, report, pictures."""

import json
import random
import re

import pytest

from infra.store.delta import Table
from memagent.config import load_config
from memagent.errors import UsageError
from memagent.evaluation.suites import Suite
from pipelines.evaluate import by_run, compare, evaluate, run_results, same_before, score_table
from pipelines.report.evaluation import draw, evaluation_page
from tests.support.texts import filler

SETS = ["flush_seconds=0.2", "reading.segment_tokens=128"]
"""Long enough that no sentence is cut: the scripted reader knows whole sentences only."""
QUESTION = "What is the pass number for amber-otter?"


@pytest.fixture
def file(tmp_path):
    """Eight texts in MemAgent's format; in the last two the asked stands nowhere, in two it stands in the middle."""
    rng = random.Random(0)
    rows = []
    for i in range(8):
        before, after = filler(rng, 200), filler(rng, 200)
        fact = "" if i > 5 else f"\n\nThe pass number for amber-otter is {1000 + i}.\n\n"
        answers = [str(1000 + i)] if i < 7 else ["<b>5</b>"]
        rows.append({"context": before + fact + after, "input": QUESTION, "answers": answers, "index": i})
    path = tmp_path / "eval.json"
    path.write_text(json.dumps(rows))
    return path


@pytest.fixture
def config(store, model_folder):
    return load_config(store=store.url, engine__kind="scripted", engine__model=str(model_folder), sets=SETS)


def test_an_evaluation_scores_explains_and_is_read_once(store, config, file):
    suite = Suite("files", data=(str(file),))
    first = evaluate(suite, config)
    assert first["readings"]["read_now"] == 8
    (line,) = first["evaluation"]
    assert (line["value"], line["n"], line["failed"]) == (0.75, 8, 0)
    results = {row["sample_id"]: row for row in run_results(store, first["run_id"]).to_pylist()}
    assert [row["failure"] for row in results.values()] == [""] * 6 + ["never noted"] * 2
    assert all(row["tokens"] > 0 and row["segments"] > 1 for row in results.values())
    again = evaluate(suite, config)
    assert again["readings"]["read_now"] == 0 and again["evaluation"] == first["evaluation"]
    assert same_before(store, again["run_id"])[1] == first["run_id"]
    paired = compare(store, first["run_id"], again["run_id"])
    assert (paired["difference"], paired["p"], paired["n"]) == (0.0, 1.0, 8)
    assert [run["run_id"] for run in by_run(score_table(store))] == [first["run_id"], again["run_id"]]
    page = evaluation_page(store, first["run_id"])
    assert "never noted" in page and "&lt;b&gt;5" in page and "<b>5" not in page
    linked = re.findall(r'href="#(sample-\d+)"', page)
    assert linked == ["sample-7", "sample-8"] and all(f'id="{anchor}"' in page for anchor in linked)
    assert len(re.findall("<details>", page)) == 8 and "The pass number for amber-otter is 1003." in page


def test_without_the_answer_nothing_is_found(store, config, file):
    removed = evaluate(Suite("files", data=(str(file),), n=6, control="no-document"), config)
    assert removed["overall"]["metric"] == "not found" and removed["overall"]["value"] == 1.0
    assert removed["evaluation"][0]["value"] == 0.0


def test_methods_are_scored_beside_the_reading(store, config, file):
    suite = Suite("files", data=(str(file),), n=6)
    reading = evaluate(suite, config)
    values = {}
    for method in ("truncate", "bm25", "map-reduce"):
        other = load_config(
            store=store.url,
            engine__kind="scripted",
            engine__model=config.engine.model,
            sets=[*SETS, f"method={method}", "window_tokens=128"],
        )
        values[method] = evaluate(suite, other)
    assert reading["overall"]["value"] == 1.0
    assert {name: said["overall"]["value"] for name, said in values.items()} == {
        "truncate": 0.0,
        "bm25": 1.0,
        "map-reduce": 1.0,
    }
    paired = compare(store, reading["run_id"], values["truncate"]["run_id"])
    assert (paired["difference"], paired["better"], paired["worse"]) == (1.0, 6, 0)


def test_made_needles_are_drawn(store, config, tmp_path):
    suite = Suite("needles", kinds=("niah_single_1",), lengths=(400, 800), n=3)
    summary = evaluate(suite, config)
    assert {(row["length"], row["n"]) for row in summary["evaluation"]} == {(400, 3), (800, 3)}
    names = {path.name for path in draw(store, [summary["run_id"]], tmp_path / "pictures")}
    assert {"accuracy-by-length.svg", "cost-by-length.png", "accuracy-by-depth.svg"} <= names
    assert Table(store, "scores").read()["n"].to_pylist() == [3, 3]


def test_a_malformed_file_is_named_with_its_place(store, config, file):
    rows = json.loads(file.read_text())
    del rows[3]["answers"]
    file.write_text(json.dumps(rows))
    with pytest.raises(UsageError, match=r"eval\.json.*3.*answers"):
        evaluate(Suite("files", data=(str(file),)), config)
