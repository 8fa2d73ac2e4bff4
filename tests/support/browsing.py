"""Headless Chromium, for the reports."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Error, Page, expect, sync_playwright

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PATIENCE = 300_000
"""Milliseconds for what comes at once where nothing else runs."""
expect.set_options(timeout=PATIENCE)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        installed = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
        try:
            browser = playwright.chromium.launch(executable_path=installed, args=FLAGS, timeout=PATIENCE)
        except Error as error:
            pytest.skip(f"no Chromium (infra/browser.sh installs one): {str(error).splitlines()[0]}")
        yield browser
        browser.close()


class Visit:
    """A page that takes down what must not happen."""

    def __init__(self, browser: Browser, width: int = 1400, scheme: str = "light", own: str = "file:") -> None:
        self._own = (own, "data:")
        self.page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        self.page.set_default_timeout(PATIENCE)
        self.complaints: list[str] = []
        self._session = self.page.context.new_cdp_session(self.page)
        self._session.send("Performance.enable", {"timeDomain": "threadTicks"})
        self.page.on("console", lambda message: self.complaints.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.complaints.append(f"error: {error}"))
        self.page.on("request", self._request)
        self.page.on("dialog", lambda dialog: self.complaints.append(f"dialog: {dialog.message}"))

    def _request(self, request: object) -> None:
        url = str(getattr(request, "url", ""))
        if not url.startswith(self._own):
            self.complaints.append(f"request: {url}")

    def open(self, path: Path, fragment: str = "") -> Page:
        self.page.goto(path.as_uri() + fragment)
        return self.page

    def seconds_promoted(self) -> float:
        """Return the processor's seconds that the page's own thread has had: what waits for a busy machine has none."""
        metrics = self._session.send("Performance.getMetrics")["metrics"]
        return float(next(one["value"] for one in metrics if one["name"] == "TaskDuration"))

    def turn_to(self, fragment: str) -> None:
        """Go to another part of the page that is open, and wait until it has been drawn."""
        self.page.evaluate(
            """hash => new Promise((done) => {
                const drawn = () => requestAnimationFrame(() => setTimeout(done));
                if (location.hash === new URL(hash, location).hash) return drawn();
                addEventListener('hashchange', drawn, { once: true });
                location.hash = hash;
            })""",
            fragment,
        )


@pytest.fixture
def visit(browser: Browser) -> Iterator[Visit]:
    visit = Visit(browser)
    yield visit
    visit.page.close()
    assert visit.complaints == []
