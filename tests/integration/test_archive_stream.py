"""An archive of many documents, read as one stream: what is stored, where it resumes, what its report shows."""

import asyncio
import json
from datetime import timedelta

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from infra.readers import ReaderSpec
from infra.store.buckets import Bucket
from infra.store.corpora import remember
from infra.store.delta import Table
from infra.store.location import Corpus, Store
from infra.store.plans import read_plan
from infra.store.schemas import PLACES
from infra.store.segments import (
    INLINE,
    StoredStream,
    StreamPlaces,
    read_places,
    segment_range,
    segmented,
    stream_of,
    write_places,
)
from memagent.config import load_config
from memagent.records import Question
from pipelines.ask import ask
from pipelines.harvest import harvest
from pipelines.io import answers
from pipelines.io.answers import answer_rows
from pipelines.operate.check import check
from pipelines.operate.dry_run import ask_dry_run
from pipelines.report.page import build
from pipelines.stages.ingest import ingest
from pipelines.target import Target
from pipelines.web.access import Access
from pipelines.web.address import Address
from pipelines.web.api.reader import answer_evidence
from pipelines.web.review.answer_pages import exported_rows
from pipelines.web.review.listing import Filter
from tests.support.review_service import PORT, Person, home, review_service_on

__all__ = ["home"]

COUNT = INLINE + 200
OTTER = Question("otter", "What is the pass number for amber-otter?", answers=("4711",))
TENS = Question("tens", "What is the pass number for amber-otter?", ("*note-00?7",))


@pytest.fixture
def many(tmp_path):
    """A file of more short documents than rows have the hashes of; the answer stands in one of them."""
    lines = [f"Note {i} speaks of grey herons by the water." for i in range(COUNT)]
    lines[700] += " The pass number for amber-otter is 4711."
    _write(tmp_path / "notes.jsonl", lines)
    return tmp_path / "notes.jsonl"


@pytest.fixture
def config(tmp_path, model_folder):
    store = str(tmp_path / "store")
    sets = ["flush_seconds=0.2", "ingest.id_column=id"]
    return load_config(store=store, engine__kind="scripted", engine__model=str(model_folder), sets=sets)


def _write(path, texts):
    path.write_text("".join(json.dumps({"id": f"note-{i:04d}", "text": text}) + "\n" for i, text in enumerate(texts)))


def _take(config, path):
    corpus = Corpus(Store(config.store), "c")
    remember(corpus, sources=[str(path)])
    ingest(corpus, [str(path)], config, "ingest")
    return corpus


def test_rows_of_a_large_archive_name_its_stream_and_do_not_hold_it(config, many):
    corpus = _take(config, many)
    dry = ask_dry_run(Target(corpus), [OTTER], config, archive=True)
    assert dry["conversations"] == pytest.approx(COUNT + 1, rel=0.02), "texts that have no segments yet are guessed"
    assert not corpus.store.list("streams"), "a dry run writes nothing"
    summary = ask("c", [OTTER, TENS], config, archive=True)
    assert summary["readings"]["read_now"] == 2 and summary["documents"] == COUNT
    answers = {row["question_id"]: row for row in Table(corpus.store, "answers").read("c").to_pylist()}
    long, short = answers["otter"], answers["tens"]
    assert long["answer"] == "4711" and long["segments"] == COUNT
    assert long["stream"] == [] and short["stream"] == stream_of(corpus, short) and len(short["stream"]) == 10
    plan = {row["question_id"]: row for row in read_plan(corpus, summary["run_id"]).to_pylist()}
    assert plan["otter"]["stream"] == [] and plan["otter"]["documents"] == COUNT
    stream = stream_of(corpus, long)
    documents = Table(corpus.store, "documents").read("c", ["doc_id", "content_hash"]).to_pylist()
    names = {row["content_hash"]: row["doc_id"] for row in documents}
    assert [names[content_hash] for content_hash in stream] == sorted(names.values())
    (row,) = (row for row in answer_rows(corpus, summary["run_id"]) if row["question_id"] == "otter")
    assert names[row["evidence"][0]["content_hash"]].endswith("note-0700")
    page = build(corpus.store, summary["run_id"])
    assert '"id":"notes.jsonl#note-0700"' in page and f'"read",{COUNT},' in page


def test_the_newest_answer_over_an_archive_counts_wherever_its_hash_stands(config, tmp_path, monkeypatch):
    _write(tmp_path / "notes.jsonl", ["The pass number for amber-otter is 4711."])
    corpus = _take(config, tmp_path / "notes.jsonl")
    ask("c", [OTTER], config, archive=True)
    (row,) = Table(corpus.store, "answers").read("c").to_pylist()
    for digit in "0f":  # before it and after it
        earlier = row["answered_at"] - timedelta(days=1)
        other = {"answer": "of an archive as it was", "content_hash": digit * 64, "answered_at": earlier}
        Table(corpus.store, "answers").append([{**row, **other, "reading_id": digit}])
    monkeypatch.setattr(answers, "buckets", lambda count: [Bucket(index, 16) for index in range(16)])
    assert [given["answer"] for given in answer_rows(corpus)] == ["4711"]


def test_an_answer_over_documents_that_have_changed_since_says_so(config, many, home):
    corpus = _take(config, many)
    texts = [json.loads(line)["text"] for line in many.read_text().splitlines()]
    ask("c", [OTTER], config, archive=True)
    (given,) = answer_rows(corpus)
    assert given["warnings"] == []
    _write(many, ["Of the black stork.", *texts[1:], "Of the white stork."])
    _take(config, many)
    (given,) = answer_rows(corpus)
    said = "of other documents than now: 2 not read, 1 gone or changed"
    assert given["warnings"] == [said] == answer_evidence(corpus, given["reading_id"], 10).warnings
    with review_service_on(corpus.store, home) as service:
        (row,) = exported_rows(service, Filter(), "ann", "http://here")
        assert row["warnings"] == [said]
        person = Person(service, Access(service.journal, ["ann"], Address(PORT)), "ann")
        assert said in person.get(f"/answers/c/{given['reading_id']}")
    ask("c", [OTTER], config, archive=True)
    assert [given["warnings"] for given in answer_rows(corpus)] == [[]]


def test_a_large_archive_that_grows_is_read_on(config, many):
    corpus = _take(config, many)
    first = ask("c", [OTTER], config, archive=True)
    texts = [json.loads(line)["text"] for line in many.read_text().splitlines()]
    _write(many, [*texts, "Of the black stork.", "Of the white stork."])
    _take(config, many)
    grown = ask("c", [OTTER], config, archive=True)
    assert grown["readings"]["continued"] == 1 and grown["segments"] == 2
    assert grown["carried_segments"] == first["segments"]
    assert ask("c", [OTTER], config, archive=True)["readings"]["answered_before"] == 1
    assert len(corpus.store.list("streams")) == 2, "a file for each list of documents"
    for path in corpus.store.list("streams"):
        corpus.store.delete(path)
    _write(many, [*texts, "Of the black stork.", "Of the white stork.", "Of no stork."])
    _take(config, many)
    again = ask("c", [OTTER], config, archive=True)
    assert again["readings"]["read_now"] == 1 and again["segments"] == COUNT + 3, "without its list it is read anew"


@pytest.mark.parametrize("harm", ["cut off", "of others", "gone"])
def test_a_list_that_is_damaged_or_gone_is_found_and_written_again(config, many, harm):
    corpus = _take(config, many)
    ask("c", [OTTER], config, archive=True)
    assert check("c", config)["checked"]["archives"] == 1
    (long,) = Table(corpus.store, "answers").read("c").to_pylist()
    (path,) = corpus.store.list("streams")
    relative = path.removeprefix(corpus.store.path(""))
    if harm == "cut off":
        corpus.store.write_bytes(corpus.store.read_bytes(relative)[:-30], relative)
    elif harm == "of others":
        corpus.store.write_part(pa.table({"content_hash": ["a" * 64] * COUNT}), relative)
    else:
        corpus.store.delete(path)
    found = check("c", config)
    assert found["found"] == {"archives": 1} and found["lasting"] == 1 and found["damages"][0]["item"] == relative
    assert check("c", config, repair=True)["lasting"] == (harm == "gone")
    found = check("c", config)
    assert found["lasting"] == 1 and "it is gone; asking again" in found["damages"][0]["detail"]
    (given,) = answer_rows(corpus)
    assert given["warnings"] == ["its documents are not known: their list cannot be read"]
    assert ask("c", [OTTER], config, archive=True)["readings"]["answered_before"] == 1
    assert check("c", config)["found"] == {} and len(stream_of(corpus, long)) == COUNT
    (given,) = answer_rows(corpus)
    assert given["warnings"] == []


def test_an_archive_with_a_damaged_list_can_grow(config, many):
    corpus = _take(config, many)
    ask("c", [OTTER], config, archive=True)
    (path,) = corpus.store.list("streams")
    corpus.store.write_bytes(b"PAR1 damaged", path.removeprefix(corpus.store.path("")))
    texts = [json.loads(line)["text"] for line in many.read_text().splitlines()]
    _write(many, [*texts, "Of the black stork."])
    _take(config, many)
    assert ask("c", [OTTER], config, archive=True)["readings"]["read_now"] == 1


def test_a_large_archive_does_not_teach(config, many):
    _take(config, many)
    ask("c", [OTTER, TENS], config, archive=True)
    summary = harvest("c", config)
    assert summary["rows"] == 0 and summary["dropped"] == {"no document": 1}


@pytest.fixture(scope="module")
def stored(tmp_path_factory, model_folder):
    """Return a store, and where the segments of some documents are, of one to nine segments each."""
    folder = tmp_path_factory.mktemp("stored")
    texts = [" ".join(f"word{i}x{j}" for j in range(60 * (i % 9) + 3)) for i in range(20)]
    _write(folder / "notes.jsonl", texts)
    sets = ["reading.segment_tokens=32"]
    config = load_config(
        store=str(folder / "store"), engine__kind="scripted", engine__model=str(model_folder), sets=sets
    )
    corpus = _take(config, folder / "notes.jsonl")
    ask("c", [OTTER], config, archive=True)
    reader = ReaderSpec(config)
    rows = segmented(corpus, reader.tokenizer, reader.reading)
    return corpus.store, [segment_range(row) for _, row in sorted(rows.items())]


@given(span=st.tuples(st.integers(0, 200), st.integers(0, 200)))
@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_span_of_a_stream_is_read_alike_from_a_list_and_from_a_file(stored, span):
    store, places = stored
    plain = StoredStream(store, places)
    table = write_places(store, "r", "x", _table(places))
    filed = read_places(store.url, table)
    both = StoredStream(store, filed)
    whole = [(place["content_hash"], i) for place in places for i in range(place["segments"])]
    assert len(plain) == len(both) == len(whole) and [filed[i] for i in range(len(filed))] == places
    for stream in (plain, both):
        found = asyncio.run(_read(stream, *span))
        assert [(segment.content_hash, segment.index) for segment in found] == whole[slice(*span)]


def test_places_keep_a_documents_numbers(stored):
    _, places = stored
    filed = StreamPlaces(_table(places))
    assert len(filed) == len(places) and filed[2] == places[2]
    assert filed.hashes == [place["content_hash"] for place in places]


async def _read(stream, start, stop):
    return [segment async for segment in stream.read(start, stop)]


def _table(places):
    return pa.Table.from_pylist(places, schema=PLACES)
