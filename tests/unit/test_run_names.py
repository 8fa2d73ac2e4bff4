import pytest

from infra.store.runs import resolve
from memagent.errors import UsageError

KNOWN = ["20261122-071933-85a043", "20261123-071933-11ff00", "20261123-081933-aa00bb"]


@pytest.mark.parametrize(
    ("given", "means"), [("last", KNOWN[2]), (KNOWN[0], KNOWN[0]), ("20261122", KNOWN[0]), ("20261123-08", KNOWN[2])]
)
def test_a_run_is_named_by_id_beginning_or_last(given, means):
    assert resolve(given, KNOWN, "store") == means


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("20261123", f"2 begin so: {KNOWN[1]}, {KNOWN[2]}"),
        ("20261122-071933-85a034", f"did you mean '{KNOWN[0]}'"),
        ("nightly", f"the newest are: {', '.join(KNOWN)}"),
        ("", "the newest are"),
    ],
)
def test_what_is_none_or_several_is_said_with_the_nearest(given, says):
    with pytest.raises(UsageError, match=says):
        resolve(given, KNOWN, "store")


def test_where_there_is_no_run_last_is_none():
    with pytest.raises(UsageError, match="no training run 'last' in store; the newest are: none"):
        resolve("last", [], "store", "training run")
