"""What parsers take and give, and the limits on the text of one source."""

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from string import ascii_lowercase
from typing import BinaryIO
from urllib.parse import unquote_to_bytes

from memagent.config import IngestConfig
from memagent.errors import SourceError

_RATIO_FROM = 2**20
"""Characters of a file's text below which no ratio counts as a bomb."""
_TABLE_RATIO_FROM = 2**26
"""The same for all rows of a table together: columns compress well, and each row is a document of its own."""
_BASE_MEMORY = 2 * 2**30
_MEMORY_PER_CHAR = 8
"""A text of n characters is held as bytes, as up to 4 n of characters, and as what it is parsed from."""


class Allowance:
    """How many more characters a source may give; without arguments there is no limit."""

    def __init__(self, options: IngestConfig | None = None, size: int | None = None, table: bool = False) -> None:
        """Allow `ingest.max_bytes` characters, and `ingest.max_ratio` for each byte of the source.

        Args:
            size: bytes of the source as it is stored; None where that is not known.
            table: whether each row is a document.
        """
        self.gets_on: Callable[[], object] = lambda: None
        """To be called at each part of a text, since a parser may take long for all of them."""
        self._most: int | None = None
        if options is None:
            return
        self._most = options.max_bytes
        self._over = SourceError("too-large", f"its text is more than ingest.max_bytes = {options.max_bytes:,}")
        if size is not None:
            most = max(_TABLE_RATIO_FROM if table else _RATIO_FROM, int(size * options.max_ratio))
            if most < self._most:
                self._most = most
                times = f"{options.max_ratio:g} times its {size:,} bytes"
                self._over = SourceError("bomb", f"its text is more than {times}; see ingest.max_ratio")
        self._taken = 0

    @property
    def memory(self) -> int | None:
        """Bytes of memory that parsing may take beyond what the process has; None where there is no limit."""
        return None if self._most is None else _BASE_MEMORY + _MEMORY_PER_CHAR * self._most

    def check(self, chars: int) -> None:
        """Raise SourceError, ``bomb`` or ``too-large``, where `chars` more characters would be too many."""
        if self._most is not None and self._taken + chars > self._most:
            raise self._over

    def take(self, chars: int) -> None:
        """Count `chars` characters as given. Raises SourceError: as `check`."""
        self.check(chars)
        if self._most is not None:
            self._taken += chars


def within(allowance: Allowance, parts: Iterable[str]) -> Iterator[str]:
    """Yield the parts of a text as long as they are within an allowance, each with a mark of its end.

    Raises SourceError: ``bomb`` or ``too-large``.
    """
    chars = 0
    for part in parts:
        chars += len(part) + 1
        allowance.check(chars)
        allowance.gets_on()
        yield part


@dataclass(frozen=True, slots=True)
class Parsed:
    """One text of a source: the whole file, or a row of a table."""

    text: str
    title: str
    """Empty where the source has none."""
    media_type: str
    encoding: str = "utf-8"
    row: str | None = None
    """The row's id within its table; None for a whole file."""
    page_starts: Sequence[int] | None = None
    """Offset in the text at which each page begins; None where the format has no pages."""
    warnings: Sequence[str] = ()
    """What a reader should know: ``part not read: 2 charts``."""


BETWEEN_PAGES = "\n\n"


def joined_pages(pages: Sequence[str]) -> tuple[str, list[int]]:
    """Return the text of a document with pages, and the offset of each page in it."""
    lengths = (len(page) + len(BETWEEN_PAGES) for page in pages[:-1])
    return BETWEEN_PAGES.join(pages), list(accumulate(lengths, initial=0))


def unread(parts: Mapping[str, int]) -> tuple[str, ...]:
    """Return the warning that parts of a source, a count by each kind's name, are not in its text; none: none."""
    named = "; ".join(f"{count:,} {name}{'s' if count > 1 else ''}" for name, count in parts.items() if count > 0)
    return (f"part not read: {named}",) if named else ()


@dataclass(frozen=True, slots=True)
class Refused:
    """A row that becomes no document; the source's other rows go on."""

    row: str
    """Number of the row or line, from 1; of several, the first."""
    reason: str
    """``empty`` is no failure."""
    detail: str
    rows: int = 1
    """How many it stands for."""


@dataclass(frozen=True, slots=True)
class ParseRequest:
    """A source as a parser sees it."""

    name: str
    """File name without folder and compression suffix, fit to be shown."""
    options: IngestConfig
    allowance: Allowance = field(default_factory=Allowance)
    """Limit on the text. A parser whose output may be much larger than its input checks it while it works."""


Parser = Callable[[BinaryIO, ParseRequest], Iterator[Parsed | Refused]]
"""Yields the texts of a stream, which it reads once, from its start; raises `memagent.errors.SourceError`."""


@dataclass(frozen=True, slots=True)
class SourceFormat:
    """A format of sources, found by the suffix of their names."""

    parse: Parser
    table: bool = False
    """Each row is a document of its own."""


_MOST_LETTERS = 63


def counted(count: int, style: str, *, doubled: bool = False) -> str:
    """Write a count of a list as Word's ``numFmt`` says, or as its first number (``001``).

    Formats of other scripts are written as decimals. After z come aa and ab or, `doubled`, aa and bb.
    """
    if style == "none":
        return ""
    if style in ("lowerLetter", "upperLetter", "lowerGreek") and count > 0:
        letters = "αβγδεζηθικλμνξοπρστυφχψω" if style == "lowerGreek" else ascii_lowercase
        times, last = divmod(count - 1, len(letters))
        said = letters[last] * (min(times + 1, _MOST_LETTERS) if doubled else 1)
        while times and not doubled:
            times, last = divmod(times - 1, len(letters))
            said = letters[last] + said
        return said.upper() if style == "upperLetter" else said
    if style in ("lowerRoman", "upperRoman") and 0 < count < 4000:
        roman = _roman(count)
        return roman if style == "lowerRoman" else roman.upper()
    style = "01" if style == "decimalZero" else style
    return f"{count:0{min(len(style), _MOST_LETTERS)}}" if style[:1] == "0" else str(count)


def _roman(count: int) -> str:
    text = ""
    values = (1000, 900, 500, 400, 100, 90, 50, 40, 10, 9, 5, 4, 1)
    for value, letters in zip(values, "m cm d cd c xc l xl x ix v iv i".split(), strict=True):
        text += letters * (count // value)
        count %= value
    return text


_POWER = re.compile(r"\s*(?:[-−–+]?\d+(?:[.,]\s?\d+)*|[-−–]|\d*[bcfgi-npqs-zα-ω])\s*")
"""Letters of ordinals, as in 1a, 2d, 3e, 4o and 5r, are no variables."""
_FORMULA = re.compile(r"\s*(?:[-−–+]?[\w.]+(?:\s*[-−–+/⁄·*×]\s*[\w.]+)+|[-−–+]\s*\d*[^\W\d_]{1,2})\s*")
_IN_POWER = re.compile(r"\^[-−–+]?[\d.,]*$")
_NUMBER_END = re.compile(r"\d[.,:%]?$")


class TextLine:
    """A line of text, put together of runs that stand above or below the line, or are struck through (``~~``)."""

    def __init__(self) -> None:
        self._parts, self._tail = list[str](), ""
        self._shift, self._struck = "", False
        self._raised_at = -2
        self.gap = False
        """Whether digits that come next are another number."""

    def __len__(self) -> int:
        return len(self._parts)

    @property
    def text(self) -> str:
        """What it says so far."""
        return "".join(self._parts) + ("~~" if self._struck else "")

    def add(self, said: str, *, above: bool = False, below: bool = False, struck: bool = False) -> None:
        """Add a run. Digits of another height do not become digits of the number beside them."""
        if not said:
            return
        if struck and len(said) > 1 and _BREAK.search(said):  # each line and cell has marks of its own
            for part in _BREAK.split(said):
                self.add(part, above=above, below=below, struck=struck)
            return
        shift = "above" if above else "below" if below else ""
        written = said
        if shift != self._shift or self.gap:
            if above and not self.gap:
                written = raised(said, self._tail)
            elif below and len(self._parts) == self._raised_at + 2 and self._parts[-1] in ("/", "⁄"):
                self._parts[self._raised_at] = self._parts[self._raised_at].replace("^", " ")  # 5 1/2
            elif said[0].isdigit() and self._tail[-1:].isdigit():
                written = f"_{said}" if below else f" {said}"
        if (struck and not _BREAK.match(said) and (self._struck or bool(said.strip()))) != self._struck:
            self._parts.append("~~")
            self._struck = not self._struck
        if above:
            self._raised_at = len(self._parts)
        self._parts.append(written)
        self._shift, self._tail, self.gap = shift, (self._tail + written)[-_TAIL:], False


_BREAK = re.compile("([\t\n])")
_TAIL = 16
"""Characters of a line that say what a raised run behind them is."""


def raised(text: str, before: str) -> str:
    """Return a text that stands above the line, with ``^`` where it would be read on the line: 10⁶ is not 106."""
    said, behind, last = text.strip(), text[len(text.rstrip()) :], before[-1:]
    after_number = last.isdigit() or last in (")", "]")
    if _IN_POWER.search(before[-9:]):  # it goes on
        return text
    if _FORMULA.fullmatch(text) and (after_number or (last.isalpha() and any(map(str.isalpha, said)))):
        return f"^({said}){behind}"
    is_power = _POWER.fullmatch(text) or (last == ")" and len(said) == 1 and said.isalpha())
    is_mark = said[:1].isdigit() and _NUMBER_END.search(before) is not None  # of a note, as 1) or 3-5
    return f"^{said}{behind}" if is_mark or (is_power and after_number) else text


_ESCAPE = re.compile(r"%(?=[0-9A-Fa-f]{2})")
_HIDDEN = ("Cc", "Cf", "Cs", "Zl", "Zp", "Cn", "Co")


def quoted(name: str, safe: str = "") -> str:
    """Return `name` with characters that cannot be shown, or would mislead, as ``%XX``.

    Control and format characters (new lines, zero-width and right-to-left marks), bytes that are not
    UTF-8 (as `os.fsdecode` gives them), path segments ``.`` and ``..``, and ``#``, which separates a
    row from its file, unless it is in `safe`. Different names stay different: ``%`` is escaped where
    it would read as an escape.
    """
    name = _ESCAPE.sub("%25", name)
    if not name.isascii() or not name.isprintable() or "#" in name:
        shown = (c in safe if c == "#" else unicodedata.category(c) not in _HIDDEN for c in name)
        name = "".join(c if is_shown else _quote(c) for c, is_shown in zip(name, shown, strict=True))
    if "." in name:
        name = "/".join(part.replace(".", "%2E") if part in (".", "..") else part for part in name.split("/"))
    return name


def _quote(char: str) -> str:
    errors = "surrogateescape" if "\udc80" <= char <= "\udcff" else "surrogatepass"  # a byte, or half a pair
    return "".join(f"%{byte:02X}" for byte in char.encode("utf-8", errors))


def unquoted(name: str) -> str:
    """Return what `quoted` was given."""
    return unquote_to_bytes(name).decode("utf-8", "surrogateescape")
