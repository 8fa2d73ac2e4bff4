"""Ingest, ask and digest from end to end with the scripted reader, on a folder and on S3."""

import json
import random
import shutil
from itertools import islice

import pyarrow.dataset as ds
import pytest
import ray

from infra.cluster import session as jobs
from infra.readers import ReaderSpec
from infra.store.buckets import Bucket
from infra.store.corpora import remember
from infra.store.delta import Table
from infra.store.location import Corpus, Store
from infra.store.plans import read_plan
from infra.store.schemas import failure_row
from infra.store.turns import turns
from memagent.config import load_config
from memagent.errors import ItemError, UsageError
from memagent.reading.segmenting import segments
from memagent.records import Question, text_hash
from pipelines.ask import ask, digest
from pipelines.io.answers import answer_rows, answer_table
from pipelines.operate.status import corpus_status, quarantined
from pipelines.report.page import build
from pipelines.stages import plan
from pipelines.stages import summarise as rollup
from pipelines.stages.ingest import dismiss, ingest
from pipelines.stages.plan import make_plan
from pipelines.stages.planned_readings import PlanRequest
from tests.support.archives import HERON, OTTER, write_archive


@pytest.fixture
def archive(tmp_path):
    write_archive(tmp_path / "docs")
    return tmp_path / "docs"


@pytest.fixture
def config(store, model_folder):
    return load_config(
        store=store.url, engine__kind="scripted", engine__model=str(model_folder), sets=["flush_seconds=0.2"]
    )


def take(store, archive, config):
    remember(Corpus(store, "c"), sources=[str(archive)])
    return ingest(Corpus(store, "c"), [str(archive)], config, "run-ingest")


def log_of(store):
    paths = store.list("turns", "c")
    return ds.dataset(paths, filesystem=store.arrow).to_table().to_pylist()


def test_answers_with_evidence_and_nothing_is_done_twice(store, archive, config):
    take(store, archive, config)
    first = ask("c", [OTTER, HERON], config)
    assert first["readings"] == {
        "total": 16,
        "answered_before": 0,
        "read_now": 16,
        "continued": 0,
        "failed": 0,
        "found": 4,
    }
    rows = answer_table(config, "c", first["run_id"])
    assert {row["document"]: row["answer"] for row in rows if row["found"]} == {
        f"doc{i}.txt": str(1000 + i) for i in (0, 2, 4, 6)
    }
    for row in rows:
        if row["found"]:
            text = (archive / row["document"]).read_text()
            evidence = row["evidence"][0]
            assert text[evidence["quote_start"] : evidence["quote_end"]] == evidence["quote"]
            assert row["answer"] in evidence["quote"]
    log = log_of(store)
    assert len(log) == first["conversations"] == first["segments"] + 16
    assert sum(row["prompt_tokens"] for row in log) == first["prompt_tokens"]
    assert sum(len(row["response_ids"]) for row in log) == first["output_tokens"]
    assert len({(row["reading_id"], row["span"], row["step"]) for row in log}) == len(log)
    again = ask("c", [OTTER, HERON], config)
    assert (again["readings"]["read_now"], again["readings"]["answered_before"]) == (0, 16)
    assert again["conversations"] == 0 and len(log_of(store)) == len(log)
    assert [row["answer"] for row in answer_table(config, "c", again["run_id"])] == [row["answer"] for row in rows]


def test_a_document_that_grew_is_read_on_from_its_first_changed_segment(store, archive, config):
    write_archive(archive, words=900)
    take(store, archive, config)
    defaults = [OTTER, HERON]
    first = digest("c", defaults, config)
    rng = random.Random(9)
    for path in sorted(archive.iterdir()):
        path.write_text(path.read_text() + f"\n\nThe pass number for silver-heron is {rng.randrange(10**6)}.")
    second = digest("c", None, config)
    assert second["ingest"]["changed"] == 8
    assert second["readings"]["continued"] + sum(row["state"] == "new" for row in _plan(store, second)) == 16
    # Only the changed segments at the end of each document, and the answers.
    assert second["conversations"] < 0.45 * first["conversations"]
    assert second["segments"] + second["carried_segments"] == sum(row["segments"] for row in _plan(store, second))
    heron = [row for row in answer_table(config, "c", second["run_id"]) if row["question_id"] == "heron"]
    found = sum(row["found"] for row in heron)
    assert found >= 6, "a cut through the sentence may cost some"
    changed = {entry["question_id"]: len(entry["changed"]) for entry in second["rollup"]}
    assert changed == {"otter": 0, "heron": found}
    # A reading from the start, in a store of its own, comes to the same answers.
    elsewhere = config.model_copy(update={"store": config.store + "-fresh"})
    from infra.store.location import Store

    take(Store(elsewhere.store), archive, elsewhere)
    fresh = ask("c", defaults, elsewhere)
    assert _said(elsewhere, fresh) == _said(config, second)
    # What was carried over is in the log, and says from where.
    row = next(row for row in _plan(store, second) if row["carried_segments"])
    carried = [turn for turn in turns(Corpus(store, "c"), [row["reading_id"]]) if turn.kind == "carried"]
    assert carried and all(turn.carried_from == row["carried_from"] for turn in carried)


def test_a_night_of_many_buckets_tells_what_changed(store, archive, config, monkeypatch):
    """Between two nights a corpus may grow by a bucket, and a document that changes is in another one."""
    take(store, archive, config)
    remember(Corpus(store, "c"), sources=[str(archive)])
    monkeypatch.setattr(plan, "buckets", lambda size: [Bucket(index, 3) for index in range(3)])
    first = digest("c", [OTTER, HERON], config)
    rows = answer_table(config, "c", first["run_id"])
    said = {(row["document"], row["question_id"]): row["answer"] for row in rows}
    monkeypatch.setattr(plan, "buckets", lambda size: [Bucket(index, 4) for index in range(4)])
    monkeypatch.setattr(rollup, "_MOVED", 1)  # so that several tasks compare
    for name in ("doc0.txt", "doc1.txt", "more.txt"):
        (archive / name).write_text(f"The pass number for silver-heron is 5. This is {name}.")
    second = digest("c", None, config)
    assert second["readings"]["read_now"] == 6
    otter, heron = second["rollup"]
    by_document = {row["document"]: (row["before"], row["now"]) for row in heron["changed"]}
    assert by_document == {name: (said[name, "heron"], "5") for name in ("doc0.txt", "doc1.txt")}
    assert {row["document"] for row in otter["changed"]} == {"doc0.txt"}, "it was about the otter"
    assert heron["new_documents"] == otter["new_documents"] == ["more.txt"]
    third = digest("c", [OTTER, HERON, Question("where", "Where is the otter?")], config)
    assert not Store(config.store).list("runs", second["run_id"], "moved"), "what was compared is deleted"
    counts = [(one["changed_count"], one["new_count"]) for one in third["rollup"]]
    assert counts == [(0, 0), (0, 0), (0, 9)], "a question that is new has no answers before"
    assert not any(one["gone_count"] for one in (*second["rollup"], *third["rollup"])), "they moved"
    (archive / "doc1.txt").unlink()
    (archive / "doc2.txt").write_text("The pass number for silver-heron is 6.")
    monkeypatch.setattr(
        plan, "buckets", lambda size: [Bucket(index, 64) for index in range(64)]
    )  # it was alone in its own
    for one in digest("c", None, config)["rollup"]:
        assert (one["gone"], one["gone_count"], one["documents"]) == (["doc1.txt"], 1, 8)


@pytest.mark.parametrize(("root", "count"), [("local", 1), ("local", 3)], indirect=["root"])
def test_what_a_night_did_not_come_to_changes_in_the_one_that_reads_it(store, archive, config, monkeypatch, count):
    take(store, archive, config)
    remember(Corpus(store, "c"), sources=[str(archive)])
    monkeypatch.setattr(plan, "buckets", lambda size: [Bucket(index, count) for index in range(count)])
    said = {row["document"]: row["answer"] for row in answer_table(config, "c", digest("c", [OTTER], config)["run_id"])}
    names = sorted(said)
    for number, name in enumerate([*names, "more.txt", "other.txt"]):
        (archive / name).write_text(f"The pass number for amber-otter is {5000 + number}. This is {name}.")
    little = {"engine": {"scripted_delay": 0.3}, "pool": {"inflight": 1}, "cost": {"budget": "60tok"}}
    poor = config.model_copy(
        update={key: getattr(config, key).model_copy(update=values) for key, values in little.items()}
    )
    nights = [digest("c", None, poor), digest("c", None, poor), digest("c", None, config), digest("c", None, config)]
    unread = [night["readings"].get("unread", 0) for night in nights]
    assert unread[0] > unread[1] > unread[2] == 0, "the first ones came to some of them"
    rollups = [night["rollup"][0] for night in nights]
    assert [rollup["unanswered"] for rollup in rollups] == unread and not rollups[-1]["changed_count"]
    changed = [(one["document"], one["before"], one["now"]) for rollup in rollups for one in rollup["changed"]]
    assert sorted(changed) == [(name, said[name], str(5000 + number)) for number, name in enumerate(names)]
    assert sorted(name for one in rollups for name in one["new_documents"]) == ["more.txt", "other.txt"], "each once"


def test_a_night_compares_answers_to_the_same_question_whatever_its_id(store, archive, config):
    take(store, archive, config)
    first, again = Question("7", OTTER.text), [Question("7", HERON.text), Question("8", OTTER.text)]
    digest("c", [first], config)
    heron, otter = digest("c", again, config)["rollup"]
    assert (heron["question_id"], heron["changed_count"], heron["new_count"], heron["gone_count"]) == ("7", 0, 8, 0)
    assert (otter["question_id"], otter["changed_count"], otter["new_count"], otter["gone_count"]) == ("8", 0, 0, 0)


def test_a_night_without_a_change_does_nothing_and_has_its_answers_and_report(store, archive, config):
    take(store, archive, config)
    remember(Corpus(store, "c"), sources=[str(archive)])
    defaults = [OTTER, HERON]
    first = digest("c", defaults, config)
    nights = [digest("c", None, config) for _ in range(2)]
    for night in nights:
        assert (night["readings"]["read_now"], night["readings"]["answered_before"]) == (0, 16)
        assert night["readings"]["found"] == first["readings"]["found"] and night["conversations"] == 0
        assert night["stage_seconds"] == {}, "nothing is planned"
        assert _said(config, night) == _said(config, first)
        assert {row["state"] for row in _plan(store, night)} == {"answered"}
        assert "amber-otter" in build(store, night["run_id"])
        assert all(not rollup["changed"] and not rollup["new_documents"] for rollup in night["rollup"])
    (archive / "doc0.txt").write_text("The pass number for silver-heron is 5.")
    changed = digest("c", None, config)
    assert changed["readings"]["read_now"] == 2
    assert {r["question_id"]: r["changed"] for r in changed["rollup"]}["heron"][0]["now"] == "5"
    assert digest("c", [OTTER], config)["readings"]["total"] == 8, "other questions are another night"


def test_a_run_that_was_broken_off_goes_on(store, archive, config):
    take(store, archive, config)
    whole = ask("c", [OTTER], config)
    expected = _said(config, whole)
    # Take the answers and the last turns of every reading away, as a crash would have.
    table = ds.dataset(store.list("turns", "c"), filesystem=store.arrow).to_table()
    rows = table.to_pylist()
    kept = [row for row in rows if row["step"] < 2]
    for path in store.list("turns", "c"):
        store.delete(path)
    import pyarrow as pa

    store.write_part(pa.Table.from_pylist(kept, schema=table.schema), "turns", "c", whole["run_id"], "part.parquet")
    Table(store, "answers").delete("c", scope=["document"])
    Table(store, "runs").delete("c", run_id=[whole["run_id"]])
    second = ask("c", [OTTER], config)
    assert second["readings"]["continued"] == 8
    assert second["conversations"] == len(rows) - len(kept)
    assert _said(config, second) == expected


def test_scores_count_failures_as_wrong(store, archive, config):
    take(store, archive, config)
    questions = [
        Question("a", OTTER.text, ("doc0.txt",), ("1000",)),
        Question("b", OTTER.text, ("doc1.txt",), ("",)),
        Question("c", OTTER.text, ("doc2.txt",), ("wrong",)),
        Question("d", OTTER.text, ("nowhere.txt",), ("1",)),
    ]
    summary = ask("c", questions, config)
    assert {s["metric"]: (s["value"], s["n"]) for s in summary["scores"]}["exact match"] == (0.5, 4)
    assert summary["readings"]["failed"] == 1
    (row,) = quarantined(config, "c")
    assert row["reason"] == "no-document" and "is asked" in row["detail"]
    assert answer_table(config, "c", ask("c", questions[3:], config)["run_id"]) == [], "a run about no document at all"


def test_a_name_that_is_no_documents_is_a_failure_though_others_are(store, archive, config):
    take(store, archive, config)
    question = Question("a", OTTER.text, ("doc0.txt", "doc[46].txt", "nowhere.txt", "no*"))
    summary = ask("c", [question], config)
    assert summary["readings"]["read_now"] == 3 and summary["failures_by_reason"] == {"no-document": 1}
    (row,) = quarantined(config, "c")
    assert row["item"] == "a" and '["nowhere.txt", "no*"]' in row["detail"]


def test_a_question_that_matched_nothing_is_no_failure_once_it_is_asked_no_more(store, archive, config):
    take(store, archive, config)
    nowhere, there = (Question(name, OTTER.text, (f"{name}.txt",)) for name in ("nowhere", "doc1"))

    def failed():
        return [row["item"] for row in quarantined(config, "c")]

    ask("c", [nowhere], config)
    assert failed() == ["nowhere"]
    digest("c", [there], config)
    assert failed() == [], "the digest does not ask it"
    ask("c", [nowhere], config)
    assert digest("c", None, config)["conversations"] == 0 and failed() == [], "nor does one that has nothing to do"
    digest("c", [nowhere, there], config)
    ask("c", [there], config)
    assert failed() == ["nowhere"], "every digest asks it"


def test_a_failed_reading_is_no_failure_once_its_document_is_gone_or_it_is_dismissed(store, archive, config):
    take(store, archive, config)
    items = [f"{name} ? a" for name in ("archive", "doc0.txt", "doc1.txt", "doc2.txt")]
    rows = [failure_row("c", "read", item, reason="RequestError", detail="no", run_id="r") for item in items]
    Table(store, "quarantine").upsert(rows)
    (archive / "doc1.txt").unlink()
    ingest(Corpus(store, "c"), [str(archive)], config, "run-2")
    assert [row["item"] for row in quarantined(config, "c")] == ["archive ? a", "doc0.txt ? a", "doc2.txt ? a"]
    dismiss(Corpus(store, "c"), ["doc2.txt ? a", "archive ? a"], config, "dismiss")
    assert [row["item"] for row in quarantined(config, "c")] == ["doc0.txt ? a"]
    Table(store, "quarantine").upsert(rows[3:])
    assert [row["item"] for row in quarantined(config, "c")] == ["doc0.txt ? a", "doc2.txt ? a"], "it failed again"


def test_a_folder_that_is_gone_is_a_failure_and_the_others_are_read(store, archive, config, tmp_path):
    other = tmp_path / "other"
    write_archive(other, count=2, seed=3)
    remember(Corpus(store, "c"), sources=[str(archive), str(other)])
    first = digest("c", [OTTER], config)
    shutil.rmtree(other)
    (archive / "later.txt").write_text("The pass number for amber-otter is 77.")
    second = digest("c", None, config)
    assert second["ingest"]["quarantined"] == {"no-folder": 1} and second["ingest"]["deleted"] == 0
    assert second["documents"] == first["documents"] + 1 and second["readings"]["read_now"] == 1
    write_archive(other, count=2, seed=3)
    third = digest("c", None, config)
    assert not third["ingest"]["quarantined"] and not quarantined(config, "c"), "it is there again"


@pytest.mark.parametrize("wrong", [lambda c: corpus_status(c, "cc"), lambda c: quarantined(c, "cc")])
def test_a_corpus_that_is_not_there_is_said(store, archive, config, wrong):
    take(store, archive, config)
    with pytest.raises(UsageError, match=r"no corpus 'cc' in .*: did you mean 'c'"):
        wrong(config)
    with pytest.raises(UsageError, match=r"no corpus 'typo' in .*: memagent ingest typo FOLDER"):
        digest("typo", [OTTER], config)
    assert [one["corpus"] for one in corpus_status(config, None)["corpora"]] == ["c"], "and not made"
    with pytest.raises(UsageError, match="a source is empty"):
        ingest(Corpus(store, "c"), [""], config, "r")


def test_a_document_that_cannot_be_segmented_is_a_failure_of_the_run(store, archive, config, monkeypatch):
    take(store, archive, config)
    bad = text_hash((archive / "doc3.txt").read_text())

    def cut(content_hash, *given, **options):
        if content_hash == bad:
            raise ItemError("no segments of this one")
        return segments(content_hash, *given, **options)

    monkeypatch.setattr("infra.store.segments.segments", cut)
    summary = ask("c", [OTTER, HERON], config)
    assert (summary["readings"]["read_now"], summary["readings"]["failed"]) == (14, 1)
    assert summary["failures_by_reason"] == {"segment": 1}
    assert corpus_status(config, "c")["corpora"][0]["runs"][0]["status"] == "failed"


def test_the_archive_as_one_stream_and_its_growth(store, archive, config):
    take(store, archive, config)
    summary = ask("c", [OTTER], config, archive=True)
    (row,) = answer_table(config, "c", summary["run_id"])
    assert row["found"] and row["answer"] in {"1000", "1002", "1004", "1006"}
    (archive / "later.txt").write_text("The pass number for silver-heron is 77.")
    take(store, archive, config)
    grown = ask("c", [OTTER], config, archive=True)
    assert grown["readings"]["continued"] == 1 and grown["segments"] == 1
    assert grown["carried_segments"] == summary["segments"]


@pytest.mark.parametrize("option", ["reading.parallel_spans=3", "reading.layout=question-first", "reading.gate=false"])
def test_every_option_gives_the_same_answers(store, archive, config, option):
    take(store, archive, config)
    plain = ask("c", [OTTER], config)
    other = load_config(store=config.store, engine__kind="scripted", engine__model=config.engine.model, sets=[option])
    summary = ask("c", [OTTER], other)
    assert summary["readings"]["read_now"] == 8, "another reading configuration is another reading"
    assert _said(other, summary) == _said(config, plain)


def test_counts_come_with_the_answers_where_the_board_has_died(store, archive, config):
    take(store, archive, config)
    ray.kill(ray.get_actor(jobs.board_name()))
    try:
        done = ask("c", [OTTER], config)
    finally:
        jobs._board.cache_clear()
    log = log_of(store)
    assert done["conversations"] == len(log) == done["segments"] + 8
    assert done["prompt_tokens"] == sum(row["prompt_tokens"] for row in log)
    assert done["readings"]["read_now"] == 8


def test_deleted_documents_leave_and_equal_texts_are_read_once(store, archive, config):
    (archive / "copy.txt").write_text((archive / "doc0.txt").read_text())
    take(store, archive, config)
    summary = ask("c", [OTTER], config)
    assert (summary["readings"]["total"], summary["readings"]["read_now"]) == (9, 8)
    (archive / "doc2.txt").unlink()
    take(store, archive, config)
    left = ask("c", [OTTER], config)
    assert left["readings"]["total"] == 8 and left["conversations"] == 0
    assert corpus_status(config, "c")["corpora"][0]["documents"] == 8


def test_report_and_status_of_a_run(store, archive, config):
    take(store, archive, config)
    summary = ask("c", [OTTER], config)
    html = build(store, summary["run_id"])
    assert "amber-otter" in html and summary["run_id"] in html
    state = corpus_status(config, "c")["corpora"][0]
    assert (state["answers"], state["found"]) == (8, 4)
    assert state["runs"][0]["run_id"] == summary["run_id"]
    json.dumps(state)


def test_an_empty_corpus_says_what_to_do(store, config):
    with pytest.raises(UsageError, match="memagent ingest nothing FOLDER"):
        ask("nothing", [OTTER], config)


def test_two_runs_at_once_give_no_row_twice(store, archive, config):
    take(store, archive, config)
    ask("c", [OTTER], config)
    rows = Table(store, "answers").read("c")
    assert Table(store, "answers").insert_new(rows) == 0
    assert Table(store, "answers").read("c").num_rows == 8


def test_a_plan_uses_no_engine(store, archive, config):
    take(store, archive, config)
    reader = ReaderSpec(config)
    plan = make_plan(PlanRequest(Corpus(store, "c"), reader, (OTTER,), run_id="r"))
    assert not plan.blocks and plan.counts["readings"] == 0, "documents that are not segmented are not planned"
    assert plan.counts["unsegmented"] == 8


def _plan(store, summary):
    return read_plan(Corpus(store, "c"), summary["run_id"]).to_pylist()


def _said(config, summary):
    rows = answer_table(config, "c", summary["run_id"])
    return {(row["document"], row["question"]): (row["answer"], row["found"]) for row in rows}


def test_another_version_reads_again_from_the_start_where_that_is_asked_for(store, archive, config, monkeypatch):
    take(store, archive, config)
    first = ask("c", [OTTER], config)
    monkeypatch.setattr("infra.readers.RULES_VERSION", "another")
    kept = ask("c", [OTTER], config)
    assert kept["readings"]["answered_before"] == 8 and kept["conversations"] == 0
    again = ask("c", [OTTER], config, reread=True)
    assert again["readings"]["read_now"] == 8 and again["policy_id"] != first["policy_id"]
    # The memory of the version before would have been its answer, not this one's.
    assert again["carried_segments"] == 0 and again["segments"] == first["segments"]


def test_answers_are_chosen_by_field_and_limited(store, archive, config):
    take(store, archive, config)
    ask("c", [OTTER, HERON], config)
    corpus = Corpus(store, "c")

    def chosen(*more, **where):
        given = [*where.items(), *more]
        return [(row["document"], row["question_id"]) for row in answer_rows(corpus, where=given)]

    everything = chosen()
    assert len(everything) == 16
    assert chosen(document="DOC2.*") == [pair for pair in everything if pair[0] == "doc2.txt"]
    assert len(chosen(found="true")) == 4 and chosen(found="true", question_id="heron") == []
    assert chosen(("document", "doc3*"), document="doc2*") == [], "all must match, also of one field"
    assert chosen(document="doc[2].txt") == [], "only * and ? stand for other characters"
    assert list(islice(answer_rows(corpus), 3)) == list(answer_rows(corpus))[:3]
    with pytest.raises(UsageError, match=r"--where size=.*one of document, title"):
        answer_rows(corpus, where=[("size", "1")])
    with pytest.raises(UsageError, match=r"no corpus 'cc'.*did you mean 'c'"):
        answer_rows(Corpus(store, "cc"))
