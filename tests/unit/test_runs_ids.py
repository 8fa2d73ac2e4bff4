import pytest

from infra.store.runs import run_id_or_new
from memagent.errors import UsageError


@pytest.mark.parametrize("given", ["../../x", "", "a/b", ".hidden", "x" * 129, "a\nb"])
def test_a_run_id_that_could_leave_its_folder_is_refused(given):
    with pytest.raises(UsageError, match="as in digest-2026-11-24"):
        run_id_or_new(given)


def test_a_plain_one_is_taken_and_without_one_each_run_has_its_own():
    assert run_id_or_new("digest-2026-11-24") == "digest-2026-11-24"
    assert run_id_or_new(None) != run_id_or_new(None)
