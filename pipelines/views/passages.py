"""Passages of documents around evidence: with marks, as excerpts of a bounded size, and as the page of a PDF."""

import io
import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, BinaryIO, Literal, NamedTuple, TypedDict

from cachetools import LRUCache

from infra.sources.base import unquoted
from infra.sources.listing import decompressed, open_source, split_codec
from infra.sources.pdf import is_picture
from infra.sources.pdf_page import read_page
from infra.sources.sandbox import parser_environment
from infra.store.buckets import bucket_of
from infra.store.documents import document_texts
from infra.store.location import Corpus, Store
from infra.store.schemas import EvidenceRow
from infra.system.confinement import confine
from infra.system.processes import usable_cores
from memagent.errors import SourceError
from memagent.records import text_hash

Mark = Literal["evidence", "segment", "right"]
WINDOW = 16_000
"""Characters of a document on a page."""
_BEFORE = 1_500
"""Of these, what stands before the place that is shown."""
_CACHE_CHARS = 64_000_000
# One character for one, so that offsets on the page are those of the text. A browser would take CR for a new line.
_SHOWN = {ord(char): "\ufffd" for char in map(chr, (*range(9), *range(11, 32), *range(127, 160)))}
_SHOWN |= {code: "\ufffd" for code in (0x2028, 0x2029, *range(0x202A, 0x202F), *range(0x2066, 0x206A), 0xFEFF)}
_SHOWN |= {0x0D: " ", 0x0C: " "}


class Span(NamedTuple):
    """Characters of a document that are shown, and what they are marked as."""

    start: int
    end: int
    mark: Mark = "segment"


def place_of(piece: EvidenceRow) -> Span:
    """Return where a piece of evidence stands: its quote, or its segment if it has none."""
    if piece["quote_start"] is not None and piece["quote_start"] >= 0:
        return Span(piece["quote_start"], piece["quote_end"], "evidence")
    return Span(piece["char_start"], piece["char_end"], "segment")


def in_context(text: str, span: Span, around: int) -> tuple[str, str, str]:
    """Return the `around` characters before a span, the span, and as many after it."""
    return (
        text[max(0, span.start - around) : span.start],
        text[span.start : span.end],
        text[span.end : span.end + around],
    )


@dataclass(frozen=True, slots=True)
class Piece:
    """Some text in a row that has the same marks."""

    start: int
    text: str
    marks: tuple[Mark, ...]
    anchor: bool
    """Whether a mark begins here."""


@dataclass(frozen=True, slots=True)
class Passage:
    """The part of a document that a page shows."""

    pieces: list[Piece]
    start: int
    end: int
    chars: int

    @property
    def earlier(self) -> int | None:
        """Where the part before this one begins; None: there is none."""
        return max(0, self.start - WINDOW) if self.start else None

    @property
    def later(self) -> int | None:
        """Where the part after this one begins; None: there is none."""
        return self.end if self.end < self.chars else None


def passage(text: str, spans: Iterable[Span], at: int | None = None) -> Passage:
    """Return the part of a text from `at`, by default around its first mark, cut where marks begin and end."""
    marks = sorted(spans, key=lambda span: (span.mark == "segment", span.start))
    if at is None:
        start = max(0, marks[0].start - _BEFORE) if marks else 0
        start = 0 if len(text) <= WINDOW else start
    else:
        start = min(max(0, at), max(0, len(text) - 1))
    end = min(len(text), start + WINDOW)
    inside = [span for span in marks if span.start < end and span.end > start]
    edges = sorted({start, end, *(edge for span in inside for edge in (span.start, span.end) if start < edge < end)})
    pieces = [
        Piece(
            low,
            text[low:high].translate(_SHOWN),
            tuple(dict.fromkeys(span.mark for span in inside if span.start <= low and span.end >= high)),
            any(span.start == low and span.mark != "segment" for span in inside),
        )
        for low, high in pairwise(edges)
    ]
    return Passage(pieces, start, end, len(text))


_CONTEXTS = (2_000, 800, 300, 120)
"""Characters of context on either side of a place, widest first."""
_WHOLE = 400_000
"""Longest document that is shown whole, in characters: the browser lays out all of it."""
_LONGEST = 2_000
"""Most characters of one place; evidence is short, but a segment can be a chapter."""


class Excerpt(TypedDict):
    """Passages of a document, as ``document.js`` reads them."""

    chars: int
    """Characters of the document."""
    pieces: list[tuple[int, str]]
    """Offset of the first character, and text."""


def excerpt(text: str, places: Sequence[Span], allowance: int) -> Excerpt | None:
    """Choose the passages of a text to show in `allowance` bytes of UTF-8; the most important place comes first.

    Returns the whole document if it fits, else windows around the places, as wide as the allowance permits. None if not
    even one place fits.
    """
    if len(text) <= min(_WHOLE, allowance) and _size(text) <= allowance:
        return {"chars": len(text), "pieces": [(0, text)] if text else []}
    contexts: Sequence[int] = _CONTEXTS
    while places:
        for context in contexts:
            pieces = _windows(text, places, context)
            if sum(_size(piece) for _, piece in pieces) <= allowance:
                return {"chars": len(text), "pieces": pieces}
        places, contexts = places[: len(places) // 2], _CONTEXTS[-1:]
    return None


def _windows(text: str, places: Sequence[Span], context: int) -> list[tuple[int, str]]:
    """Return the characters around places, from the start of a word to the end of one; what overlaps is one window."""
    windows: list[tuple[int, int]] = []
    for place in sorted(places):
        start, end = place.start - context, min(place.end, place.start + _LONGEST) + context
        space = text.find(" ", start, start + 40) if start > 0 else -1
        start = max(0, start if space < 0 else space + 1)
        space = text.rfind(" ", end - 40, end) if end < len(text) else -1
        end = min(len(text), end if space < 0 else space)
        if windows and start <= windows[-1][1] + 1:
            earlier = windows.pop()
            start, end = earlier[0], max(earlier[1], end)
        windows.append((start, end))
    return [(start, text[start:end]) for start, end in windows]


def _size(text: str) -> int:
    return len(text.encode("utf-8"))


_FOUND = 200
"""Characters that are looked for at most: a text that repeats itself is gone through again for each word."""


def find_words(text: str, words: str, after: int = 0) -> tuple[int, int] | None:
    """Find words after a place, ignoring case and white space, and then from the beginning; return (start, end)."""
    parts = words[:_FOUND].split()
    if not parts:
        return None
    pattern = re.compile(r"\s+".join(map(re.escape, parts)), re.IGNORECASE)
    match = pattern.search(text, after) or pattern.search(text)
    return match.span() if match else None


class DocumentTexts:
    """The texts of documents that were looked at last."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        # A text that is longer than the cache fills it alone.
        self._kept: LRUCache[tuple[str, str], str] = LRUCache(_CACHE_CHARS, lambda text: min(len(text), _CACHE_CHARS))

    def get(self, corpus: str, content_hash: str) -> str | None:
        """Return a text; None: there is none, or no longer."""
        with self._lock:
            text: str | None = self._kept.get((corpus, content_hash))
        if text is None:
            found = document_texts(Corpus(self._store, corpus), {content_hash}, bucket_of(content_hash))
            text = dict(found).get(content_hash)
            if text is not None:
                with self._lock:
                    self._kept[corpus, content_hash] = text
        return text


_MOST_BYTES = 256 * 2**20
_MOST_RATIO = 200.0
_PIXELS = 1_400
"""Of the longer side."""
_SECONDS = 60
_MEMORY_BYTES = 2 * 2**30
_KEPT = 32
_SEARCHED = 80
"""Characters of a quote that are looked for: pdfium finds a line break no blank."""
_MARKS = re.compile(r"~~|\^(?=[-\d])")
"""What the text has of a page and the page has not."""


@dataclass(frozen=True, slots=True)
class PageRequest:
    """The place in a source whose page is wanted."""

    source: str
    """As tables name it."""
    page: int
    """From 1."""
    page_hash: str
    """Hash of the page's text, as it is stored."""
    quote: str
    """What is marked."""


@dataclass(frozen=True, slots=True)
class PagePicture:
    """A page."""

    number: int
    """From 1."""
    pages: int
    png: bytes


class Pages:
    """The pages that were looked at last."""

    def __init__(self) -> None:
        self._kept: LRUCache[PageRequest, PagePicture | str] = LRUCache(_KEPT)
        self._lock = threading.Lock()
        self._children = threading.Semaphore(usable_cores())

    def get(self, request: PageRequest) -> PagePicture | str:
        """Return the page, or why there is none."""
        with self._lock:
            found: PagePicture | str | None = self._kept.get(request)
        if found is None:
            with self._children:
                found = _in_child(request)
            with self._lock:
                self._kept[request] = found
        return found


def _in_child(request: PageRequest) -> PagePicture | str:
    command = [sys.executable, "-P", "-m", "pipelines.views.passages", json.dumps(asdict(request))]
    try:
        with open_source(unquoted(request.source), _MOST_BYTES) as raw:
            done = subprocess.run(command, stdin=raw, capture_output=True, timeout=_SECONDS, env=parser_environment())
    except SourceError as error:
        return error.detail
    except subprocess.TimeoutExpired:
        return "the page takes too long to draw"
    head, _, png = done.stdout.partition(b"\n")
    if done.returncode or not head:
        return "the page cannot be drawn"
    answer = json.loads(head)
    return answer["trouble"] if "trouble" in answer else PagePicture(answer["number"], answer["pages"], png)


def draw(request: PageRequest, raw: BinaryIO) -> PagePicture:
    """Return the page in this process; `raw` is the source, as it is stored.

    Raises SourceError: the file cannot be read, or is no longer the one that was.
    """
    import pypdfium2

    _, codec = split_codec(request.source)
    with decompressed(raw, codec, _MOST_BYTES, _MOST_RATIO) as stream:
        document = pypdfium2.PdfDocument(stream.read())
    document.init_forms()
    index = request.page - 1
    text = read_page(document, index).text if index < len(document) else ""
    if index >= len(document) or (not is_picture(document[index], text) and text_hash(text) != request.page_hash):
        raise SourceError("changed", "the file has changed since it was read")
    return PagePicture(request.page, len(document), _png(document[index], request.quote))


def _png(page: Any, quote: str) -> bytes:
    from PIL import ImageDraw

    start, _, _, height = page.get_cropbox()
    scale = _PIXELS / max(*page.get_size(), 1)
    picture = page.render(scale=scale).to_pil().convert("RGB")
    layer = ImageDraw.Draw(picture, "RGBA")
    words = page.get_textpage()
    for line in quote.splitlines():
        shown = _MARKS.sub("", line).strip()[:_SEARCHED]
        found = words.search(shown).get_next() if shown else None
        for rect in range(words.count_rects(*found)) if found else ():
            left, bottom, right, top = words.get_rect(rect)
            box = (left - start, height - top, right - start, height - bottom)
            layer.rectangle([scale * edge for edge in box], fill=(255, 208, 64, 110))
    out = io.BytesIO()
    picture.save(out, "PNG")
    return out.getvalue()


def _limit() -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (_SECONDS, _SECONDS))


def main() -> None:
    """Draw what standard input asks for."""
    _limit()
    confine()
    try:
        with open(0, "rb") as raw:
            page = draw(PageRequest(**json.loads(sys.argv[1])), raw)
    except SourceError as error:
        sys.stdout.write(json.dumps({"trouble": error.detail}) + "\n")
        return
    sys.stdout.buffer.write(json.dumps({"number": page.number, "pages": page.pages}).encode() + b"\n" + page.png)


if __name__ == "__main__":
    main()
