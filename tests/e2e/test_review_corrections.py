"""A reader's answers, corrected on the review pages by keys in a real browser, become training rows."""

import getpass
import json
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from benchmarks.review import Served
from infra.store.delta import Table
from infra.store.location import Store
from tests.e2e.conftest import Memagent, needle_archive
from tests.support.browsing import Visit
from tests.support.scripted_reviewer import ACCEPT, Shown, review
from tests.support.weak import weaken

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
DOCUMENTS, CORRECTIONS = 50, 20


def test_twenty_corrections_by_keys_are_training_rows_with_their_places(tmp_path: Path, browser: Browser):
    weak = weaken(tmp_path / "weak")
    file = needle_archive(tmp_path / "docs", DOCUMENTS, 30)
    asked = [json.loads(line) for line in file.read_text().splitlines()]
    gold = {row["documents"][0]: row.pop("answers")[0] for row in asked}
    file.write_text("\n".join(map(json.dumps, asked)))
    memagent = Memagent(str(tmp_path / "store"))
    memagent("ingest", "a", str(tmp_path / "docs"))
    memagent("ask", "a", "--questions", str(file), "--model", str(weak))

    def judge(shown: Shown) -> str | bool:
        return ACCEPT if shown.answer == gold[shown.document] else gold[shown.document]

    me = getpass.getuser()
    served = Served(Store(memagent.store), tmp_path, [me])
    visit = Visit(browser, own=served.address)
    page = visit.page
    page.goto(served.link(me))
    expect(page.locator("header.top .who")).to_contain_text(me)  # a page that is still on its way refuses the next
    while f"{DOCUMENTS} answers" not in page.inner_text("body"):
        page.wait_for_timeout(500)
        page.goto(served.address)
    done = review(page, served.address, judge, CORRECTIONS)
    page.close()
    served.stop()
    assert visit.complaints == []
    assert done.corrected == done.said["marked"] == CORRECTIONS, done.said

    rows = Table(Store(memagent.store), "feedback").read("a").to_pylist()
    texts = {row["content_hash"]: row["text"] for row in Table(Store(memagent.store), "texts").read("a").to_pylist()}
    corrected = [row for row in rows if row["verdict"] == "corrected"]
    assert len(corrected) == CORRECTIONS and len(rows) == len(done.seconds)
    assert {row["reviewer"] for row in rows} == {me}
    for row in corrected:
        (span,) = row["spans"]
        assert texts[span["content_hash"]][span["char_start"] : span["char_end"]] == row["answer"]

    harvested = memagent.json("harvest", "a", "--model", str(weak))
    qa = Table(Store(memagent.store), "qa").read("a").to_pylist()
    assert harvested["rows"] == len(qa) == len(rows) and {row["source"] for row in qa} == {"feedback"}
    assert {(row["documents"][0], tuple(row["answers"])) for row in qa} <= {(d, (v,)) for d, v in gold.items()}
    taught = {row["reading_id"]: row for row in qa}
    for row in corrected:
        assert taught[row["reading_id"]]["answers"] == [row["answer"]] and taught[row["reading_id"]]["spans"]
