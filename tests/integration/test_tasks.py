"""Independent tasks in Ray: their results, their errors, and what is lost with a worker."""

import os
import signal
from functools import partial
from itertools import islice
from pathlib import Path

import pytest

from infra.cluster.session import raised
from infra.cluster.tasks import run_tasks
from infra.store import Store
from memagent.errors import MemagentError, UsageError

pytestmark = pytest.mark.usefixtures("ray_in_process")


def square(number: int, folder: Path) -> int:
    """Return a number's square, and leave a file that says so."""
    (folder / str(number)).touch()
    return number * number


def fail(number: int, error: Exception) -> int:
    if number == 3:
        raise error
    return number


def die_once(number: int, mark: Path) -> int:
    if number == 2 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return number


@pytest.fixture
def store(tmp_path):
    return Store(str(tmp_path / "store"))


def test_each_item_is_worked_on_once(store, tmp_path):
    results = run_tasks(partial(square, folder=tmp_path), range(40), store, small=False)
    assert sorted(results) == [number * number for number in range(40)]


def test_who_wants_no_more_results_leaves_the_rest_undone(store, tmp_path):
    results = run_tasks(partial(square, folder=tmp_path), range(1_000), store, small=False)
    assert len(list(islice(results, 3))) == 3
    results.close()
    assert len([path for path in tmp_path.iterdir() if path.name.isdigit()]) < 100


@pytest.mark.parametrize(
    "error", [UsageError("say this"), MemagentError("say this")], ids=lambda one: type(one).__name__
)
def test_an_error_of_the_product_comes_as_it_is(store, error):
    with pytest.raises(MemagentError, match="say this") as caught:
        list(run_tasks(partial(fail, error=error), range(8), store, small=False))
    assert type(caught.value) is type(error)


def test_another_error_has_its_cause(store):
    with pytest.raises(OSError, match="no space is left") as caught:
        list(run_tasks(partial(fail, error=OSError(28, "no space is left")), range(8), store, small=False))
    assert getattr(raised(caught.value), "errno", None) == 28


def test_what_a_lost_worker_had_is_done_by_another(store, tmp_path):
    mark = tmp_path / "mark"
    assert sorted(run_tasks(partial(die_once, mark=mark), range(6), store, small=False)) == list(range(6))
    assert mark.exists()
