"""What an ingest takes from sources: the text of each document, and what is not in it."""

from collections.abc import Iterator, Sequence
from contextlib import closing

from rich.console import Console
from rich.text import Text

from infra.sources.base import Parsed, Refused
from infra.sources.discovery import list_sources
from infra.sources.sandbox import Guard
from memagent.config import IngestConfig
from memagent.errors import SourceError
from pipelines.views.formatting import number, plain


def explain(paths: Sequence[str], options: IngestConfig) -> Iterator[tuple[str, Parsed | Refused]]:
    """Yield each source with a text that an ingest would take from it, or would refuse; nothing is written.

    What is refused as a whole has an empty row.

    Raises UsageError: a source does not exist or matches nothing.
    """
    listing = list_sources(list(paths))
    for bad in listing.unusable:
        yield bad.source, Refused("", bad.reason, bad.detail)
    with closing(Guard(options)) as guard:
        for source in listing.sources():
            try:
                for record in guard.parse(source.path, source.source.rsplit("/", 1)[-1]):
                    yield source.source, record if isinstance(record, Refused) else record[0]
            except SourceError as error:
                yield source.source, Refused("", error.reason, error.detail)


def show(console: Console, source: str, taken: Parsed | Refused) -> None:
    """Print a document: what it is, its warnings, and its text page by page."""

    def line(words: str, style: str = "") -> None:
        console.print(Text(plain(words), style=style), soft_wrap=True)

    line(f"{source}#{taken.row}" if taken.row else source, "bold")
    if isinstance(taken, Refused):
        line(f"not read: {taken.reason}: {taken.detail}", "red")
        return
    starts = list(taken.page_starts or [0])
    pages = f", {number(len(starts))} pages" if taken.page_starts else ""
    facts = f"{taken.media_type}, {taken.encoding}, {number(len(taken.text))} characters{pages}"
    line(f"{facts}, title: {taken.title or 'none'}", "dim")
    for warning in taken.warnings:
        line(f"warning: {warning}", "yellow")
    for page, (start, end) in enumerate(zip(starts, [*starts[1:], len(taken.text)], strict=True), 1):
        if taken.page_starts:
            line(f"page {page}, from character {number(start)}", "dim")
        line(taken.text[start:end])
