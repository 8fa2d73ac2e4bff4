"""A store that version 0.1 wrote: what it holds is found, and nothing of it is read again."""

import shutil
from pathlib import Path

import pytest

from infra.store import Store
from infra.tables.delta import Table
from memagent.config import load_config
from memagent.records import Question
from pipelines.ask import ask
from pipelines.exchange.answers import answer_table

pytestmark = pytest.mark.usefixtures("ray_in_process")

EARLIER = Path(__file__).parents[1] / "data" / "store-0.1"
OTTER = Question("otter", "What is the pass number for amber-otter?")
HERON = Question("heron", "What is the pass number for silver-heron?")
IBIS = Question("ibis", "What is the pass number for golden-ibis?")


@pytest.fixture
def config(tmp_path):
    shutil.copytree(EARLIER, tmp_path / "store")
    return load_config(store=str(tmp_path / "store"), engine__kind="scripted", sets=["flush_seconds=0.2"])


def test_what_was_answered_is_not_read_again(config):
    summary = ask("contracts", [OTTER, HERON], config)
    assert summary["readings"]["answered_before"] == summary["readings"]["total"] == 8
    assert summary["readings"]["read_now"] == summary["conversations"] == 0
    rows = answer_table(config, "contracts", summary["run_id"])
    assert {row["confidence"] for row in rows} == {None}
    assert {row["document"]: row["answer"] for row in rows if row["found"]} == {"doc0.txt": "1000", "doc2.txt": "1002"}
    assert {place["page"] for row in rows for place in row["evidence"]} == {None}


def test_what_was_half_read_goes_on_where_it_stood(config):
    summary = ask("contracts", [IBIS], config)
    assert summary["readings"] | {"found": 0} == {
        "total": 4,
        "answered_before": 0,
        "read_now": 4,
        "continued": 4,
        "failed": 0,
        "found": 0,
    }
    whole = ask("contracts", [Question("wren", "What is the pass number for copper-wren?")], config)
    assert 0 < summary["segments"] < whole["segments"]
    sure = {row["question_id"]: row["confidence"] for row in answer_table(config, "contracts")}
    assert sure == {"otter": None, "heron": None, "ibis": None, "wren": 1.0}, "nobody knows how sure it was before"
    Table(Store(config.store), "answers").compact("contracts")
    assert {row["question_id"]: row["confidence"] for row in answer_table(config, "contracts")} == sure
