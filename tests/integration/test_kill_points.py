"""SIGKILL of whichever process gets there, at every point of a table's commit: the same command ends what it began."""

import os
import signal
import subprocess
import sys
from itertools import product

import pytest

from infra.store.delta import Table
from infra.store.documents import current_documents, current_sources, document_texts
from infra.store.location import Corpus, Store
from infra.store.turns import turns
from tests.support.archives import write_archive
from tests.support.pages import ROOT

pytestmark = pytest.mark.slow

DOCUMENTS = 12
TABLES = ("texts", "documents", "sources", "segmented", "answers")
NIGHT = """
import sys
from infra.cluster.session import lazy_ray
from infra.store.location import Corpus, Store
from memagent.config import load_config
from memagent.records import Question
from pipelines.ask import ask
from pipelines.stages import ingest as ingesting, segment
from pipelines.stages.ingest import ingest

store, model, folder, run_id, executor = sys.argv[1:]
sets = ["flush_seconds=0.2", "ray.cpus=2"]
if executor == "ray":
    sets += ["pool.max_size=2", "pool.cpus=0.4"]
    ingesting._FEW_SOURCES, segment._CHARS = 0, 4_000
config = load_config(store=store, engine__kind="scripted", engine__model=model, sets=sets)
with lazy_ray(config.ray):
    ingest(Corpus(Store(store), "c"), [folder], config, run_id)
    ask("c", [Question("otter", "What is the pass number for amber-otter?")], config)
"""


def night(store, model, folder, run_id, executor="here", **environment):
    path = os.pathsep.join([str(ROOT), *filter(None, [environment.pop("path", "")])])
    return subprocess.run(
        [sys.executable, "-c", NIGHT, store, str(model), str(folder), run_id, executor],
        env={**os.environ, "PYTHONPATH": path, **environment},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )


def rows(store):
    answers = Table(Store(store), "answers").read("c")
    return sorted(zip(*(answers[name].to_pylist() for name in ("content_hash", "question", "answer")), strict=True))


def logged(store):
    readings = Table(Store(store), "answers").read("c", ["reading_id"])["reading_id"].to_pylist()
    return len(turns(Corpus(Store(store), "c"), readings))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, model_folder):
    folder = tmp_path_factory.mktemp("undisturbed")
    write_archive(folder / "docs", count=DOCUMENTS, words=80)
    done = night(str(folder / "store"), model_folder, folder / "docs", "night")
    assert done.returncode == 0, done.stderr
    return folder / "docs", rows(str(folder / "store")), logged(str(folder / "store"))


@pytest.mark.parametrize("executor", ["here", "ray"])
@pytest.mark.parametrize("at", [" ".join(parts) for parts in product(TABLES, ("file", "commit"), ("before", "after"))])
def test_a_kill_at_any_point_costs_nothing(tmp_path, model_folder, undisturbed, at, executor):
    folder, expected, conversations = undisturbed
    store, mark = str(tmp_path / "store"), tmp_path / "killed"
    killing = {"path": str(ROOT / "tests" / "kill_points"), "KILL_AT": at, "KILL_ONCE": str(mark)}
    first = night(store, model_folder, folder, "first", executor, **killing)
    assert mark.exists(), "a process got there"
    # A worker's process is replaced within the run; the driver's is started again by its user.
    assert first.returncode in (0, -signal.SIGKILL), first.stderr
    if " commit " in at:
        assert first.returncode, "only the driver commits"
    if first.returncode:
        again = night(store, model_folder, folder, "second", executor)
        assert again.returncode == 0, again.stderr
    assert rows(store) == expected
    counted = {name: Table(Store(store), name).count("c") for name in TABLES}
    # Texts and documents are committed before the sources that they are of: without these they come again, and the
    # sources have a row before they are read again. One of each is current.
    for name in ("texts", "documents", "sources"):
        assert DOCUMENTS <= counted.pop(name) <= 2 * DOCUMENTS
    assert counted == dict.fromkeys(counted, DOCUMENTS), "nothing is there twice"
    corpus = Corpus(Store(store), "c")
    current = current_sources(corpus)
    assert current["state"].to_pylist() == ["read"] * DOCUMENTS and set(current["documents"].to_pylist()) == {1}
    hashes = current_documents(corpus, ["content_hash"])["content_hash"].to_pylist()
    assert len(hashes) == len(dict(document_texts(corpus, hashes))) == DOCUMENTS
    assert logged(store) == conversations, "each conversation is in the log once"
