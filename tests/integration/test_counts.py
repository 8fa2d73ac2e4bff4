"""Counts of a corpus are kept until what they count is another."""

import pytest

from infra.store import Corpus
from infra.tables.delta import Table
from pipelines import counts
from pipelines.counts import corpus_counts
from tests.made_up_run import CORPUS, contracts, local_store


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
    assert corpus_counts(corpus) == {**first, "answers": 0, "found": 0, "held": 0} and len(counted) == 2


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
