"""Documents with the same text are read once, and each is shown by its own name, wherever answers are shown."""

import csv
import io
import json
import re

import pytest

from infra.store.corpora import remember
from infra.store.location import Corpus, Store
from memagent.config import load_config
from memagent.records import Question
from pipelines.ask import digest
from pipelines.io.answers import answer_table
from pipelines.operate.forget import forget
from pipelines.report.page import build
from pipelines.web.access import Access
from pipelines.web.address import Address
from tests.support.archives import OTTER
from tests.support.review_service import PORT, Person, home, known, review_service_on

__all__ = ["home"]


@pytest.fixture
def archive(home, model_folder):
    """Two documents with one text, digested."""
    folder, store = home / "docs", Store(str(home / "store"))
    folder.mkdir()
    for name in ("january.txt", "february.txt"):
        (folder / name).write_text("The pass number for amber-otter is 47110815.")
    config = load_config(store=store.url, engine__kind="scripted", engine__model=str(model_folder))
    remember(Corpus(store, "c"), sources=[str(folder)])
    known(store)
    return folder, store, config, digest("c", [OTTER], config)


def test_a_report_names_each(archive):
    folder, store, _, night = archive
    page = build(store, night["run_id"])
    data = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)[1])
    named = {data["documents"][row[1]]["id"]: data["documents"][row[1]] for row in data["rows"]}
    assert set(named) == {"january.txt", "february.txt"} and len({one["text"] for one in named.values()}) == 1
    assert all(one["source"] == str(folder / name) for name, one in named.items())


def test_the_review_pages_find_export_and_forget_each(archive, home):
    folder, store, config, _ = archive
    with review_service_on(store, home) as service:
        anna = Person(service, Access(service.journal, ["anna"], Address(PORT)), "anna")
        assert _exported(anna) == {("january.txt", "otter"), ("february.txt", "otter")}
        assert all("1 answer<" in anna.get(f"/?words={word}") for word in ("january", "febru", "january+4711"))
        (folder / "february.txt").rename(home / "elsewhere.txt")
        digest("c", None, config)
        service.refresher.once()
        assert _exported(anna) == {("january.txt", "otter")} and "0 answers" in anna.get("/?words=february")
        (folder / "april.txt").write_text((folder / "january.txt").read_text())
        digest("c", [Question("number", OTTER.text)], config)
        service.refresher.once()
        assert _exported(anna) == {("january.txt", "number"), ("april.txt", "number")}
        assert {row["question_id"] for row in answer_table(config, "c")} == {"number"}
        done = forget("c", config, [("doc_id", "january.txt")])
        assert (done["texts"], done["kept_texts"]) == (0, 1)
        service.refresher.once()
        assert _exported(anna) == {("april.txt", "number")} and "0 answers" in anna.get("/?words=january")
    assert not any(b"january.txt" in path.read_bytes() for path in home.rglob("*.sqlite*"))


def _exported(person):
    rows = list(csv.DictReader(io.StringIO(person.get("/export.csv").lstrip("\ufeff"), newline="")))
    return {(row["document"], row["question_id"]) for row in rows}
