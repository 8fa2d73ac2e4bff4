"""Controls: the text does not tell, and nothing else has changed."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memagent.errors import UsageError
from memagent.evaluation.controls import CONTROLS, NEUTRAL, control, cut
from memagent.evaluation.ruler import KINDS, Asked, DraftRequest, find_kind, make_samples
from memagent.evaluation.texts import Sample
from memagent.reading.tokens import load_tokenizer

TEXTS = [f"Essay {i} tells of the harbor. " * 30 for i in range(20)]
PASSAGES = [(f"Town {i}", f"Town {i} lies by a river, by the way.") for i in range(200)]
ASKED = [
    Asked(f"Who built {i}?", (f"Arno Veld{i}",), ((f"Arno Veld{i}", f"He built {i}. So did Arno Veld{i}, I hear."),))
    for i in range(20)
]


@pytest.fixture(scope="module")
def nano():
    return load_tokenizer("memagent/nano/sft")


def make(kind, nano, length=4096, n=4):
    request = DraftRequest(find_kind(kind), length, nano, texts=TEXTS, paragraphs=PASSAGES, questions=ASKED)
    return list(make_samples(request, n, seed=0))


def sample(sample_id, text, answers=("Rome",), facts=(), task="t", **more):
    return Sample(
        sample_id, task, more.pop("length", 0), lambda: iter([text]), "Where?", answers, "part", facts, **more
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", CONTROLS)
def test_no_control_tells_the_answer(kind, name, nano):
    made = make(kind, nano)
    controls = list(control(made, name, seed=1))
    assert len(controls) == len(made)
    assert len({one.sample_id for one in [*made, *controls]}) == 2 * len(made)
    for before, after in zip(made, controls, strict=True):
        assert after.sample_id == f"{before.sample_id}~{name}"
        assert after.about["control"] == name and "control" not in before.about
        assert (after.question, after.answers, after.match) == (before.question, before.answers, before.match)
        assert after.facts == () and after.depth is None
        text = after.text()
        assert text and text == after.text() != before.text()
        assert not any(answer.lower() in text.lower() for answer in after.answers)
        assert not any(fact in text for fact in before.facts)


def test_without_document_a_short_text_stands_in_its_place(nano):
    (one, *_) = control(make("vt", nano), "no-document", seed=0)
    assert one.text() == NEUTRAL and one.length == 0


def test_a_wrong_document_is_another_samples_and_the_seed_decides_which(nano):
    made = make("niah_single_2", nano, n=12)
    texts = [one.text() for one in made]
    first, again, other = (
        [texts.index(one.text()) for one in control(made, "wrong-document", seed=seed)] for seed in (1, 1, 2)
    )
    assert first == again != other
    assert all(i != j for i, j in enumerate(first))


def test_a_wrong_document_has_the_same_length_where_there_is_one(nano):
    made = [*make("vt", nano, 2048, 2), *make("vt", nano, 4096, 2), *make("vt", nano, 3000, 1)]
    texts = {one.text(): one.length for one in made}
    lengths = [texts[one.text()] for one in control(made, "wrong-document", seed=0)]
    assert lengths[:4] == [2048, 2048, 4096, 4096] and lengths[4] != 3000


def test_a_wrong_document_holds_gold_only_where_all_do_and_says_so():
    made = [
        sample("a", "It lies in Rome.", facts=("It lies in Rome.",)),
        sample("b", "It lies near Rome.", facts=("It lies near Rome.",)),
        sample("c", "It lies in Paris.", ("Paris",), ("It lies in Paris.",)),
    ]
    a, _, c = control(made, "wrong-document", seed=0)
    assert a.text() == "It lies in Paris." and "gold_in_text" not in a.about and "Rome" in c.text()
    a, b = control(made[:2], "wrong-document", seed=0)
    assert a.text() == "It lies near Rome." and a.about["gold_in_text"] and b.about["gold_in_text"]
    assert "gold_in_text" not in made[0].about
    twice = [made[0], sample("d", "It lies in Rome.", facts=("It lies in Rome.",))]
    for alone in (made[:1], twice, [made[0], sample("e", "Nothing.", task="other")]):
        with pytest.raises(UsageError, match="no other sample of t"):
            list(control(alone, "wrong-document", seed=0))


def test_gold_is_cut_wherever_it_stands_as_a_word():
    text = "It lies in Rome. ROME is old; Romeo is not from rome's Rome-like suburbs. Yes."
    (one,) = control([sample("a", text, ("Rome", "yes"), ("It lies in Rome.",))], "answer-removed", seed=0)
    assert not re.search(r"(?i)\brome\b", one.text()) and "Romeo" in one.text() and "Yes." in one.text()


def test_what_has_nothing_to_lose_is_left_out():
    silent = sample("a", "It is far.", ("",))
    lacking = Sample("b", "clause", 0, lambda: iter(["Text."]), "A clause?", ("No",), "contract")
    having = Sample("c", "clause", 0, lambda: iter(["Clause. Text."]), "A clause?", ("Yes",), "contract", ("Clause.",))
    honest_no = sample("d", "It is not. Really.", ("no",), ("It is not.",))
    other = sample("f", "Another one.", ("yes",), ("Another one.",), task="clause")
    unknown = sample("e", "It is told in other words.", ("1.5 million",))
    made = [silent, lacking, having, honest_no]
    for name in ("no-document", "answer-removed"):
        assert [one.sample_id[0] for one in control(made, name, seed=0)] == ["c", "d"]
    assert [one.sample_id[0] for one in control([*made[:3], other], "wrong-document", seed=0)] == ["c", "f"]
    assert list(control([unknown], "answer-removed", seed=0)) == []


def test_an_unknown_control_is_refused():
    with pytest.raises(UsageError, match="There are: no-document"):
        control([], "no-answer", seed=0)


WORDY = st.text("abA b.", max_size=40)


@given(WORDY, st.lists(WORDY.map(lambda s: s[:4]), max_size=3), st.lists(st.text("abA", max_size=3), max_size=2))
def test_what_is_cut_is_gone_and_the_rest_is_kept(text, facts, words):
    left = cut(text, facts, words)
    assert not any(fact in left for fact in facts if fact.strip())
    assert not any(re.search(rf"(?i)(?<!\w){word}(?!\w)", left) for word in words if word)
    assert cut(left, facts, words) == left
    kept = iter(text.replace(" ", ""))
    assert all(letter in kept for letter in left.replace(" ", ""))
    if not any(fact in text for fact in facts if fact.strip()) and not any(
        word.lower() in text.lower() for word in words if word
    ):
        assert left == text
