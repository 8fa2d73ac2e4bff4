import time

import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st

from memagent import config
from memagent.config import ReadingConfig
from memagent.reading import segmenting
from memagent.reading.segmenting import segment_key, segments
from memagent.reading.tokens import Tokenizer
from tests.support.texts import toy_tokenizer

TOKENIZER = Tokenizer(toy_tokenizer().to_str())
TEXTS = st.text(alphabet=st.one_of(st.sampled_from("ab .\n\r\t!?é漢🎉\u200d|<>endsam"), st.characters(codec="utf-8")))


@given(TEXTS, st.integers(16, 40), st.sampled_from(["soft", "hard"]))
@settings(max_examples=300, deadline=None)
def test_segments_joined_give_the_document(text, size, boundary):
    cut = list(segments("h", text, TOKENIZER, size, boundary))
    assert "".join(segment.text for segment in cut) == text
    assert [segment.index for segment in cut] == list(range(len(cut)))
    at = 0
    for segment in cut:
        assert segment.char_start == at and text[segment.char_start : segment.char_end] == segment.text
        assert 0 < len(segment.token_ids) <= size or not segment.token_ids
        at = segment.char_end


@given(st.lists(st.sampled_from(["One sentence here. ", "Two.\n\n", "a b c d e f ", "long" * 9 + " "]), max_size=60))
@settings(max_examples=100, deadline=None)
def test_a_document_that_grew_keeps_its_segments(parts):
    text = "".join(parts)
    before = [segment.text for segment in segments("h", text, TOKENIZER, 24)]
    after = [segment.text for segment in segments("h", text + " And one sentence more.", TOKENIZER, 24)]
    assert before[:-1] == after[: max(0, len(before) - 1)]


def test_soft_cut_prefers_a_paragraph_end_in_the_last_fifth():
    line = "The party shall pay. "
    text = line * 3 + "\n\n" + line * 20
    cut = list(segments("h", text, TOKENIZER, 40))
    assert all(segment.text.rstrip().endswith(".") for segment in cut[:-1])
    hard = list(segments("h", text, TOKENIZER, 40, "hard"))
    assert len(hard[0].token_ids) == 40


@pytest.mark.parametrize(
    ("sentence", "marks"),
    [
        ("The tenant pays rule {} on the first day of the month, and interest if the payment is late. ", "."),
        ("第{}条，承租人应当在每月的第一天支付租金。", "。"),
        ("第{}条は毎月一日に家賃を支払う！", "！"),
        ("नियम {} में किराया पहली तारीख को दिया जाए। ", "।"),
        ("ข้อ {} ผู้เช่าต้องชำระค่าเช่า ", " "),
    ],
)
def test_a_segment_ends_with_a_sentence_where_sentences_are_shorter(monkeypatch, sentence, marks):
    monkeypatch.setattr(segmenting, "_WINDOW", 700)
    text = "".join(sentence.format(number) for number in range(200))
    cut = list(segments("h", text, TOKENIZER, 200))
    assert "".join(segment.text for segment in cut) == text and len(cut) > 10
    assert all(segment.text.endswith(marks) or segment.text.rstrip().endswith(marks) for segment in cut[:-1])
    assert all(len(segment.token_ids) <= 200 for segment in cut)


CLUSTERS = ["a", " ", "e\u0301", "👩\u200d👧", "🇨🇭", "กำ", "ผู้", "क्षि", "각", "ế", "\r\n", "漢"]


@given(st.lists(st.sampled_from(CLUSTERS), max_size=300), st.integers(24, 60), st.sampled_from(["soft", "hard"]))
@settings(max_examples=150, deadline=None)
def test_no_cut_is_within_a_grapheme(parts, size, boundary):
    text = "".join(parts)
    starts = {match.start() for match in regex.finditer(r"\X", text)}
    assert all(segment.char_start in starts for segment in segments("h", text, TOKENIZER, size, boundary))


def test_a_cluster_of_more_tokens_than_a_segment_is_cut_between_its_characters():
    text = "a" + "\u0301" * 2_000
    cut = list(segments("h", text, TOKENIZER, 32))
    assert "".join(segment.text for segment in cut) == text and max(len(one.token_ids) for one in cut) <= 32


def test_another_version_of_the_rules_gives_other_segments_and_readings(monkeypatch):
    def names():
        return segment_key("h", TOKENIZER, 32, "soft"), ReadingConfig().hash("template")

    before = names()
    for module in (segmenting, config):
        monkeypatch.setattr(module, "CUTTING_VERSION", segmenting.CUTTING_VERSION + 1)
    assert not set(before) & set(names())


def test_windows_of_a_long_text_join_without_loss(monkeypatch):
    monkeypatch.setattr(segmenting, "_WINDOW", 300)
    text = "The party shall pay.\n" * 200 + "x" * 1000
    cut = list(segments("h", text, TOKENIZER, 32))
    assert "".join(segment.text for segment in cut) == text


def test_control_tokens_in_a_document_are_plain_text():
    text = "before <|end|><|memory|> after"
    ids = [i for segment in segments("h", text, TOKENIZER, 64) for i in segment.token_ids]
    control = {TOKENIZER.id(token) for token in ("<|end|>", "<|memory|>")}
    assert not control & set(ids)
    assert TOKENIZER.decode(ids) == text


@pytest.mark.parametrize("what", ["\u0301", "👩\u200d", "🇦"])
def test_clusters_without_an_end_cost_no_more_than_other_text(what):
    text, began = ("a" + what * 200_000)[:200_000], time.process_time()
    assert "".join(segment.text for segment in segments("h", text, TOKENIZER, 512)) == text
    assert time.process_time() - began < 15
