"""The roll-up of a digest on the terminal: per question the most frequent answers, what changed, what is new, and why
it is withheld.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from pipelines.formatting import breached, number, plain, withheld_by

if TYPE_CHECKING:
    from infra.tables.runs import QuestionRollup

_QUESTIONS = 20
_ANSWERS = 5
_NAMED = 5
_CHARS = 60
"""Of an answer in a list."""


def show_rollup(console: Console, rollup: Sequence["QuestionRollup"], corpus: str, run_id: str) -> None:
    """Print a digest's roll-up: at most twenty questions, and five of everything that a question has."""
    for question in rollup[:_QUESTIONS]:
        console.print(Text(_short(question["question"], 200), style="bold"))
        table = Table.grid(padding=(0, 2))
        table.add_column(style="dim", no_wrap=True)
        table.add_column(overflow="fold")
        for name, value in _lines(question):
            table.add_row(f"  {name}", value)
        console.print(table)
    if len(rollup) > _QUESTIONS:
        console.print(Text(f"{number(len(rollup) - _QUESTIONS)} more questions: --json has them", style="dim"))
    if rollup:
        console.print(Text(f"every answer: memagent answers {corpus} --run {run_id}", style="dim"), soft_wrap=True)
        console.print()


def _lines(question: "QuestionRollup") -> list[tuple[str, Text]]:
    failed = f", {number(question['failed'])} failed" if question["failed"] else ""
    lines = [("found", Text(f"{number(question['found'])} of {number(question['documents'])}{failed}"))]
    if question["answers"]:
        most = [f"{_short(answer)} ({number(count)})" for answer, count in question["answers"][:_ANSWERS]]
        lines.append(("answers", Text(", ".join(most) + _others(question["distinct"] - len(most)))))
    if question["changed_count"]:
        named = [
            f"{plain(change['document'])}: {_short(change['before']) or 'not found'} → "
            f"{_short(change['now']) or 'not found'}"
            for change in question["changed"][:_NAMED]
        ]
        more = _others(question["changed_count"] - len(named))
        lines.append(("changed", Text(f"{number(question['changed_count'])}: " + "; ".join(named) + more, "yellow")))
    if question["new_count"]:
        names = [_short(name) for name in question["new_documents"][:_NAMED]]
        more = _others(question["new_count"] - len(names))
        lines.append(("new", Text(f"{number(question['new_count'])}: " + ", ".join(names) + more)))
    if not question["changed_count"] and not question["new_count"]:
        lines.append(("", Text("nothing changed since the digest before", "dim")))
    return lines


def _others(count: int) -> str:
    return f", and {number(count)} more" if count > 0 else ""


def _short(text: str, most: int = _CHARS) -> str:
    line = " ".join(plain(text).split())
    return line if len(line) <= most else line[: most - 1] + "…"


def show_held(console: Console, summary: Mapping[str, Any]) -> None:
    """Print that some of a run's answers are of withheld digests."""
    if withheld := summary.get("withheld_answers"):
        console.print()
        console.print(Text(plain(withheld["says"]), style="bold"), soft_wrap=True)


def show_gates(console: Console, summary: Mapping[str, Any]) -> None:
    """Print which limits of the quality checks a digest is beyond, and what can be done where it is withheld."""
    said = breached(summary)
    if withheld_by(summary):
        corpus, run_id = summary["corpus"], summary["run_id"]
        said += [f"see them: memagent answers {corpus} --withheld", f"accept them: memagent release {run_id}"]
    if said:
        title = "Withheld: these answers are not shown" if withheld_by(summary) else "Beyond the limits of [quality]"
        console.print()
        console.print(Text(title, style="bold"))
        for line in said:
            console.print(Text(plain(line)), soft_wrap=True)
