"""Where a text may be cut, in any script: after sentences, and between the characters that a reader sees as one each.

Sentences and grapheme clusters are those of Unicode Standard Annex 29, by the properties that `regex` knows. What the
annex leaves to a tailoring is told apart here: abbreviations, numbers of list items and days, opening brackets after a
full stop, lines that were wrapped at a width, and Tibetan and Greek marks. Scripts that do not mark the ends of
sentences (Thai, Lao) have them at ends of lines only.
"""

from collections.abc import Iterator

import regex

_TERMINAL = r"[\p{SB=STerm}\u0F0D-\u0F12]"
_MORE = r"[\p{SB=Extend}\p{SB=Format}]*+"
_SPACE = r"[\p{SB=Sp}\p{SB=Extend}\p{SB=Format}]*+"
_CLOSE = r"[[\p{SB=Close}\p{SB=Extend}\p{SB=Format}]--\p{Ps}]*+"
_BREAKS = r"\n\r\u0085\u2028\u2029"
_LINE = rf"(?>\r\n|[{_BREAKS}])"
_PROSE = rf"(?:\A|[{_BREAKS}])[^\t{_BREAKS}]{{30,}}"
"""A long line that is no row of a table."""
_ENDS = regex.compile(
    rf"""(?V1x)
    (?:
        # East Asian marks: a quotation mark after one opens the next sentence; と after one belongs to what was said.
        [。｡！？]++ {_MORE} [[\p{{SB=Close}}--\p{{Ps}}]--\p{{Pi}}]*+ (?!(?<=[」』])[とっ]) {_SPACE}
      | (?:[{_TERMINAL}--[!?。｡！？]] | (?<=\p{{Greek}}\p{{M}}*)[;\u037E]) {_MORE} {_CLOSE} {_SPACE}
        # Not within an address, nor after what is quoted within a sentence ("Stop!" he said).
      | [!?] (?![A-Za-z0-9&/=#%_+\-]) {_MORE} (?!\p{{SB=Close}}++\p{{SB=Sp}}++\p{{SB=Lower}}) {_CLOSE} {_SPACE}
      | (?P<stop>\p{{SB=ATerm}}) {_MORE} (?![\p{{SB=Numeric}}\p{{SB=Lower}}\p{{SB=Upper}}@/\\_=&]) {_CLOSE} {_SPACE}
        (?![^\p{{SB=OLetter}}\p{{SB=Upper}}\p{{SB=Lower}}\p{{SB=STerm}}\p{{SB=ATerm}}\p{{N}}{_BREAKS}]*+ \p{{SB=Lower}})
    )
    (?![\p{{SB=SContinue}}\p{{SB=ATerm}}] | {_TERMINAL}) \s*+
    # The end of a line, unless it was wrapped: a word goes on after a hyphen, or a long line goes on in small letters.
  | (?P<line>{_LINE}) (?! (?: (?<=[\p{{L}}\p{{M}}][-\u2010\u00AD]{_LINE}) | (?<={_PROSE}{_LINE}) )
                [^\S{_BREAKS}]*+ (?: [\p{{SB=Lower}}\p{{SB=OLetter}}] | (?<=,{_LINE}[^\S{_BREAKS}]*)\w ) ) \s*+"""
)
_AHEAD = 200
"""Characters after a place that tell whether a sentence ends there."""
_BLANK_LINE = regex.compile(rf"{_LINE}[^\S{_BREAKS}]*{_LINE}")
_WORD = regex.compile(r"(?r)(?<![\p{L}\p{M}\p{N}.])\p{L}\p{M}*(?:[\p{L}\p{M}]|\.(?=\p{L}))*")
_LAST_WORD = regex.compile(rf"(?r)(?:^|[^\p{{L}}\p{{M}}\p{{N}}.\-])(\p{{L}}+)[^\S{_BREAKS}]*")
_INITIALS = regex.compile(r"(?V1)(?:[\p{L}--[\p{Han}\p{Hangul}\p{Hiragana}\p{Katakana}]]\p{M}*(?:\.|$))+")
_LIST_ITEM = regex.compile(
    rf"(?r)(?:^|[{_BREAKS}])[^\S{_BREAKS}]*\(?(?:\p{{Nd}}{{1,3}}(?:\.\p{{Nd}}{{1,3}})*|[IVXLC]{{1,6}}|\p{{L}})"
)
_DAY = regex.compile(r"(?r)(?<!\p{N})\p{Nd}{1,2}")
_MONTH = regex.compile(
    r"\s*(?:Januar|Jänner|Februar|März|April|Mai|Juni|Juli|August|September|Oktober|November|Dezember)\b"
)
_BEGINNING = regex.compile(r"(?:The|It|He|She|They|We|You|This|That|These|Those|There|But|And|If|When|In|On|At|A|An)\b")
"""Words that begin a new sentence after a letter and a full stop ("Vitamin C. It ...")."""
_BEFORE_NAMES = frozenset(
    "mr mrs ms messrs dr prof rev hon st sen rep gov gen col capt lt maj sgt cmdr adm mt vs viz cf al approx e.g i.e "
    "mm mme mmes mlle mgr sr sra srta dra dña lic sig dott avv ing arch geom exmo exma hr fr frl dipl bzw vgl z.b d.h "
    "u.a dhr mevr drs ul пл им тов проф акад гр пр т.е κα κος καθ δρ π.χ डॉ पं प्रो".split()
)
_BEFORE_NUMBERS = frozenset(
    "no nos nr nrs art arts sec secs fig figs eq vol vols ch chap cl cls par para paras p pp pg tab app abs ziff kap "
    "bd núm num pág cap ст стр рис гл пп табл тел αρ σελ jan feb mar apr jun jul aug sep sept oct nov dec".split()
)
_BEFORE_MORE = frozenset(
    "the a an of to and or by for from with in within at as than its their any each such this under between "
    "der die das des dem den ein eine einer eines und oder von vom zum zur im mit für sowie "
    "le la les un une du de et ou par pour avec sur dans aux el los las del y o por para con da do dos das e "
    "il lo gli della delle dei het een van en met voor".split()
)
"""Words with which no sentence ends: a line that ends with one was wrapped, and the next may begin with a name."""


def sentence_ends(text: str, start: int = 0, stop: int | None = None, *, whole: bool = False) -> Iterator[int]:
    """Yield where sentences end, after the white space that follows them: code points, `start` < end <= `stop`.

    The end of the text is not among them. With `whole`, a line that ends with a word as "the" or "of" ends no sentence;
    segments may be cut there.
    """
    stop = len(text) if stop is None else stop
    for match in _ENDS.finditer(text, start, min(len(text), stop + _AHEAD)):
        if match.end() > stop or match.end() == len(text):
            return
        if not _goes_on(text, match) and not (whole and match["line"] and _is_wrapped(text, match)):
            yield match.end()


def _goes_on(text: str, match: "regex.Match[str]") -> bool:
    """Whether the full stop of a match belongs to an abbreviation, or to the number of a list item or of a day."""
    stop, after = match.start("stop"), match.end()
    if stop < 0 or _BLANK_LINE.search(match[0]):
        return False
    if _LIST_ITEM.match(text, max(0, stop - 40), stop):
        return True
    if _DAY.match(text, max(0, stop - 3), stop):
        return _MONTH.match(text, after) is not None
    found = _WORD.match(text, max(0, stop - 40), stop)
    word = found[0].casefold() if found else ""
    if word in _BEFORE_NUMBERS and text[after].isdecimal():
        return True
    if word in ("", "a.m", "p.m"):
        return False
    return word in _BEFORE_NAMES or (_INITIALS.fullmatch(word) is not None and not _BEGINNING.match(text, after))


def _is_wrapped(text: str, match: "regex.Match[str]") -> bool:
    """Whether the line that ends with a match ends with a word that ends no sentence."""
    last = _LAST_WORD.match(text, max(0, match.start() - 40), match.start())
    word = last[1] if last and not _BLANK_LINE.search(match[0]) else ""
    return (word if len(word) < 2 else word.casefold()) in _BEFORE_MORE  # but "Exhibit A" ends a line


_SINGLE = regex.compile(r"(?V1)[\p{GCB=Other}--\p{Extended_Pictographic}]")
_CLUSTER = regex.compile(r"\X")
_FLAGS = regex.compile(r"(?r)\p{GCB=Regional_Indicator}*")
_LONGEST = 2_000
"""Characters before a place in which a cluster's beginning is looked for."""


def grapheme_start(text: str, at: int) -> int:
    """Return where the grapheme cluster of the code point at `at` begins; at the end of the text, `at` itself."""
    if at < len(text) and _FLAGS.fullmatch(text, at, at + 1):  # two letters are a flag, from the first of a run on
        return at - len(_FLAGS.match(text, max(0, at - _LONGEST), at)[0]) % 2
    first = at
    # Between two characters that never join any other, a cluster begins.
    while 0 < first < len(text) and at - first < _LONGEST:
        if _SINGLE.match(text, first - 1) and _SINGLE.match(text, first):
            break
        first -= 1
    for cluster in _CLUSTER.finditer(text, first, min(len(text), at + 1)) if first < at else ():
        if cluster.end() > at:
            return int(cluster.start())
    return at
