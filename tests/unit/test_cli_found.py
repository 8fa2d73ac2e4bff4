import io

import pytest
from rich.console import Console

from infra.store.runs import no_changes
from pipelines.cli.ask import AnswerPrinter
from pipelines.cli.options import show_rollup
from pipelines.views.formatting import cited


def console(width=100, *, terminal=True):
    return Console(file=io.StringIO(), force_terminal=terminal, width=width, color_system=None)


def answer(number, text="4471902", quote="The code is 4471902.", question="What is the code?", verbatim=True):
    evidence = [{"quote": quote, "page": None, "verbatim": verbatim}] if quote else []
    return {
        "document": f"doc{number}.txt",
        "title": "",
        "question": question,
        "answer": text,
        "found": bool(text),
        "evidence": evidence,
        "warnings": [],
        "review": "",
        "reviewed_by": [],
        "run_id": "run-0",
    }


@pytest.fixture
def found(monkeypatch):
    """Give what earlier runs answered, and what each file holds."""
    state = {"before": [], "read": 0}

    def answered_before(corpus, run_id):
        yield from state["before"]

    def newly_answered(corpus, run_id, files):
        for rows in files:
            state["read"] += 1
            yield from rows

    monkeypatch.setattr("infra.store.runs.withheld_runs", lambda corpus: set())
    monkeypatch.setattr("pipelines.io.answers.answered_before", answered_before)
    monkeypatch.setattr("pipelines.io.answers.newly_answered", newly_answered)
    return state


class Corpus:
    name = "contracts"


def printed(to, files, most=20, questions=1, **options):
    printer = AnswerPrinter(to, questions, most, **options)
    printer.planned(Corpus, "run-1")
    for file in files:
        printer.answered([file])
    return printer, to.file.getvalue()


def test_answers_are_printed_as_they_come_in_columns_that_fit(found):
    found["before"] = [answer(0)]
    to = console(80)
    _, said = printed(to, [[answer(1, quote="x " * 500)], [answer(2, "")]])
    lines = said.splitlines()
    assert max(len(line) for line in lines) <= 80
    assert lines[0].split() == ["document", "answer", "evidence"]
    assert said.index("doc0.txt") < said.index("doc1.txt") < said.index("doc2.txt")
    assert "not found" in said and "…" in said
    assert sum("document" in line for line in lines) == 1
    starts = {line.index("447") for line in lines if "447" in line.split("“")[0]}
    assert len(starts) == 1, "all rows have the same widths"


def test_a_question_stands_in_each_row_where_there_are_several(found):
    _, said = printed(console(), [[answer(1, question="Who signs?")]], questions=2)
    assert "Who signs?" in said


def test_a_narrow_terminal_has_the_parts_below_each_other(found):
    _, said = printed(console(40), [[answer(1, quote="w " * 60)]])
    assert max(len(line) for line in said.splitlines()) <= 40
    assert [line for line in said.splitlines() if line.strip()][:2] == ["doc1.txt", "4471902"]


def test_without_a_terminal_a_row_is_a_line_with_tabs(found):
    _, said = printed(console(terminal=False), [[answer(1, quote="a\tb\nc"), answer(2, "", quote="")]])
    assert said == "doc1.txt\tWhat is the code?\t4471902\t“a b c”\ndoc2.txt\tWhat is the code?\tnot found\t\n"


def test_a_quote_in_other_words_is_marked(found):
    _, said = printed(console(terminal=False), [[answer(1, verbatim=False)]])
    assert said.endswith("“The code is 4471902.” (not word for word)\n")
    assert cited("A code.", 3, verbatim=False) == "“A code.” (p. 3, not word for word)"
    assert cited("A code.", 3) == "“A code.” (p. 3)" and cited("", 3, verbatim=False) == "(p. 3)"


def test_of_a_million_answers_some_are_printed_and_no_more_files_are_opened(found):
    to = console()
    printer, said = printed(to, ([answer(n)] for n in range(1000)), most=5)
    assert said.count(".txt") == 5 and found["read"] <= 6
    printer.rest(to, 1_000_000)
    assert "999,995 more: memagent answers contracts --run run-1" in to.file.getvalue()


def test_nothing_is_printed_where_nothing_is_to_be_shown(found):
    found["before"] = [answer(0)]
    _, said = printed(console(), [[answer(1)]], most=0)
    assert said == ""
    _, said = printed(console(), [[answer(1)]], earlier=False)
    assert "doc0" not in said and "doc1" in said


def test_texts_of_documents_are_no_markup_and_hold_no_escapes(found):
    _, said = printed(console(terminal=False), [[answer(1, "[red]x[/]\x1b[31m", quote="")]])
    assert "[red]x[/][31m" in said and "\x1b" not in said


def question(**more):
    return {
        "question_id": "q",
        "question": "Which law governs?",
        "documents": 12,
        "found": 9,
        "unanswered": 1,
        "answers": [("Delaware", 5), ("Nevada", 3)],
        "distinct": 4,
        **no_changes(),
        **more,
    }


def test_a_roll_up_says_what_changed_and_what_is_new():
    to = console()
    changed = [{"document": f"d{n}", "before": "Nevada", "now": "", "corrected": n == 1} for n in range(7)]
    others = {"corrected": 1, "new_documents": ["n1", "n2"], "new_count": 2, "gone": ["g1"], "gone_count": 1}
    show_rollup(to, [question(changed=changed, changed_count=7, **others)], "c", "run-1")
    said = " ".join(to.file.getvalue().split())
    assert "found 9 of 12, 1 without an answer" in said
    assert "answers Delaware (5), Nevada (3), and 2 more" in said
    assert (
        "changed 7: d0: Nevada → not found; d1: Nevada (corrected by people) → not found" in said
        and "and 2 more" in said
        and "d5" not in said
    )
    assert "new 2: n1, n2 corrected 1 by people no longer asked 1: g1" in said
    assert "memagent answers c --run run-1" in said


def test_a_roll_up_without_changes_says_so_and_a_long_one_ends():
    to = console()
    show_rollup(to, [question() for _ in range(30)], "c", "run-1")
    said = to.file.getvalue()
    assert said.count("no answer is new or changed") == 20 and "10 more questions" in said
