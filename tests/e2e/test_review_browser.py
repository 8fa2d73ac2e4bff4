"""The review server in a real browser: a review by keys alone, on a phone, in the dark, and with hostile texts."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvicorn
from playwright.sync_api import Browser, Page, expect
from starlette.routing import Mount

from infra.store.location import Corpus
from pipelines.io.answers import answer_rows
from pipelines.web.access import Access, login_link
from pipelines.web.address import Address
from pipelines.web.review import listing
from pipelines.web.review.app import app
from pipelines.web.review.listing import Filter
from pipelines.web.review.service import ReviewService
from pipelines.web.server import listen, web_app
from tests.support.browsing import Visit
from tests.support.made_up_run import CORPUS, MadeUpRun, contracts, local_store
from tests.support.ports import first_port
from tests.support.review_service import known, review_service_on

HOSTILE = (
    "</script><script>window.hacked=1</script><img src=x onerror='window.hacked=1'><svg onload='window.hacked=1'>"
    "\u2028\u202egnirts\u202c\x00\x1b[31m javascript:window.hacked=1"
)


class Open:
    """Review pages that are served to a browser of this process."""

    def __init__(self, service: ReviewService, browser: Browser, number: int = 0) -> None:
        self.service, self._browser = service, browser
        self.address = address = Address(first_port(25_500, 400, number))
        self.access = Access(service.journal, ["anna", "ben"], address)
        self._socket = listen(address)
        web = web_app([Mount("/", app=app(service, self.access))], address.names)
        config = uvicorn.Config(web, log_level="warning", lifespan="off")
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._socket]})
        self._thread.start()
        self.visits: list[Visit] = []

    def visit(self, name: str, width: int = 1440, scheme: str = "light") -> Page:
        """Log in; complaints of the browser fail the test."""
        visit = Visit(self._browser, width, scheme, own=self.access.address)
        self.visits.append(visit)
        visit.page.goto(login_link(self.address, name))
        expect(visit.page.locator("header.top .who")).to_contain_text(name)
        return visit.page

    def close(self) -> None:
        """End it."""
        for visit in self.visits:
            visit.page.close()
        self._server.should_exit = True
        self._thread.join()
        self._socket.close()
        assert [complaint for visit in self.visits for complaint in visit.complaints] == []


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("CONFIG", "DATA", "CACHE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    return tmp_path


@pytest.fixture
def opened(folder: Path, browser: Browser) -> Iterator[Open]:
    run = contracts(local_store(folder), 12)
    run.save()
    with review_service_on(known(run.store), folder) as service:
        served = Open(service, browser)
        yield served
        served.close()


def opened_answer(page: Page, row: str = "first-child") -> None:
    """Open a row of the list, and wait until the page hears keys."""
    page.click(f"#list tbody tr:{row} td.question a")
    expect(page.locator("#verdict")).to_be_attached()
    expect(page.locator("#keys button")).to_be_attached()


def reviews(service: ReviewService) -> dict[str, tuple[str, str]]:
    """Return answer and review of all answers, as users see them."""
    while service.journal.flush():
        pass
    rows = answer_rows(Corpus(service.store, CORPUS))
    return {row["reading_id"]: (row["answer"], row["review"]) for row in rows if row["review"]}


def test_a_review_by_keys_alone(opened: Open):
    page = opened.visit("anna")
    page.keyboard.press("/")
    page.keyboard.type("delaware")
    page.keyboard.press("Enter")
    expect(page.locator(".status")).to_have_text("2 answers")
    page.keyboard.press("Escape")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    expect(page.locator("#said")).to_have_text("Delaware")
    first = page.url
    page.keyboard.press("c")  # to the evidence in the text; then over "This Agreement shall", and take "be governed"
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    page.keyboard.press("Shift+ArrowRight")
    page.keyboard.press("Shift+ArrowRight")
    page.keyboard.press("Enter")
    expect(page.locator("#answer")).to_have_value("be governed")
    expect(page.locator("#selected")).to_contain_text("Selected in the document")
    page.keyboard.press("Enter")
    expect(page.locator(".done")).to_contain_text("Saved: corrected")
    assert page.url != first
    page.keyboard.press("r")
    expect(page.locator(".done")).to_contain_text("Saved: rejected")
    assert sorted(reviews(opened.service).values()) == [("Delaware", "rejected"), ("be governed", "corrected")]
    page.keyboard.press("u")
    expect(page.locator(".chip")).to_have_text("open")
    page.keyboard.press("m")
    page.keyboard.type("which of the two?")
    page.keyboard.press("Escape")
    page.keyboard.press("a")
    expect(page.locator(".done")).to_contain_text("Saved: accepted")
    expect(page.locator(".people")).to_contain_text("which of the two?")
    page.keyboard.press("Escape")
    expect(page.locator(".status")).to_have_text("2 answers")
    expect(page.locator("#list")).to_contain_text("be governed")
    page.click("#list tbody tr:has-text('accepted') td.question a")
    expect(page.locator("section.first")).to_contain_text("You said: accepted.")
    expect(page.locator("#keys button")).to_be_attached()
    page.keyboard.press("u")
    expect(page.locator(".chip")).to_have_text("open")
    rows = opened.service.verdicts(
        next(iter(listing.every(opened.service.index.read(), Filter(words="delaware"), "anna")))
    )
    assert {each.reviewer for each in rows} == {"anna"}
    (span,) = [span for each in rows for span in each.spans][:1] or [None]
    text = opened.service.texts.get(CORPUS, span.content_hash) if span else ""
    assert text and span and text[span.start : span.end] == "be governed"


def test_the_doubtful_are_reviewed_first(opened: Open):
    page = opened.visit("anna")
    page.select_option("select[name=order]", label="doubtful first")
    page.select_option("select[name=level]", label="medium")
    page.click("#filters button")
    shown = page.locator("#list td.state").all_inner_texts()
    assert len(shown) > 1 and all("confidence medium" in text for text in shown)
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    expect(page.locator("section.first")).to_contain_text("Confidence: medium")
    page.keyboard.press("a")
    expect(page.locator(".done")).to_contain_text("Saved: accepted")
    expect(page.locator("section.first")).to_contain_text("Confidence: medium")


def test_two_people_and_the_one_who_settles(opened: Open):
    anna, ben = opened.visit("anna"), opened.visit("ben")
    for page, key in ((anna, "a"), (ben, "n")):
        page.goto(f"{opened.access.address}/?words=delaware")
        opened_answer(page)
        page.keyboard.press(key)
        expect(page.locator(".done")).to_be_visible()
    anna.goto(f"{opened.access.address}/?review=disputed")
    opened_answer(anna)
    expect(anna.locator(".warn")).to_contain_text("People disagree")
    anna.keyboard.press("d")
    anna.keyboard.press("n")
    expect(anna.locator(".done")).to_contain_text("not in the document")
    expect(anna.locator(".people")).to_contain_text("settled it")
    assert list(reviews(opened.service).values()) == [("", "corrected")]


@pytest.mark.parametrize(("width", "scheme"), [(390, "light"), (390, "dark"), (1440, "dark")])
def test_every_page_fits_the_window_and_works_by_touch(opened: Open, width: int, scheme: str):
    page = opened.visit("anna", width, scheme)
    page.click("#list tbody tr:nth-child(6) td.question a")
    page.locator("[data-load]").last.scroll_into_view_if_needed()
    expect(page.locator(".changes, [data-load] p").first).to_be_visible()
    fits = "document.documentElement.scrollWidth <= innerWidth"
    assert page.evaluate(fits)
    if width < 700:
        boxes = [page.locator(f"#{name}").bounding_box() for name in ("accept", "reject", "absent")]
        assert all(box and box["height"] >= 44 for box in boxes), "large enough for a thumb"
    page.click("#accept")
    expect(page.locator(".done")).to_contain_text("Saved: accepted")
    assert page.evaluate(fits)
    for path in ("/", "/runs", f"/runs?corpus={CORPUS}", "/?state=failed"):
        page.goto(opened.access.address + path)
        assert page.evaluate(fits), path
    page.click("#list tbody tr:first-child td.question a")
    page.wait_for_load_state()
    assert page.evaluate(fits)


def test_a_screen_reader_is_told_what_is_what(opened: Open):
    page = opened.visit("anna")
    unnamed = """() => [...document.querySelectorAll('button, a, input:not([type=hidden]), select, textarea')]
        .filter((e) => e.getAttribute('aria-hidden') !== 'true' && !e.hidden
            && !(e.textContent.trim() || e.labels?.length || e.getAttribute('aria-label')))
        .map((e) => e.outerHTML)"""
    for path in ("/", "/runs"):
        page.goto(opened.access.address + path)
        assert page.evaluate(unnamed) == []
        assert page.locator("main h1").count() == 1 and page.locator("html[lang=en]").count() == 1
    page.goto(opened.access.address)
    page.click("#list tbody tr:nth-child(6) td.question a")
    assert page.evaluate(unnamed) == []
    assert page.get_by_role("region", name="Answer", exact=True).count() == 1
    assert page.get_by_role("complementary", name="Document").count() == 1
    assert page.get_by_role("textbox", name="Text of the document").count() == 1
    page.keyboard.press("Tab")
    expect(page.locator(".skip")).to_be_focused()


def test_pages_work_without_a_script(opened: Open):
    page = opened.visit("anna")
    context = page.context.browser.new_context(java_script_enabled=False) if page.context.browser else None
    assert context is not None
    context.add_cookies(page.context.cookies())
    plain = context.new_page()
    plain.goto(f"{opened.access.address}/?words=delaware")
    plain.click("#list tbody tr:first-child td.question a")
    plain.fill("#comment", "which of the two?")
    plain.keyboard.press("Enter")
    plain.wait_for_selector(".done")
    assert "Saved: comment" in plain.inner_text(".done")
    plain.fill("#answer", "Utah")
    plain.keyboard.press("Enter")
    plain.wait_for_selector(".done:has-text('corrected')")
    assert "Saved: corrected" in plain.inner_text(".done")
    context.close()
    assert list(reviews(opened.service).values()) == [("Utah", "corrected")]


def test_hostile_text_does_not_run(folder: Path, browser: Browser):
    run = MadeUpRun(local_store(folder))
    name = run.document(HOSTILE, f"{HOSTILE} The key is 42. {HOSTILE}", HOSTILE)
    run.reading([name], HOSTILE, HOSTILE, HOSTILE, {0: HOSTILE}, quotes=("The key is 42.", HOSTILE))
    run.fail("read", HOSTILE, HOSTILE, HOSTILE)
    run.save(policy=HOSTILE, engine=HOSTILE)
    with review_service_on(known(run.store), folder) as service:
        opened = Open(service, browser, 1)
        page = opened.visit("anna")
        page.click("#list tr:has(.chip:text-is('open')) a")
        expect(page.locator(".changes")).to_contain_text("<script>")
        page.fill("#answer", HOSTILE.replace("\x00", ""))
        page.click("#correct")
        page.goto(opened.access.address)
        expect(page.locator("#list ins")).to_contain_text("<img src=x")
        page.goto(f"{opened.access.address}/runs?corpus={CORPUS}")
        assert page.evaluate("window.hacked") is None and page.locator("img").count() == 0
        opened.close()
