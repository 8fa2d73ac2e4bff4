"""Headless Chromium, for the reports."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Error, Page, sync_playwright

_FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        installed = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
        try:
            browser = playwright.chromium.launch(executable_path=installed, args=_FLAGS)
        except Error as error:
            pytest.skip(f"no Chromium (infra/browser.sh installs one): {str(error).splitlines()[0]}")
        yield browser
        browser.close()


class Visit:
    """A page that takes down what must not happen."""

    def __init__(self, browser: Browser, width: int = 1400, scheme: str = "light") -> None:
        self.page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        self.complaints: list[str] = []
        self.page.on("console", lambda message: self.complaints.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.complaints.append(f"error: {error}"))
        self.page.on("request", self._request)
        self.page.on("dialog", lambda dialog: self.complaints.append(f"dialog: {dialog.message}"))

    def _request(self, request: object) -> None:
        url = str(getattr(request, "url", ""))
        if not url.startswith(("file:", "data:")):
            self.complaints.append(f"request: {url}")

    def open(self, path: Path, fragment: str = "") -> Page:
        self.page.goto(path.as_uri() + fragment)
        return self.page


@pytest.fixture
def visit(browser: Browser) -> Iterator[Visit]:
    visit = Visit(browser)
    yield visit
    visit.page.close()
    assert visit.complaints == []
