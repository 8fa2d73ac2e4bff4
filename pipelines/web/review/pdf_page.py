"""A page of a PDF as a picture, with the words that are its evidence.

Rendered in a child process with limits: a file that crashes pdfium, or keeps it busy, costs a picture and no more.

    python -m pipelines.web.review.pdf_page REQUEST < PDF (the request as JSON)
"""

import io
import json
import subprocess
import sys
import threading
from collections import OrderedDict
from dataclasses import asdict, dataclass
from typing import Any, BinaryIO

from infra.confinement import confine
from infra.naming import unquoted
from infra.processes import usable_cores
from infra.sources.opening import decompressed, open_source, split_codec
from infra.sources.pdf import page_text
from infra.sources.sandbox import parser_environment
from memagent.errors import SourceError
from memagent.records import text_hash

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
    command = [sys.executable, "-P", "-m", "pipelines.web.review.pdf_page", json.dumps(asdict(request))]
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
