"""Patterns that foreign text is searched with take time in proportion to it.

Measured by growth, in the processor's time: four times the text may take eight times as long, and not sixteen (the
square) or sixty-four (the cube).
"""

import re
import time
from collections.abc import Callable
from datetime import datetime

import pytest

from examples.nano import contract_places
from infra import sources
from infra.sources import decoding, excel, html, mail, office, style_sheets, text, word
from memagent.evaluation import contracts, needles
from memagent.evaluation.contract_match import _DURATION
from memagent.evaluation.loaders import public
from memagent.evaluation.ruler import haystack as haystacks
from memagent.evaluation.ruler import qa as documents
from memagent.quality import question_writer as questioning
from memagent.reading import boundaries, folding, scripted, segmenting
from pipelines.io.answers import _pattern

_N = 3000
_GROWTH = 8


def searched(pattern: "re.Pattern[str]") -> Callable[[str], object]:
    return lambda text: [match.span() for match in pattern.finditer(text)]


def beginning(pattern: "re.Pattern[bytes]") -> Callable[[str], object]:
    return lambda text: pattern.match(text.encode())


HOSTILE = {
    "answers by a pattern of stars": (_pattern("*a" * 4 + "*b"), "{}", "a"),
    "a heading of white space": (text._first_heading, "# x{}y", " "),
    "a heading of marks": (text._first_heading, "# x{} y", " #"),
    "headings": (text._first_heading, "{}", "# \n"),
    "a date after white space": (searched(contracts.DATE), "1{}x", " "),
    "a day and white space": (searched(contracts.DATE), "January{}x", " 1 "),
    "a law": (searched(contract_places._CLAUSE), "{}", "governed "),
    "a written question": (questioning.parse, "{}", "\n"),
    "a written question of stars": (questioning.parse, "question:{}\nx", "*"),
    "a written question of colons": (questioning.parse, "question{}", ":"),
    "a written answer": (questioning.parse, "{}", "question: x\n\n"),
    "a value of dashes": (searched(scripted._VALUE), "is {}!x", "-"),
    "a scripted sentence": (searched(scripted._SENTENCE), "{}", ".a"),
    "a duration": (searched(_DURATION), "one{}x", " "),
    "durations": (searched(_DURATION), "{}", "one calendar "),
    "paragraphs": (searched(segmenting._PARAGRAPH), "{}x", "\n \t"),
    "a paragraph": (searched(segmenting._PARAGRAPH), "\n{}x", " "),
    **{
        f"sentences of {part!r}": (lambda text: list(boundaries.sentence_ends(text)), "A{}x", part)
        for part in (".'", "'", ". ", "a.b.", "1. ", "! ", "。「", "a-\n", "a, \n", "\u0301", "A.\n")
    },
    "flags": (lambda text: boundaries.grapheme_start(text, len(text) - 1), "{}", "\U0001f1e8"),
    "a needle's place": (searched(needles._ENDS), "{}x", ".)"),
    "a haystack's sentence": (searched(haystacks._END), "{}x", ".)"),
    "a document's sentence": (searched(documents._SENTENCE), "a{}x", ".)"),
    "a paragraph's sentence": (searched(public._SENTENCE_END), "{}x", ".'"),
    "RULER's question": (searched(public._QUESTION), "{}", "Question: "),
    "RULER's needle": (searched(public._QUESTION), "What is the special magic {}", "x "),
    "nothing": (decoding.blank, "{}x", " \u200b"),
    "an XML declaration": (searched(html._DECLARATION), "<?xml {}", "?"),
    "the end of a page": (html._END_TAGS.findall, "{}", "</html "),
    "a style": (searched(html._DISPLAYED), "{}", "display:a "),
    "a font": (searched(html._FONT), "{}", "font:"),
    "sheets of a chapter": (lambda text: html._SHEET.findall(text.encode()), "{}", "<link "),
    "what a style counts": (style_sheets._DECLARED.findall, "content:{}", "'a\""),
    "kinds of what a style counts": (style_sheets._DECLARED.findall, "{}", "content:"),
    "a selector": (searched(style_sheets._COMPOUND), "a{}", " > .a-"),
    "a selector of white space": (searched(style_sheets._COMPOUND), "a{}", " "),
    "what a style writes": (style_sheets._CONTENT.findall, "{}", "counters(a, "),
    "a style sheet without rules": (style_sheets.style_rules, "{}", "a.b "),
    "notes in a style sheet": (style_sheets._NO_RULE.findall, "{}", "/* "),
    "rules of a style sheet for others": (style_sheets._CONDITION.findall, "{}", "@media{a{} "),
    "conditions of a style sheet": (style_sheets._CONDITION.findall, "@media x {{{}", "{a{} "),
    "cells before numbers": (mail._EMPTY_CELL.findall, "{}", "\t\t"),
    "words that a style writes": (style_sheets._CONTENT.findall, "'{}", "\\a"),
    "an encoding and blanks": (
        lambda text: mail._SPACED.sub(b"", text.encode()),
        "{}",
        "Content-Transfer-Encoding: a ",
    ),
    "an encoding before blanks": (
        lambda text: mail._SPACED.sub(b"", text.encode()),
        "Content-Transfer-Encoding:{}",
        " ",
    ),
    "lines of a calendar": (mail._meeting, "{}", "SUMMARY;\n"),
    "zones of a calendar": (mail._meeting, "SUMMARY{}", ";TZID=a"),
    "words in quotes in a calendar": (mail._meeting, "SUMMARY;{}", '"a'),
    "a kind with no encoding": (lambda text: mail._CHARSET.search(text.encode()), "Content-Type:{}", "; \n charse"),
    "kinds with no encoding": (lambda text: mail._CHARSET.search(text.encode()), "{}", "Content-Type: a;\n "),
    "the headers of no mail": (beginning(sources._BY_CONTENT[-1][0]), "{}", "Name: x\r\n y\r\n"),
    "the beginning of no table": (beginning(sources._BY_CONTENT[1][0]), "<table {}", "a \n"),
    "the beginning of no mailbox": (beginning(sources._MARKUP), "From a {}\n", " 10:10"),
    "letters that are no base64": (mail._from_base64, "{}-", "abc\n"),
    "marks of rich text": (text._RTF.findall, "{}", "\\v"),
    "pictures of rich text": (text._RTF_PICTURE.findall, "{}", "\\picscalex1\\picscaley1 "),
    "lettering of rich text": (text._RTF_LETTERING.findall, "{}", "{\\sp {\\sn gtextUNICODE}"),
    "the title of rich text": (searched(text._RTF_TITLE), "{}", "{\\title "),
    "spaces of names in a binding": (word._PREFIX.findall, "{}", "xmlns:a='\" "),
    "a space of names in a binding": (word._PREFIX.findall, "xmlns:a{}", " "),
    "the size of a picture": (office._SIZE.findall, ";{}", " "),
    "sizes of a picture": (office._SIZE.findall, "{}", ";width:1"),
    "a number's format": (lambda code: excel.shown(1.0, code, datetime(1900, 1, 1)), "{}", "[$"),
    **{
        f"folding {part!r}": (lambda text: folding.FoldedText(text).places("a b"), "{}x", part)
        for part in ("a-\n", " \u00ad", "- ", "\n ", "\u0301", "\u00ad \n", "ᄀ", "漢 ")
    },
    "a place in a text": (lambda text: folding.locate("a a a a b", text), "{}", "a "),
    "a place in white space": (lambda text: folding.locate("a b", text), "{}", "a  "),
}

_MEASURABLE = 1e-3
"""Seconds below which a time says nothing."""


@pytest.mark.parametrize("name", HOSTILE)
def test_time_grows_with_the_text_and_no_faster(name: str) -> None:
    search, frame, part = HOSTILE[name]

    def seconds(count: int) -> float:
        text = frame.format(part * (count // len(part)))
        best = float("inf")
        for _ in range(5):
            begun = time.process_time()
            search(text)
            best = min(best, time.process_time() - begun)
        return best

    size = _N
    while (once := seconds(size)) < _MEASURABLE and size < 32 * _N:
        size *= 2
    assert once < 5, "far too long already"
    # What is quadratic is so at every look; what else the machine does lengthens one look or the other.
    looks = []
    while len(looks) < 5 and not any(later < _GROWTH * max(first, _MEASURABLE) for first, later in looks):
        looks.append((seconds(size), seconds(4 * size)))
    assert any(later < _GROWTH * max(first, _MEASURABLE) for first, later in looks), looks
