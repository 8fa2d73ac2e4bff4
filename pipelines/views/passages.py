"""A document's text as pieces to be shown, with marks, and where its words are found."""

import io
import json
import re
import subprocess
import sys
import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, BinaryIO, Literal

from infra.sources.listing import decompressed, open_source, split_codec
from infra.sources.pdf import page_text
from infra.sources.sandbox import parser_environment
from infra.store.buckets import WHOLE, Bucket
from infra.store.documents import document_texts
from infra.store.location import Corpus, Store
from infra.system.confinement import confine
from infra.system.naming import unquoted
from infra.system.processes import usable_cores
from memagent.errors import SourceError
from memagent.records import text_hash

Mark = Literal["evidence", "segment", "right"]
WINDOW = 16_000
"""Characters of a document on a page."""
_BEFORE = 1_500
"""Of these, what stands before the place that is shown."""
_CACHE_CHARS = 64_000_000
_HASH = re.compile("[0-9a-f]{16,}")
# One character for one, so that offsets on the page are those of the text. A browser would take CR for a new line.
_SHOWN = {ord(char): "\ufffd" for char in map(chr, (*range(9), *range(11, 32), *range(127, 160)))}
_SHOWN |= {code: "\ufffd" for code in (0x2028, 0x2029, *range(0x202A, 0x202F), *range(0x2066, 0x206A), 0xFEFF)}
_SHOWN |= {0x0D: " ", 0x0C: " "}


@dataclass(frozen=True, slots=True)
class Span:
    """Characters of a document to be marked."""

    start: int
    end: int
    mark: Mark


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


def find_words(text: str, words: str, after: int = 0) -> tuple[int, int] | None:
    """Find words after a place, ignoring case and white space, and then from the beginning; return (start, end)."""
    parts = words.split()
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
        self._kept: OrderedDict[tuple[str, str], str] = OrderedDict()

    def kept(self, corpus: str, content_hash: str) -> str | None:
        """Return a text if it was looked at a short time ago."""
        key = (corpus, content_hash)
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
            return self._kept.get(key)

    def get(self, corpus: str, content_hash: str) -> str | None:
        """Return a text; None: there is none, or no longer."""
        key = (corpus, content_hash)
        if (known := self.kept(corpus, content_hash)) is not None:
            return known
        where = Corpus(self._store, corpus)
        text = dict(document_texts(where, {content_hash}, _around(content_hash))).get(content_hash)
        if text is not None:
            with self._lock:
                self._kept[key] = text
                while len(self._kept) > 1 and sum(map(len, self._kept.values())) > _CACHE_CHARS:
                    self._kept.popitem(last=False)
        return text


def _around(content_hash: str) -> Bucket:
    """Return the smallest bucket that has a hash: only files and row groups that can have it are opened."""
    return Bucket(int(content_hash[:8], 16), 16**8) if _HASH.match(content_hash) else WHOLE


def spans_of(pieces: Sequence[tuple[int, int]], mark: Mark) -> list[Span]:
    """Return characters as spans with a mark; what is empty is left out."""
    return [Span(start, end, mark) for start, end in pieces if 0 <= start < end]


_MOST_BYTES = 256 * 2**20
_MOST_RATIO = 200.0
_PIXELS = 1_400
"""Of the longer side."""
_SECONDS = 60
_MEMORY_BYTES = 2 * 2**30
_KEPT = 32
_SEARCHED = 80
"""Characters of a quote that are looked for: pdfium finds a line break no blank."""


@dataclass(frozen=True, slots=True)
class PageRequest:
    """The place in a source whose page is wanted."""

    source: str
    """As tables name it."""
    content_hash: str
    start: int
    end: int


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
        self._kept: OrderedDict[PageRequest, PagePicture | str] = OrderedDict()
        self._lock = threading.Lock()
        self._children = threading.Semaphore(usable_cores())

    def get(self, request: PageRequest) -> PagePicture | str:
        """Return the page, or why there is none."""
        with self._lock:
            if request in self._kept:
                return self._kept[request]
        with self._children:
            found = _in_child(request)
        with self._lock:
            self._kept[request] = found
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
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
    """Return the page in this process.

    Args:
        request: which page.
        raw: the source, as it is stored.

    Raises:
        SourceError: the file cannot be read, or is no longer the one that was.
    """
    import pypdfium2

    _, codec = split_codec(request.source)
    with decompressed(raw, codec, _MOST_BYTES, _MOST_RATIO) as stream:
        document = pypdfium2.PdfDocument(stream.read())
    texts = [page_text(document, index) for index in range(len(document))]
    text = "\n\n".join(texts)
    if text_hash(text) != request.content_hash:
        raise SourceError("changed", "the file has changed since it was read")
    end = 0
    index = next((i for i, one in enumerate(texts) if request.start < (end := end + len(one) + 2)), len(texts) - 1)
    return PagePicture(index + 1, len(texts), _png(document[index], text[request.start : request.end]))


def _png(page: Any, quote: str) -> bytes:
    from PIL import ImageDraw

    width, height = page.get_size()
    scale = _PIXELS / max(width, height, 1)
    picture = page.render(scale=scale).to_pil().convert("RGB")
    layer = ImageDraw.Draw(picture, "RGBA")
    words = page.get_textpage()
    for line in quote.splitlines():
        found = words.search(line.strip()[:_SEARCHED]).get_next() if line.strip() else None
        for rect in range(words.count_rects(*found)) if found else ():
            left, bottom, right, top = words.get_rect(rect)
            box = (left * scale, (height - top) * scale, right * scale, (height - bottom) * scale)
            layer.rectangle(box, fill=(255, 208, 64, 110))
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
