"""Words are found however they are written, and what is found is a slice of the text."""

import time
import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from memagent.reading.folding import _CHANGED, _CHANGED_ASCII, FoldedText


def found(words, text):
    return [text[start:end] for start, end in FoldedText(text).places(words)]


@pytest.mark.parametrize(
    ("words", "text", "there"),
    [
        ("renée zoë", "by Rene\u0301e Zoe\u0308.", "Rene\u0301e Zoe\u0308"),
        ('D\'Arcy "the elder"', "is D’Arcy “the elder”", "D’Arcy “the elder”"),
        ("common weal of Oslo", "the com-\n  mon weal of Oslo", "com-\n  mon weal of Oslo"),
        ("office flow", "the oﬃce ﬂow", "oﬃce ﬂow"),
        ("Magdalena", "by Mag\u00adda\u200ble\u2060na.", "Mag\u00adda\u200ble\u2060na"),
        ("12 500 €", "costs 12\u202f500\u00a0€ now", "12\u202f500\u00a0€"),
        ("5", "pages 3–5", "5"),
        ("60€", "50€–60€", "60€"),
        ("10°C", "5°–10°C", "10°C"),
        ("500 dollars", "The fee —500 dollars— is due", "500 dollars"),
        ("2020", "2019 –2020", "2020"),
        ("-5", "fell to −5", "−5"),
        ("AB-12-9", "code AB‑12–9.", "AB‑12–9"),
        ("a - b", "it is a—b", "a—b"),
        ("tel. 042", "Ｔｅｌ．　０４２です", "Ｔｅｌ．　０４２"),
        ("42", "रुपये ४२ या ٤٢", "४२"),
        ("山田花子", "担当は山田\n花子さん", "山田\n花子"),
        ("東京 Tower", "東京tower", "東京tower"),
        ("STRASSE", "Straße", "Straße"),
        ("ΟΔΟΣ ΕΡΜΟΥ", "στην οδός Ερμού", "οδός Ερμού"),
        ("İZMİR", "izmir", "izmir"),
        ("محمد", "هو مُحَمَّد.", "مُحَمَّد"),
        ("שלום", "אמר שָׁלוֹם.", "שָׁלוֹם"),
        ("☑", "left ☑, right ☐", "☑"),
        ("-7", "is -7.", "-7"),
        ("10^6", "up to 10⁶ units", "10⁶"),
        ("10⁻²³", "some 10^-23 m", "10^-23"),
        ("3 1/2", "within 3½ years", "3½"),
        ("50 m2", "of 50 m² in all", "50 m²"),
    ],
)
def test_words_are_found_however_they_are_written(words, text, there):
    assert found(words, text)[0] == there


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("5", "15, 1.5 and 2,500"),
        ("5", "fell to -5 °C"),
        ("$5.2", "a net of −$5.2 million"),
        ("-5", "pages 3–5 and 3 – 5"),
        ("500", "a loss of -$500"),
        ("-60€", "50€–60€"),
        ("red", "unred reds"),
        ("김민수", "담당자는 김민숙"),
        ("क", "कि की"),
        ("ชา", "ชำ"),
        ("cafe", "café"),
        ("106", "10⁶"),
        ("10⁶", "106"),
        ("31/2", "3½"),
        ("2", "within ½ year"),
        ("6", "up to 10⁶ units"),
        ("カタ", "カタカナ"),
        ("the", "Ka\u00adthe\u00adrine"),
        ("", "x"),
        (" \u200b", "x"),
    ],
)
def test_a_part_of_a_word_is_not_the_word(words, text):
    assert not found(words, text)


def test_a_word_with_a_particle_or_prefix_is_found_where_it_stands_nowhere_alone():
    assert found("박지우", "담당은 박지우입니다") == ["박지우"]
    assert found("박지우", "박지우입니다. 박지우") == ["박지우"] and FoldedText("박지우입니다. 박지우").places(
        "박지우"
    ) == [(8, 11)]
    assert found("חיפה", "גר בחיפה.") == ["חיפה"] and found("الرباط", "في والرباط.") == ["الرباط"]


def test_a_possessive_a_compound_and_an_elision_have_the_word():
    assert found("Nevada", "Nevada's, non-Nevada and d’Nevada") == ["Nevada"] * 3


WRITTEN = [
    str,
    str.upper,
    lambda text: unicodedata.normalize("NFD", text),
    lambda text: unicodedata.normalize("NFKC", text),
    lambda text: text.replace(" ", "\u00a0\n"),
    lambda text: "\u00ad".join(unicodedata.normalize("NFC", text)),
]
NAMES = [
    "Ana Núñez",
    "Иван Йорк",
    "Νίκη Ζώη",
    "كريم علي",
    "משה לוי",
    "राम सिंह",
    "王晓明",
    "山田ガク",
    "김민수",
    "สมชาย ใจดี",
]


@given(st.sampled_from(NAMES), st.sampled_from(WRITTEN), st.text(), st.text())
@example("Ana Núñez", str.upper, "ﬃ", "\u00ad")
def test_what_is_found_is_a_slice_that_reads_the_same(name, written, before, after):
    text = f"{before} | {written(name)} | {after}"
    places = FoldedText(text).places(name)
    assert places and all(0 <= start < end <= len(text) for start, end in places)
    assert all(FoldedText(text[start:end]).folded == FoldedText(name).folded for start, end in places)


@given(st.text(alphabet=st.one_of(st.sampled_from("ab-- \t\n\r\x0b\x1c`'\""), st.characters(max_codepoint=127))))
@example("co-\n operate - and\t--  so-\non -a b-")
def test_ascii_is_folded_as_by_the_pattern_of_all_scripts(text):
    found = [[(match.lastgroup, match.span()) for match in one.finditer(text)] for one in (_CHANGED, _CHANGED_ASCII)]
    assert found[0] == found[1]


def test_marks_without_an_end_cost_no_more_than_other_text():
    began = time.process_time()
    assert found("b", "a" + "\u0301" * 40_000 + " b") == ["b"]
    assert time.process_time() - began < 10
