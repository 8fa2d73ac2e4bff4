"""Counts of a corpus are kept until what they count is another."""

import pytest

from infra.store.corpora import remember
from infra.store.delta import Table
from infra.store.location import Corpus
from memagent.config import load_config
from pipelines.ask import ask, digest
from pipelines.views import counts
from pipelines.views.counts import corpus_counts
from tests.support.archives import HERON, OTTER, write_archive
from tests.support.made_up_run import CORPUS, contracts, local_store


@pytest.fixture
def corpus(tmp_path):
    run = contracts(local_store(tmp_path), 10)
    run.save()
    return Corpus(run.store, CORPUS)


@pytest.fixture
def counted(monkeypatch):
    """How often all was counted."""
    times = []
    real = counts._counted

    def count(*given):
        times.append(given)
        return real(*given)

    monkeypatch.setattr(counts, "_counted", count)
    return times


def test_nothing_is_counted_twice_until_it_changes(corpus, counted):
    first = corpus_counts(corpus)
    assert first["documents"] == 10 and first["answers"] > first["found"] > 0
    assert corpus_counts(corpus) == first and len(counted) == 1
    answers = Table(corpus.store, "answers")
    answers.delete(corpus.name, reading_id=answers.read(corpus.name, ["reading_id"])["reading_id"].to_pylist())
    assert corpus_counts(corpus) == {**first, "answers": 0, "found": 0, "withheld": 0} and len(counted) == 2


def test_what_was_kept_and_is_damaged_is_counted_anew(corpus, counted):
    first = corpus_counts(corpus)
    for damaged in (b"", b"5", b"[1]", b"{}", b"\xff"):
        corpus.store.write_bytes(damaged, "counts", f"{corpus.name}.json")
        assert corpus_counts(corpus) == first
    assert len(counted) == 6


def test_who_may_only_read_counts_each_time(corpus, counted, monkeypatch):
    def refused(*_):
        raise PermissionError("read only")

    monkeypatch.setattr(type(corpus.store), "write_bytes", refused)
    assert corpus_counts(corpus) == corpus_counts(corpus) and len(counted) == 2


@pytest.mark.parametrize("few", [10_000, 0], ids=["small", "large"])
def test_a_run_counts_what_it_leaves(store, tmp_path, model_folder, counted, monkeypatch, few):
    monkeypatch.setattr(counts, "FEW", few)
    config = load_config(
        store=store.url, engine__kind="scripted", engine__model=str(model_folder), sets=["flush_seconds=0.2"]
    )
    write_archive(tmp_path / "docs")
    remember(Corpus(store, "c"), sources=[str(tmp_path / "docs")])
    digest("c", [OTTER], config)
    (tmp_path / "docs" / "doc1.txt").write_text("The pass number for amber-otter is 5.")
    digest("c", None, config)
    assert len(counted) == (2 if few else 0), "a large corpus is counted by a task"
    counted.clear()
    assert corpus_counts(Corpus(store, "c"))["answers"] == 8 and not counted, "what was hidden is shown"
    ask("c", [HERON], config)
    counted.clear()
    assert corpus_counts(Corpus(store, "c"))["answers"] == 16 and not counted
