"""Scheduled runs: which one a digest belongs to, and what became of it."""

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memagent.config import load_config
from memagent.errors import ConfigError
from memagent.quality.schedule import Digest, ScheduleConfig, scheduled_runs

DUE = ScheduleConfig(due="06:00")
AT = datetime(2026, 11, 24, 12, tzinfo=UTC)


def digest(started, minutes=60, status="completed", **more):
    at = datetime.fromisoformat(f"2026-11-{started}+00:00")
    ended = at + timedelta(minutes=minutes) if status not in ("running", "stopped") else None
    return Digest(started, at, ended, status, **{"readings": 100, **more})


def told(*digests, config=DUE, now=AT):
    return {(one.day.day, one.state, one.late) for one in scheduled_runs(digests, config, now)}


@pytest.mark.parametrize(
    ("one", "state"),
    [
        (digest("24T02:00"), ("completed", False)),
        (digest("23T22:00"), ("completed", False)),
        (digest("24T02:00", 300), ("completed", True)),
        (digest("24T10:00"), ("completed", True)),  # it was caught up with
        (digest("24T02:00", status="running"), ("running", True)),
        (digest("24T02:00", status="stopped"), ("half-answered", True)),
        (digest("24T02:00", status="paused", unread=40), ("half-answered", True)),
        (digest("24T02:00", status="completed with warnings", failed=2), ("completed with warnings", False)),
        (digest("24T02:00", status="failed", failed=3), ("failed", False)),
        (digest("24T02:00", withheld=True, failed=90), ("withheld", False)),
    ],
)
def test_a_night_is_what_its_last_digest_came_to(one, state):
    assert told(one) == {(24, *state)}


def test_nights_without_a_digest_are_missing_once_they_are_due():
    first = digest("20T02:00")
    missing = {(day, "missing", True) for day in (21, 22, 23, 24)}
    assert told(first) == {(20, "completed", False), *missing}
    early = datetime(2026, 11, 24, 5, 59, tzinfo=UTC)
    before = {(20, "completed", False), *(missing - {(24, "missing", True)})}
    assert told(first, now=early) == {*before, (24, "to come", False)}
    assert told() == set(), "a corpus without a digest has no scheduled runs"


def test_a_second_digest_makes_no_night_late_and_mends_a_bad_one():
    assert told(digest("24T02:00"), digest("24T11:00")) == {(24, "completed", False)}
    assert told(digest("24T02:00", status="stopped"), digest("24T03:00")) == {(24, "completed", False)}
    assert told(digest("24T02:00"), digest("24T11:00", status="stopped")) == {(24, "completed", False)}


@pytest.mark.parametrize("left", [dict(status="stopped"), dict(status="paused", unread=9)])
def test_a_digest_of_the_evening_hides_none_that_did_not_come_to_its_end(left):
    evening, broken_off = digest("23T20:00"), digest("24T02:00", **left)
    assert told(evening, broken_off) == {(24, "half-answered", True)}
    early = datetime(2026, 11, 24, 5, tzinfo=UTC)
    assert told(evening, broken_off, now=early) == {(24, "half-answered", False)}
    assert told(evening, digest("24T02:00", status="running"), now=early) == {(24, "running", False)}
    assert told(evening, broken_off, digest("24T03:00")) == {(24, "completed", False)}
    assert told(evening, broken_off, digest("24T11:00", status="running")) == {(24, "running", True)}
    assert told(evening, broken_off, digest("24T10:00")) == {(24, "completed", True)}
    assert told(evening, broken_off, config=ScheduleConfig()) == {(24, "half-answered", False)}


def test_where_nothing_is_due_nothing_is_late():
    config = ScheduleConfig()
    assert told(digest("24T02:00", 600), config=config) == {(24, "completed", False)}
    late = {
        one.problems[0] for one in scheduled_runs([digest("22T02:00", status="stopped")], config, AT) if one.problems
    }
    assert late == {"half-answered"}


def test_dates_are_those_of_the_time_zone():
    tokyo = ScheduleConfig(due="06:00", timezone="Asia/Tokyo")
    assert tokyo.of(datetime(2026, 11, 23, 17, tzinfo=UTC)) == date(2026, 11, 24)  # two at scheduled run there
    due = tokyo.due_at(date(2026, 11, 24))
    assert due is not None and due.astimezone(UTC) == datetime(2026, 11, 23, 21, tzinfo=UTC)


MOMENTS = st.datetimes(datetime(2020, 1, 1), datetime(2035, 1, 1), timezones=st.just(UTC))
ZONES = st.sampled_from(["UTC", "Europe/Berlin", "Asia/Kolkata", "America/New_York"])


@given(MOMENTS, st.sampled_from(["", "00:00", "06:00", "23:30"]), ZONES)
def test_every_moment_belongs_to_the_night_in_whose_window_it_is(at, due, zone):
    config = ScheduleConfig(due=due, timezone=zone)
    day = config.of(at)
    first, end = config.window(day)
    # Local times of a clock that is set back are there twice; they belong to the same scheduled run.
    assert first.replace(tzinfo=None) <= at.astimezone(first.tzinfo).replace(tzinfo=None) < end.replace(tzinfo=None)
    assert config.window(day + timedelta(days=1))[0] == end


@pytest.mark.parametrize(
    ("key", "value", "wrong"),
    [
        ("due", "6:00", "schedule.due"),
        ("due", "24:00", "schedule.due"),
        ("timezone", "Berlin", "no time zone"),
        ("notify", "slack", "write type/name"),
    ],
)
def test_what_cannot_be_is_said(key, value, wrong):
    with pytest.raises(ConfigError, match=wrong):
        load_config(**{f"schedule__{key}": value})


def test_a_digest_of_a_machine_whose_clock_was_ahead_hides_nothing():
    ahead = replace(digest("24T02:00"), run_id="ahead", started_at=datetime(2029, 8, 20, tzinfo=UTC))
    assert told(digest("23T02:00"), ahead) == {(23, "completed", False), (24, "missing", True)}
