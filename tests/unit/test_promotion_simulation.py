"""The promotion check's promises in short simulations; `benchmarks.promotion` has the long ones.

The seeds are fixed. Each bound is passed by chance in less than one of a thousand choices of the seed if the promise
holds.
"""

from functools import partial

from benchmarks.promotion import Planned, any_promoted, promoted, promoted_as_independent

RUNS = 200


def count(simulate):
    return sum(simulate(seed) for seed in range(RUNS))


def test_equal_policies_are_rarely_promoted_however_many_questions_a_document_has():
    plan = Planned(40, 20)
    assert count(partial(promoted, plans=[plan])) <= 12  # 2.5% of 200 are 5
    assert count(partial(promoted_as_independent, plan=plan)) >= 14  # the first version's test: about 10%


def test_neither_is_any_of_several_candidates_in_turn():
    assert count(partial(any_promoted, plan=Planned(40, 20), candidates=5)) <= 12
    assert count(partial(any_promoted, plan=Planned(40, 20), candidates=5, spending=False)) >= 8


def test_five_points_are_found_with_the_documents_that_the_table_says():
    assert count(partial(promoted, plans=[Planned(108, 20, gain=0.05)])) >= 140  # 80% are 160


def test_a_group_that_got_worse_is_found_beside_needles_that_gain():
    gained = Planned(200, gain=0.3, discordance=0.4, correlation=0.0, margin=0.1)
    assert count(partial(promoted, plans=[gained, Planned(100, 5, gain=-0.05)])) <= 12
    assert count(partial(promoted, plans=[gained, Planned(100, 5, gain=-0.15)])) == 0
    assert count(partial(promoted, plans=[gained, Planned(100, 20, gain=0.05)])) >= 140
