import base64
import hashlib
import json
import re
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.store.corpora import remember
from infra.store.location import Corpus
from memagent.config import load_config
from memagent.errors import UsageError
from memagent.quality.verdicts import Review
from pipelines.operate.forget import forget
from pipelines.report.data import ReportRow, load_progress
from pipelines.report.details import pack
from pipelines.report.page import build, write
from pipelines.views.memory import noted_spans
from pipelines.views.passages import Span, excerpt
from tests.support.made_up_run import CORPUS, QUESTIONS, RUN, MadeUpRun, contracts, local_store

HOSTILE = (
    "</script><script>window.hacked=1</script><img src=x onerror='window.hacked=1'>\u2028\u2029\u202egnirts\u202c"
    "\x00\x1b[31m {{ 7*7 }} {% raw %} <!-- <script> ]]> &lt; \U0001d4b3"
)


class Page(HTMLParser):
    """A page as a browser takes it apart: script elements, and what refers to elsewhere."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.scripts: dict[str, str] = {}
        self.addresses: list[str] = []
        self.tags: list[str] = []
        self.policy = ""
        self._inside: str | None = None
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.tags.append(tag)
        self.addresses += [str(values[name]) for name in ("src", "href", "action") if name in values]
        if values.get("http-equiv") == "Content-Security-Policy":
            self.policy = str(values["content"])
        self._inside = {"script": values.get("id", "code"), "style": "style"}.get(tag)

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.scripts[self._inside] = self.scripts.get(self._inside, "") + data
        else:
            self.text += f" {data} "

    def handle_endtag(self, tag: str) -> None:
        self._inside = None

    def data(self, name: str = "data") -> Any:
        return json.loads(self.scripts[name])

    def documents(self) -> dict[str, Any]:
        return {
            self.data()["documents"][int(n.split("-")[1])]["id"]: self.data(n) for n in self.scripts if "document-" in n
        }


def unpack(changes: list[dict[str, Any]]) -> list[str]:
    """The memories after each change, as diff.js makes them."""
    memories: dict[int, str] = {}
    result = []
    for change in changes:
        units = memories.get(change["span"], "").encode("utf-16-le", "surrogatepass")
        head, tail, between = change["memory"]
        after = units[: 2 * head].decode("utf-16-le") + between + units[len(units) - 2 * tail :].decode("utf-16-le")
        memories[change["span"]] = after
        result.append(after)
    return result


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Page:
    run = contracts(local_store(tmp_path_factory.mktemp("report")), 20)
    run.save(scored=True)
    return Page(build(run.store, RUN))


def test_every_reading_is_a_row_with_its_state(page: Page):
    rows = page.data()["rows"]
    assert len(rows) == 60
    states = [row[9] for row in rows]
    assert (states.count("reused"), states.count("failed"), states.count("read")) == (12, 2, 46)
    failed = next(row for row in rows if row[9] == "failed")
    assert failed[11] == "prompt-too-long" and failed[6] is False


def test_right_and_wrong_follow_the_gold_answers(page: Page):
    rows = {
        (page.data()["documents"][row[1]]["id"], page.data()["questions"][row[2]]["id"]): row
        for row in page.data()["rows"]
    }
    assert rows["contract-0000.txt", "law"][5:7] == [["Utah"], False]
    assert rows["contract-0001.txt", "law"][5:7] == [["New York"], True]
    assert rows["contract-0001.txt", "cap"][3:7] == ["", 0, [""], True]
    assert rows["contract-0003.txt", "cap"][5:7] == [None, None]


@pytest.mark.parametrize(("said", "right"), [("Utah", True), ("Nevada", False)])
def test_a_corrected_answer_is_judged_as_people_are_shown_it(said: str, right: bool):
    answer = {"answer": "Nevada" if right else "Utah", "found": True}
    review = Review("corrected", said, (), datetime(2026, 11, 24, tzinfo=UTC))
    row = ReportRow({"gold": ["Utah"]}, answer, None, review)  # type: ignore[typeddict-item]
    assert row.right is right


def test_a_reading_holds_evidence_memory_and_document(page: Page):
    reading = page.data("reading-0")
    document = page.documents()["contract-0000.txt"]
    (spot,) = reading["evidence"]
    text = document["pieces"][0][1]
    assert text[spot["quote_start"] : spot["quote_end"]] == spot["quote"] != ""
    timeline = reading["timeline"]
    assert timeline["strip"].count("c") == 2 == len(timeline["changes"])
    assert set(timeline["strip"]) == {"c", "u"}
    memories = unpack(timeline["changes"])
    assert memories[0] == "Parties: Alpha Metals Inc." and memories[1].endswith(spot["quote"])
    start, end = timeline["changes"][1]["noted"][0]
    assert text[start:end] in spot["quote"] and end - start > 40


def test_failures_of_the_run_and_of_the_ingest_are_told_apart(page: Page):
    counts = {(f["stage"], f["reason"], f["mine"]): f["count"] for f in page.data()["failureCounts"]}
    assert counts == {("read", "prompt-too-long", True): 2, ("ingest", "encrypted", False): 1}


def test_the_head_shows_scores_with_n_and_interval(page: Page):
    text = " ".join(page.text.split())
    assert "exact match 0.610 0.550 to 0.670 148" in text
    assert "Answer found 63%" in text and "Checked by people 0" in text


def test_the_page_needs_nothing_and_lets_nothing_else_run(page: Page):
    assert all(address.startswith(("#", "data:")) for address in page.addresses)
    assert "default-src 'none'" in page.policy
    for kind, name in (("script-src", "code"), ("style-src", "style")):
        sha = base64.b64encode(hashlib.sha256(page.scripts[name].encode()).digest()).decode()
        assert f"{kind} 'sha256-{sha}'" in page.policy


def test_hostile_text_stays_text(tmp_path: Path):
    run = MadeUpRun(local_store(tmp_path))
    name = run.document(HOSTILE, f"{HOSTILE} The key is 42. {HOSTILE}", HOSTILE)
    run.reading([name], HOSTILE, HOSTILE, HOSTILE, {0: HOSTILE}, quotes=("The key is 42.",), gold=[HOSTILE])
    run.fail("ingest", HOSTILE, HOSTILE, HOSTILE)
    run.save(policy=HOSTILE, engine=HOSTILE)
    html = build(run.store, RUN)
    page = Page(html)
    assert "img" not in page.tags and page.tags.count("script") == 4  # data, one reading, one document, the code
    assert page.data()["rows"][0][3] == HOSTILE
    assert page.data("document-0")["pieces"][0][1].startswith(HOSTILE)
    assert unpack(page.data("reading-0")["timeline"]["changes"])[0] == HOSTILE
    assert not re.search("[\x00\x1b\u2028\u2029\u202e]", page.text)


def test_an_archive_reading_spans_documents(tmp_path: Path):
    run = MadeUpRun(local_store(tmp_path))
    names = [
        run.document(f"{i}.txt", f"Section {i}. " * 300 + f"The code of depot {i} is {1000 + i}.") for i in range(4)
    ]
    line = "The code of depot 2 is 1002."
    run.reading(
        names, "code", "What is the code of depot 2?", "1002", {5: "Depots are listed.", 8: line}, quotes=(line,)
    )
    run.save()
    page = Page(build(run.store, RUN))
    (row,) = page.data()["rows"]
    assert row[1] == -1 and row[10] == 4 and row[7] == 12
    changes = page.data("reading-0")["timeline"]["changes"]
    assert [(c["position"], page.data()["documents"][c["document"]]["id"]) for c in changes] == [
        (5, "1.txt"),
        (8, "2.txt"),
    ]
    assert set(page.documents()) == {"1.txt", "2.txt"}


def test_what_was_carried_over_is_marked(tmp_path: Path):
    run = MadeUpRun(local_store(tmp_path))
    name = run.document("grown.txt", "Some words of a clause. " * 500)
    run.reading([name], "q", "Q?", "a note", {1: "a note", 6: "a note, again"}, carried=4, state="continued")
    run.answers[0]["cached_tokens"] = 0
    run.save()
    page = Page(build(run.store, RUN))
    assert page.data("reading-0")["timeline"]["strip"] == "kCkkuucu"
    assert page.data()["rows"][0][9] == "continued"
    origin = page.data("reading-0")["origin"]
    assert origin["carried_from"] == "an-older-reading" and origin["cached_tokens"] == 0


@pytest.mark.parametrize("reason", ["stop", "length", "repetition"])
def test_why_an_answer_or_an_update_ended_is_said(tmp_path: Path, reason: str):
    run = MadeUpRun(local_store(tmp_path))
    name = run.document("long.txt", "Some words of a clause. " * 500)
    run.reading([name], "q", "Q?", "a note", {1: "a note"})
    for turn in (run.turns._buffer[0], run.turns._buffer[-1]):
        turn["finish_reason"] = reason
    run.save()
    timeline = Page(build(run.store, RUN)).data("reading-0")["timeline"]
    assert timeline["strip"][:3] == ("rcu" if reason == "repetition" else "ucu")
    assert timeline["cut"] == ("" if reason == "stop" else reason)


@pytest.mark.parametrize("limit", [150_000, 250_000, 400_000])
def test_the_file_stays_below_its_limit_and_says_what_is_left_out(tmp_path: Path, limit: int):
    run = contracts(local_store(tmp_path), 60)
    run.save()
    html = build(run.store, RUN, limit=limit)
    page = Page(html)
    assert len(html.encode()) <= limit
    left_out, answered = page.data()["leftOut"], [n for n in page.scripts if n.startswith("reading-")]
    without = sum(page.data(name)["timeline"] is None for name in answered)
    assert left_out["memories"] == without
    assert left_out["rows"] == 180 - len(page.data()["rows"])
    quotes = [spot["quote"] for name in answered for spot in page.data(name)["evidence"]]
    shown = "".join(text for document in page.documents().values() for _, text in document["pieces"])
    assert quotes and (limit < 400_000 or all(quote in shown for quote in quotes))
    assert limit == 400_000 or left_out["memories"] or left_out["documents"] or left_out["rows"]


def test_what_was_forgotten_is_not_said_to_be_left_out_for_size(tmp_path: Path):
    run = contracts(local_store(tmp_path), 8)
    run.save()
    remember(Corpus(run.store, CORPUS), sources=["/archive"])
    forget(CORPUS, load_config(store=run.store.url), [("doc_id", "contract-0000.txt")])
    page = Page(build(run.store, RUN))
    rows, text = page.data()["rows"], " ".join(page.text.split())
    assert (len(rows), page.data()["forgotten"], page.data()["leftOut"]["rows"]) == (21, 3, 0)
    assert f"Asked 21 {sum(row[9] == 'read' for row in rows)} read in this run" in text
    assert f"{sum(row[4] for row in rows)} of 21 asked" in text


def test_runs_without_anything_new_or_without_a_plan(tmp_path: Path):
    run = MadeUpRun(local_store(tmp_path))
    run.save(kind="ingest")
    page = Page(build(run.store, RUN))
    assert page.data()["rows"] == [] and page.data()["progress"] == []
    assert "Asked 0" in " ".join(page.text.split())


def test_an_unknown_run_is_refused_with_advice(tmp_path: Path):
    with pytest.raises(UsageError, match=r"no finished run 'nope'.*start the same command again"):
        build(local_store(tmp_path), "nope")


def test_write_replaces_a_report(tmp_path: Path):
    run = MadeUpRun(local_store(tmp_path))
    run.save()
    target = tmp_path / "out" / "report.html"
    assert write(run.store, RUN, target) == target
    first = target.read_text(encoding="utf-8")
    assert write(run.store, RUN, target).read_text(encoding="utf-8") == first
    assert [path.name for path in target.parent.iterdir()] == ["report.html"]


def test_progress_survives_a_cut_line_and_a_restart(tmp_path: Path):
    store = local_store(tmp_path)
    lines = [
        {"t": 0.0, "segments": 0, "prompt_tokens": 0, "cached_tokens": 0, "output_tokens": 0},
        {"t": 2.0, "segments": 10, "prompt_tokens": 1000, "cached_tokens": 500, "output_tokens": 20},
        {"t": 3.0, "segments": 0, "prompt_tokens": 0, "cached_tokens": 0, "output_tokens": 0},
    ]
    text = "\n".join(json.dumps(line) for line in lines) + '\n{"t": 4.0, "segm'
    store.write_bytes(text.encode(), "runs", RUN, "progress.jsonl")
    points = load_progress(store, RUN)
    assert [(p["t"], p["segments"], p["prompt"], p["cached"]) for p in points] == [
        (2.0, 5.0, 500.0, 0.5),
        (3.0, 0.0, 0.0, 0.0),
    ]


@given(st.lists(st.text(alphabet="ab \n\U0001d4b3é", max_size=12), max_size=6))
def test_packed_memories_come_back(memories: list[str]):
    before, changes = "", []
    for memory in memories:
        changes.append({"span": 0, "memory": pack(before, memory)})
        before = memory
    assert unpack(changes) == memories


@given(
    st.text(alphabet="word .\n\U0001d4b3é", max_size=6000),
    st.lists(st.tuples(st.integers(0, 6000), st.integers(1, 300)), min_size=1, max_size=6),
    st.integers(0, 9000),
)
def test_excerpts_are_true_and_within_their_allowance(text: str, spots: list[tuple[int, int]], allowance: int):
    places = [Span(min(start, len(text)), min(start + length, len(text))) for start, length in spots]
    chosen = excerpt(text, places, allowance)
    if chosen is None:
        return
    assert sum(len(piece.encode()) for _, piece in chosen["pieces"]) <= allowance
    end = 0
    for start, piece in chosen["pieces"]:
        assert start >= end and text[start : start + len(piece)] == piece
        end = start + len(piece)
    first = places[0]
    assert not text or any(
        start <= first.start and first.end <= start + len(piece) for start, piece in chosen["pieces"]
    )


def test_noted_finds_what_the_memory_took_word_by_word():
    text = "Intro. The  price is\n40 dollars per unit. End."
    places = noted_spans("Old line", "Old line\n- The price is 40 dollars per unit.\nsomething else entirely", text)
    assert [text[a:b] for a, b in places] == ["The  price is\n40 dollars per unit"]
    text = "鍵は七番の引き出しです。責任者は山田花子さんです。"
    places = noted_spans("", "責任者は山田花子さんです。電話番号は不明です。", text)
    assert [text[a:b] for a, b in places] == ["責任者は山田花子さんです"], "a sentence of the memory, in any script"


def test_the_questions_are_shared_by_number(page: Page):
    assert [question["text"] for question in page.data()["questions"]] == list(QUESTIONS.values())
