"""Whoever asks for the newest answers gets the same ones: terminal, files, review pages, programs, counts, report."""

import asyncio
import csv
import json
from datetime import UTC, datetime, timedelta

import pyarrow.compute as pc
import pytest
from typer.testing import CliRunner

from infra.store.corpora import remember
from infra.store.delta import Table
from infra.store.documents import current_documents, document_texts
from infra.store.location import Corpus
from infra.store.resume_points import policy_name
from infra.store.runs import mark_released
from infra.store.schemas import AnswerRow
from memagent.config import load_config
from memagent.questions import ask as make_question
from memagent.records import stable_hash
from pipelines.cli.main import app
from pipelines.io.answers import answer_rows
from pipelines.report.data import load_rows, load_run
from pipelines.report.page import build
from pipelines.views.counts import corpus_counts
from pipelines.web.access import Access
from pipelines.web.address import Address
from pipelines.web.api.mcp_server import Tools
from pipelines.web.api.reader import answer_evidence
from pipelines.web.review import listing
from pipelines.web.review.answer_pages import exported_rows
from pipelines.web.review.listing import Filter
from tests.support.made_up_run import CORPUS, QUESTIONS, RUN, START, MadeUpRun, contracts, local_store
from tests.support.review_service import PORT, Person, home, known, review_service_on

__all__ = ["home"]
Shown = dict[tuple[str, str], str]


@pytest.fixture
def run(tmp_path) -> MadeUpRun:
    """A run, a newer digest that is withheld, and a newer sample that nobody has asked for."""
    run = contracts(local_store(tmp_path), 20, sections=8)
    run.save()
    known(run.store)
    later = START + timedelta(days=1)
    row = dict(corpus=CORPUS, status="completed", config="{}", summary="{}", started_at=later, ended_at=later)
    Table(run.store, "runs").append(
        [
            row | {"run_id": "withheld", "kind": "digest", "withheld": True},
            row | {"run_id": "sampled", "kind": "agreement"},
        ]
    )
    new = [
        old | {"answer": f"{name} {number}", "answered_at": later, "run_id": name, "reading_id": f"{name}{number}"}
        for name in ("withheld", "sampled")
        for number, old in enumerate(run.answers[:4])
    ]
    Table(run.store, "answers").append(new)
    return run


def in_files(run: MadeUpRun, folder, *options: str) -> list[Shown]:
    found = []
    for name in ("answers.csv", "answers.jsonl"):
        file = folder / name
        done = CliRunner().invoke(app, ["answers", CORPUS, "-o", str(file), "--store", run.store.url, *options])
        assert done.exit_code == 0, done.output
        text = file.read_text(encoding="utf-8-sig")
        rows = csv.DictReader(text.splitlines()) if name.endswith("csv") else map(json.loads, text.splitlines())
        found.append({(row["document"], row["question"]): row["answer"].lstrip("'") for row in rows})
    return found


def by_tools(run: MadeUpRun) -> Shown:
    tools = Tools(load_config(store=run.store.url))
    found = asyncio.run(tools.answers(CORPUS, limit=1000)).answers
    return {(one.document, one.question): one.answer for one in found}


def on_review_pages(service) -> Shown:
    items = listing.every(service.index.read(), Filter(), "anna")
    shown = [item for item in items if item.reading_id]
    return {(one.doc_id, one.question): one.answer if one.right is None else one.right for one in shown}


def test_all_give_the_same_answers(run, home, tmp_path):
    corpus = Corpus(run.store, CORPUS)
    with review_service_on(run.store, home) as service:
        access = Access(service.journal, ["anna", "ben"], Address(PORT))
        anna, ben = Person(service, access, "anna"), Person(service, access, "ben")
        found = [answer["reading_id"] for answer in run.answers if answer["found"]]
        anna.judge(found[5], "corrected", answer="Utah")
        anna.judge(found[6], "corrected", answer="Ohio")
        ben.judge(found[6], "corrected", answer="Iowa")  # disputed: the reader's answer is shown
        while service.journal.flush():
            pass
        for released in (False, True):
            if released:
                mark_released(corpus, ["withheld"])
            for _ in range(2):
                service.refresher.once()
            terminal = {(row["document"], row["question"]): row["answer"] for row in answer_rows(corpus)}
            assert "Utah" in terminal.values() and not {"Ohio", "Iowa"} & set(terminal.values())
            assert not any(answer.startswith("sampled") for answer in terminal.values())
            assert sum(answer.startswith("withheld") for answer in terminal.values()) == (4 if released else 0)
            assert on_review_pages(service) == by_tools(run) == terminal
            assert in_files(run, tmp_path) == [terminal, terminal]
            assert corpus_counts(corpus)["answers"] == len(terminal)
            withheld = {} if released else in_files(run, tmp_path, "--withheld")[0]
            assert len(withheld) == corpus_counts(corpus)["withheld"] == (0 if released else 4)


def digest_by(run: MadeUpRun, run_id: str, answer: AnswerRow, at: datetime, since: datetime, **more: object) -> None:
    reader = {"policy_id": answer["policy_id"], "config_hash": answer["config_hash"], "since": since.isoformat()}
    reader["questions"] = more.pop("questions", [*QUESTIONS.values()])
    row = {"corpus": CORPUS, "run_id": run_id, "kind": "digest", "status": "completed", "config": "{}", **more}
    row |= {"started_at": at, "ended_at": at, "summary": json.dumps({"reader": reader})}
    Table(run.store, "runs").append([row])


def test_a_digests_answers_are_shown_where_its_model_has_answered_before_another(run, home, tmp_path):
    corpus, day, one = Corpus(run.store, CORPUS), timedelta(days=1), run.answers[0]
    at = datetime.now(UTC) - 9 * day
    other = {"policy_id": "other@1", "found": True, "run_id": "other"}
    archive = {"scope": "archive", "content_hash": "a" * 64, "question": "of all?", "reading_id": "whole"}
    rows = [
        old | other | {"answer": f"other {number}", "answered_at": at, "reading_id": f"other{number}"}
        for number, old in enumerate(run.answers[4:10])
    ]
    Table(run.store, "answers").append(
        [
            *rows,
            one | archive,
            one | other | archive | {"reading_id": "more", "answer": "other whole", "answered_at": at},
        ]
    )
    with review_service_on(run.store, home) as service:

        def shown() -> list[str]:
            for _ in range(2):
                service.refresher.once()
            terminal = {(row["document"], row["question"]): row["answer"] for row in answer_rows(corpus)}
            assert terminal.pop(("", "of all?")) == "other whole", "a digest is of documents"
            pages = on_review_pages(service)
            assert pages.pop(("", "of all?")) == "other whole"
            assert pages == terminal == {key: one for key, one in by_tools(run).items() if key[1] != "of all?"}
            assert corpus_counts(corpus)["found"] == sum(row["found"] for row in answer_rows(corpus))
            return sorted(answer for answer in terminal.values() if answer.startswith("other"))

        every = [f"other {number}" for number in range(6)]
        assert shown() == every
        digest_by(run, "held", one, at + day, since=at + day, withheld=True)
        assert shown() == every
        digest_by(run, "back", one, at + day, since=at + day)
        assert shown() == []
        again = {"reading_id": "again", "answer": "other again", "answered_at": at + 2 * day}
        Table(run.store, "answers").append([run.answers[4] | other | again])
        assert shown() == ["other again"]
        digest_by(run, "same", one, at + 3 * day, since=at + 3 * day)
        assert shown() == []
        digest_by(run, "forth", rows[0], at + 4 * day, since=at + 4 * day)
        assert shown() == sorted(["other again", *every[1:]])
        newer = one | {"policy_id": f"{policy_name(one['policy_id'])}@newer"}
        digest_by(run, "newer", newer, at + 5 * day, since=at + 5 * day)
        assert shown() == [], "a digest counts the answers of other versions of its policy"
        digest_by(run, "between", rows[0], at + 6 * day, since=at + 6 * day)
        assert shown() == sorted(["other again", *every[1:]])
        digest_by(run, "else", one, at + 7 * day, since=at + 7 * day, questions=["of others?"])
        assert shown() == sorted(["other again", *every[1:]]), "it asks none of these: the newest are shown"
        digest_by(run, "last", rows[0], at + 8 * day, since=at + 8 * day)
        service.index.clear()
        assert shown() == sorted(["other again", *every[1:]]), "an index that is made anew has the same"


def test_of_several_answers_over_all_documents_that_over_todays_is_shown(run, home):
    corpus, one = Corpus(run.store, CORPUS), run.answers[0] | {"scope": "archive", "question": "of all?"}
    today = current_documents(corpus, ["content_hash"])["content_hash"].to_pylist()
    streams = {"before": today[:-1], "now": today, "changed": [*today[:-1], "f" * 64]}
    Table(run.store, "answers").append(
        one
        | {"reading_id": name, "answer": name, "content_hash": stable_hash(stream), "stream": stream}
        | {"answered_at": START + timedelta(days=day), "found": True}
        for day, (name, stream) in enumerate(streams.items(), 1)
    )
    with review_service_on(run.store, home) as service:

        def shown() -> str:
            for _ in range(2):
                service.refresher.once()
            (row,) = (row for row in answer_rows(corpus) if row["question"] == "of all?")
            assert on_review_pages(service)["", "of all?"] == row["answer"] == by_tools(run)["", "of all?"]
            return row["answer"] + " ".join(row["warnings"] or ())

        assert shown() == "now"
        (last,) = Table(run.store, "documents").read(CORPUS, filters=pc.field("content_hash") == today[-1]).to_pylist()
        Table(run.store, "documents").append([last | {"state": "deleted", "seen_at": START + timedelta(days=9)}])
        assert shown() == "before"
        Table(run.store, "answers").delete(CORPUS, reading_id=["before"])
        assert shown().startswith("changedof other documents than now: 0 not read, 1 gone"), "of equals the newest"
        service.index.clear()
        assert shown().startswith("changed")
        some = {"narrow": today[:2], "narrow before": [today[0], "d" * 64]}  # a question about two documents
        Table(run.store, "answers").delete(CORPUS, reading_id=["now", "changed"])
        Table(run.store, "answers").append(
            one
            | {"reading_id": name, "answer": name, "content_hash": stable_hash(stream), "stream": stream}
            | {"answered_at": START + timedelta(days=day), "found": True}
            for day, (name, stream) in enumerate(some.items(), 3)
        )
        assert shown().startswith("narrowof other documents than now"), "what it read is as it was read"
        Table(run.store, "answers").delete(CORPUS, reading_id=[*some])
        lost = one | {"reading_id": "lost", "answer": "lost", "content_hash": "e" * 64, "stream": [], "found": True}
        Table(run.store, "answers").append([lost | {"answered_at": START + timedelta(days=5)}])
        assert shown() == "lostits documents are not known: their list cannot be read"
        run.store.write_bytes(b"PAR1 damaged", "streams", CORPUS, "ee", f"{'e' * 64}.parquet")
        assert shown() == "lostits documents are not known: their list cannot be read"


def test_of_a_reading_that_two_runs_answered_the_first_answer_counts(run, tmp_path):
    again = {"answer": "given twice", "found": True, "answered_at": START + timedelta(days=1)}
    before = corpus_counts(Corpus(run.store, CORPUS))
    Table(run.store, "answers").append([run.answers[5] | again])
    terminal = {(row["document"], row["question"]): row["answer"] for row in answer_rows(Corpus(run.store, CORPUS))}
    assert "given twice" not in terminal.values() and by_tools(run) == terminal
    assert in_files(run, tmp_path) == [terminal, terminal]
    assert corpus_counts(Corpus(run.store, CORPUS)) == before


def test_all_cite_what_people_marked_for_a_corrected_answer(run, home, tmp_path):
    """The reader's quote says the reader's answer, and is no evidence for another."""
    corpus = Corpus(run.store, CORPUS)
    laws = [one for one in run.answers if one["found"] and one["question"] == QUESTIONS["law"]]
    marked, bare, absent = laws[5], laws[6], laws[7]
    (text,) = dict(document_texts(corpus, [marked["content_hash"]])).values()
    start = text.index("The agreement was signed")
    said = {"document": marked["content_hash"], "start": str(start), "end": str(start + 24)}
    with review_service_on(run.store, home) as service:
        anna = Person(service, Access(service.journal, ["anna"], Address(PORT)), "anna")
        anna.judge(marked["reading_id"], "corrected", answer="Utah", **said)
        anna.judge(bare["reading_id"], "corrected", answer="Ohio")
        anna.judge(absent["reading_id"], "absent")
        while service.journal.flush():
            pass
        for _ in range(2):
            service.refresher.once()
        expected = {"Utah": ["The agreement was signed"], "Ohio": [], "": []}
        ids = {marked["reading_id"]: "Utah", bare["reading_id"]: "Ohio", absent["reading_id"]: ""}
        rows = {ids[row["reading_id"]]: row for row in answer_rows(corpus) if row["reading_id"] in ids}
        assert {name: [one["quote"] for one in row["evidence"]] for name, row in rows.items()} == expected
        assert [one["document"] for one in rows["Utah"]["evidence"]] == [rows["Utah"]["document"]]
        page = anna.get(f"/answers/{CORPUS}/{marked['reading_id']}")
        assert "Marked by a person, characters" in page and "The agreement was signed</blockquote>" in page
        exported = exported_rows(service, Filter(), "anna", "http://here")
        pages = {ids[row["reading_id"]]: row["quote"] for row in exported if row["reading_id"] in ids}
    assert pages == {name: "".join(quotes) for name, quotes in expected.items()}
    tools = Tools(load_config(store=run.store.url))
    known_answers = asyncio.run(tools.answers(CORPUS, limit=1000)).answers
    told = {ids[one.reading_id]: one for one in known_answers if one.reading_id in ids}
    assert {name: [place.quote for place in one.evidence] for name, one in told.items()} == expected
    assert [place.segment for place in told["Utah"].evidence] == [None]
    for reading_id, name in ids.items():
        cited = answer_evidence(corpus, reading_id, 10)
        assert (cited.answer, [one.text for one in cited.passages]) == (name, expected[name])
        assert cited.review == told[name].review == "corrected"
    report = load_run(run.store, RUN)
    listed = {ids[row.reading_id]: row for row in load_rows(report, []) if row.reading_id in ids}
    assert {name: [one["quote"] for one in row.evidence] for name, row in listed.items()} == expected
    assert {name: row.found for name, row in listed.items()} == {"Utah": True, "Ohio": True, "": False}
    found = sum(row.found for row in load_rows(report, []))
    assert f"{found} of {len(load_rows(report, []))} asked" in build(run.store, RUN), "as `memagent status` counts"


def test_a_documents_answers_are_in_the_order_of_the_default_questions(run):
    corpus = Corpus(run.store, CORPUS)
    remember(corpus, questions=[make_question(QUESTIONS[name]) for name in ("cap", "law")])
    asked = [row["question"] for row in answer_rows(corpus) if row["document"] == "contract-0001.txt"]
    assert asked == [QUESTIONS[name] for name in ("cap", "law", "date")]
