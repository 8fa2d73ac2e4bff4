"""Progress of a run in a notebook, and answers as HTML. Texts of documents and models are escaped."""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from html import escape
from typing import TYPE_CHECKING, Any

from infra.cluster.progress import Progress
from memagent.records import Json
from pipelines.formatting import duration, number, plain, shown_as

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pipelines.answers import Answer

_EVERY = 0.5
"""Seconds between two pictures."""
_CHARS = 300
"""Of a quote."""
_CELL = 'style="text-align:left;vertical-align:top"'


def progress_display(wanted: bool | None) -> AbstractContextManager[Progress | None]:
    """Return what shows the progress of the body, in a notebook or on the terminal; None: in a notebook only.

    To be called in the thread of the cell, which the output belongs to.
    """
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if shell is not None and hasattr(shell, "kernel") and wanted is not False:
        from IPython.display import HTML, display

        return _in_cell(display(HTML(progress_html({}, 0.0)), display_id=True), HTML)
    if not wanted:
        return nullcontext()
    return _on_terminal()


@contextmanager
def _on_terminal() -> Iterator[Progress]:
    from pipelines.cli.live import Display

    with Display() as shown:
        yield shown.update


@contextmanager
def _in_cell(handle: Any, html: Any) -> Iterator[Progress]:
    began, last, lock = time.monotonic(), [0.0], threading.Lock()

    def show(snapshot: Json) -> None:
        with lock:  # counts come from the run's thread and from the one that watches the engines
            due = time.monotonic()
            if due - last[0] >= _EVERY or snapshot.get("stage") == "done":
                last[0] = due
                handle.update(html(progress_html(snapshot, due - began)))

    try:
        yield show
    finally:
        handle.update(html(""))


def progress_html(snapshot: Json, seconds: float) -> str:
    """Return a progress bar with the counts of a snapshot (the keys of ``progress.jsonl``)."""
    pairs = (("segments", "segments_total"), ("documents", "documents_total"), ("done", "total"))
    done, total = next(
        ((snapshot.get(key) or 0, snapshot[of]) for key, of in pairs if snapshot.get(of)),
        (0, 0),
    )
    counts = [
        f"{shown_as(name)} {number(snapshot[name])}"
        + (f" of {number(snapshot[f'{name}_total'])}" if f"{name}_total" in snapshot else "")
        for name in ("documents", "readings", "segments")
        if name in snapshot
    ]
    stage = escape(shown_as(snapshot.get("stage") or ("ingest" if "total" in snapshot else "starting")))
    bar = f'<progress value="{int(done)}" max="{int(total)}"></progress>' if total else "<progress></progress>"
    return f"<div>{bar} {stage} {escape(', '.join([*counts, duration(seconds)]))}</div>"


def answers_html(answers: "Sequence[Answer]") -> str:
    """Return answers as an HTML table."""
    rows = "".join(
        f"<tr><td {_CELL}>{_text(answer.document or answer.title)}</td><td {_CELL}>{_text(answer.question)}</td>"
        f"<td {_CELL}>{f'<b>{_text(answer.answer)}</b>' if answer.found else '<i>not found</i>'}</td>"
        f"<td {_CELL}>{f'<q>{_text(answer.quote)}</q>' if answer.quote else ''}{_page(answer)}</td></tr>"
        for answer in answers
    )
    names = "".join(f"<th {_CELL}>{name}</th>" for name in ("document", "question", "answer", "evidence"))
    return f"<table><thead><tr>{names}</tr></thead><tbody>{rows}</tbody></table>"


def _page(answer: "Answer") -> str:
    return f" (p. {answer.page})" if answer.page is not None else ""


def _text(value: str) -> str:
    line = " ".join(plain(value).split())
    return escape(line if len(line) <= _CHARS else line[:_CHARS] + "…")
