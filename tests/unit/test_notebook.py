import sys
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from types import ModuleType, SimpleNamespace

import pytest

from memagent.records import Evidence
from pipelines.answers import Answer, answers_html, progress_display, progress_html

HOSTILE = '<script>alert(1)</script>\x1b[31m\u202e & "quotes" \' '


def answer(text=HOSTILE, quote=HOSTILE):
    return Answer(
        document=HOSTILE,
        title="",
        source="",
        question_id="q",
        question=HOSTILE,
        answer=text,
        found=bool(text),
        evidence=(Evidence("h", 0, 0, 9, quote),),
        policy_id="p",
        reading_id="r",
        run_id="run",
        answered_at=datetime(2026, 11, 24, tzinfo=UTC),
    )


def test_texts_are_escaped_wherever_they_stand():
    for html in (answers_html([answer()]), answer()._repr_html_(), progress_html({"stage": HOSTILE}, 1.0)):
        assert "<script" not in html and "&lt;script&gt;" in html
        assert "\x1b" not in html and "\u202e" not in html


def test_an_answer_reads_as_a_line():
    said = answer("Nevada", "the laws\nof Nevada")
    assert said.quote == "the laws\nof Nevada" and str(said).endswith("Nevada (“the laws of Nevada”)")
    assert str(answer("", "")).endswith("not found")
    place = replace(said.evidence[0], verbatim=False)
    other = replace(said, evidence=(place,))
    assert not other.verbatim and str(other).endswith("(“the laws of Nevada” (not word for word))")
    assert "</q> (not word for word)</td>" in other._repr_html_() and "word for word" not in said._repr_html_()
    assert "<i>not found</i>" in answer("", "")._repr_html_()
    doubted = replace(said, review="disputed", warnings=("outside what nano was trained for", "2 pages not read"))
    assert ": Nevada [disputed; outside what nano was trained for; 2 pages not read] (“the" in str(doubted)


def test_progress_has_a_bar_where_there_is_a_total():
    reading = progress_html({"stage": "read", "segments": 20, "segments_total": 80, "readings": 3}, 42.0)
    assert '<progress value="20" max="80">' in reading and "parts 20 of 80" in reading and "42 s" in reading
    assert 'max="5"' in progress_html({"done": 2, "total": 5}, 1.0)
    assert "<progress></progress>" in progress_html({}, 0.0)


@pytest.fixture
def notebook(monkeypatch):
    """Be a notebook: keep what is displayed."""
    shown = []

    def display(html, display_id):
        assert display_id
        shown.append(html)
        return SimpleNamespace(update=shown.append)

    module = ModuleType("IPython.display")
    module.HTML, module.display = str, display
    shell = ModuleType("IPython")
    shell.get_ipython = lambda: SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", shell)
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    return shown


def test_a_cell_shows_progress_and_is_empty_at_the_end(notebook):
    with progress_display(None) as show:
        show({"stage": "read", "segments": 1, "segments_total": 2})
        show({"stage": "read", "segments": 2, "segments_total": 2})  # too soon after the one before
        show({"stage": "done"})
    assert [("max=" in html, html == "") for html in notebook] == [
        (False, False),
        (True, False),
        (False, False),
        (False, True),
    ]


def test_nothing_is_shown_where_nobody_wants_it(notebook, monkeypatch):
    with progress_display(False) as show:
        assert show is None
    assert notebook == []
    monkeypatch.delitem(sys.modules, "IPython")
    with progress_display(None) as show:
        assert show is None


def test_a_terminal_is_asked_for(monkeypatch):
    used = []

    @contextmanager
    def terminal():
        yield used.append

    monkeypatch.setattr("pipelines.answers._on_terminal", terminal)
    with progress_display(True) as show:
        show({"stage": "read"})
    assert used == [{"stage": "read"}]
