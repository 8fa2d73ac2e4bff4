"""The quotes of an answer: sentences of the document, in any script."""

import asyncio
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memagent.reading.evidence import Note, contradicted, gained, gather_evidence, says
from memagent.reading.folding import locate
from memagent.reading.segmenting import segments
from memagent.reading.tokens import Tokenizer
from tests.support.texts import ListStream, toy_tokenizer

TOKENIZER = Tokenizer(toy_tokenizer().to_str())


def evidence(text, memory, answer, size=4_000):
    return asyncio.run(gather_evidence(answer, [Note(0, memory)], ListStream(text, TOKENIZER, size)))


def test_the_segment_that_brought_the_answer_is_evidence():
    notes = [
        Note(2, "governed by law"),
        Note(5, "laws of the State of Nevada"),
        Note(9, "laws of the State of Nevada, 2014"),
    ]
    assert gained("Nevada", notes) == [5]


def test_an_answer_gained_in_parts_has_several_places():
    notes = [Note(1, "Mrs Smith"), Note(4, "Mrs Smith lives in Rome")]
    assert gained("Smith, Rome", notes) == [4, 1]


def test_what_was_lost_and_gained_again_counts_where_it_was_gained_last():
    notes = [Note(1, "Nevada"), Note(2, "nothing"), Note(3, "Nevada")]
    assert gained("Nevada", notes)[0] == 3


def test_an_answer_is_gained_where_words_are_joined_or_there_is_none():
    notes = [
        Note(1, "鍵は七番です。"),
        Note(3, "鍵は七番、責任者は山田花子さんです。"),
        Note(4, "責任者は山田花子。左は ☑。"),
    ]
    assert gained("山田花子", notes) == [3] and gained("☑", notes) == [4]


def test_no_answer_no_evidence():
    assert gained("", [Note(1, "x")]) == [] and gained("Nevada", [Note(1, "x")]) == []


def test_locate_ignores_case_and_line_breaks_but_not_word_edges():
    assert locate("State of nevada", "the STATE\n of  Nevada.") == (4, 21)
    assert locate("1", "in 1964") is None
    assert locate("", "x") is None


def test_a_text_says_an_answer_in_whole_words():
    assert says("In 2008's storm", ["2008"]) and says("the  Red\nHouse.", ["red house"]) and says("A (5) b", ["5"])
    assert not says("Chapter 15 of 25", ["5"]) and not says("anything", ["", "the"]) and not says("unRed", ["red"])


@pytest.mark.parametrize(
    ("text", "memory", "answer", "quote"),
    [
        ("It rained. The code is 4471. Lunch is at noon.", "The code is 4471.", "4471", "The code is 4471."),
        ("Go. By Dr. Ruhl of No. 5, it is -5. Yes.", "It is -5.", "-5", "By Dr. Ruhl of No. 5, it is -5."),
        (
            "A\nThe pact was signed in Os-\nlo by Ole. B",
            "Signed in Oslo",
            "Oslo",
            "The pact was signed in Os-\nlo by Ole.",
        ),
        ("鍵は七番です。責任者は山田さん。以上。", "責任者は山田", "山田", "責任者は山田さん。"),
        ("Pay 5 euros. The fee is 5 euros a year. He has 5.", "Fee: 5 euros a year", "5", "The fee is 5 euros a year."),
        ("It rained. The porter is Ivo Ruhl. End.", "Ivo Ruhl", "**Ivo Ruhl**.", "The porter is Ivo Ruhl."),
    ],
)
def test_the_quote_is_the_sentence_that_the_memory_took_the_answer_from(text, memory, answer, quote):
    (piece,) = evidence(text, memory, answer)
    assert piece.quote == quote == text[piece.quote_start : piece.quote_end] and piece.verbatim


def test_an_answer_in_other_words_has_the_sentences_that_support_it_best():
    text = "It rained. The tenant, Mr. Ames, moved in on Monday. The rent is paid by his sister Zoe. Nobody came."
    (piece,) = evidence(text, "Ames moved in on a Monday", "Monday (Ames)")
    assert piece.quote == "The tenant, Mr. Ames, moved in on Monday." and not piece.verbatim
    pieces = evidence(text, "Ames pays the rent with Zoe", "Ames, Zoe")
    assert {one.quote.split()[1] for one in pieces} == {"tenant,", "rent"} and not any(one.verbatim for one in pieces)
    assert all(text[one.quote_start : one.quote_end] == one.quote for one in pieces)


def test_a_segment_that_supports_nothing_has_no_quote():
    (piece,) = evidence("It rained all day. Nobody came.", "The code is 4471", "4471")
    assert (piece.quote, piece.quote_start, piece.verbatim) == ("", -1, False)


def test_a_quote_without_an_end_is_cut_around_the_answer_between_words():
    text = "word " * 900 + "the code is 4471 " + "more " * 900
    (piece,) = evidence(text, "the code is 4471", "4471", size=20_000)
    assert "code is 4471 more" in piece.quote and len(piece.quote) <= 1_000
    assert set(piece.quote.split()) == {"word", "more", "the", "code", "is", "4471"}


PLANTS = {  # words of filler, how a sentence ends, what a name is planted in, and names
    "Latin": (
        "the quick brown fox jumps over lazy dogs",
        ". ",
        "The keeper is {} of Bern",
        ["José Núñez", "Zoë O’Hara"],
    ),
    "Cyrillic": ("дом стоит на берегу большой реки", ". ", "Смотритель здесь {} из Твери", ["Иван Йорк", "Пётр Щукин"]),
    "Greek": ("το σπίτι είναι κοντά στη θάλασσα", ". ", "Ο φύλακας είναι {} από εδώ", ["Νίκη Ζώη", "Άρης Δήμου"]),
    "Arabic": ("البيت قريب من البحر الكبير", "؟ ", "الحارس هو {} من هنا", ["كَرِيم علي", "سامي نور"]),
    "Hebrew": ("הבית קרוב אל הים הגדול", ". ", "השומר הוא {} מכאן", ["משה לוי", "דָּוִד כהן"]),
    "Devanagari": ("घर बड़ी नदी के पास है", "। ", "यहाँ का रखवाला {} है", ["राम सिंह", "क्षिति वर्मा"]),
    "Chinese": ("房子 在 大河 旁边 天气 很好", "。", "管理员是{}先生", ["王晓明", "欧阳静"]),
    "Japanese": ("家は 大きな 川の そばに あります", "。", "責任者は{}さんです", ["山田花子", "佐藤ケン"]),
    "Korean": ("집은 큰 강 옆에 있다", ". ", "담당자는 {}입니다", ["김민수", "박지우"]),
    "Thai": ("บ้านอยู่ ใกล้แม่น้ำ อากาศดี มาก", " ", "ผู้จัดการชื่อ{}และเปิดทุกวัน", ["สมชาย", "สุดา ใจดี"]),
}


@pytest.mark.parametrize("script", PLANTS)
def test_planted_answers_have_their_quote_in_any_script(script):
    filler, end, frame, names = PLANTS[script]
    rng, quoted, joined = random.Random(script), 0, script in ("Chinese", "Japanese")
    for number in range(40):
        name = names[number % len(names)]
        sentences = [
            ("" if joined else " ").join(rng.choices(filler.split(), k=rng.randint(5, 9))).capitalize()
            for _ in range(60)
        ]
        planted = frame.format(name)
        sentences.insert(rng.randrange(60), planted)
        text = "".join(sentence + end for sentence in sentences)
        cut = segments("h", text, TOKENIZER, 1_500)
        at = next(i for i, segment in enumerate(cut) if text.index(planted) < segment.char_end)
        notes = [Note(0, sentences[0])] * (at > 0) + [Note(at, planted)]
        pieces = asyncio.run(gather_evidence(name, notes, ListStream(text, TOKENIZER, 1_500)))
        assert all(text[one.quote_start : one.quote_end] == one.quote for one in pieces if one.quote)
        whole = planted + end.strip()
        quoted += any(
            one.verbatim and (one.quote == whole or (script == "Thai" and planted in one.quote)) for one in pieces
        )
    assert quoted >= 38


WORDS = st.sampled_from(
    ["José Núñez", "王晓明", "김민수", "ﬃ", "Ka\u00adthe", "\u200b", "كَرِيم", "क्षि", "👩\u200d👧", "20 000 €", "a"]
)
PIECES = st.lists(st.one_of(WORDS, st.sampled_from([" ", ". ", "。", "\n", "-\n", "“", "’", "—"]), st.text(max_size=5)))


@given(PIECES, PIECES, WORDS)
@settings(deadline=None)
def test_every_quote_is_a_slice_of_the_document(before, after, answer):
    text = "".join([*before, answer, *after])
    for piece in evidence(text, "".join(["Noted: ", answer, *after[:3]]), answer):
        assert text[piece.quote_start : piece.quote_end] == piece.quote or (piece.quote, piece.quote_start) == ("", -1)
        assert piece.quote == piece.quote.strip() and (piece.quote or not piece.verbatim)
        assert text[piece.char_start : piece.char_end].find(piece.quote) >= 0


@pytest.mark.parametrize(
    ("answer", "memories", "said"),
    [
        ("700", ["gate-1 is 100", "gate-1 is 700; any other number is wrong"], "gate-1 is 100"),
        ("Rome", ["It was fine. The seat is in Paris.", "", "The seat is in Rome."], "The seat is in Paris."),
        ("700", ["gate-1 is 700", "gate-1 is 700 and gate-2 is 100"], ""),
        ("700", ["gate-2 is 100", "gate-2 is 100. gate-1 is 700"], ""),
        ("Rome", ["Ann was born in Paris", "Eve, Ann's mother, lives in Rome"], ""),
        ("700", ["nothing yet", "gate-1 is 700"], ""),
        ("700", ["gate-1 is 100"], ""),
        ("700", [], ""),
    ],
)
def test_an_earlier_memory_that_said_otherwise(answer, memories, said):
    notes = [Note(position, memory) for position, memory in enumerate(memories)]
    assert contradicted(answer, notes) == contradicted(answer, notes[::-1]) == said


@given(st.text(max_size=20), st.lists(st.text(max_size=60), max_size=4))
def test_a_memory_does_not_contradict_itself(answer, memories):
    assert contradicted(answer, [Note(number, memories[0]) for number, _ in enumerate(memories)]) == ""
