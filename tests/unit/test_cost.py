"""Prices, and budgets of engine time, tokens and money."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memagent.config import load_config
from memagent.errors import ConfigError
from memagent.quality.cost import CostConfig, Usage
from pipelines.views.formatting import cost_of, exit_status, status_of

USAGE = Usage(prompt_tokens=3_000_000, cached_tokens=1_000_000, output_tokens=500_000, engine_seconds=5400)
COUNTS = st.integers(0, 10**9)
USAGES = st.builds(Usage, COUNTS, COUNTS, COUNTS, st.floats(0, 1e6))


def test_money_is_engine_hours_and_tokens():
    assert CostConfig(engine_hour=2.0).money(USAGE) == pytest.approx(3.0)
    assert CostConfig(input_mtok=1.0, output_mtok=4.0).money(USAGE) == pytest.approx(3 + 2)
    assert CostConfig(input_mtok=1.0, cached_mtok=0.1, output_mtok=4.0).money(USAGE) == pytest.approx(2 + 0.1 + 2)
    assert CostConfig().money(USAGE) == 0 and not CostConfig().has_price


@pytest.mark.parametrize(
    ("budget", "spent"),
    [("5400s", True), ("90min", True), ("2h", False), ("3.5Mtok", True), ("3501ktok", False), ("3EUR", True)],
)
def test_a_budget_is_spent_once_usage_reaches_it(budget, spent):
    prices = load_config(cost__budget=budget, cost__engine_hour=2.0).cost
    assert prices.limit is not None and prices.limit.is_spent(USAGE, prices) is spent
    assert not prices.limit.is_spent(Usage(), prices)


@pytest.mark.parametrize(
    ("budget", "wrong"),
    [
        ("2", "a number above 0 and its unit, one of s, min, h"),
        ("0h", "a number above 0"),
        ("-1h", "a number above 0"),
        ("2hours", "a number above 0"),
        ("5MTOK", "a number above 0"),
        ("5EUR", "no price is set: give cost.engine_hour"),
        ("5USD", "not in cost.currency, which is EUR"),
    ],
)
def test_a_budget_that_cannot_be_says_what_can(budget, wrong):
    with pytest.raises(ConfigError, match=wrong):
        load_config(cost__budget=budget)


@given(USAGES, USAGES)
def test_usage_adds_and_what_is_left_is_never_below_nothing(a, b):
    both = a + b
    assert both == b + a
    left = a.less(both)
    assert left == Usage(0, 0, 0, 0.0)
    assert (both.less(b).prompt_tokens, both.less(b).output_tokens) == (a.prompt_tokens, a.output_tokens)


def test_a_paused_run_has_a_status_of_its_own_whether_or_not_something_failed():
    paused = {"readings": {"unread": 3}, "failures_by_reason": {"ItemError": 1}}
    assert (status_of(paused), exit_status(paused)) == ("paused", 3)
    failed = {"readings": {}, "failures_by_reason": {"ItemError": 1}}
    assert (status_of(failed), exit_status(failed)) == ("failed", 1)
    assert (status_of({"readings": {}}), exit_status({})) == ("completed", 0)


@pytest.mark.parametrize(
    ("limit", "of_100", "sources", "documents", "status"),
    [
        ("", 2, 0, 40, "completed with warnings"),
        ("", 3, 0, 40, "failed"),
        ("", 0, 39, 1, "completed with warnings"),
        ("", 0, 1, 0, "failed"),  # nothing was read
        ("3", 3, 3, 40, "completed with warnings"),
        ("3", 0, 4, 40, "failed"),
        ("0", 0, 1, 40, "failed"),
        ("2.5%", 0, 1, 39, "completed with warnings"),
        ("2.5%", 0, 1, 38, "failed"),
        ("50%", 51, 0, 40, "failed"),
    ],
)
def test_failures_within_the_limit_are_warnings(limit, of_100, sources, documents, status):
    summary = {
        "readings": {"total": 100},
        "failures_by_reason": {"EngineError": of_100},
        "ingest": {"quarantined": {"pdf": sources}},
        "documents": documents,
        "config": {"max_failed": limit},
    }
    assert (status_of(summary), exit_status(summary)) == (status, 1 if status == "failed" else 5)


@pytest.mark.parametrize(
    ("limit", "unread", "status"),
    [
        ("", 3, "failed"),
        ("", 2, "completed with warnings"),
        ("60%", 2, "failed"),
        ("70%", 2, "completed with warnings"),
        ("2", 3, "failed"),
    ],
)
def test_documents_of_before_hide_no_sources_that_cannot_be_read(limit, unread, status):
    ingest = {"quarantined": {"unreadable": unread}, "sources": 3, "failed": unread, "unread": unread}
    assert status_of({"ingest": ingest, "documents": 3, "config": {"max_failed": limit}}) == status


def test_a_limit_is_a_number_or_a_percent():
    assert load_config(sets=["max_failed=3"]).max_failed == "3"
    assert load_config(sets=["max_failed=5%"]).max_failed == "5%"
    for wrong in ("5 %", "-1", "a few", "%"):
        with pytest.raises(ConfigError, match=r"^max_failed: '.*': write a number or a percent, as in 3 or 5%$"):
            load_config(max_failed=wrong)


def test_a_summary_says_engine_time_and_price():
    assert cost_of({}) == ""
    assert cost_of({"engine_uptime": 90}) == "1 min 30 s of engines"
    priced = {"engine_uptime": 3600, "config": {"cost": {"engine_hour": 2.5, "currency": "USD"}}}
    assert cost_of(priced) == "1 h 00 min of engines, 2.50 USD"
