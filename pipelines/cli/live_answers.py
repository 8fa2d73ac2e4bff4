"""Answers on the terminal as they are found: a table of fixed widths, row by row; plain lines elsewhere.

A bounded number is printed, and of the files that hold the others only the counts are looked at: a run over millions of
documents prints as much as one over twenty.
"""

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from pipelines.formatting import cited, number, plain

if TYPE_CHECKING:
    from infra.store import Corpus
    from infra.tables.data_files import DataFile
    from pipelines.exchange.answers import GivenAnswer

SHOWN = 20
"""Answers that are printed, unless `--show` says otherwise."""
_NARROW = 60
"""Columns of a terminal below which an answer's parts stand under each other."""
_LINES = 3
"""Most lines of a cell."""


class AnswerPrinter:
    """Prints the answers of a run as they are found (`pipelines.stages.read.AnswerWatch`)."""

    def __init__(self, console: Console, questions: int, most: int = SHOWN, *, earlier: bool = True) -> None:
        """Print to `console`.

        Args:
            console: a terminal, which gets a table; or another stream, which gets a line an answer.
            questions: that are asked; with one, it is not repeated in every row.
            most: answers to print.
            earlier: print those of earlier runs too.
        """
        self._console, self._one = console, questions == 1
        self._most, self._earlier = most, earlier
        self._corpus: Corpus | None = None
        self._run_id = ""
        self.printed = 0

    def planned(self, corpus: "Corpus", run_id: str) -> None:
        """Print what earlier runs have answered."""
        from pipelines.exchange.live_answers import answered_before

        self._corpus, self._run_id = corpus, run_id
        if self._earlier and self._most > self.printed:
            self._print(answered_before(corpus, run_id))

    def answered(self, files: Sequence["DataFile"]) -> None:
        """Print what a worker has answered."""
        from pipelines.exchange.live_answers import newly_answered

        if self._corpus is not None and self._most > self.printed:
            self._print(newly_answered(self._corpus, self._run_id, files))

    def rest(self, console: Console, total: int) -> None:
        """Say where the others are, of `total` answers of the run."""
        if self._corpus is not None and total > self.printed:
            command = f"memagent answers {self._corpus.name} --run {self._run_id}"
            more = f"{number(total - self.printed)} more" if self.printed else f"{number(total)} answers"
            console.print(Text(f"{more}: {command}", style="dim"), soft_wrap=True)
            console.print()

    def _print(self, rows: Iterable["GivenAnswer"]) -> None:
        for row in islice(rows, self._most - self.printed):
            if not self._console.is_terminal:
                print_line(self._console, row)
            elif self._console.width < _NARROW:
                self._console.print(_stacked(row, one_question=self._one))
            else:
                self._console.print(self._row(row))
            self.printed += 1

    def _row(self, row: "GivenAnswer") -> Table:
        """Return a row as a table of its own, of the same widths as the others: they cannot follow what comes later."""
        names = ["document", *(() if self._one else ("question",)), "answer", "evidence"]
        shares = {"document": 2, "question": 3, "answer": 2, "evidence": 4}
        room = min(self._console.width, 160) - 2 * (len(names) - 1)
        total = sum(shares[name] for name in names)
        table = Table(box=None, show_header=not self.printed, header_style="dim", padding=(0, 2, 0, 0), pad_edge=False)
        widths = {name: room * shares[name] // total for name in names}
        for name in names:
            table.add_column(name, width=widths[name], overflow="fold")
        cells = _cells(row)
        table.add_row(*(_cut(cells[name], widths[name]) for name in names))
        return table


def print_line(console: Console, row: "GivenAnswer") -> None:
    """Print an answer as one line: document, question, answer and quote with tabs between them."""
    cells = _cells(row)
    line = "\t".join(cells[name].plain for name in ("document", "question", "answer", "evidence"))
    console.file.write(line + "\n")  # rich would make spaces of the tabs
    console.file.flush()


def _cells(row: "GivenAnswer") -> dict[str, Text]:
    place = next((place for place in row["evidence"] if place["quote"]), None) or next(iter(row["evidence"]), None)
    failed = not row["found"]
    return {
        "document": Text(_one_line(row["document"] or row["title"])),
        "question": Text(_one_line(row["question"]), style="dim"),
        "answer": Text("not found", style="dim italic") if failed else Text(_one_line(row["answer"]), style="bold"),
        "evidence": Text(cited(place["quote"], place["page"]) if place else "", style="dim"),
    }


def _stacked(row: "GivenAnswer", *, one_question: bool) -> Table:
    cells = _cells(row)
    table = Table.grid(padding=(0, 0, 0, 0))
    table.add_column(overflow="fold")
    for name in ("document", "question", "answer", "evidence"):
        if cells[name].plain and not (one_question and name == "question"):
            table.add_row(cells[name])
    table.add_row("")
    return table


def _cut(text: Text, width: int) -> Text:
    """Return a text that fits into a cell of a few lines."""
    most = width * _LINES - width // 3  # words that are wrapped leave room at the ends of lines
    if text.cell_len > most:
        text.truncate(most, overflow="ellipsis")
    return text


def _one_line(text: object) -> str:
    return " ".join(plain(text).split())
