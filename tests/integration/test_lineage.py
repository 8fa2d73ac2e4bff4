"""The assets of a run: what Prefect is told, and what a server without a page of them shows."""

import json

from infra.store import Store
from pipelines.flows.lineage import asset_key, rows_read, rows_written
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
import prefect.events
emit, said = prefect.events.emit_event, []
def tell(event, resource, related=None, payload=None, **more):
    if event.startswith("prefect.asset"):
        names = [each["prefect.resource.id"] for each in related or () if each["prefect.resource.role"] == "asset"]
        said.append([event, resource["prefect.resource.id"], names, payload])
    return emit(event=event, resource=resource, related=related, payload=payload, **more)
prefect.events.emit_event = tell
from prefect import flow
from infra.store import Store
from pipelines.flows.lineage import note_lineage
summary, store = json.loads({given!r})
@flow
def run():
    note_lineage(Store(store), summary)
run()
from prefect.client.orchestration import get_client
with get_client(sync_client=True) as client:
    said.append([artifact.data for artifact in client.read_artifacts()])
"""


def test_a_key_is_an_address_without_a_login(tmp_path):
    assert asset_key(Store(str(tmp_path / "a store")), "answers", "c") == f"file://{tmp_path}/a_20store/answers/c"
    assert asset_key(Store("s3://key:secret@bucket/prefix"), "answers", "c") == "s3://bucket/prefix/answers/c"


def test_tables_of_which_nothing_was_read_or_written_are_left_out():
    assert rows_written(SUMMARY) == {"turns": 30, "answers": 5} and rows_read(SUMMARY) == {"documents": 9, "answers": 4}
    assert rows_written({**SUMMARY, "ingest": {"documents": 2}})["documents"] == 2
    idle = {**SUMMARY, "conversations": 0, "readings": {"read_now": 0, "answered_before": 9}}
    assert rows_written(idle) == {} and rows_read(idle) == {"documents": 9, "answers": 9}


def test_prefect_is_told_which_rows_were_made_of_what(tmp_path):
    given = json.dumps([SUMMARY, str(tmp_path / "store")])
    *events, artifacts = result(in_python(EMITTED.format(given=given) + TELL, tmp_path))
    base = f"file://{tmp_path}/store"
    assert ["prefect.asset.referenced", f"{base}/documents/contracts", [], None] in events
    made = {name: (sources, payload) for event, name, sources, payload in events if event.endswith("succeeded")}
    source = [f"{base}/documents/contracts"]
    assert made == {
        f"{base}/turns/contracts": (source, {"rows": 30, "run_id": "r1"}),
        f"{base}/answers/contracts": (source, {"rows": 5, "run_id": "r1"}),
    }
    (page,) = artifacts
    assert "| answers | 4 | 5 |" in page and "| documents | 9 | 0 |" in page
