"""What analysts read has no word that only engineers know; options, JSON keys and columns keep the field's terms."""

import io
import re

import pytest
from rich.console import Console
from typer.main import get_command

from pipelines.cli import live
from pipelines.cli.main import app
from pipelines.views.formatting import says_withheld, shown_as

WORDS = re.compile(r"\b(polic(y|ies)|readings?|spans?|segments?|harvest|gates?|quarantined?|prefix cache)\b", re.I)
COMMANDS = ("ask", "answers", "status", "digest", "quarantine", "release", "report")


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_what_analysts_call_is_plain(name):
    command = get_command(app).commands[name]
    said = [command.help or "", *(getattr(option, "help", None) or "" for option in command.params)]
    assert not [text for text in said if WORDS.search(text)]


def test_the_summary_of_a_run_and_of_a_dry_run_are_plain():
    run = {
        "corpus": "notes",
        "run_id": "20261124-091500-845efb",
        "documents": 3,
        "readings": {"total": 6, "answered_before": 2, "read_now": 4, "failed": 0, "found": 3, "unread": 1},
        "segments": 12,
        "prompt_tokens": 100,
        "cached_tokens": 50,
        "policy_id": "nano@e9",
        "engine": "vllm",
        "seconds": 3.0,
    }
    dry = {"dry_run": True, "readings": 6, "readings_answered_before": 2, "readings_to_read": 4, "segments": 12}
    for summary in (run, dry):
        console = Console(file=io.StringIO(), record=True, width=120)
        live.summary(console, summary)
        said = console.export_text()
        assert said.strip() and not WORDS.search(said)


def test_progress_is_plain_and_other_names_stay():
    assert [shown_as(name) for name in ("readings", "segments", "segment", "documents", "wait")] == [
        "answers",
        "parts",
        "split",
        "documents",
        "wait",
    ]


def test_answers_that_are_held_back_are_told_in_one_line_with_what_to_do():
    one = says_withheld("c", "asked", {"night": 1})
    assert one == (
        "1 of these answers is withheld with night, and `answers` does not show it. "
        "See: memagent answers c --run asked. Accept: memagent release night"
    )
    several = says_withheld("c", "asked", {"first": 1200, "other": 40})
    assert several.startswith("1,240 of these answers are withheld with first, other") and "\n" not in several
    assert several.endswith("Accept: memagent release first; memagent release other")
