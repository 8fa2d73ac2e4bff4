import random
from dataclasses import replace

import pytest

from memagent.evaluation import contracts, needles
from memagent.evaluation.controls import reword
from memagent.evaluation.texts import Sample

KNOWN = {wording for kind in needles.QUESTIONS.values() for wording in kind}


def sample(needle, **about):
    facts = (needle.sentence,)
    return Sample("s", "niah", 8, lambda: iter(()), needle.question, (needle.value,), "all", facts, about=about)


@pytest.mark.parametrize("kind", needles.KINDS)
def test_the_same_needle_is_asked_in_another_wording(kind):
    rng = random.Random(0)
    for seed in range(40):
        (one,) = needles.make_needles(rng, kind, 1)
        (made,) = reword([sample(one)], seed)
        wordings = {wording.format(key=one.key) for wording in needles.REWORDED[kind]}
        assert made.question in wordings and made.question != one.question
        assert (made.answers, made.sample_id) == ((one.value,), "s~reworded")
        last = needles.REWORDED[kind][-1].format(key=one.key)
        assert made.about["taught"] == (made.question != last)
        assert [again.question for again in reword([sample(one)], seed)] == [made.question]


def test_contracts_are_asked_in_another_wording_and_what_has_none_is_left_out():
    (one,) = needles.make_needles(random.Random(0), "word", 1)
    about = [sample(one, category=name) for name in (*contracts.CATEGORIES, "Expiration Date")]
    made = list(reword(about, 0))
    assert [one.question in contracts.REWORDED[one.about["category"]] for one in made] == [True] * 3
    several = replace(sample(one), facts=(one.sentence, one.sentence))
    assert not list(reword([several, replace(several, facts=())], 0))


def test_no_supervised_training_has_these_wordings():
    for kind, wordings in needles.REWORDED.items():
        assert not set(wordings) & KNOWN and not set(wordings) & set(needles.QUESTIONS[kind])
        assert all("{key}" in wording for wording in wordings)
    for category, asked in contracts.REWORDED.items():
        assert not set(asked) & set(contracts.QUESTIONS[category])
