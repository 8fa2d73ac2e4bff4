"""Bytes to text: byte order marks, UTF-8, UTF-16 without a mark, then legacy encodings when sure."""

import codecs
import re
import unicodedata
from collections import Counter
from functools import lru_cache

import chardet

from memagent.errors import SourceError

_MARKS = (
    ((codecs.BOM_UTF8,), "utf-8-sig"),
    ((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE), "utf-32"),  # before UTF-16, whose mark is its beginning
    ((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE), "utf-16"),
)
_MAGIC = (
    ((b"%PDF-",), "a PDF file"),
    ((b"PK\x03\x04",), "a zip archive or an office file"),
    ((b"\x1f\x8b",), "gzip"),
    ((b"\x28\xb5\x2f\xfd",), "zstd"),
    ((b"\x7fELF", b"MZ\x90"), "a program"),
    ((b"\x89PNG", b"\xff\xd8\xff", b"GIF8"), "an image"),
    ((b"PAR1",), "a Parquet file"),
    ((b"\xd0\xcf\x11\xe0",), "an old office file"),
    ((b"SQLite format 3\x00",), "a database"),
)
_CONTROLS = bytes(set(range(32)) - set(b"\t\n\v\f\r\b\x1b")) + b"\x7f"
_CONTROL_SHARE = 0.02
_SAMPLE = 256 * 1024
_LATIN = [*(f"cp{number}" for number in (1250, 1252, 1254, 1257, 1258)), "iso8859-2"]
_WIDE = ["cp932", "euc_jis_2004", "cp949", "gb18030", "big5hkscs"]
_OTHERS = [*(f"cp{number}" for number in (1251, 1253, 1255, 1256, 874)), "koi8-r", "koi8-u", "iso8859-5", "iso8859-7"]
_OLDER = "iso8859-2 iso8859-15 mac_roman cp850 cp437 cp852 mac_cyrillic cp866 iso8859-5 cp1252".split()
"""Code pages of DOS, of older Macs and Unixes."""
_HIGH = re.compile(r"[^\x00-\x7f]")
_ACCENTS = "ˇ˘˙˛˝˜ˆ¨¯¸"
_LEAST_ODD, _MOST_ODD = 2, 8
"""Odd signs with which a newer code page stands back, if an older one has eight times fewer; those of none at all."""
_BROWSER_LABELS = {
    **dict.fromkeys(("ascii", "us-ascii", "iso8859-1", "iso-8859-1", "latin1", "latin-1", "iso_8859-1"), "cp1252"),
    **dict.fromkeys(("iso-8859-9", "iso8859-9", "latin5"), "cp1254"),
    **dict.fromkeys(("iso-8859-8-i", "csiso88598i", "logical"), "iso8859-8"),
    **{"x-mac-roman": "mac_roman", "macintosh": "mac_roman", "x-mac-cyrillic": "mac_cyrillic", "koi8-ru": "koi8-u"},
    **{"windows-874": "cp874", "windows-949": "cp949"} | {f"x-cp125{number}": f"cp125{number}" for number in range(9)},
    **dict.fromkeys(("iso-8859-11", "iso8859-11", "tis-620"), "cp874"),
    **dict.fromkeys(("shift_jis", "shift-jis", "sjis", "x-sjis", "ms_kanji", "csshiftjis", "windows-31j"), "cp932"),
    **dict.fromkeys(("gb2312", "gb_2312-80", "csgb2312", "gbk", "x-gbk", "chinese"), "gb18030"),
    **dict.fromkeys(("euc-kr", "ks_c_5601-1987", "ks_c_5601-1989", "ksc5601", "ksc_5601", "korean"), "cp949"),
    **dict.fromkeys(("big5", "big5-hkscs", "big-5", "csbig5", "x-x-big5", "cn-big5"), "big5hkscs"),
}
"""What a label means in browsers (WHATWG Encoding, 4.2), where it is a larger code page than the one it names."""
_ESCAPES = ((re.compile(rb"\x1b\$[@B]|\x1b\([BIJ]"), "iso2022_jp_ext"), (re.compile(rb"\x1b\$\)C"), "iso2022_kr"))
"""Escape sequences of encodings of seven bits (ECMA-35); without them such a text is ASCII, and so UTF-8."""
_LATIN_SHARE = 0.15
"""Languages in Latin letters have fewer accented ones than this; those in other letters have more."""
_NO_WORD = re.compile(rb"[\x00-\x3f]+")  # digits, signs and blanks
_LEAST_SURE = 0.07
_SURROGATE = re.compile("[\ud800-\udfff]")
_SYMBOL = (
    " !∀#∃%&∋()∗+,−./0123456789:;<=>?≅ΑΒΧΔΕΦΓΗΙϑΚΛΜΝΟΠΘΡΣΤΥςΩΞΨΖ[∴]⊥_‾αβχδεφγηιϕκλμνοπθρστυϖωξψζ{|}∼"
    "€ϒ′≤⁄∞ƒ♣♦♥♠↔←↑→↓°±″≥×∝∂•÷≠≡≈…⏐⎯↵ℵℑℜ℘⊗⊕∅∩∪⊃⊇⊄⊂⊆∈∉∠∇®©™∏√⋅¬∧∨⇔⇐⇑⇒⇓◊〈®©™∑⎛⎜⎝⎡⎢⎣⎧⎨⎩⎪\ufffd〉∫⌠⎮⌡⎞⎟⎠⎤⎥⎦⎫⎬⎭"
)
_SIGNS: dict[str, dict[int, str]] = {
    "symbol": dict(zip((*range(0x20, 0x7F), *range(0xA0, 0xFF)), _SYMBOL, strict=True)),
    "wingdings": {
        **{0xFE: "☑", 0xFD: "☒", 0xFC: "✓", 0xFB: "✗", 0xA8: "☐", 0x6F: "☐", 0x71: "☐", 0x72: "☐", 0xA7: "▪"},
        **{0x6C: "●", 0x6E: "■", 0x75: "◆", 0x76: "❖", 0x9F: "•", 0xA1: "○", 0xD8: "➢", 0x28: "☎", 0x2A: "✉"},
        **{0xDF: "←", 0xE0: "→", 0xE1: "↑", 0xE2: "↓", 0xE8: "➔", 0xF0: "⇨", 0xF3: "⇔", 0x4A: "☺", 0x4C: "☹"},
        **{0x81 + count: chr(ord("①") + count) for count in range(10)},
        **{0x8C + count: chr(ord("❶") + count) for count in range(10)},
    },
    "wingdings 2": {0x50: "✓", 0x4F: "✗", 0x52: "☑", 0x51: "☒", 0x53: "☑", 0x54: "☒", 0xA3: "☐", 0x97: "•"},
    "webdings": {0x61: "✓", 0x72: "✗", 0x63: "☐", 0x67: "■"},
    "wingdings 3": {0x7D: "▶", 0x74: "◀", 0x70: "▲", 0x71: "▼"},
}
"""What fonts of signs show for the codes of letters: µ for m. Programs also write them in Unicode's private area."""
_UNNAMED = {**_SIGNS["wingdings"], 0xB7: "•"}
"""Of a font that is not known: what is no bullet is of Wingdings."""
SIGN_FONTS = frozenset(_SIGNS)
"""Names of fonts of signs, in lower case."""
_PRIVATE = re.compile("[\uf000-\uf0ff]")
_BULLETS = frozenset("☐☑☒✓✔✗✘")
"""Bullets that say something."""
_BLANK = re.compile("[\\s\x00\u200b-\u200f\u202a-\u202e\u2060\u2066-\u2069\ufeff\ufffd]*")


def decode(data: bytes, declared: str | None = None) -> tuple[str, str]:
    """Return the text of a file, cleaned (see `clean`), and the name of its encoding.

    A declared encoding, which the file claims for itself, is tried after UTF-8.

    Raises SourceError: ``binary`` where it is no text, ``encoding`` where no encoding is sure.
    """
    encoding = detect(data, declared)
    try:
        text = data.decode(encoding, "surrogatepass" if encoding.startswith(("utf-16", "utf-32")) else "strict")
    except UnicodeDecodeError as error:
        if encoding != "utf-8":
            raise SourceError("encoding", f"it starts as {encoding} and breaks at byte {error.start}") from error
        text = data.decode("utf-8", "replace")
    return clean(text), encoding.removesuffix("-sig")


def guessed(text: str, encoding: str) -> tuple[str, ...]:
    """Return the warning of a file that does not name its encoding; none where that is sure, or of no account."""
    if text.isascii() or encoding.startswith(("utf", "iso2022")):
        return ()
    return (f"encoding guessed: {encoding} (compare letters with accents, or save it as UTF-8)",)


def detect(data: bytes, declared: str | None = None, complete: bool = True) -> str:
    """Return the encoding of a file, or of its beginning, which may end within a character (not `complete`).

    Raises SourceError: as `decode`.
    """
    for marks, encoding in _MARKS:
        if data.startswith(marks):
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
    for escape, encoding in _ESCAPES:
        if escape.search(sample) and _decodes(data, encoding, complete):
            return encoding
    label = (declared or "").strip().lower()
    if label in ("utf-7", "unicode-1-1-utf-7") and _decodes(data, "utf-7", complete):
        return "utf-7"
    if _decodes(data, "utf-8", complete) or _damaged_utf8(sample):
        return "utf-8"
    for name in dict.fromkeys((browser_encoding(label), "cp950" if "big5" in label else label)):
        if name and _decodes(data, name, complete):
            return codecs.lookup(name).name
    if b"\0" in sample:
        raise SourceError("binary", "not a text file: NUL bytes, and not UTF-8")
    return _legacy(data, sample, complete)


def browser_encoding(label: str) -> str:
    """Return the encoding that a label means in browsers, in lower case; one that is not known, as it is."""
    label = label.strip().lower()
    return _BROWSER_LABELS.get(label, label)


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


def glyphs(text: str, font: str, private: str = "") -> str:
    """Return what a font shows that has signs in the places of letters; U+FFFD for a sign that is not known.

    `private` is the font of signs in Unicode's private area, where that is another one.
    """
    if font.lower() not in _SIGNS and not _PRIVATE.search(text):
        return text
    return "".join(_sign(char, (private or font) if _PRIVATE.match(char) else font) for char in text)


@lru_cache(maxsize=1024)
def _sign(char: str, font: str) -> str:
    signs, code = _SIGNS.get(font.lower()), ord(char)
    if _PRIVATE.match(char):
        return (signs or _UNNAMED).get(code & 0xFF, "\ufffd")
    if signs is None or char.isspace() or not (code < 0x7F or 0xA0 <= code <= 0xFF):
        return char  # typed as it is
    return signs.get(code, "\ufffd")


def bullet(sign: str, font: str) -> str:
    """Return the bullet of a list: a box or a tick as it is shown, others alike."""
    shown = glyphs(sign, font)
    return shown if shown in _BULLETS else "•"


def blank(text: str) -> bool:
    """Whether there is nothing to read: white space, zero-width and replacement characters only."""
    return _BLANK.fullmatch(text) is not None


def _decodes(data: bytes, encoding: str, complete: bool = True) -> bool:
    try:
        codecs.getincrementaldecoder(encoding)("strict").decode(data, complete)
    except (UnicodeDecodeError, LookupError):
        return False
    return True


_SEVERAL = 3
"""Signs of UTF-8 that another encoding does not have by chance, twice as many as wrong bytes."""


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
    wide, wrong = sum(char > "\x7f" and char != "\ufffd" for char in text), text.count("\ufffd")
    return max(_SEVERAL, 2 * wrong) <= wide or (wide > 0 and _decodes(sample, "utf-8", complete=False))


def _legacy(data: bytes, sample: bytes, complete: bool) -> str:
    high = sum(byte > 127 for byte in sample) / len(sample)
    pages = [*_LATIN, *_WIDE] if high < _LATIN_SHARE else [*_LATIN, *_WIDE, *_OTHERS]
    # A short Western text with few accents gives no statistics.
    newer = [*_guesses(sample, pages, newer=True), *(["cp1252"] if high < 2 * _LATIN_SHARE else [])]
    words = _NO_WORD.sub(b" ", sample) if newer[:1] in ([], ["cp1252"]) else b""
    if words and sum(byte >= 0xC0 for byte in words) >= 2 * _LATIN_SHARE * len(words):
        newer = [*_guesses(words, [*_LATIN, *_OTHERS], newer=True), *newer]  # of a table, whose bytes are mostly digits
    found = next((one for one in newer if _decodes(data, one, complete)), None)
    odd = _odd_signs(sample.decode(found, "ignore")) if found else _MOST_ODD
    if found and (odd < _LEAST_ODD or codecs.lookup(found).name in _WIDE):
        return codecs.lookup(found).name
    for older in _guesses(sample, _OLDER, newer=False):
        if _decodes(data, older, complete) and 8 * _odd_signs(sample.decode(older, "ignore")) <= odd:
            return codecs.lookup(older).name
    if found:
        return codecs.lookup(found).name
    raise SourceError("encoding", "encoding unknown; save it as UTF-8")


def _guesses(sample: bytes, pages: list[str], *, newer: bool) -> list[str]:
    guesses = chardet.detect_all(sample, ignore_threshold=True, prefer_superset=newer, include_encodings=pages)
    least = max([_LEAST_SURE, *(guess["confidence"] / 2 for guess in guesses)])
    return [guess["encoding"] or "ascii" for guess in guesses if guess["confidence"] >= least]


def _odd_signs(text: str) -> int:
    """Count what another encoding makes of letters: signs and capitals within words, and words of several scripts."""
    letters = set(text)
    czech = bool(letters & set("ěřů")) and not letters & set("łęńż")
    odd = 0
    for found in _HIGH.finditer(text, 0, _SAMPLE // 4):
        char, left, right = found[0], text[found.start() - 1 : found.start()], text[found.end() : found.end() + 1]
        inside = left.isalpha() and right.isalpha()
        if char.isalpha() and char not in _ACCENTS:
            scripts = {_script(one) for one in (left, char, right) if one.isalpha()} - {""}
            torn = (char.isupper() and left.islower()) or (char.islower() and right.isupper())
            odd += 2 if czech and char in "ąľ" else torn or len(scripts) > 1
        elif char <= "\x9f" or char == "¤":
            odd += 3
        elif unicodedata.category(char) in ("Sm", "So", "Sk", "No") and char not in "×°©®№²³":
            alone = unicodedata.category(char) == "No" and not left.isalpha() and left not in ("'", "’")  # ½cup
            odd += (right.isalpha() and not alone) or (left.isalpha() and char in "±¶")
        else:
            odd += 2 * (inside and char in f"„‚‹†‡¶¦{_ACCENTS}") + (inside and char in "–—…")
    return odd


def _script(letter: str) -> str:
    name = unicodedata.name(letter, "").partition(" ")[0]
    return name if name in ("LATIN", "GREEK", "CYRILLIC", "HEBREW", "ARABIC") else ""
