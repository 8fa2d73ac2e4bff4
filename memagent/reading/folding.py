"""Finding words in a text however either is written, and where they stand in the text as it is.

Both are folded: case, letters that are the same by compatibility (Unicode's NFKC: ligatures, full width), digits of any
script (10⁶ is 10^6, and 3½ is 3 1/2), kinds of quotation marks, dashes and white space. What is not seen does not
count, nor do hyphens between letters, ends of lines in words, vowel marks of Arabic and Hebrew, accents of Greek, and
white space beside letters of scripts that have none between words.
"""

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Iterator
from functools import lru_cache

import regex

from memagent.reading.boundaries import grapheme_start

UNSPACED = r"\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}"
"""Scripts without white space between words, for a set of a pattern of `regex`."""
_BESIDE = rf"[{UNSPACED}]"
_SINGLE_QUOTES = "'‘’‚‛‹›′`´ʼʹ＇"
_DOUBLE_QUOTES = '"“”„‟«»″〝〞〟＂「」『』'
_VOWELLED = r"[\p{Arabic}\p{Hebrew}\p{Syriac}\p{Greek}]"
_CHANGED = regex.compile(
    rf"""(?V1x)
    # Most of a text needs no look: letters that no mark follows, and single spaces between them.
    (?! [!-,.-~](?!\p{{M}}) | (?<!{_BESIDE}\p{{DI}}{{0,30}})\ [!-,.-~]) (?:
    (?P<none> (?<=[\p{{L}}\p{{M}}]) [-\u2010\u2011\u00AD] (?:[^\S\n]*+\n\s*+)? (?=\p{{L}})
            | \u00AD\s*+\n\s*+ | [\p{{DI}}\u0640]++ | (?<={_BESIDE}\p{{DI}}{{0,30}})\s++ | \s++(?=\p{{DI}}*{_BESIDE}) )
  | (?P<power> (?<=\p{{Nd}}) [⁺⁻₊₋]?+\p{{No}}++ )
  | (?P<dash> \s*+\p{{Dash}}[\p{{Dash}}\s]*+ )
  | (?P<space> [^\S\ ]\s*+ | \ \s++ )
  | (?P<quote> [{_SINGLE_QUOTES[1:]}{_DOUBLE_QUOTES[1:]}] )
  | (?: [\u1100-\u115F]++[\u1160-\u11A7]*+[\u11A8-\u11FF]*+
      | [[\p{{NFKC_QC=N}}\p{{NFD_QC=N}}\p{{Changes_When_Casefolded}}\p{{Nd}}]--[\x00-\x7F가-힣]] \p{{M}}*+
      | [\p{{L}}\p{{N}}] \p{{M}}++ )
    )
    """
)
_CHANGED_ASCII = re.compile(
    r"""(?ax)
    (?= [-\t-\r] | \ [\s-] ) (?:  # what can begin nothing is left at once: this is looked for in every text
    (?P<none> (?<=[A-Za-z]) - (?:[^\S\n]*+\n\s*+)? (?=[A-Za-z]) )
  | (?P<dash> \s*+-[-\s]*+ )
  | (?P<space> [^\S\ ]\s*+ | \ \s++ )
    )
    """
)
"""What the pattern above finds where a text is ASCII."""
_MARKS = regex.compile(rf"(?V1)(?<={_VOWELLED}\p{{M}}{{0,30}})\p{{M}}|(?<=i)\u0307")
_ALIKE = str.maketrans("\u06cc\u0649\u06a9\u2044\u2212", "\u064a\u064a\u0643/-")


@lru_cache(maxsize=20_000)
def _letters(cluster: str) -> str:
    """Return a letter with its marks, folded."""
    plain = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", cluster).casefold())
    plain = _MARKS.sub("", plain).translate(_ALIKE)
    digits = (str(unicodedata.decimal(char, char)) for char in unicodedata.normalize("NFC", plain))
    return "".join(digits)


def _replacement(match: "regex.Match[str] | re.Match[str]") -> str:
    kind = match.lastgroup
    if kind is None:
        return _letters(match[0])
    if kind == "power":
        return (" " if "VULGAR" in unicodedata.name(match[0][0], "") else "^") + _letters(match[0])
    if kind == "quote":
        return "'" if match[0] in _SINGLE_QUOTES else '"'
    return {"none": "", "dash": "-", "space": " "}[kind]


class FoldedText:
    """A text, in which words are found."""

    def __init__(self, text: str) -> None:
        self.text = text
        parts: list[str] = []
        # Where a stretch of the folded text begins, and its place in the text: both go on side by side, but for
        # stretches of other lengths.
        self._folded, self._original = [0], [0]
        at, length = 0, 0
        for match in (_CHANGED_ASCII if text.isascii() else _CHANGED).finditer(text):
            new, (start, end) = _replacement(match), match.span()
            parts += (text[at:start].lower(), new)
            length += start - at
            if len(new) != end - start:
                self._folded += (length, length + len(new))
                self._original += (start, end)
            at, length = end, length + len(new)
        self.folded = "".join([*parts, text[at:].lower()])
        self._folded.append(len(self.folded))
        self._original.append(len(text))

    def places(self, words: str) -> list[tuple[int, int]]:
        """Return where some words stand as whole words, as (start, end) in the text.

        If there is no such place: where a particle follows (Korean, Indian scripts) or a prefix precedes (Arabic,
        Hebrew) without a space.
        """
        spans = list(self._spans(FoldedText(words).folded.strip()))
        whole = [(start, end) for start, end in spans if _edge(self.text, start) and _edge(self.text, end)]
        return whole or [
            (start, end)
            for start, end in spans
            if (_edge(self.text, start) or _PREFIX.match(self.text, max(0, start - 12), start))
            and (_edge(self.text, end) or _SUFFIXED.match(self.text, end - 1))
        ]

    def _spans(self, words: str) -> Iterator[tuple[int, int]]:
        at = self.folded.find(words) if words else -1
        while at >= 0:
            start, end = self._place(at), self._place(at + len(words) - 1, end=True)
            said = self.text[start:end]  # a dash stands for the white space around it
            low, high = end - len(said.lstrip()), start + len(said.rstrip())
            whole = min(start, end) >= 0 and all(grapheme_start(self.text, edge) == edge for edge in (low, high))
            signed = any(_MINUS.match(self.text, at) for at in range(max(0, low - 2), low))
            if whole and not signed and not _RANGE.match(self.text, low):
                yield low, high
            at = self.folded.find(words, at + 1)

    def _place(self, at: int, *, end: bool = False) -> int:
        """Return where a folded character begins, or ends, in the text; -1: within a sign there, as 1 and 2 in ½."""
        piece = bisect_right(self._folded, at) - 1
        first, low, high = self._folded[piece], self._original[piece], self._original[piece + 1]
        length = self._folded[piece + 1] - first
        if length == high - low:
            return low + at - first + end
        return (high if end else low) if at == first + (length - 1 if end else 0) else -1


_WORD_EDGE = regex.compile(r"(?w)\b")
_WITHIN_WORD = regex.compile(r"(?V1)(?<=\p{L}\p{M}*)[.:·'’‘](?=\p{L})")
_PREFIX = regex.compile(r"(?r)(?<![\p{L}\p{M}])(?:[והבלכמש]{1,3}|[وف]|[وف]?(?:[بكلس]|ال|[بك]ال|لل))\p{M}*")
_SUFFIXED = regex.compile(
    r"[\p{Hangul}\p{Bengali}\p{Tamil}\p{Telugu}\p{Kannada}\p{Malayalam}\p{Gujarati}\p{Gurmukhi}\p{Oriya}\p{Sinhala}]"
)


_BEFORE_RANGE = r"[\p{L}\p{Nd}\p{Pe}\p{Sc}\p{Quotation_Mark}\p{Dash}%°′″]|\p{Nd}\s"
_MINUS = regex.compile(rf"(?<!{_BEFORE_RANGE})(?![—―])\p{{Dash}}(?=\p{{Sc}}?\.?\p{{Nd}})")
_RANGE = regex.compile(rf"(?<={_BEFORE_RANGE})\p{{Dash}}\s?\p{{Sc}}?\p{{Nd}}")
"""A sign, without which a number is another one, and a dash that is none."""


def _edge(text: str, at: int) -> bool:
    """Whether a word begins or ends at a place: as in Unicode Standard Annex 29, and at marks between letters."""
    if at in (0, len(text)) or _WORD_EDGE.match(text, at):
        return True
    return _WITHIN_WORD.match(text, at - 1) is not None or _WITHIN_WORD.match(text, at) is not None


_folded = lru_cache(maxsize=4)(FoldedText)
"""Several words are looked for in one text."""


def places_of(words: str, text: str) -> list[tuple[int, int]]:
    """Return where words stand in a text (`FoldedText.places`)."""
    return _folded(text).places(words)


def locate(words: str, text: str) -> tuple[int, int] | None:
    """Return (start, end) of the first place where words stand in a text, whole and however either is written."""
    return next(iter(places_of(words, text)), None)
