"""The report in a real browser, opened from a file as its readers open it.

The page's content security policy forbids `eval`, which Playwright's wait_for_function needs: wait with `expect`.
"""

from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from infra.store.delta import Table
from pipelines.report.page import write
from tests.support.browsing import Visit
from tests.support.made_up_run import CORPUS, OUTSIDE, RUN, START, MadeUpRun, contracts, local_store

HOSTILE = (
    "</script><script>window.hacked=1</script><img src=x onerror='window.hacked=1'><svg onload='window.hacked=1'>"
    "\u2028\u202egnirts\u202c\x00\x1b[31m javascript:window.hacked=1"
)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    run = contracts(local_store(folder), 50)
    run.save(scored=True)
    return write(run.store, RUN, folder / "report.html")


def rows(page: Page) -> int:
    return page.locator("#answer-table tbody tr").count()


def test_filter_and_sort(visit: Visit, report: Path):
    page = visit.open(report)
    assert page.inner_text("#status") == "150 answers" and rows(page) == 50
    page.select_option("#filter-right", "no")
    wrong = page.locator("#answer-table tbody .verdict.bad").count()
    assert wrong == rows(page) > 0
    page.click("#clear")
    page.fill("#filter-text", "texas contract-0003")
    expect(page.locator("#status")).to_have_text("1 of 150 answers")
    assert page.inner_text("#answer-table tbody td.answer").startswith("Texas\n")
    assert "the laws of the State of Texas" in page.inner_text("#answer-table tbody td.answer q")
    page.fill("#filter-text", "no such words")
    page.wait_for_selector("#none:not([hidden])")
    page.click("#none button")
    assert page.inner_text("#status") == "150 answers"
    page.click("#head-segments button")
    page.click("#head-segments button")
    assert page.get_attribute("#head-segments", "aria-sort") == "descending"
    segments = [int(text) for text in page.locator("#answer-table tbody td.segments").all_inner_texts()]
    assert segments == sorted(segments, reverse=True) and segments[0] > segments[-1]


def test_what_people_said_a_matrix_and_the_review_pages(visit: Visit, tmp_path: Path):
    run = contracts(local_store(tmp_path), 4)
    for number in range(12):
        run.reading([run.documents[0]["content_hash"]], f"more{number}", f"More of clause {number}?", "", {})
    run.save()
    first, second = run.answers[0]["reading_id"], run.answers[1]["reading_id"]
    said = dict(corpus=CORPUS, given_at=START, reviewer="anna", comment="", spans=[], decides=False)
    marked = dict(content_hash=run.documents[0]["content_hash"], char_start=0, char_end=20)
    verdicts = [
        dict(reading_id=first, verdict="corrected", answer="Utah", spans=[marked]),
        dict(reading_id=second, verdict="accepted"),
    ]
    Table(run.store, "feedback").append([said | {"answer": ""} | verdict for verdict in verdicts])
    page = visit.open(write(run.store, RUN, tmp_path / "reviewed.html", review_url="http://127.0.0.1:4300/"))
    assert "2" in page.inner_text(".fact:has-text('Checked by people')")
    page.select_option("#filter-review", "corrected")
    assert rows(page) == 1
    answer = page.inner_text("#answer-table tbody td.answer")
    assert answer.startswith("Utah") and "the reader: Delaware" in answer
    page.click("#answer-table tbody a")
    assert page.inner_text("#reading .said") == "Utah" and "by anna" in page.inner_text("#reading .answer")
    link = page.get_attribute("#reading .answer a", "href")
    assert link == f"http://127.0.0.1:4300/answers/{CORPUS}/{first}"
    page.set_viewport_size({"width": 1440, "height": 900})
    expect(page.locator(".evidence blockquote")).to_be_in_viewport()
    assert "marked by a person · characters 0 to 20" in page.inner_text(".evidence")
    page.keyboard.press("Escape")
    page.click("#clear")
    page.fill("#filter-question", "clause 11")
    assert rows(page) == 1
    page.click("#clear")
    warned = page.locator("#answer-table .warn").count()
    page.click("#as-matrix")
    assert page.locator(f'.matrix td .warn[title="{OUTSIDE}"]').count() == warned > 0
    assert "false" not in page.inner_text("#listing")
    assert page.locator(".matrix tbody tr").count() == 4 and page.locator(".matrix thead th").count() == 16
    assert page.inner_text(".matrix tbody tr:first-child td:nth-child(2)").startswith("Utah")
    page.click(".matrix tbody tr:nth-child(2) td:nth-child(2) a")
    assert page.inner_text("#reading .said") == "New York"


def test_pages_turn(visit: Visit, report: Path):
    page = visit.open(report)
    first = page.inner_text("#answer-table tbody tr:first-child")
    page.click("#pager button:has-text('Next')")
    assert "51 to 100 of 150" in page.inner_text("#pager")
    assert page.inner_text("#answer-table tbody tr:first-child") != first


def test_a_reading_opens_with_its_memory_and_its_evidence(visit: Visit, report: Path, tmp_path: Path):
    page = visit.open(report)
    page.click("#answer-table tbody tr:first-child td.answer")
    assert page.inner_text("#reading .said") == "Delaware"
    assert page.locator(".changes li").count() == 2
    second = page.locator(".changes li").nth(1)
    assert "Segment 4 of 8" in second.inner_text()
    assert "governed by the laws of the State of Delaware" in second.locator("ins").all_inner_texts()[-1]
    assert page.locator(".marks .m").count() == 8 and page.locator(".marks .evidence").count() == 1
    evidence = page.locator("aside mark.evidence")
    assert evidence.inner_text() == "This Agreement shall be governed by the laws of the State of Delaware."
    expect(evidence).to_be_in_viewport()
    expect(evidence).to_have_class("evidence here")
    shot = tmp_path / "reading.png"
    page.screenshot(path=shot)
    assert shot.stat().st_size > 20_000


def test_marks_and_buttons_lead_to_their_places(visit: Visit, report: Path):
    page = visit.open(report)
    page.click("#answer-table tbody tr:nth-child(2) a")
    page.click(".marks button.evidence")
    assert page.evaluate("document.activeElement.id") == "change-0"
    page.click("ol.evidence button")
    assert page.inner_text("mark.here") == "The agreement was signed on 1 March 2001 at Springfield."


def test_readings_have_links_and_keys(visit: Visit, report: Path):
    page = visit.open(report)
    link = page.get_attribute("#answer-table tbody tr:nth-child(4) a", "href") or ""
    assert link.startswith("#reading=")
    other = visit.open(report, link)
    assert other.inner_text("#reading .said") == "New York"
    page.keyboard.press("ArrowRight")
    expect(page.locator("#reading .said")).to_have_text("2 March 2002")
    page.keyboard.press("Escape")
    page.wait_for_selector("#answer-table")
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "filter-text"
    page.goto(report.as_uri() + "#reading=unknown")
    assert "no reading unknown" in page.inner_text("#reading")


def test_tabs_follow_the_keyboard(visit: Visit, report: Path):
    page = visit.open(report)
    page.focus("#tab-answers")
    page.keyboard.press("ArrowRight")
    page.wait_for_selector("#panel-throughput .chart svg")
    assert page.locator(".chart svg").count() == 4
    assert page.evaluate("document.activeElement.id") == "tab-throughput"
    page.keyboard.press("ArrowRight")
    page.wait_for_selector("#panel-failures:not([hidden])")
    assert "prompt-too-long" in page.inner_text("#failure-list") and "encrypted" in page.inner_text("#failure-list")
    page.keyboard.press("End")
    page.wait_for_selector("#panel-provenance:not([hidden])")
    assert "reading.segment_tokens" in page.inner_text("#panel-provenance")


@pytest.mark.parametrize(("width", "scheme"), [(420, "light"), (420, "dark"), (1400, "dark")])
def test_no_view_is_wider_than_the_window(browser: Browser, report: Path, width: int, scheme: str):
    visit = Visit(browser, width, scheme)
    page = visit.open(report)
    link = page.get_attribute("#answer-table tbody a", "href") or ""
    for fragment in ("#answers", link, "#throughput", "#failures", "#provenance"):
        visit.turn_to(fragment)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), fragment
    page.close()
    assert visit.complaints == []


def test_hostile_text_does_not_run(visit: Visit, tmp_path: Path):
    run = MadeUpRun(local_store(tmp_path))
    name = run.document(HOSTILE, f"{HOSTILE} The key is 42. {HOSTILE}", HOSTILE)
    memories = {0: HOSTILE}
    reading = run.reading(
        [name], HOSTILE, HOSTILE, HOSTILE, memories, quotes=("The key is 42.", HOSTILE), gold=[HOSTILE]
    )
    run.fail("read", HOSTILE, HOSTILE, HOSTILE)
    run.save(policy=HOSTILE, engine=HOSTILE)
    page = visit.open(write(run.store, RUN, tmp_path / "hostile.html"))
    assert "<img src=x" in page.inner_text("#answer-table")
    for fragment in (
        f"#reading={reading}",
        "#failures",
        "#throughput",
        "#provenance",
        "#reading=<img src=x>",
        "#reading=%",
    ):
        visit.turn_to(fragment)
    page.evaluate("hash => { location.hash = hash }", f"#reading={reading}")
    page.wait_for_selector("aside mark.evidence")
    assert "[U+202E]gnirts[U+202C][U+0000][U+001B][31m" in page.inner_text("aside.document")
    assert page.evaluate("window.hacked") is None
    assert page.locator("img").count() == 0


def test_empty_runs_have_something_to_say(visit: Visit, tmp_path: Path):
    run = MadeUpRun(local_store(tmp_path))
    name = run.document("a.txt", "Words. " * 100)
    run.reading([name], "q", "Q?", "", {}, failed="engine-died")
    run.save(readings={"total": 3, "failed": 3})
    page = visit.open(write(run.store, RUN, tmp_path / "failed.html"))
    notices = page.inner_text("#notices")
    assert "No reading came to an answer" in notices and "leaves out" not in notices
    assert "2 answers of this run are of documents that were forgotten." in notices
    page.click("#answer-table tbody a")
    assert "The reading failed: engine-died." in page.inner_text("#reading")
    page.click("#tab-throughput")
    assert "there is no speed to show" in page.inner_text("#charts")


def test_ten_thousand_readings_stay_quick(visit: Visit, tmp_path: Path):
    run = contracts(local_store(tmp_path), 3_334, sections=3)
    run.save()
    path = write(run.store, RUN, tmp_path / "large.html")
    assert path.stat().st_size <= 20 * 2**20
    before = visit.seconds_promoted()
    page = visit.open(path)
    page.wait_for_selector("#answer-table tbody tr")
    assert visit.seconds_promoted() - before < 10
    assert page.inner_text("#status") == "10,002 answers"
    spent = {}
    for act in ("document", "answer", "segments", "filter"):
        before = visit.seconds_promoted()
        page.evaluate(
            """async (act) => {
                if (act === 'filter') {
                    const select = document.getElementById('filter-found');
                    select.value = 'no';
                    select.dispatchEvent(new Event('change'));
                } else document.querySelector(`#head-${act} button`).click();
                await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
            }""",
            act,
        )
        spent[act] = visit.seconds_promoted() - before
    # About 0.05 s of the processor each.
    assert all(seconds < 1 for seconds in spent.values()), spent
