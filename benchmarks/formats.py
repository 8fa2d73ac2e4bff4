"""Pace and memory of the parsers by format, and whether each takes the words of a text as they are.

    python -m benchmarks.formats --data FOLDER [--texts 30] [--files 1000]
    python -m benchmarks.formats --data FOLDER --answers [--texts 30]

FOLDER holds texts (.txt). The first ones are written in each format and parsed by the confined child process, over and
over until so many files are read. With ``--answers`` they are read by the bundled reader instead: whether it says the
same of each format as of the text.
"""

import argparse
import html
import io
import tempfile
import textwrap
import time
import zipfile
from collections.abc import Callable
from email.message import EmailMessage
from pathlib import Path
from xml.sax.saxutils import escape

import docx
import openpyxl
import psutil

from benchmarks.record import Row, arguments, result, write
from infra.sources.base import Refused
from infra.sources.sandbox import Guard
from memagent import Archive
from memagent.config import IngestConfig
from memagent.evaluation.contracts import CATEGORIES, QUESTIONS
from tests.support.office import odt, pptx, shape

ASKED = ("txt", "docx", "odt", "html", "rtf", "eml", "pdf")
_WIDTH, _LINES = 90, 60
"""Characters of a line, and lines of a page, of the PDF."""
_CHARS = 60_000
"""Of a text at most: a contract has 50,000."""


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--texts", type=int, default=30)
    parser.add_argument("--files", type=int, default=1000)
    parser.add_argument("--answers", action="store_true")
    arguments(parser)
    given = parser.parse_args()
    paths = sorted(given.data.glob("*.txt"))[: given.texts]
    texts = [_latin(path.read_text("utf-8", "replace"))[:_CHARS] for path in paths]
    if given.answers:
        write(result("formats-answers", "The same contracts in each format: the same answers?", answered(texts), given))
        return
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        for kind, made in FORMATS.items():
            rows += measure(kind, made, texts, given.files, Path(folder))
    write(result("formats", "Parsers by format", rows, given))


def answered(texts: list[str]) -> list[Row]:
    """Ask three questions of each text in each format; return how many answers are those of the plain text."""
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home) / "files"
        folder.mkdir()
        for kind in ASKED:
            for number, text in enumerate(texts):
                (folder / f"{number}.{kind}").write_bytes(FORMATS[kind](text))
        with Archive(str(folder), store=f"{home}/store") as archive:
            said = {
                (one.document, one.question): one for one in archive.ask(*(QUESTIONS[name][0] for name in CATEGORIES))
            }
        plain = {place: one for place, one in said.items() if place[0].endswith(".txt")}
        rows = []
        for kind in ASKED[1:]:
            pairs = [
                (one, said[document.replace(".txt", f".{kind}"), asked]) for (document, asked), one in plain.items()
            ]
            same = sum(one.answer == other.answer for one, other in pairs)
            rows.append(Row(f".{kind}", f"{same} of {len(pairs)}", column="answers as of the text"))
            print(rows[-1], flush=True)
    return rows


def measure(kind: str, made: Callable[[str], bytes], texts: list[str], count: int, folder: Path) -> list[Row]:
    """Parse files of a format until there were `count`, at least one of each text; return rows."""
    files = [folder / f"{number}.{kind}" for number in range(len(texts))]
    for path, text in zip(files, texts, strict=True):
        path.write_bytes(made(text))
    guard = Guard(IngestConfig())
    list(guard.parse(str(files[0]), files[0].name))  # what is imported once
    children = psutil.Process().children()
    peak, same, begun = 0, 0, time.perf_counter()
    for number in range(max(count, len(files))):
        at = number % len(files)
        records = list(guard.parse(str(files[at]), files[at].name))
        peak = max(peak, *(child.memory_info().rss for child in children))
        if number < len(files):
            said = " ".join(record[0].text for record in records if not isinstance(record, Refused))
            same += " ".join(texts[at].split()) in " ".join(said.split())
    pace = max(count, len(files)) / (time.perf_counter() - begun)
    guard.close()
    rows = [
        Row(f".{kind}", round(pace, 1), "files/s", column="pace", n=count),
        Row(f".{kind}", round(peak / 2**20), "MB", column="memory of the child"),
        Row(f".{kind}", f"{same} of {len(files)}", column="texts whose words are the same"),
    ]
    print(f".{kind}: " + ", ".join(f"{row.column} {row.value} {row.unit}" for row in rows), flush=True)
    return rows


def _latin(text: str) -> str:
    """Return a text without what the smallest of the formats cannot hold."""
    return text.encode("latin-1", "ignore").decode("latin-1").replace("\x0c", "\n").replace("\xad", "")


def _docx(text: str) -> bytes:
    document = docx.Document()
    for line in text.splitlines():
        document.add_paragraph(line)
    return _saved(document.save)


def _xlsx(text: str) -> bytes:
    book = openpyxl.Workbook(write_only=True)
    sheet = book.create_sheet()
    for line in text.splitlines():
        sheet.append([line])
    return _saved(book.save)


def _saved(save: Callable[[io.BytesIO], object]) -> bytes:
    file = io.BytesIO()
    save(file)
    return file.getvalue()


def _html(text: str) -> bytes:
    paragraphs = "".join(f"<p>{html.escape(line)}</p>" for line in text.splitlines())
    return f"<html><head><meta charset=utf-8><title>t</title></head><body>{paragraphs}</body></html>".encode()


def _rtf(text: str) -> bytes:
    marks = text.replace("\\", "\\\\").replace("{", "\\{").replace("}", "\\}")
    body = "".join(char if ord(char) < 128 else f"\\'{ord(char):02x}" for char in marks).replace("\n", "\\par\n")
    return f"{{\\rtf1\\ansi\\ansicpg1252 {body}}}".encode("ascii")


def _odt(text: str) -> bytes:
    return odt("".join(f"<text:p>{escape(line)}</text:p>" for line in text.splitlines()))


def _pptx(text: str) -> bytes:
    lines = [escape(line) for line in text.splitlines()]
    slides = {f"s{at}": shape(*lines[at : at + 20]) for at in range(0, len(lines), 20)}
    return pptx(slides)


def _eml(text: str) -> bytes:
    message = EmailMessage()
    message["From"], message["Subject"] = "a@example.org", "s"
    message.set_content(text)
    return message.as_bytes()


def _zip(text: str) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.txt", text)
    return file.getvalue()


def _pdf(text: str) -> bytes:
    lines = [part for line in text.splitlines() for part in textwrap.wrap(line, _WIDTH, break_on_hyphens=False) or [""]]
    pages = [lines[at : at + _LINES] for at in range(0, len(lines), _LINES)] or [[]]
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [%s] /Count %d >>"
        % (b" ".join(b"%d 0 R" % (4 + 2 * number) for number in range(len(pages))), len(pages)),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>",
    ]
    for number, page in enumerate(pages):
        marks = (line.replace("\\", "\\\\").replace("(", "\\(").replace(")", "\\)") for line in page)
        drawn = "BT /F1 10 Tf 12 TL 50 800 Td " + "".join(f"({line}) Tj T*\n" for line in marks) + "ET"
        objects.append(
            b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] /Contents %d 0 R "
            b"/Resources << /Font << /F1 3 0 R >> >> >>" % (5 + 2 * number)
        )
        data = drawn.encode("latin-1")
        objects.append(b"<< /Length %d >>\nstream\n%s\nendstream" % (len(data), data))
    out, offsets = bytearray(b"%PDF-1.4\n"), []
    for number, body in enumerate(objects, 1):
        offsets.append(len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (number, body)
    start = len(out)
    out += b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    out += b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    return bytes(out + b"trailer\n<< /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF" % (len(objects) + 1, start))


FORMATS: dict[str, Callable[[str], bytes]] = {
    "txt": lambda text: text.encode(),
    "docx": _docx,
    "odt": _odt,
    "xlsx": _xlsx,
    "pptx": _pptx,
    "pdf": _pdf,
    "html": _html,
    "rtf": _rtf,
    "eml": _eml,
    "zip": _zip,
}
"""How a text is written, by suffix."""

if __name__ == "__main__":
    main()
