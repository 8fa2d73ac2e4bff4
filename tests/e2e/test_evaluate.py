"""Evaluations by the bundled reader on the real engine: scores, controls, another method, report, pictures."""

from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.e2e.conftest import Memagent
from tests.support.browsing import Visit

MADE = ("evaluate", "--suite", "needles", "--kinds", "niah_single_1,niah_single_2", "--lengths", "1k,3k", "--n", "6")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("evaluation")


@pytest.fixture(scope="module")
def evaluated(memagent: Memagent, folder: Path) -> dict:
    return memagent.json(*MADE, "-o", str(folder / "report.html"))


@pytest.mark.slow
def test_the_bundled_reader_is_scored(evaluated: dict):
    lines = {(line["task"], line["length"]): line for line in evaluated["evaluation"]}
    assert {key for key in lines if key[0] != "all"} == {
        (kind, length) for kind in ("niah_single_1", "niah_single_2") for length in (1000, 3000)
    }
    assert all(line["failed"] == 0 and line["low"] <= line["value"] <= line["high"] for line in lines.values())
    # 24 samples, of which it is right on about five of six: chance alone leaves this bar once in a thousand runs.
    assert evaluated["overall"]["n"] == 24 and evaluated["overall"]["value"] >= 0.5
    assert evaluated["readings"]["read_now"] == 24 and evaluated["conversations"] > 24


@pytest.mark.slow
def test_without_the_document_it_falls_to_nothing(memagent: Memagent, evaluated: dict):
    removed = memagent.json(*MADE, "--control", "no-document")
    assert all(line["value"] <= 0.2 for line in removed["evaluation"] if line["task"] == "all")


@pytest.mark.slow
def test_another_method_reads_the_same_samples_on_the_same_engine(memagent: Memagent, evaluated: dict, folder: Path):
    retrieved = memagent.json(*MADE, "--method", "bm25")
    assert retrieved["overall"]["n"] == 24 and retrieved["readings"]["failed"] == 0
    assert retrieved["conversations"] == 48 < evaluated["conversations"]  # one segment and the answer, each
    known = memagent.json("scores", "--pictures", str(folder / "pictures"))
    assert known["runs"][0]["method"] == "memagent"
    assert {"memagent", "bm25"} <= {run["method"] for run in known["runs"]}
    assert {Path(path).suffix for path in known["pictures"]} == {".png", ".svg"}


def test_the_evaluations_report_opens(visit: Visit, evaluated: dict, folder: Path):
    page = visit.open(folder / "report.html")
    assert page.inner_text("h1") == "Evaluation: needles"
    drawn = page.eval_on_selector_all("img", "found => found.map(one => [one.complete, one.naturalWidth > 100])")
    assert len(drawn) >= 3 and all(one == [True, True] for one in drawn)
    samples = page.locator("details")
    assert samples.count() == evaluated["overall"]["n"]
    samples.last.locator("summary").click()
    expect(samples.last.locator("dt").first).to_be_visible()
    page.screenshot(path=folder / "report.png", full_page=True)
