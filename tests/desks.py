"""A desk on a made-up run, and people who are logged in there."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from infra.store import Corpus, Store
from infra.tables.corpora import remember
from memagent.config import load_config
from pipelines.desk.access import Access, token_file
from pipelines.desk.app import app
from pipelines.desk.desk import Desk
from tests.made_up_run import CORPUS

PORT = 4300
ADDRESS = f"http://127.0.0.1:{PORT}"


def known(store: Store) -> Store:
    """Make the corpus of a made-up run one that the store knows."""
    remember(Corpus(store, CORPUS), sources=["/archive"])
    return store


@contextmanager
def desk_on(store: Store, folder: Path, *, start: bool = True) -> Iterator[Desk]:
    """Open a desk whose index has all of a store; `start`: also its threads."""
    desk = Desk(load_config(store=store.url), cache=folder / "cache", data=folder / "data")
    try:
        desk.refresher.once()
        if start:
            desk.start()
        yield desk
    finally:
        if start:
            desk.stop()
        else:
            desk.journal.close()


class Person:
    """Somebody at the desk, by the pages alone."""

    def __init__(self, desk: Desk, access: Access, name: str | None = None) -> None:
        self.http = TestClient(app(desk, access), base_url=ADDRESS, headers={"Origin": ADDRESS}, follow_redirects=False)
        self.csrf = ""
        if name is not None:
            token = token_file(name).read_text().strip()
            done = self.http.post("/login", data={"token": token})
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
