"""Small files are put together, and every answer, document and turn is as it was."""

import os
from datetime import timedelta

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from infra.store.claims import used
from infra.store.data_files import write_data_file
from infra.store.delta import Table
from infra.store.documents import current_documents, document_texts
from infra.store.location import Corpus, Store
from infra.store.plans import write_moved
from infra.store.runs import begin_run
from infra.store.schemas import now
from memagent.config import load_config
from memagent.errors import UsageError
from pipelines.ask import ask, digest
from pipelines.io.answers import answer_table
from pipelines.operate.optimize import optimize
from pipelines.report.page import build
from pipelines.stages.ingest import ingest
from tests.support.archives import HERON, OTTER, write_archive


@pytest.fixture
def config(store, model_folder):
    return load_config(store=store.url, engine__kind="scripted", engine__model=str(model_folder))


def test_files_become_few_and_nothing_else_changes(store, tmp_path, config):
    corpus = Corpus(store, "c")
    runs = []
    for night in range(4):
        write_archive(tmp_path / "docs", count=4 + 2 * night, words=60)
        ingest(corpus, [str(tmp_path / "docs")], config, f"ingest-{night}")
        runs.append(digest("c", [OTTER, HERON], config)["run_id"])
    answers = [answer_table(config, "c", run) for run in runs]
    documents = current_documents(corpus).to_pylist()
    texts = dict(document_texts(corpus, [row["content_hash"] for row in documents]))
    reports = [build(store, run) for run in runs]
    done = optimize("c", config, retention_days=0)
    assert done["files_after"] < done["files_before"]
    assert {"documents", "answers", "segmented"} <= set(done["tables"])
    assert not store.list("runs", runs[0], "work")
    for name in ("documents", "answers", "segmented"):
        assert len(list(Table(store, name).fragments("c"))) == 1
        assert len(store.list(name, "_delta_log", suffix=".json")) <= 2, "a checkpoint replaces the log's entries"
    assert [answer_table(config, "c", run) for run in runs] == answers
    assert current_documents(corpus).to_pylist() == documents
    assert dict(document_texts(corpus, list(texts))) == texts
    assert [len(build(store, run)) for run in runs] == [len(report) for report in reports]
    again = ask("c", [OTTER, HERON], config)
    assert again["readings"]["read_now"] == 0 and again["readings"]["total"] == 20
    assert optimize("c", config, retention_days=0)["tables"] == [], "nothing is left to do"


def test_what_a_run_that_read_nothing_left_behind_is_deleted(store, tmp_path, config):
    """A digest that was killed between the answers of its buckets and the comparison of all of them."""
    corpus = Corpus(store, "c")
    write_archive(tmp_path / "docs", count=2, words=60)
    ingest(corpus, [str(tmp_path / "docs")], config, "ingest")
    moved = pa.table({"doc_id": ["a"], "question_id": ["b"], "answer": ["c"]})
    for run_id in ("killed", "alive"):
        begin_run(corpus, run_id, "digest", config={}, work=[])
        write_moved(store, run_id, 0, moved)
    with used(corpus, "alive", wait=False, show=None):
        optimize("c", config)
    assert not store.list("runs", "killed") and store.list("runs", "alive")


def test_another_corpus_and_kept_versions_stay(store, tmp_path, config):
    write_archive(tmp_path / "docs", count=3, words=60)
    for name in ("c", "other"):
        ingest(Corpus(store, name), [str(tmp_path / "docs")], config, f"ingest-{name}")
    before = Table(store, "documents").read("other").to_pylist()
    optimize("c", config)
    assert Table(store, "documents").read("other").to_pylist() == before
    with pytest.raises(UsageError, match="memagent ingest nothing FOLDER"):
        optimize("nothing", config)
    assert Store(store.url).list("documents", suffix=".parquet"), "replaced files stay for a week"


def test_files_that_a_killed_job_never_committed_are_deleted_with_the_old_ones(tmp_path):
    store = Store(str(tmp_path / "store"))
    corpus, table = Corpus(store, "c"), Table(store, "segmented")
    row = dict.fromkeys(table.schema.names) | {"segment_key": "a", "content_hash": "a"}
    table.commit_files("c", [write_data_file(corpus, "segmented", [row])], writer="w", number=0)
    young, old = (write_data_file(corpus, "segmented", [row])["path"] for _ in range(2))
    weeks_ago = (now() - timedelta(days=20)).timestamp()
    os.utime(store.path("segmented", old), (weeks_ago, weeks_ago))
    plan = store.write_bytes(b"", "runs", "r", "plan", "0.parquet")
    os.utime(plan, (weeks_ago, weeks_ago))
    begin_run(corpus, "r", "ask", {}, ["work"])
    for name in ("segmented", "runs"):
        Table(store, name).cluster("c", timedelta(days=7))
    assert not store.exists("segmented", old)
    assert store.exists("segmented", young), "another job may be about to commit it"
    assert store.exists("runs", "r", "plan", "0.parquet"), "the folder of this table holds other files"
    assert table.count("c") == 1


def test_a_retention_shorter_than_a_week_is_of_this_call_alone(tmp_path):
    store = Store(str(tmp_path / "store"))
    corpus, table = Corpus(store, "c"), Table(store, "segmented")
    rows = [dict.fromkeys(table.schema.names) | {"segment_key": key, "content_hash": key} for key in "abcde"]
    for number, row in enumerate(rows):
        table.commit_files("c", [write_data_file(corpus, "segmented", [row])], writer="w", number=number)
    files = len(store.list("segmented"))
    assert table.cluster("c", timedelta(minutes=1)) == len(rows)
    assert len(store.list("segmented")) > files, "replaced files are kept for the hour that has begun"
    table.cluster("c", timedelta(0))
    delta = DeltaTable(store.delta_uri("segmented"))
    assert delta.metadata().configuration["delta.logRetentionDuration"] == "interval 168 hours"
    assert delta.transaction_version("w") == len(rows) - 1, "a commit that is repeated after this is still known"
    assert table.count("c") == len(rows)


@pytest.mark.parametrize("days", [-1e-9, float("inf"), float("nan"), 1e308])
def test_a_retention_that_is_no_number_of_days_is_refused(store, days):
    with pytest.raises(UsageError, match="a retention of"):
        optimize("c", load_config(store=store.url), retention_days=days)
