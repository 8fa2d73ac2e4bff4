"""The review pages over real tables: lists, verdicts, undo, disagreement, exports, and who may see them."""

import csv
import io
import re
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import openpyxl
import pyarrow.parquet as pq
import pytest
from openpyxl import load_workbook

from infra.store.claims import RunningError, alone, used
from infra.store.delta import Table
from infra.store.feedback import verdicts
from infra.store.location import Corpus
from infra.store.runs import mark_released
from memagent.config import load_config
from memagent.quality.verdicts import ABSENT, current
from memagent.questions import load_questions
from memagent.records import LEVELS
from pipelines.io.answers import answer_rows
from pipelines.io.feedback import take_feedback
from pipelines.operate.forget import forget
from pipelines.report.page import build
from pipelines.views.counts import corpus_counts
from pipelines.web.access import Access
from pipelines.web.address import Address, token_file
from pipelines.web.review import listing
from pipelines.web.review.listing import Filter
from pipelines.web.review.service import Opinion, ReviewService
from tests.support.made_up_run import CORPUS, OUTSIDE, RUN, START, MadeUpRun, contracts, level_of, local_store
from tests.support.review_service import ADDRESS, PORT, Person, home, known, login_path, review_service_on

__all__ = ["home"]
HOSTILE = "</script><script>window.hacked=1</script><img src=x onerror='hacked()'>\u202egnirts\u202c\x00\x1b[31m\"'"


@pytest.fixture
def run(home):
    made = contracts(local_store(home), 20)
    made.save()
    known(made.store)
    return made


@pytest.fixture
def service(run, home):
    with review_service_on(run.store, home) as service:
        yield service


@pytest.fixture
def access(service):
    return Access(service.journal, ["anna", "ben", "carla"], Address(PORT))


@pytest.fixture
def anna(service, access):
    return Person(service, access, "anna")


def test_a_full_disk_is_said_and_costs_no_other_verdict(run, anna, service):
    reading, other = laws(run)[:2]
    anna.judge(other, "accepted")
    service.journal._connection.execute("PRAGMA max_page_count = 1")  # SQLite's own limit: as large as it is now
    refused = anna.judge(reading, "absent", 507, comment="ü" * 3_900)
    assert "nothing was saved" in refused and "disk is full" in refused
    service.journal._connection.execute("PRAGMA max_page_count = 1000000")
    anna.judge(reading, "absent", comment="no such clause")
    service.journal.flush()
    rows = Table(run.store, "feedback").read(CORPUS).to_pylist()
    assert {(row["reading_id"], row["comment"]) for row in rows} == {(other, ""), (reading, "no such clause")}


def test_questions_are_on_no_command_line(run, service, monkeypatch):
    began = []

    def popen(line, **_):
        (file,) = (part.partition("=")[2] for part in line if part.startswith("--questions="))
        began.append((line, Path(file), [one.text for one in load_questions(file)]))
        return SimpleNamespace(poll=lambda: 0)

    monkeypatch.setattr("pipelines.web.review.service.subprocess.Popen", popen)
    service.jobs.ask(CORPUS, ["Was Ann dismissed?", "Was Ann dismissed?", "Why: ü?"], archive=True)
    line, file, questions = began[0]
    assert questions == ["Was Ann dismissed?", "Why: ü?"] and "--archive" in line
    assert not any("Ann" in part for part in line) and file.stat().st_mode & 0o077 == 0
    service.jobs.stop()
    assert not file.exists()


ENDS = {None: "running", 0: "completed", 3: "paused", 4: "withheld", 5: "completed with warnings"}


@pytest.mark.parametrize(("status", "state"), [*ENDS.items(), *((status, "failed") for status in (1, 2, -9))])
def test_a_command_that_was_started_here_ended_as_its_exit_status_says(run, service, anna, monkeypatch, status, state):
    process = SimpleNamespace(poll=lambda: status, pid=0)
    monkeypatch.setattr("pipelines.web.review.service.subprocess.Popen", lambda line, **_: process)
    monkeypatch.setattr("pipelines.web.review.service.end_process", lambda process: None)
    service.jobs.digest(CORPUS)
    chip = f'<span class="chip {state if state == "failed" else ""}">{state}</span> digest {CORPUS}'
    assert chip in anna.get("/runs")


def laws(run):
    return [row["reading_id"] for row in run.answers if row["question_id"] == "law"]


def test_lists_show_answers_with_quotes_and_filters_choose(run, anna):
    page = anna.get("/")
    assert (
        "60 answers" in page and "governed by the laws of the State of" in page and "0</strong> of 58 answers" in page
    )
    assert "2 answers" in anna.get("/?state=failed") and "prompt-too-long" in anna.get("/?state=failed")
    assert "20 answers" in anna.get("/?state=not+found")
    assert "4 answers" in anna.get("/?words=delaw+suppl"), "beginnings of words, of answer and document"
    assert "No answer is like that" in anna.get("/?review=accepted")
    assert "one of open, accepted" in anna.get("/?review=no", 400)


def test_all_pages_of_a_list_are_each_item_once(run, service, anna):
    seen, path = [], "/"
    while path:
        page = anna.get(path)
        seen += [line for line in page.splitlines() if '<td class="question">' in line]
        path = next((part.split('"')[0] for part in page.split('rel="next" href="')[1:]), "").replace("&amp;", "&")
    assert len(seen) == len(set(seen)) == 60


def test_an_answer_stands_beside_its_evidence_and_its_memory(run, anna):
    reading = laws(run)[0]
    page = anna.get(f"/answers/{CORPUS}/{reading}")
    assert '<mark class="evidence segment" data-start="' in page or '<mark class="evidence' in page
    assert "This Agreement shall be governed by the laws of the State of Delaware." in page
    told = anna.get(f"/answers/{CORPUS}/{reading}/memory")
    assert "<ins>" in told and "Segment 4" in told
    assert "Least sure at segment 5 of 8." in told
    assert "there is no answer nope" in anna.get(f"/answers/{CORPUS}/nope", 404)


def test_a_correction_teaches_with_its_place_and_is_what_users_see(run, service, anna):
    reading = laws(run)[1]
    text = run.documents[1]["text"]
    start = text.index("Springfield")
    following = anna.judge(reading, "corrected", answer="Springfield", start=str(start), end=str(start + 11))
    assert following.startswith(f"/answers/{CORPUS}/") and reading not in following, "the next answer"
    assert "Saved: <strong>corrected</strong>" in anna.get(following)
    service.journal.flush()
    (row,) = Table(run.store, "feedback").read(CORPUS).to_pylist()
    assert (row["verdict"], row["answer"], row["reviewer"]) == ("corrected", "Springfield", "anna")
    assert [(span["char_start"], span["char_end"]) for span in row["spans"]] == [(start, start + 11)]
    assert row["given_at"] > START
    shown = {one["reading_id"]: one for one in answer_rows(Corpus(run.store, CORPUS))}[reading]
    assert (shown["answer"], shown["review"], shown["engine_answer"]) == ("Springfield", "corrected", "New York")
    page = anna.get(f"/answers/{CORPUS}/{reading}")
    assert f'<mark class="right" data-start="{start}"' in page and "You said: corrected" in page
    assert "1</strong> of 58 answers checked" in anna.get("/")


def test_filters_counts_and_files_go_by_the_answer_that_is_shown(run, service, anna):
    caps = [row["reading_id"] for row in run.answers if row["question_id"] == "cap"]
    anna.judge(laws(run)[1], "corrected", answer="Texas")
    for reading in (laws(run)[0], laws(run)[2]):
        anna.judge(reading, "absent")
    anna.judge(caps[0], "corrected", answer="Nine million")
    anna.judge(laws(run)[3], "rejected")
    service.journal.flush()
    found, before = corpus_counts(Corpus(run.store, CORPUS))["found"], sum(row["found"] for row in run.answers)
    assert found == before - 1
    assert "4 answers" in anna.get("/?words=texas") and "1 answer<" in anna.get("/?words=nine")
    assert f"{found} answers" in anna.get("/?state=found") and "21 answers" in anna.get("/?state=not+found")
    lines = list(csv.DictReader(io.StringIO(anna.get("/export.csv?state=found").removeprefix("\ufeff"))))
    assert len(lines) == found and {line["found"] for line in lines} == {"True"}
    assert f"{found} of {len(run.plan)} asked" in build(run.store, RUN)
    assert f"{len(run.plan)} asked, {before} found before any correction" in anna.get("/runs")
    nine = service.verdicts(listing.find(service.index.read(), CORPUS, caps[0]))[-1]
    anna.post("/undo", given_at=nine.given_at.isoformat())
    assert "0 answers" in anna.get("/?words=nine") and "22 answers" in anna.get("/?state=not+found")


def test_what_is_said_without_a_place_is_found_in_the_document(run, service, anna):
    anna.get(f"/answers/{CORPUS}/{laws(run)[0]}")
    anna.judge(laws(run)[0], "corrected", answer="1 march 2001")
    ((verdict, _),) = verdicts(Corpus(run.store, CORPUS)) if service.journal.flush() else []
    text = run.documents[0]["text"]
    assert [text[span.start : span.end] for span in verdict.spans] == ["1 March 2001"]
    anna.judge(laws(run)[1], "absent", comment="no such clause")
    service.journal.flush()
    last = verdicts(Corpus(run.store, CORPUS))
    assert {(each.verdict.right, each.verdict.comment) for each in last} == {
        ("1 march 2001", ""),
        ("", "no such clause"),
    }


def test_undo_gives_back_what_was_said_before(run, service, access, anna):
    reading = laws(run)[0]
    item = listing.find(service.index.read(), CORPUS, reading)
    times = []
    for said, fields in (("accepted", {}), ("corrected", {"answer": "Utah"})):
        anna.judge(reading, said, **fields)
        times.append(service.verdicts(item)[-1].given_at)
    anna.post("/undo", 400, given_at=times[0].isoformat())
    page = anna.get(f"/answers/{CORPUS}/{reading}")
    assert f'name="given_at" value="{times[1].isoformat()}"' in page and "undo, <kbd>" in page, "opened again"
    assert anna.post("/undo", given_at=times[1].isoformat()).startswith(f"/answers/{CORPUS}/{reading}")
    assert [each.kind for each in current(service.verdicts(item))] == ["accepted"]
    anna.post("/undo", given_at=service.verdicts(item)[-1].given_at.isoformat())
    assert [each.kind for each in current(service.verdicts(item))] == ["corrected"], (
        "undone twice: the correction again"
    )
    ben_has_none = Person(service, access, "ben")
    assert "undo, <kbd>" not in ben_has_none.get(f"/answers/{CORPUS}/{reading}")
    assert "no verdict of yours" in ben_has_none.post("/undo", 400, given_at=times[0].isoformat())


def test_enter_in_a_field_sends_what_is_written(run, service, anna):
    item = listing.find(service.index.read(), CORPUS, laws(run)[0])
    anna.judge(item.reading_id, "enter", comment="see 4")
    anna.judge(item.reading_id, "enter", comment="see 4", answer="Utah")
    assert [(each.kind, each.answer) for each in service.verdicts(item)] == [("comment", ""), ("corrected", "Utah")]
    assert "write the right answer" in anna.judge(item.reading_id, "enter", 400)


def test_two_people_disagree_and_a_third_settles_it(run, service, access, anna):
    reading = laws(run)[0]
    ben, carla = Person(service, access, "ben"), Person(service, access, "carla")
    anna.judge(reading, "accepted")
    assert "1 answer<" in ben.get("/?by=others") and "0 answers" in anna.get("/?by=others")
    ben.judge(reading, "corrected", answer="Utah")
    page = carla.get(f"/answers/{CORPUS}/{reading}")
    assert "People disagree" in page and 'name="decides"' in page and "1 where people disagree" in carla.get("/")
    service.journal.flush()
    assert {row["review"] for row in answer_rows(Corpus(run.store, CORPUS)) if row["reading_id"] == reading} == {
        "disputed"
    }
    carla.judge(reading, "corrected", answer="Utah", decides="1")
    service.journal.flush()
    shown = {row["reading_id"]: row for row in answer_rows(Corpus(run.store, CORPUS))}[reading]
    assert (shown["answer"], shown["review"], shown["reviewed_by"]) == ("Utah", "corrected", ["carla"])


@pytest.mark.parametrize("right", ["Utah", ""])
def test_a_verdict_is_about_the_answer_that_the_page_shows(run, service, access, anna, right):
    reading, ben = laws(run)[0], Person(service, access, "ben")
    item = listing.find(service.index.read(), CORPUS, reading)
    anna.judge(reading, "corrected" if right else "absent", answer=right)
    page = ben.get(f"/answers/{CORPUS}/{reading}")
    shown = re.search(r'name="shown" value="(.*?)"', page)[1]
    ben.judge(reading, "rejected", shown=shown)
    service.journal.flush()
    row = next(row for row in answer_rows(Corpus(run.store, CORPUS)) if row["reading_id"] == reading)
    assert (shown, row["review"], row["answer"]) == (right, "disputed", "Delaware")
    page = ben.get(f"/answers/{CORPUS}/{reading}")
    assert f"<strong>rejected</strong>: <del>{right or ABSENT}</del>" in page and 'name="shown"' not in page
    ben.judge(reading, "accepted", shown=shown)
    assert {(each.kind, each.answer) for each in current(service.verdicts(item))} == {("corrected", right)}
    ben.post("/undo", given_at=service.verdicts(item)[-1].given_at.isoformat())
    assert {each.right if each.right is not None else each.wrong for each in current(service.verdicts(item))} == {right}
    assert listing.find(service.index.read(), CORPUS, reading).review == "disputed"


def test_exports_have_reviews_and_links_back(run, service, anna):
    reading = laws(run)[0]
    anna.judge(reading, "corrected", answer="=HYPERLINK(1)", comment="so it says")
    lines = list(csv.DictReader(io.StringIO(anna.get("/export.csv?review=corrected").removeprefix("\ufeff"))))
    assert [line["answer"] for line in lines] == ["'=HYPERLINK(1)"] and lines[0]["engine_answer"] == "Delaware"
    assert lines[0]["comments"] == "anna: so it says" and lines[0]["link"] == f"{ADDRESS}/answers/{CORPUS}/{reading}"
    table = pq.read_table(io.BytesIO(anna.http.get("/export.parquet").content))
    assert table.num_rows == 60 and set(table["reviewed_by"].to_pylist()[-1] or []) <= {"anna"}
    sheet = openpyxl.load_workbook(io.BytesIO(anna.http.get("/export.xlsx").content)).active
    assert sheet.max_row == 61
    at = [cell.value for cell in sheet[1]].index("link") + 1
    links = {sheet.cell(row, at).hyperlink.target for row in range(2, 62)}
    assert f"{ADDRESS}/answers/{CORPUS}/{reading}" in links and "=HYPERLINK(1)" in {
        cell.value for row in sheet.iter_rows() for cell in row if cell.data_type == "s"
    }
    anna.get("/export.doc", 404)


def test_the_doubtful_come_first_and_others_are_passed_over(run, service, anna):
    sure = {row["reading_id"]: row["confidence"] for row in run.answers}
    known = sorted(value for value in sure.values() if value is not None)
    limit = known[len(known) // 3]
    low = anna.get("/?level=low")
    assert f"{sum(level_of(value) == 'low' for value in sure.values())} answers" in low
    assert low.count(OUTSIDE) == low.count("confidence low") > 0 and "confidence medium" not in low
    assert OUTSIDE not in anna.get("/?level=high") and "one of low, medium, high" in anna.get("/?level=2", 400)
    page = anna.get("/?order=confidence&state=found")
    shown = re.findall(r"confidence (low|medium|high)<", page)
    assert len(shown) > 10 and shown == sorted(shown, key=LEVELS.index) and "Less doubtful" not in page
    assert not re.search(r"[Cc]onfidence:? [0-9]", page)
    items = list(listing.every(service.index.read(), Filter(order="confidence"), "anna"))
    assert [item.confidence for item in items[: len(known)]] == pytest.approx(known)
    assert {item.confidence for item in items[len(known) :]} == {None}, "what is not known comes last"
    first = items[0]
    page = anna.get(f"/answers/{CORPUS}/{first.reading_id}?order=confidence")
    assert "Confidence: low." in page and OUTSIDE in page and 'id="previous"' not in page
    following = anna.judge(first.reading_id, "accepted", order="confidence", level="low")
    assert items[1].reading_id in following and "order=confidence" in following and "level=low" in following
    assert OUTSIDE not in anna.get(f"/answers/{CORPUS}/{first.reading_id}"), "a person has said that it is right"
    lines = list(csv.DictReader(io.StringIO(anna.get("/export.csv?order=confidence").removeprefix("\ufeff"))))
    assert [float(line["confidence"]) for line in lines if line["confidence"]] == pytest.approx(known)
    table = pq.read_table(io.BytesIO(anna.http.get("/export.parquet?order=confidence").content))
    assert table["confidence"].drop_null().to_pylist() == pytest.approx(known)
    sheet = load_workbook(io.BytesIO(anna.http.get("/export.xlsx?level=low").content)).active
    column = [cell.value for cell in sheet["1"]].index("confidence")
    assert [row[column] for row in sheet.iter_rows(min_row=2, values_only=True)] == pytest.approx(
        [each.confidence for each in listing.every(service.index.read(), Filter(level="low"), "anna")]
    )
    rows = list(answer_rows(Corpus(run.store, CORPUS), where=[("confidence", f"<{limit:.6f}")]))
    assert sorted(row["confidence"] for row in rows) == pytest.approx([value for value in known if value < limit])


def test_a_list_names_failures_by_their_questions_and_what_was_not_read_of_documents(home):
    run = MadeUpRun(local_store(home))
    name = run.document("mail.eml", "The key is 42. The rest is attached.")
    run.documents[-1]["warnings"] = ["part not read: 1 attachment"]
    run.reading([name], "key", "Which key?", "42", {0: "42"}, quotes=("The key is 42.",))
    run.fail("read", "mail.eml ? Who signed ? And when?", "RequestError", "no")
    run.save()
    with review_service_on(known(run.store), home) as service:
        anna = Person(service, Access(service.journal, ["anna"], Address(PORT)), "anna")
        page = anna.get("/")
    assert "Who signed ? And when?" in page and page.count("part not read: 1 attachment") == 2


def test_hostile_texts_are_only_texts(home):
    run = MadeUpRun(local_store(home))
    name = run.document(HOSTILE, f"{HOSTILE} The key is 42. {HOSTILE}", HOSTILE)
    reading = run.reading([name], HOSTILE, HOSTILE, HOSTILE, {0: HOSTILE}, quotes=("The key is 42.", HOSTILE))
    run.fail("read", f"{HOSTILE} ? {HOSTILE}", HOSTILE, HOSTILE)
    run.save(policy=HOSTILE, engine=HOSTILE)
    with review_service_on(known(run.store), home) as service:
        anna = Person(service, Access(service.journal, ["anna"], Address(PORT)), "anna")
        anna.judge(reading, "corrected", answer=HOSTILE.replace("\x00", ""), comment=HOSTILE.replace("\x00", ""))
        failed = next(item.id for item in listing.every(service.index.read(), Filter(state="failed"), "anna"))
        paths = ("", "/memory", f"?find={HOSTILE[:9]}", "?document=<img>")
        pages = [anna.get(f"/answers/{CORPUS}/{reading}{path}") for path in paths]
        for page in [*pages, anna.get("/"), anna.get(f"/failed/{failed}"), anna.get(f"/runs?corpus={CORPUS}")]:
            assert "<script>window" not in page and "<img src=x" not in page and "\x1b" not in page
            assert "\u202e" not in page


def test_offsets_of_the_page_are_those_of_the_text(home):
    run = MadeUpRun(local_store(home))
    text = "a\r\nb\x00 \U0001f600 The key is 42. \x85 end"
    name = run.document("d.txt", text)
    reading = run.reading([name], "q", "Key?", "42", {0: "42"}, quotes=("The key is 42.",))
    run.save()
    with review_service_on(known(run.store), home) as service:
        anna = Person(service, Access(service.journal, ["anna"], Address(PORT)), "anna")
        assert f'data-start="{text.index("The key")}" data-anchor>The key is 42.</mark>' in anna.get(
            f"/answers/{CORPUS}/{reading}"
        )


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("GET", "/", {"Host": "evil.example"}, 400),
        ("POST", "/undo", {"Origin": "http://evil.example"}, 403),
        ("POST", "/undo", {"Origin": "null"}, 403),
        ("POST", "/undo", {}, 403),  # no CSRF token
        ("PUT", "/", {}, 405),
        ("POST", "/undo", {"Content-Length": "99999999"}, 413),
        ("GET", "/static/../app.py", {}, 404),
        ("GET", "/nope", {}, 404),
    ],
)
def test_requests_from_elsewhere_are_refused(anna, method, path, headers, status):
    assert anna.http.request(method, path, headers=headers).status_code == status


def test_nobody_sees_anything_without_a_token(service, access):
    nobody = Person(service, access)
    for path in ("/", "/runs", "/export.csv", f"/answers/{CORPUS}/x"):
        answer = nobody.http.get(path)
        assert answer.status_code == 303 and answer.headers["location"].startswith("/login")
    assert nobody.http.post("/undo", data={"csrf": ""}).status_code == 303
    assert "memagent review --link" in nobody.get("/login")
    link = login_path("anna")
    later = re.sub(r"%3A\d+%3A", "%3A99999999999%3A", link)
    for wrong in (link[:-1] + ("0" if link[-1] != "0" else "1"), later, link.replace("anna", "ben"), "/login?code=:::"):
        assert "Invalid login link" in nobody.get(wrong, 403)
    nobody.http.cookies.clear()
    assert nobody.http.head(link).status_code == 403
    first = nobody.http.get(link, headers={"Cookie": f"{access.back_cookie}=%2F%2Fevil.example"})
    assert first.status_code == 303 and first.headers["location"] == "/", "nobody is led to another server"
    assert "Invalid login link" in nobody.get(link, 403), "a link works once"
    page = nobody.http.get("/")
    policy = page.headers["content-security-policy"]
    assert "script-src 'self'" in policy and "unsafe" not in policy and page.headers["cache-control"] == "no-store"
    cookie = first.headers.get_list("set-cookie")[-1]
    assert "HttpOnly" in cookie and "samesite=lax" in cookie.lower()
    assert token_file("review", "anna").stat().st_mode & 0o077 == 0


def test_an_old_link_is_refused_and_the_page_that_was_wanted_comes_after_the_login(service, access, monkeypatch):
    with monkeypatch.context() as earlier:
        earlier.setattr("pipelines.web.access.LINK", timedelta(hours=-1))
        old = login_path("anna")
    somebody = Person(service, access)
    assert "too old" in somebody.get(old, 403)
    somebody.http.get("/?order=confidence")
    assert somebody.http.get(login_path("anna")).headers["location"] == "/?order=confidence"


def test_a_deleted_token_ends_links_and_sessions(service, access, anna):
    assert anna.get("/")
    link = login_path("anna")
    token_file("review", "anna").unlink()
    assert anna.http.get("/").status_code == 303
    assert "Invalid login link" in Person(service, access).get(link, 403)
    assert Person(service, access, "anna").get("/"), "a new link is signed with the new token"


def test_a_session_ends_with_the_log_out_and_with_the_person(service, access, anna):
    assert anna.post("/logout") == "/login"
    assert anna.http.get("/").status_code == 303
    again = Person(service, access, "anna")
    fewer = Person(service, Access(service.journal, ["ben"], Address(PORT)))
    fewer.http.cookies = again.http.cookies
    assert fewer.http.get("/").status_code == 303, "anna may no longer come in"


def test_only_who_started_the_review_pages_starts_runs(service, access, anna):
    ben = Person(service, access, "ben")
    assert "only anna starts runs" in ben.post("/runs/ask", 403, corpus=CORPUS, questions="Who?")
    assert 'action="/runs/ask"' not in ben.get("/runs") and 'action="/runs/ask"' in anna.get("/runs")
    assert "no corpus" in anna.post("/runs/ask", 400, corpus="contrats", questions="Who?")
    assert "no default questions" in anna.post("/runs/digest", 400, corpus=CORPUS)
    assert "completed" in anna.get("/runs") and "encrypted" in anna.get(f"/runs?corpus={CORPUS}")


def test_what_comes_and_goes_in_the_tables_is_seen(run, service, anna):
    old = run.answers[0]
    anna.judge(old["reading_id"], "corrected", answer="Utah")
    later = START + timedelta(days=1)
    again = old | {"reading_id": "later", "answer": "Nevada", "answered_at": later, "run_id": "night"}
    Table(run.store, "answers").append([again])
    gone = run.documents[1] | {"state": "deleted", "seen_at": later}
    Table(run.store, "documents").append([gone])
    Table(run.store, "quarantine").delete(CORPUS, stage=["read"])
    row = dict(corpus=CORPUS, run_id="night", kind="digest", status="completed", config="{}", summary="{}")
    Table(run.store, "runs").append([row | {"started_at": later - timedelta(hours=1), "ended_at": later}])
    service.refresher.once()
    service.refresher.once()
    assert "0 answers" in anna.get("/?state=failed") and "55 answers" in anna.get("/"), "60 - 2 failed - 3 deleted"
    new = anna.get("/?new=1")
    assert "1 answer<" in new and "Utah" in new and "Nevada" in new, "the correction holds for the new reading"
    assert "of an earlier answer: Delaware" in anna.get(f"/answers/{CORPUS}/later")
    assert "A newer answer" not in anna.get(f"/answers/{CORPUS}/{old['reading_id']}")


def test_withheld_answers_are_seen_once_they_are_released(run, service, anna):
    corpus, later = Corpus(run.store, CORPUS), START + timedelta(days=1)
    row = dict(corpus=CORPUS, run_id="new", kind="digest", status="completed", config="{}", summary="{}", withheld=True)
    Table(run.store, "runs").append([row | {"started_at": later, "ended_at": later}])
    new = {"answer": "Nowhereland", "answered_at": later, "run_id": "new"}
    rows = [old | new | {"reading_id": f"held{number}"} for number, old in enumerate(run.answers[:3])]
    Table(run.store, "answers").append(rows)
    for _ in range(2):
        service.refresher.once()
        assert "Nowhereland" not in anna.get("/?q=Nowhereland&state=found").partition("<table")[2]
    mark_released(corpus, ["new"])
    service.refresher.once()
    service.refresher.once()
    assert "Nowhereland" in anna.get("/?q=Nowhereland&state=found").partition("<table")[2]


def test_forgotten_documents_are_nowhere_at_the_review_pages(run, service, home, anna):
    reading = laws(run)[0]
    anna.judge(reading, "corrected", answer="Utah-only-said-here")
    while service.journal.flush():
        pass
    forget(CORPUS, load_config(store=run.store.url), [("doc_id", "contract-0000.txt")])
    service.refresher.once()
    assert "57 answers" in anna.get("/") and "there is no answer" in anna.get(f"/answers/{CORPUS}/{reading}", 404)
    service.index.read().execute("PRAGMA wal_checkpoint(TRUNCATE)")
    kept = b"".join(path.read_bytes() for part in ("cache", "data") for path in (home / part).rglob("*.sqlite*"))
    assert b"Utah-only-said-here" not in kept and reading.encode() not in kept
    assert not Table(run.store, "feedback").read(CORPUS).num_rows


def test_a_verdict_given_while_its_document_is_forgotten_stays_nowhere(run, service, home, anna):
    reading = laws(run)[0]
    anna.judge(laws(run)[1], "corrected", answer="Ohio-stays")
    anna.judge(reading, "corrected", answer="Utah-only-said-here")
    with alone(run.store, "forgetting"), pytest.raises(RunningError, match="whole store"):
        service.journal.flush()
    assert not Table(run.store, "feedback").read(CORPUS).num_rows
    forget(CORPUS, load_config(store=run.store.url), [("doc_id", "contract-0000.txt")])
    anna.judge(reading, "corrected", answer="Utah-only-said-here")  # her page has not seen it yet
    while service.journal.flush():
        pass
    service.refresher.once()
    service.refresher.once()
    assert [row["answer"] for row in Table(run.store, "feedback").read(CORPUS).to_pylist()] == ["Ohio-stays"]
    service.index.read().execute("PRAGMA wal_checkpoint(TRUNCATE)")
    kept = b"".join(path.read_bytes() for path in home.rglob("*.*") if path.is_file())
    assert b"Ohio-stays" in kept and b"Utah-only-said-here" not in kept


def test_a_verdict_given_while_others_are_written_is_not_written_with_them_if_its_document_is_forgotten(
    run, home, monkeypatch
):
    with review_service_on(run.store, home, start=False) as service:
        first, second = (listing.find(service.index.read(), CORPUS, reading) for reading in laws(run)[:2])
        forget(CORPUS, load_config(store=run.store.url), [("doc_id", "contract-0000.txt")])

        @contextmanager
        def late(*given, **named):
            with used(*given, **named):
                service.give(first, Opinion("corrected", "Utah-only-said-here"), "anna")
                yield

        monkeypatch.setattr("pipelines.web.review.journal.used", late)
        service.give(second, Opinion("corrected", "Ohio-stays"), "anna")
        service.journal.flush()
        assert [row["answer"] for row in Table(run.store, "feedback").read(CORPUS).to_pylist()] == ["Ohio-stays"]
        assert not service.journal.left()


def test_a_forgotten_document_leaves_the_files_of_review_pages_that_do_not_run(run, home, monkeypatch):
    for name in ("cache", "data"):
        monkeypatch.setattr(f"platformdirs.user_{name}_path", lambda app, name=name: home / name / app)
    service = ReviewService(load_config(store=run.store.url))
    service.refresher.once()
    (item,) = (listing.find(service.index.read(), CORPUS, reading) for reading in laws(run)[:1])
    service.give(item, Opinion("corrected", "Utah-only-said-here"), "anna")
    index = service.index.path
    assert index.stat().st_mode & 0o077 == 0, "answers are for their owner"
    service.journal.close()
    forget(CORPUS, load_config(store=run.store.url), [("doc_id", "contract-0000.txt")])
    kept = b"".join(path.read_bytes() for path in home.rglob("*.sqlite*"))
    assert b"Utah-only-said-here" not in kept and laws(run)[0].encode() not in kept
    service = ReviewService(load_config(store=run.store.url))
    service.refresher.once()
    assert sum(listing.tallies(service.index.read(), Filter()).values()) == 57
    service.journal.close()


def test_a_file_of_verdicts_is_read_after_a_forgetting_not_during_it(run, home):
    path = home / "verdicts.csv"
    path.write_text("".join(["reading_id,verdict,answer\n", *(f"{id},corrected,only-here\n" for id in laws(run)[:2])]))
    with ThreadPoolExecutor(1) as threads:
        with alone(run.store, "forgetting"):
            taken = threads.submit(take_feedback, run.store, path)
            time.sleep(0.5)
            assert not taken.done() and not Table(run.store, "feedback").read(CORPUS).num_rows
            Table(run.store, "answers").delete(CORPUS, reading_id=laws(run)[:1])
        assert taken.result()["unknown_readings"] == 1
    assert [row["reading_id"] for row in Table(run.store, "feedback").read(CORPUS).to_pylist()] == laws(run)[1:2]


def test_twenty_people_at_once_lose_nothing(run, service, access):
    names = [f"person{i}" for i in range(20)]
    everybody = Access(service.journal, names, Address(PORT))
    people = [Person(service, everybody, name) for name in names]
    readings = [row["reading_id"] for row in run.answers][:25]

    def work(person):
        for reading in readings:
            person.judge(reading, "rejected" if reading[-1] in "02468ace" else "accepted", comment=person.csrf[:5])

    with ThreadPoolExecutor(20) as threads:
        list(threads.map(work, people))
    while service.journal.flush():
        pass
    rows = Table(run.store, "feedback").read(CORPUS).to_pylist()
    assert len(rows) == len({(row["reviewer"], row["reading_id"]) for row in rows}) == 500
    assert len({row["given_at"] for row in rows}) == 500
    assert sum(listing.tallies(service.index.read(), Filter(review="open")).values()) == 58 - 25


def test_two_review_servers_on_one_machine_store_each_verdict_once(run, service, access, home):
    readings = [row["reading_id"] for row in run.answers][:20]
    with review_service_on(run.store, home) as other:
        people = [Person(service, access, "anna"), Person(other, access, "ben")]
        with ThreadPoolExecutor(8) as threads:
            done = [threads.submit(person.judge, reading, "accepted") for reading in readings for person in people]
            done += [threads.submit(each.journal.flush) for each in (service, other) for _ in range(6)]
            assert all(each.exception() is None for each in done)
        while service.journal.flush() or other.journal.flush():
            pass
    rows = Table(run.store, "feedback").read(CORPUS).to_pylist()
    assert len(rows) == len({(row["reviewer"], row["reading_id"]) for row in rows}) == 40
