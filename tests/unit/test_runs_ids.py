from datetime import timedelta

import pyarrow as pa
import pytest

from infra.store.runs import by_end, run_id_or_new
from infra.store.schemas import now
from memagent.errors import UsageError


@pytest.mark.parametrize("given", ["../../x", "", "a/b", ".hidden", "x" * 129, "a\nb"])
def test_a_run_id_that_could_leave_its_folder_is_refused(given):
    with pytest.raises(UsageError, match="as in digest-2026-11-24"):
        run_id_or_new(given)


def test_a_plain_one_is_taken_and_without_one_each_run_has_its_own():
    assert run_id_or_new("digest-2026-11-24") == "digest-2026-11-24"
    assert run_id_or_new(None) != run_id_or_new(None)


def test_a_run_that_ended_in_the_future_is_not_the_last_one():
    ends = {"ahead": now() + timedelta(days=30), "second": now(), "first": now() - timedelta(days=1)}
    assert by_end(pa.table({"run_id": list(ends), "ended_at": list(ends.values())})) == ["ahead", "first", "second"]
