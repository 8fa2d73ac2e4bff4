"""The assets of a run: what Prefect is told, and what a server without a page of them shows."""

import json

from infra.store.location import Corpus, Store
from infra.store.qa import write_qa
from memagent.quality.curation import Qa
from pipelines.flows.lineage import Lineage, asset_key, of_harvest, of_reading, of_training
from tests.integration.test_flows import TELL, in_python, result

SUMMARY = {
    "run_id": "r1",
    "corpus": "contracts",
    "policy_id": "p",
    "documents": 9,
    "conversations": 30,
    "readings": {"read_now": 5, "answered_before": 4},
}
EMITTED = """
import json, sys
from datetime import UTC, datetime
begun = datetime.now(UTC)
import prefect.events
emit, said = prefect.events.emit_event, []
def tell(event, resource, related=None, payload=None, **more):
    if event.startswith("prefect.asset"):
        names = [each["prefect.resource.id"] for each in related or () if each["prefect.resource.role"] == "asset"]
        said.append([event, resource["prefect.resource.id"], names, payload])
    return emit(event=event, resource=resource, related=related, payload=payload, **more)
prefect.events.emit_event = tell
from prefect import flow
from infra.store.location import Store
from pipelines.flows.lineage import note_lineage, of_reading
summary, store = json.loads({given!r})
@flow
def run():
    note_lineage(Store(store), of_reading(summary))
run()
from prefect.client.orchestration import get_client
with get_client(sync_client=True) as client:
    said.append([artifact.data for artifact in client.read_artifacts() if artifact.created > begun])
"""


def test_a_key_is_an_address(tmp_path):
    assert asset_key(Store(str(tmp_path / "a store")), "answers/c") == f"file://{tmp_path}/a_20store/answers/c"
    assert asset_key(Store("s3://bucket/prefix"), "answers/c") == "s3://bucket/prefix/answers/c"


def test_tables_of_which_nothing_was_read_or_written_are_left_out():
    read = of_reading(SUMMARY)
    assert read.written == {"turns/contracts": 30, "answers/contracts": 5}
    assert read.read == {"documents/contracts": 9, "answers/contracts": 4}
    assert of_reading({**SUMMARY, "ingest": {"documents": 2}}).written["documents/contracts"] == 2
    idle = of_reading({**SUMMARY, "conversations": 0, "readings": {"read_now": 0, "answered_before": 9}})
    assert not idle.written and idle.read == {"documents/contracts": 9, "answers/contracts": 9}


def test_a_policy_is_made_of_its_parent_and_of_the_rows_it_learnt_from(tmp_path):
    store = Store(str(tmp_path / "store"))
    for corpus in ("contracts", "letters"):
        rows = [Qa("q?", ("a",), stream=(f"h{n}",), documents=(f"d{n}",), source="feedback") for n in range(3)]
        write_qa(Corpus(store, corpus), rows, "harvest")
    harvested = of_harvest({"run_id": "h", "corpus": "letters", "candidates": 7, "new": 2, "changed": 1})
    assert (harvested.read, harvested.written) == ({"answers/letters": 7}, {"qa/letters": 3})
    training = {"run_id": "t", "policy": "nano", "parent": "p0", "candidate": "p1", "data": ["needles", "qa:letters"]}
    made = of_training(store, training)
    assert made == Lineage("t", "nano", "p0", {"policies/p0": 1, "qa/letters": 3}, {"policies/p1": 1})
    assert "| qa/letters | 3 | 0 |" in made.page() and "policy `p0`" in made.page()
    assert set(of_training(store, {**training, "data": ["qa"]}).read) == {"policies/p0", "qa/contracts", "qa/letters"}
    nothing = of_training(store, {**training, "candidate": "", "data": ["needles"]})
    assert not nothing.written and set(nothing.read) == {"policies/p0"}


def test_prefect_is_told_which_rows_were_made_of_what(tmp_path, prefect_server):
    given = json.dumps([SUMMARY, str(tmp_path / "store")])
    *events, artifacts = result(in_python(EMITTED.format(given=given) + TELL, tmp_path, **prefect_server))
    base = f"file://{tmp_path}/store"
    assert ["prefect.asset.referenced", f"{base}/documents/contracts", [], None] in events
    made = {name: (sources, payload) for event, name, sources, payload in events if event.endswith("succeeded")}
    source = [f"{base}/documents/contracts"]
    assert made == {
        f"{base}/turns/contracts": (source, {"rows": 30, "run_id": "r1"}),
        f"{base}/answers/contracts": (source, {"rows": 5, "run_id": "r1"}),
    }
    (page,) = artifacts
    assert "| answers/contracts | 4 | 5 |" in page and "| documents/contracts | 9 | 0 |" in page
