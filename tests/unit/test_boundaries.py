"""Sentences and grapheme clusters, in any script."""

from itertools import pairwise

import pytest
import regex
from hypothesis import example, given
from hypothesis import strategies as st

from memagent.reading.boundaries import grapheme_start, sentence_ends


def sentences(text):
    ends = [0, *sentence_ends(text, whole=True), len(text)]
    return [text[low:high] for low, high in pairwise(ends)]


@pytest.mark.parametrize(
    "parts",
    [
        ["Rent is due. ", "It rose (by 3 percent). ", "Why? ", "Nobody knows."],
        ["Плата растёт. ", "Почему? ", "Никто не знает."],
        ["Το ενοίκιο ανεβαίνει. ", "Γιατί; ", "Άγνωστο."],
        ["ارتفع الإيجار. ", "لماذا؟ ", "لا أحد يعلم."],
        ["کرایہ بڑھ گیا۔ ", "کیوں؟ ", "نامعلوم۔"],
        ["השכירות עלתה. ", "למה? ", "איש אינו יודע."],
        ["किराया बढ़ा। ", "क्यों? ", "पता नहीं॥"],
        ["租金上涨了。", "为什么？", "“没人知道。”", "真的！"],
        ["家賃が上がった。", "「なぜ？」と聞いた。", "（不明。）", "以上。"],
        ["월세가 올랐다. ", "왜? ", "아무도 모른다.", "끝."],
        ["ኪራይ ጨመረ። ", "ለምን፧ ", "አይታወቅም።"],
        ["ငှားရမ်းခတက်သည်။ ", "အဘယ်ကြောင့်၊ ", "မသိ။"],
        ["ཁང་གླ་འཕར། ", "སུས་ཀྱང་མི་ཤེས།"],
        ["ថ្លៃឡើង។ ", "មិនដឹង។"],
        ["Վարձը բարձրացավ։ ", "Չգիտեն։"],
    ],
)
def test_sentences_end_at_the_marks_of_their_script(parts):
    assert sentences("".join(parts)) == parts


@pytest.mark.parametrize(
    "parts",
    [
        ["Dr. Ruhl met Mrs. Odu of No. 7, St. James. ", "It rained."],
        ["J. R. Ames and the U.S. Army came at 5 p.m. ", "Doors close."],
        ["It costs approx. 5 euros, e.g. Monday. ", "In 2019. ", "12 people came."],
        ["See a.test/?q=1, b.c and v1.5 now. ", "Then go."],
        ['"Stop!" he said... and left. ', "“Go.” ", "She did."],
        ["Am 3. Mai kam z.B. Otto. ", "„Ja.“ ", "Danach."],
        ["د. سامي هنا. ", "نعم."],
        ["1. The rent.\n", "2. The fee.\n", "(a) The rest"],
        ["Signed by Mr.\n\n", "A new part"],
        ["Heading\n", "A line that is so long that it was wrapped\nin it, and after a hy-\nphen. ", "Yes."],
        ["Governed by the laws of the \nState of Illinois within\n30 days. ", "What for? ", "Rent."],
        ["Pacht an die\r\nStadt. ", "Signed by:\n", "Ann on behalf of\n\n", "Exhibit A\n", "The-the\n", "End"],
        ["a row\tof a table that is longer than a line of\ttext\n", "another\trow\n", "x"],
        ["name: x\n", "value: y\r\n\r\n", "end"],
    ],
)
def test_what_only_looks_like_the_end_of_a_sentence_is_none(parts):
    assert sentences("".join(parts)) == parts


def test_segments_may_end_with_a_line_within_a_sentence():
    assert [*sentence_ends("the laws of the\nState of Ohio.")] == [len("the laws of the\n")]


@example("?\x1f")  # Python calls this separator white space, Unicode does not
@given(st.text(alphabet=st.one_of(st.sampled_from(".!?。 \n\r\"'」「)(aA1é,"), st.characters(codec="utf-8"))))
def test_ends_are_within_the_text_in_order_and_after_no_white_space(text):
    ends = list(sentence_ends(text))
    assert ends == sorted(set(ends)) and all(0 < end < len(text) for end in ends)
    assert not any(regex.match(r"\s", text, pos=end) for end in ends)


@given(st.text(alphabet=st.one_of(st.sampled_from("a\u0301\u200d👩👧🇨🇭각ᄀ\r\nक्ष"), st.characters(codec="utf-8"))))
def test_a_grapheme_begins_where_the_annex_says(text):
    for cluster in regex.finditer(r"\X", text):
        assert {grapheme_start(text, at) for at in range(*cluster.span())} == {cluster.start()}
    assert grapheme_start(text, len(text)) == len(text)
