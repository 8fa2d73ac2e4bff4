import io
from collections.abc import Sequence
from types import SimpleNamespace

import pytest
from rich.console import Console

from pipelines import ask as asking
from pipelines.cli import live as module
from pipelines.cli.live import Display, answer_cells, answers_table, summary
from pipelines.views.formatting import duration, failures, number, percent, plain


def console(*, terminal: bool = False) -> Console:
    return Console(file=io.StringIO(), force_terminal=terminal, width=110, color_system=None)


def said(to: Console) -> str:
    assert isinstance(to.file, io.StringIO)
    return to.file.getvalue()


def snapshot(t: float, segments: int, **more: object) -> dict[str, object]:
    counts = {"segments": segments, "segments_total": 1000, "readings": segments // 10, "readings_total": 100}
    tokens = {"prompt_tokens": segments * 500, "cached_tokens": segments * 100, "output_tokens": segments * 10}
    return {"stage": "read", "engine": "vllm", "t": t, **counts, **tokens, "failures": 0, **more}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    time = {"now": 1000.0}
    monkeypatch.setattr(module.time, "monotonic", lambda: time["now"])  # type: ignore[attr-defined]
    return time


def feed(display: Display, clock: dict[str, float], points: list[tuple[float, int]]) -> None:
    for t, segments in points:
        clock["now"] = 1000.0 + t
        display.update(snapshot(t, segments))


def test_time_left_is_honest_from_start_to_end(clock: dict[str, float]):
    display = Display(console())
    assert display.time_left() == "starting"
    feed(display, clock, [(0, 0), (8, 0)])
    assert display.time_left() == "starting the engine"
    feed(display, clock, [(9, 20), (11, 60)])
    feed(display, clock, [(20, 240)])
    # 240 segments over the 20 s since the first sample
    assert display.speed("work") == 12.0
    feed(display, clock, [(t, 240 + 20 * (t - 20)) for t in range(21, 51)])
    assert display.speed("work") == pytest.approx(20.0)
    assert display.time_left() == "about 8.0 s"
    clock["now"] += 31
    assert display.time_left() == "unknown: no parts for 31 s"
    feed(display, clock, [(90, 1000)])
    assert display.time_left() == "finishing"


def test_a_speed_needs_five_seconds(clock: dict[str, float]):
    display = Display(console())
    feed(display, clock, [(0, 10), (2, 30)])
    assert display.time_left() == "measuring"
    feed(display, clock, [(5, 60)])
    assert display.time_left() == "about 1 min 34 s"


def test_an_engine_that_warms_up_is_measured_until_it_is_steady(clock: dict[str, float]):
    display = Display(console())
    feed(display, clock, [(0, 0), (8, 4), (12, 8)])  # at this speed it would take 25 minutes
    assert display.time_left() == "measuring"
    feed(display, clock, [(t, 8 + 60 * (t - 12)) for t in range(13, 16)])
    assert display.time_left() == "measuring", "and then it ends within seconds"
    steady = Display(console())
    feed(steady, clock, [(t, 60 * t) for t in range(11)])
    assert steady.time_left() == "about 6.7 s"


def test_a_digest_says_that_its_model_is_another_one(monkeypatch):
    reading = SimpleNamespace(
        corpus=SimpleNamespace(store=None, name="c"),
        reader=SimpleNamespace(policy=SimpleNamespace(name="nano", policy_id="nano@2")),
    )
    before = {"policy": "qwen", "policy_id": "qwen@1"}
    monkeypatch.setattr(asking, "last_digest", lambda corpus: before)
    assert asking._changed_model(reading) == "qwen@1 -> nano@2"
    before |= {"policy": "nano", "policy_id": "nano@1"}
    assert asking._changed_model(reading) == "", "another version of it, whose answers count"
    monkeypatch.setattr(asking, "last_digest", lambda corpus: None)
    assert asking._changed_model(reading) == "", "the first digest"
    out = console()
    summary(out, {"readings": {"total": 1}, "model_changed": "qwen@1 -> nano@2"})
    assert "model changed" in said(out)


def test_the_panel_shows_the_counts(clock: dict[str, float]):
    to = console()
    display = Display(to)
    feed(display, clock, [(0, 0), (5, 50), (10, 100)])
    display.update(snapshot(10, 100, failures=3))
    to.print(display.render())
    text = " ".join(said(to).split())
    for part in ("read vllm", "answers 10 of 100", "parts 100 of 1,000", "failures 3", "parts/s 10.0"):
        assert part in text
    for part in ("tokens/s 5,100", "from cache 20%", "elapsed 10 s", "about 1 min 30 s"):
        assert part in text


def test_an_ingest_counts_sources(clock: dict[str, float]):
    to = console()
    display = Display(to)
    for t in range(0, 11):
        clock["now"] = 1000.0 + t
        display.update({"t": t, "stage": "ingest", "done": 2 * t, "total": 40, "documents": 3 * t, "quarantined": 1})
    to.print(display.render())
    text = " ".join(said(to).split())
    assert "sources 20 of 40" in text and "sources/s 2.0" in text and "failures 1" in text and "about 10 s" in text


def test_another_stage_counts_from_zero(clock: dict[str, float]):
    display = Display(console())
    feed(display, clock, [(0, 0), (10, 500)])
    display.update({"stage": "plan", "t": 11.0})
    assert display.speed("work") == 0.0
    assert display.time_left() == "starting"


def test_without_a_terminal_there_are_few_plain_lines(clock: dict[str, float]):
    to = console()
    with Display(to) as display:
        feed(display, clock, [(t, 10 * t) for t in range(31)])
    lines = said(to).splitlines()
    assert len(lines) == 4
    start = "read: answers 0 of 100, parts 0 of 1,000, tokens/s 0, from cache –, elapsed 0.0 s"
    assert lines[0] == f"{start}, left starting the engine"
    assert lines[1].startswith("read: answers 10 of 100, parts 100 of 1,000, failures 0, parts/s 10.0")
    assert lines[1].endswith("left about 1 min 30 s")


def test_on_a_terminal_it_is_live_and_leaves_nothing_behind():
    to = console(terminal=True)
    with Display(to) as display:
        display.update(snapshot(1, 10))
    assert "parts" in said(to) and "elapsed" in said(to), "the panel, as it was last"


def test_standard_output_stays_clean(capfd: pytest.CaptureFixture[str]):
    with Display() as display:
        display.update(snapshot(1, 10))
    out, err = capfd.readouterr()
    assert out == "" and "parts" in err


def test_summary_shows_scores_with_interval_and_failures_by_reason():
    to = console()
    summary(
        to,
        {
            "documents": 50,
            "readings": {"total": 150, "answered_before": 30, "read_now": 115, "failed": 5, "found": 95},
            "segments": 1066,
            "prompt_tokens": 490_360,
            "cached_tokens": 137_300,
            "output_tokens": 21_320,
            "seconds": 60.0,
            "engine_seconds": 41.0,
            "policy": "memagent-nano",
            "policy_id": "0123456789abcdef",
            "engine": "vllm",
            "scores": [{"metric": "f1", "value": 0.5, "n": 148, "low": 0.42, "high": 0.58}],
            "failures_by_reason": {"[red]odd": 1, "engine-died": 4},
        },
    )
    text = " ".join(said(to).split())
    assert "150: 115 read now, 30 answered before, 5 failed" in text
    assert "1,066 (26.0 a second once the engine was up)" in text
    assert "95 of 150 (63%)" in text and "28% from cache" in text
    assert "f1 0.500 0.420 to 0.580 148" in text
    assert "4 engine-died 1 [red]odd" in text


def test_sources_that_could_not_be_read_count_as_failures():
    to = console()
    taken = {"sources": 3, "new": 2, "changed": 0, "unchanged": 0, "failed": 1, "quarantined": {"pdf": 1}}
    run = {"readings": {"total": 2, "failed": 1}, "failures_by_reason": {"pdf": 1}, "ingest": taken}
    assert failures(run) == {"pdf": 1, "source: pdf": 1}
    summary(to, run)
    text = " ".join(said(to).split())
    assert "sources 3: 2 new, 0 changed, 0 unchanged, 1 failed" in text
    assert "1 pdf 1 source: pdf" in text
    assert failures({"readings": {}, "failures_by_reason": {}, "ingest": {"quarantined": {}}}) == {}


def test_a_question_about_no_document_is_not_one_of_those_on_a_document():
    to = console()
    counts = {"total": 4, "read_now": 2, "answered_before": 0, "failed": 1}
    summary(to, {"readings": counts, "failures_by_reason": {"no-document": 1}})
    said_of = "4: 2 read now, 0 answered before, 0 failed, 2 on the text of another document"
    text = " ".join(said(to).split())
    assert said_of in text and "1 no-document" in text


def test_summary_prints_other_shapes_as_they_stand():
    to = console()
    summary(
        to, {"kind": "ingest", "sources": 20, "quarantined": {"empty": 2}, "seconds": 3.3, "estimated_seconds": None}
    )
    text = " ".join(said(to).split())
    assert text == "kind ingest sources 20 quarantined empty 2 time 3.3 s"


def row(document: str, question: str, answer: str, quote: str = "", warnings: Sequence[str] = ()) -> dict[str, object]:
    evidence = [{"quote": quote, "page": None, "verbatim": True}] if quote else []
    texts = {"document": document, "title": "", "question": question, "answer": answer, "found": bool(answer)}
    return {**texts, "evidence": evidence, "warnings": warnings, "review": "", "reviewed_by": []}


def test_what_people_said_stands_beside_an_answer():
    judged = row("a.txt", "q", "May", warnings=["the quote names b-2, not b-1"])
    found = answer_cells({**judged, "review": "disputed", "reviewed_by": ["ann", "bob"]})
    assert found["warning"].plain == "disputed by ann, bob; the quote names b-2, not b-1"
    assert answer_cells(judged)["warning"].plain == "the quote names b-2, not b-1"


def test_answers_are_shown_as_text():
    to = Console(file=io.StringIO(), force_terminal=True, width=110)
    rows = [
        row("a/[bold]b.txt", "Who\x1b]0;title\x07?", "[link=http://x]Ann\x1b[31m\u202e", "Ann\nsigned.\x9b2J"),
        row("c", "q", ""),
    ]
    answers_table(to, rows)
    text = said(to)
    assert "[bold]b.txt" in text and "[link=http://x]Ann" in text and "“Ann signed.2J”" in text and "not found" in text
    assert not any(char in text for char in "\x07\x9b\u202e")
    assert set(part.split("m")[0] for part in text.split("\x1b")[1:]) <= {"[0", "[1", "[2", "[3", "[2;3", "[1;2"}
    assert "\x1b[31" not in text and "\x1b]" not in text


@pytest.mark.parametrize(("width", "header"), [(90, "document"), (60, "document, question")])
def test_documents_are_rows_and_questions_columns_where_they_have_room(width, header):
    to = Console(file=io.StringIO(), width=width)
    name = "2024-04-11 Master services agreement with Contoso (signed).txt"
    rows = [
        row(name, "Who is the tenant?", "Acme", "the tenant is Acme"),
        row(name, "How much?", "", warnings=["cut"]),
        row("b.txt", "How much?", "7"),
    ]
    answers_table(to, rows)
    lines = [[cell.strip() for cell in line.strip("┃│ ").replace("┃", "│").split("│")] for line in said(to).split("\n")]
    assert any(line[0] == header for line in lines)
    assert said(to).count("2024-04-11") == 1, "a document is named once"
    if width == 90:
        (first,) = (line for line in lines if line[0].startswith("2024"))
        (second,) = (line for line in lines if line[0] == "b.txt")
        assert first[1:] == ["Acme", "not found"] and second[1:] == ["", "7"]
    assert "“the tenant is Acme”" in said(to) and "cut" in said(to)


def test_no_answers():
    to = console()
    answers_table(to, [])
    assert said(to) == "no answers\n"


@pytest.mark.parametrize(
    ("made", "wanted"),
    [
        (number(950), "950"),
        (number(12_345), "12,345"),
        (number(1_234_567), "1.23 M"),
        (number(2_500_000_000), "2.5 G"),
        (duration(0.84), "0.8 s"),
        (duration(42.4), "42 s"),
        (duration(185), "3 min 05 s"),
        (duration(7_800), "2 h 10 min"),
        (percent(1, 3), "33%"),
        (percent(0, 0), "–"),
        (plain("a\x1b[1mb\r\nc\x00\u2066d"), "a[1mb\ncd"),
    ],
)
def test_figures(made: str, wanted: str):
    assert made == wanted
