"""Quality checks: what is withheld, what is not judged, and that sums add up."""

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memagent.quality.quality_checks import Quality, QualityConfig, QuestionQuality, breaches, total

LIMITS = QualityConfig()


def answers(n, found=None, chars=20, same=0.1, spread=5):
    """Sums of `n` answers, `found` of them found, `chars` long on average, a share of whose pairs is the same."""
    found = n if found is None else found
    pairs = found * (found - 1) // 2
    squared = found * (chars * chars + spread * spread)
    return QuestionQuality(n, found, found * chars, chars_squared=squared, pairs=pairs, same=round(pairs * same))


def digest(n=200, failed=0, empty=0, cut=0, question="q", **more):
    questions = {question: answers(n, **more)}
    return Quality(failed, n + failed, empty=empty, updates=3 * n, cut=cut, questions=questions)


def checks(new, before, **live):
    now, then = (live.get(name, {}) for name in ("live", "live_before"))
    return [breach["check"] for breach in breaches(new, before, LIMITS, live=now, live_before=then)]


GOOD = digest(300, found=200, failed=3, empty=90, cut=9)


@pytest.mark.parametrize(
    ("new", "check"),
    [
        (digest(found=10), "max_abstentions"),
        (digest(found=200), "max_abstentions"),  # a reader that finds everything is as strange
        (digest(found=133, failed=60), "max_failed"),
        (digest(found=133, empty=180), "max_empty"),
        (digest(found=133, cut=300), "max_cut"),
        (digest(400, found=266, same=0.9), "max_same"),
        (digest(found=133, chars=90), "max_length"),
        (digest(found=133, chars=4), "max_length"),
    ],
)
def test_a_night_unlike_the_good_ones_is_beyond_the_limit_that_it_breaches(new, check):
    assert checks(new, GOOD) == [check]
    mine = new.questions["q"]
    few = digest(20, found=20 * mine.found // mine.answers, failed=new.failed // 10, empty=new.empty // 10)
    assert checks(few, GOOD) == [], "a tenth of it is too little to tell"


@pytest.mark.parametrize("new", [GOOD, digest(found=133, failed=2, empty=60, cut=6), digest(0), Quality()])
def test_a_night_like_the_good_ones_and_one_without_anything_new_pass(new):
    assert checks(new, GOOD) == []
    assert checks(new, Quality()) == [], "there is nothing to compare it with"


def test_a_new_question_decides_nothing_in_its_first_night():
    new = digest(500, found=0, empty=500, question="new")
    assert checks(new, GOOD) == []
    assert checks(new + digest(found=133), GOOD) == []
    assert checks(new + digest(found=5), GOOD) == ["max_abstentions"], "the old one still does"


def test_answers_that_are_gone_breach_though_nothing_is_new():
    assert checks(Quality(), GOOD, live={"q": 700}, live_before={"q": 1000}) == ["max_fewer"]
    assert checks(Quality(), GOOD, live={"q": 801}, live_before={"q": 1000}) == []
    assert checks(Quality(), GOOD, live={"r": 10}, live_before={"q": 1000}) == [], "another question"
    assert checks(Quality(), GOOD, live={"q": 0}, live_before={"q": 49}) == [], "too few"
    assert checks(Quality(), GOOD, live={}, live_before={"q": 1000}) == [], "some are still to be read"


def two(broken, n=40, many=2000):
    """A digest of a large question like the good ones, and a small one."""
    return digest(many, found=2 * many // 3, question="large") + digest(n, question="small", **broken)


@pytest.mark.parametrize(
    ("broken", "check"),
    [({"found": 2}, "max_abstentions"), ({"chars": 200}, "max_length"), ({"chars": 4}, "max_length")],
)
def test_a_question_that_breaks_alone_is_named(broken, check):
    before = two({"found": 38}, n=60)
    (breach,) = breaches(two(broken), before, LIMITS, live={}, live_before={})
    assert (breach["check"], breach["question"]) == (check, "small") and "'small' alone" in breach["says"]
    few = LIMITS.model_copy(update={"question_sample": 41})
    assert not breaches(two(broken), before, few, live={}, live_before={})


def test_a_question_whose_readings_fail_or_whose_answers_are_gone_is_named():
    failing = QuestionQuality(40, 30, failed=30, tried=70)
    fine = QuestionQuality(60, 45, failed=1, tried=61)
    large = QuestionQuality(2000, 1500, tried=2000)
    new = Quality(30, 2070, questions={"small": failing, "large": large})
    before = Quality(1, 2061, questions={"small": fine, "large": large})
    stands = {"small": 100, "large": 4000}
    (breach,) = breaches(new, before, LIMITS, live=stands, live_before=stands)
    assert (breach["check"], breach["question"]) == ("max_failed", "small")
    assert not breaches(new, before, LIMITS, live={}, live_before={}), "it may be unread"
    unknown = Quality(1, 2061, questions={"small": QuestionQuality(60, 45), "large": large})
    assert not breaches(new, unknown, LIMITS, live=stands, live_before=stands)
    gone = {**stands, "small": 50}
    (breach,) = breaches(Quality(), before, LIMITS, live=gone, live_before=stands)
    assert (breach["check"], breach["question"]) == ("max_fewer", "small")


def remembering(n, empty=0, cut=0):
    """Sums of `n` answers whose memories, three of each, were empty or cut off so many times."""
    return replace(answers(n), remembered=n, empty=empty, updates=3 * n, cut=cut)


@pytest.mark.parametrize(
    ("broken", "check"), [({"empty": 30}, "max_empty"), ({"cut": 60}, "max_cut")], ids=["empty", "cut"]
)
def test_a_question_whose_memories_are_empty_or_cut_off_alone_is_named(broken, check):
    def of(small):
        questions = {"large": remembering(2000, empty=40, cut=60), "small": small}
        return Quality(readings=2040, empty=40 + small.empty, updates=6120, cut=60 + small.cut, questions=questions)

    def found(new, before, limits=LIMITS):
        return breaches(of(new), of(before), limits, live={}, live_before={})

    good, bad = remembering(60, empty=2, cut=3), remembering(40, **broken)
    (breach,) = found(bad, good)
    assert (breach["check"], breach["question"]) == (check, "small") and "'small' alone" in breach["says"]
    assert not found(good, good) and not found(remembering(40, empty=1, cut=2), good)
    assert not found(bad, good, LIMITS.model_copy(update={"question_sample": 41})), "readings, of which each has three"
    unknown = replace(good, remembered=0, empty=0, updates=0, cut=0)
    assert not found(bad, unknown), "the digests of earlier versions did not count them"
    assert found(bad, unknown + good), "but the good digests since did"


def test_what_all_questions_breach_is_said_once():
    every = digest(300, found=5, question="one") + digest(300, found=5, question="other")
    good = digest(300, found=200, question="one") + digest(300, found=200, question="other")
    assert checks(every, good) == ["max_abstentions"]


def test_chance_alone_holds_no_night():
    rng = random.Random(3)
    withheld = 0
    for _ in range(300):
        drawn = [rng.random() < 0.6 for _ in range(60)]
        before = [rng.random() < 0.6 for _ in range(60)]
        withheld += bool(checks(digest(60, found=sum(drawn)), digest(60, found=sum(before))))
    assert withheld <= 3, "a limit of 0.25 and an interval besides"


COUNTS = st.integers(0, 500)
QUESTIONS = st.dictionaries(st.sampled_from("abc"), st.builds(QuestionQuality, *[COUNTS] * 12), max_size=3)
NIGHTS = st.builds(Quality, *[COUNTS] * 5, questions=QUESTIONS)


@given(st.lists(NIGHTS, max_size=4))
def test_nights_add_up_in_any_order_and_are_read_as_they_were_written(digests):
    forward, back = total(digests), total(reversed(digests))
    assert (forward, dict(forward.questions)) == (back, dict(back.questions))
    assert forward.answers == sum(one.answers for one in digests)
    assert Quality.from_dict(forward.as_dict()) == forward


@given(NIGHTS, NIGHTS)
def test_any_two_nights_can_be_compared(new, before):
    for breach in breaches(new, before, LIMITS, live={}, live_before={}):
        assert breach["says"] and breach["limit"] == getattr(LIMITS, breach["check"])


def test_limits_of_one_never_hold():
    never = QualityConfig(
        max_failed=1, max_abstentions=1, max_empty=1, max_cut=1, max_same=1, max_length=1e9, max_fewer=1
    )
    bad = digest(found=1, failed=900, empty=200, cut=600, chars=5000)
    found = breaches(bad, GOOD, never, live={"q": 1}, live_before={"q": 999})
    assert found == []
