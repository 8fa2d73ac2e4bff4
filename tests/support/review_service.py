"""Review pages on a made-up run, and people who are logged in there."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from starlette.routing import Mount
from starlette.testclient import TestClient

from infra.store.corpora import remember
from infra.store.location import Corpus, Store
from memagent.config import load_config
from pipelines.web.access import Access, login_link
from pipelines.web.address import Address
from pipelines.web.review.app import app
from pipelines.web.review.service import ReviewService
from pipelines.web.server import web_app
from tests.support.made_up_run import CORPUS

PORT = 4300
ADDRESS = f"http://127.0.0.1:{PORT}"


def known(store: Store) -> Store:
    """Make the corpus of a made-up run one that the store knows."""
    remember(Corpus(store, CORPUS), sources=["/archive"])
    return store


@contextmanager
def review_service_on(store: Store, folder: Path, *, start: bool = True) -> Iterator[ReviewService]:
    """Open a review server whose index has all of a store; `start`: also its threads."""
    service = ReviewService(load_config(store=store.url), cache=folder / "cache", data=folder / "data")
    try:
        service.refresher.once()
        if start:
            service.start()
        yield service
    finally:
        if start:
            service.stop()
        else:
            service.journal.close()


class Person:
    """Somebody on the review pages, by the pages alone."""

    def __init__(self, service: ReviewService, access: Access, name: str | None = None) -> None:
        web = web_app([Mount("/", app=app(service, access))], ["127.0.0.1"])
        self.http = TestClient(web, base_url=ADDRESS, headers={"Origin": ADDRESS}, follow_redirects=False)
        self.csrf = ""
        if name is not None:
            done = self.http.get(login_path(name))
            assert done.status_code == 303, done.text
            self.csrf = csrf(self.http.get("/").text)

    def get(self, path: str, status: int = 200) -> str:
        """Return a page."""
        answer = self.http.get(path)
        assert answer.status_code == status, answer.text[:2000]
        return answer.text

    def post(self, path: str, status: int = 303, **fields: str) -> str:
        """Send a form; return where it leads, or the page of the error."""
        answer = self.http.post(path, data={"csrf": self.csrf, **fields})
        assert answer.status_code == status, answer.text[:2000]
        return answer.headers["location"] if status == 303 else answer.text

    def judge(self, reading: str, said: str, status: int = 303, **fields: str) -> str:
        """Give a verdict."""
        return self.post(f"/answers/{CORPUS}/{reading}/verdict", status, said=said, **fields)


def login_path(name: str) -> str:
    """Return the path of a new login link."""
    return login_link(Address(PORT), name).removeprefix(ADDRESS)


def csrf(page: str) -> str:
    """Return the CSRF token of a page."""
    found = re.search(r'name="csrf" value="([^"]+)"', page)
    assert found is not None
    return found[1]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's folders, apart from this machine's."""
    for name in ("CONFIG", "DATA", "CACHE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    return tmp_path
