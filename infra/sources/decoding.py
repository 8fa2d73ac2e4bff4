"""Bytes to text: byte order marks, UTF-8, UTF-16 without a mark, then legacy encodings when sure."""

import codecs
import re
from collections import Counter

from charset_normalizer import from_bytes

from memagent.errors import SourceError

_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),  # before UTF-16, whose mark is its beginning
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_MAGIC = (
    (b"%PDF-", "a PDF file"),
    (b"PK\x03\x04", "a zip archive or an office file"),
    (b"\x1f\x8b", "gzip"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
    (b"\x7fELF", "a program"),
    (b"MZ\x90", "a program"),
    (b"\x89PNG", "an image"),
    (b"\xff\xd8\xff", "an image"),
    (b"GIF8", "an image"),
    (b"PAR1", "a Parquet file"),
    (b"\xd0\xcf\x11\xe0", "an old office file"),
    (b"SQLite format 3\x00", "a database"),
)
_CONTROLS = bytes(set(range(32)) - set(b"\t\n\v\f\r\b\x1b")) + b"\x7f"
_CONTROL_SHARE = 0.02
_SAMPLE = 256 * 1024
_WIDE_LEGACY = ["cp932", "cp949", "euc_jp", "euc_kr", "gb18030", "big5"]
_LEGACY = [
    *(f"cp{number}" for number in (1250, 1251, 1252, 1253, 1254, 1255, 1256, 1257, 1258, 874)),
    *("koi8_r", "koi8_u", "iso8859_2", "iso8859_5", "iso8859_7", "iso8859_15", *_WIDE_LEGACY),
]
_WESTERN_SHARE = 0.1
"""Western European languages have fewer accented letters than this."""
_EASTERN = {"Polish", "Czech", "Slovak", "Hungarian", "Romanian", "Croatian", "Slovene", "Turkish", "Lithuanian"}
_SURROGATE = re.compile("[\ud800-\udfff]")
_BLANK = re.compile("[\\s\x00\u200b-\u200f\u202a-\u202e\u2060\u2066-\u2069\ufeff\ufffd]*")


def decode(data: bytes, declared: str | None = None) -> tuple[str, str]:
    """Return the text of `data`, cleaned (see `clean`), and the name of its encoding.

    Args:
        data: a whole text file.
        declared: an encoding that the file claims for itself; tried after UTF-8.

    Raises:
        SourceError: ``binary`` where it is no text, ``encoding`` where no encoding is sure.
    """
    encoding = detect(data, declared)
    try:
        text = data.decode(encoding, "surrogatepass" if encoding.startswith(("utf-16", "utf-32")) else "strict")
    except UnicodeDecodeError as error:
        if encoding != "utf-8":
            raise SourceError("encoding", f"it starts as {encoding} and breaks at byte {error.start}") from error
        text = data.decode("utf-8", "replace")
    return clean(text), encoding.removesuffix("-sig")


def detect(data: bytes, declared: str | None = None, complete: bool = True) -> str:
    """Return the encoding of `data`.

    Args:
        data: a text file or, unless `complete`, its beginning.
        declared: an encoding that the file claims for itself.
        complete: whether `data` may not end within a character.

    Raises:
        SourceError: as `decode`.
    """
    for mark, encoding in _MARKS:
        if data.startswith(mark):
            return encoding
    sample = data[:_SAMPLE]
    for magic, what in _MAGIC:
        if sample.startswith(magic):
            raise SourceError("binary", f"not a text file: it starts like {what}; give it that suffix")
    controls = len(sample) - len(sample.translate(None, _CONTROLS))
    if b"\0" in sample or controls > _CONTROL_SHARE * len(sample):
        if wide := _wide(sample):
            return wide
        if controls > _CONTROL_SHARE * len(sample):
            raise SourceError("binary", "not a text file: too many control characters")
    if _decodes(data, "utf-8", complete) or _damaged_utf8(sample):
        return "utf-8"
    if declared and _decodes(data, declared, complete):
        return codecs.lookup(declared).name
    if b"\0" in sample:
        raise SourceError("binary", "not a text file: NUL bytes, and not UTF-8")
    return _legacy(data, sample, complete)


def clean(text: str) -> str:
    r"""Return `text` with ``\n`` as the only line end, and U+FFFD for NUL and unpaired surrogates.

    Neither can go through tokenizers and tables; a mark in their place keeps the loss visible.
    """
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    if "\0" in text:
        text = text.replace("\0", "\ufffd")
    if _SURROGATE.search(text):  # a pair that was written as two escapes is one character
        text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def blank(text: str) -> bool:
    """Whether there is nothing to read: white space, zero-width and replacement characters only."""
    return _BLANK.fullmatch(text) is not None


def _decodes(data: bytes, encoding: str, complete: bool = True) -> bool:
    try:
        codecs.getincrementaldecoder(encoding)("strict").decode(data, complete)
    except (UnicodeDecodeError, LookupError):
        return False
    return True


def _wide(sample: bytes) -> str | None:
    """Recognise UTF-16 without a mark: nearly all characters lie in two pages of 256, some of them in the first.

    There are spaces, digits and signs; a row of spaces in UTF-8 is of one page, too, but of another one.
    """
    for encoding in ("utf-16-le", "utf-16-be"):
        text = sample[: len(sample) // 2 * 2].decode(encoding, "replace")
        pages = Counter(ord(char) >> 8 for char in text)
        near = sum(count for _, count in pages.most_common(2))
        odd = sum(char < " " and char not in "\t\n\r\f" for char in text)
        if pages[0] >= 0.02 * len(text) and near >= 0.95 * len(text) and odd <= 0.01 * len(text):
            return encoding
    return None


def _damaged_utf8(sample: bytes) -> bool:
    """Whether this is UTF-8 with a few wrong bytes, not another encoding."""
    text = sample.decode("utf-8", "replace")
    wide = sum(len(char.encode()) > 1 for char in text if char != "\ufffd" and char > "\x7f")
    return wide >= 10 and text.count("\ufffd") <= 0.1 * wide


def _legacy(data: bytes, sample: bytes, complete: bool) -> str:
    high = sum(byte > 127 for byte in sample) / len(sample)
    matches = [m for m in from_bytes(sample, cp_isolation=_LEGACY) if _decodes(data, m.encoding, complete)]
    best = matches[0] if matches else None
    if best is not None and high < _WESTERN_SHARE and best.language not in _EASTERN:
        # Most accents stand at the same place in all Latin code pages; the common one wins a draw.
        close = (m for m in matches if m.encoding == "cp1252" and m.coherence > best.coherence - 0.05)
        best = next(close, best)
    if best is not None and (best.coherence > 0.1 or (best.encoding in _WIDE_LEGACY and high > 0.3)):
        return str(best.encoding)
    # A short Western text with few accents gives no statistics.
    if high < 2 * _WESTERN_SHARE and _decodes(data, "cp1252", complete):
        return "cp1252"
    raise SourceError("encoding", "encoding unknown; save it as UTF-8")
