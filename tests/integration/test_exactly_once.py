"""A run that is killed around the commit of its answers: each reading is answered once, and nothing is read again."""

import pytest

from infra.store.data_files import FileCommits, write_data_file
from infra.store.delta import Table
from infra.store.location import Corpus
from infra.store.turns import turns
from memagent.config import load_config
from pipelines.ask import ask
from pipelines.io.answers import answer_table
from pipelines.stages.ingest import ingest
from tests.support.archives import HERON, OTTER, write_archive


@pytest.fixture
def config(store, model_folder):
    return load_config(store=store.url, engine__kind="scripted", engine__model=str(model_folder))


def answered(config, run):
    return {(row["document"], row["question_id"]): row["answer"] for row in answer_table(config, "c", run)}


@pytest.mark.parametrize("killed", ["before the file", "after the file", "after the commit"])
def test_a_kill_around_the_commit_costs_nothing(store, tmp_path, config, killed):
    corpus = Corpus(store, "c")
    write_archive(tmp_path / "docs", count=6, words=80)
    ingest(corpus, [str(tmp_path / "docs")], config, "ingest")
    first = ask("c", [OTTER, HERON], config)
    expected = answered(config, first["run_id"])
    files = [store.path("answers", fragment.path) for fragment in Table(store, "answers").fragments("c")]
    # What the store was at that moment: the turns are durable, the run has not ended.
    Table(store, "runs").delete("c", run_id=[first["run_id"]])
    if killed != "after the commit":
        Table(store, "answers").delete("c", scope=["document"])
    if killed == "before the file":
        for path in files:
            store.delete(path)
    second = ask("c", [OTTER, HERON], config)
    assert second["conversations"] == 0, "all is in the turn log"
    assert second["readings"]["answered_before" if killed == "after the commit" else "read_now"] == 12
    assert answered(config, second["run_id"]) == expected
    assert Table(store, "answers").count("c") == 12
    log = turns(corpus, [row["reading_id"] for row in answer_table(config, "c", second["run_id"])])
    assert len({(turn.reading_id, turn.span, turn.step) for turn in log}) == first["conversations"]


def test_a_commit_whose_outcome_nobody_knows_is_repeated_without_effect(store, tmp_path, config):
    corpus = Corpus(store, "c")
    write_archive(tmp_path / "docs", count=3, words=80)
    ingest(corpus, [str(tmp_path / "docs")], config, "ingest")
    ask("c", [OTTER], config)
    table = Table(store, "answers")
    rows = table.read("c")
    file = write_data_file(corpus, "answers", rows)
    assert table.commit_files("c", [file], writer="w", number=0)
    assert not table.commit_files("c", [file], writer="w", number=0), "the same commit again"
    assert table.count("c") == 6, "the rows of both files"
    assert table.read("c").num_rows == 3, "a reading counts once"
    commits = FileCommits(table, "c", "run", seconds=3600)
    commits.add([write_data_file(corpus, "answers", rows)] * 2)
    commits.commit()
    assert table.count("c") == 9, "a file that two blocks report is committed once"
