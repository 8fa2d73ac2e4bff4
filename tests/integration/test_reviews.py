"""What people said of answers, in the tables: which answer is then shown, exported and taught."""

import csv
from datetime import timedelta

import pytest

from infra.store.corpora import remember
from infra.store.delta import Table
from infra.store.feedback import Reviews, verdicts
from infra.store.location import Corpus, Store
from memagent.config import load_config
from memagent.quality.verdicts import right_answer
from pipelines.ask import digest
from pipelines.io.answers import answer_rows, answer_table, write_answers
from pipelines.stages.collect_qa import feedback_rows
from pipelines.views.counts import corpus_counts
from tests.support.archives import OTTER, write_archive
from tests.support.commands import run_here
from tests.support.made_up_run import CORPUS, RUN, START, contracts, local_store


def say(reading, verdict, answer="", reviewer="anna", at=0, **more):
    row = dict(corpus=CORPUS, reading_id=reading, verdict=verdict, answer=answer, reviewer=reviewer, comment="")
    return row | {"given_at": START + timedelta(seconds=at), "spans": [], "decides": False} | more


def test_corrections_are_what_a_user_sees(tmp_path):
    run = contracts(local_store(tmp_path), 3)
    run.save()
    law, date, cap = (row["reading_id"] for row in run.answers[:3])
    span = {"content_hash": run.answers[0]["content_hash"], "char_start": 3, "char_end": 9}
    rows = [say(law, "corrected", "Utah", spans=[span]), say(date, "accepted"), say(cap, "comment", comment="see 4")]
    Table(run.store, "feedback").append(rows)
    for run_id in (None, RUN):
        found = {row["reading_id"]: row for row in answer_rows(Corpus(run.store, CORPUS), run_id)}
        shown = found[law]
        assert (shown["answer"], shown["engine_answer"], shown["review"]) == ("Utah", "Delaware", "corrected")
        assert shown["reviewed_by"] == ["anna"] and shown["found"]
        assert (found[date]["review"], found[cap]["review"]) == ("accepted", "")
    only = list(answer_rows(Corpus(run.store, CORPUS), where=[("review", "corrected")]))
    assert [row["reading_id"] for row in only] == [law]
    write_answers(only, "csv", tmp_path / "answers.csv")
    (line,) = csv.DictReader((tmp_path / "answers.csv").read_text().splitlines())
    assert (line["answer"], line["engine_answer"], line["reviewed_by"]) == ("Utah", "Delaware", "anna")
    (taught, accepted), rejected, _ = feedback_rows(verdicts(Corpus(run.store, CORPUS)))
    taught, accepted = sorted((taught, accepted), key=lambda row: row.answers[0] != "Utah")
    assert taught.answers == ("Utah",) and [tuple(one) for one in taught.spans] == [(span["content_hash"], 3, 9)]
    assert rejected == {taught.qa_id: {"delaware"}}


def test_what_is_not_in_the_document_is_not_found_and_has_no_quote(tmp_path):
    run = contracts(local_store(tmp_path), 1)
    run.save()
    wrong = next(row for row in run.answers if row["found"] and row["evidence"])
    Table(run.store, "feedback").append([say(wrong["reading_id"], "corrected", "")])
    (row,) = (row for row in answer_rows(Corpus(run.store, CORPUS)) if row["reading_id"] == wrong["reading_id"])
    assert (row["found"], row["answer"], row["evidence"], row["review"]) == (False, "", [], "corrected")
    assert row["engine_answer"] == wrong["answer"]


def test_counts_and_digests_have_what_people_said(tmp_path, model_folder):
    run = contracts(local_store(tmp_path), 3)
    run.save()
    corpus = Corpus(run.store, CORPUS)
    before = corpus_counts(corpus)
    first, second = [row["reading_id"] for row in run.answers if row["found"]][:2]
    lacking = next(row["reading_id"] for row in run.answers if not row["found"])
    Table(run.store, "feedback").append([say(first, "corrected", ""), say(second, "corrected", "")])
    assert corpus_counts(corpus) == before | {"found": before["found"] - 2}
    Table(run.store, "feedback").append([say(lacking, "corrected", "Utah", at=1)])
    assert corpus_counts(corpus)["found"] == before["found"] - 1
    assert corpus_counts(corpus)["found"] == sum(row["found"] for row in answer_rows(corpus))

    store = Store(str(tmp_path / "digests"))
    scripted = {"engine__kind": "scripted", "engine__model": str(model_folder)}
    config = load_config(store=store.url, **scripted)
    write_archive(tmp_path / "docs")
    remember(Corpus(store, "c"), sources=[str(tmp_path / "docs")])
    said = digest("c", [OTTER], config)["rollup"][0]
    found = next(row for row in answer_rows(Corpus(store, "c")) if row["found"])
    Table(store, "feedback").append([say(found["reading_id"], "corrected", "Utah") | {"corpus": "c"}])
    night = digest("c", None, config)
    (corrected,) = night["rollup"]
    assert (night["readings"]["read_now"], corrected["found"], corrected["changed_count"]) == (0, said["found"], 0)
    assert ("Utah", 1) in corrected["answers"] and corrected["corrected"] == 1
    for file in [*sorted((tmp_path / "docs").iterdir())[:2], tmp_path / "docs" / found["document"]]:
        file.write_text("The pass number for amber-otter is 77.")
    (changed,) = digest("c", None, config)["rollup"]
    assert changed["changed"][0]["document"] == found["document"], "what people had said is named first"
    assert changed["changed"][0] == {"document": found["document"], "before": "Utah", "now": "77", "corrected": True}
    assert [one["corrected"] for one in changed["changed"]] == [True] + [False] * (changed["changed_count"] - 1)


def test_a_file_that_the_next_run_reads_as_a_document_is_said(tmp_path):
    run = contracts(local_store(tmp_path), 1)
    run.save()
    (tmp_path / "notes").mkdir()
    remember(Corpus(run.store, CORPUS), sources=[str(tmp_path / "notes"), str(tmp_path / "*.pdf")])
    store = ("--store", run.store.url)
    for name, warned in (("notes/a", True), ("notes/../notes/b", True), ("c", False)):
        for output, command in (("csv", ("answers", CORPUS)), ("html", ("report", RUN))):
            file = f"{tmp_path}/{name}.{output}"
            _, said = run_here(*command, "-o", file, *store)
            lies = f"{file} lies in a source of corpus {CORPUS}: the next run reads it as a document\n"
            assert said == (lies if warned else "")


@pytest.mark.parametrize("written", ["not found", "Not found.", "Not in the document"])
def test_our_words_for_no_answer_are_none(written):
    assert right_answer(written) == "" and right_answer(f"{written}: see annex") != ""


def test_a_correction_outlives_the_next_reading_of_the_same_text(tmp_path):
    run = contracts(local_store(tmp_path), 1)
    run.save()
    old = run.answers[0]
    Table(run.store, "feedback").append([say(old["reading_id"], "corrected", "Utah")])
    again = old | {"reading_id": "later", "answer": "Nevada", "answered_at": START + timedelta(days=1)}
    Table(run.store, "answers").append([again])
    (row,) = (row for row in answer_table(load_config(store=run.store.url), CORPUS) if row["reading_id"] == "later")
    assert (row["answer"], row["engine_answer"], row["review"]) == ("Utah", "Nevada", "corrected")
    Table(run.store, "feedback").append([say(old["reading_id"], "withdrawn", at=1)])
    assert Reviews(Corpus(run.store, CORPUS)).of(again) is None
