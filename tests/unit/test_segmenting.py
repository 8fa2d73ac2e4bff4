from hypothesis import given, settings
from hypothesis import strategies as st

from memagent.reading import segmenting
from memagent.reading.segmenting import segments
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
    line = "the party shall pay. "
    text = line * 3 + "\n\n" + line * 20
    cut = list(segments("h", text, TOKENIZER, 40))
    assert all(segment.text.rstrip().endswith(".") for segment in cut[:-1])
    hard = list(segments("h", text, TOKENIZER, 40, "hard"))
    assert len(hard[0].token_ids) == 40


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
