"""Jobs, in Ray Data and in this process: each item is worked on once, and what is lost with a worker is done again."""

import asyncio
import errno
import os
import signal
from functools import partial
from itertools import islice
from pathlib import Path

import pytest

from infra.cluster import session
from infra.cluster.board import Board, RemoteBoard
from infra.cluster.jobs import EngineWork, run_job
from infra.cluster.placement import check_fits
from infra.cluster.session import board_name
from infra.store.delta import Table
from infra.store.location import Corpus, Store, storage_error
from memagent.config import PoolConfig, load_config
from memagent.errors import ConfigError, EngineDied, MemagentError, UsageError
from pipelines.ask import ask
from pipelines.stages.ingest import ingest
from tests.support.archives import OTTER, write_archive

pytestmark = pytest.mark.usefixtures("ray_in_process")
PLACES = pytest.mark.parametrize("local", [True, False], ids=["this process", "Ray Data"])


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "store"))


# ---- functions


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


@PLACES
def test_each_item_is_worked_on_once(store, tmp_path, local):
    results = run_job(partial(square, folder=tmp_path), range(40), store, local=local)
    assert sorted(results) == [number * number for number in range(40)]


@PLACES
def test_who_wants_no_more_results_leaves_the_rest_undone(store, tmp_path, local):
    results = run_job(partial(square, folder=tmp_path), range(1_000), store, local=local)
    assert len(list(islice(results, 3))) == 3
    results.close()
    assert len([path for path in tmp_path.iterdir() if path.name.isdigit()]) < 200


@PLACES
@pytest.mark.parametrize(
    "error", [UsageError("say this"), MemagentError("say this"), OSError(28, "say this")], ids=lambda one: type(one)
)
def test_an_error_comes_as_it_is(store, error, local):
    with pytest.raises(type(error), match="say this") as caught:
        list(run_job(partial(fail, error=error), range(8), store, local=local))
    assert type(caught.value) is type(error) and getattr(caught.value, "errno", 28) == 28


def test_what_a_lost_worker_had_is_done_by_another(store, tmp_path):
    mark = tmp_path / "mark"
    assert sorted(run_job(partial(die_once, mark=mark), range(6), store, local=False)) == list(range(6))
    assert mark.exists()


# ---- workers with engines


class Counting:
    """Answers with its process; some items make it fail."""

    def __init__(self, board, folder):
        self.board, self.folder, self.stopped = board, folder, False
        (folder / str(os.getpid())).touch()

    async def run(self, item, attempt):
        await asyncio.sleep(item.get("seconds", 0))
        if engines := item.get("engines"):
            await self._with_others(engines)
        if attempt.stopped or self.board.stopped:
            return {"number": item["number"], "process": "stopped"}
        if item.get("dies") and not attempt.number:
            os._exit(1)
        if item.get("retires") == "always" or (item.get("retires") and not attempt.number):
            raise EngineDied("this engine is bad")
        if item.get("kills"):
            return await self._parts(item, attempt)
        if item.get("full"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if item.get("wrong"):
            raise ConfigError("no such model")
        return {"number": item["number"], "process": os.getpid()}

    async def _with_others(self, engines):
        """Wait until so many engines have work; not for long, as those without may wait for the items of this one."""
        worked = self.folder / "worked"
        worked.mkdir(exist_ok=True)
        (worked / str(os.getpid())).touch()
        for _ in range(100):
            if len(list(worked.iterdir())) >= engines:
                return
            await asyncio.sleep(0.1)

    async def _parts(self, item, attempt):
        """Work on eight parts at once, or, as a reading worker does, one after another."""
        if attempt.number < 2:
            os._exit(1)
        done = []
        for part in set(range(8)) - set(attempt.killers):
            await self.board.note(attempt.item, part)
            if part in item["kills"]:
                os._exit(1)
            await self.board.note(attempt.item, None)
            done.append(part)
        return {"number": item["number"], "process": os.getpid(), "parts": done}

    async def stop(self):
        self.stopped = True


def work(count, **more):
    return [{"number": number, **more} for number in range(count)]


def run(folder, items, local=False, **pool):
    folder.mkdir(exist_ok=True)
    board = Board() if local else RemoteBoard(board_name())
    engines = EngineWork(partial(Counting, folder=folder), PoolConfig(**{"cpus": 0.1} | pool), board)
    return list(run_job(engines, items, Store(str(folder.parent)), local=local))


@pytest.mark.parametrize("engines", [1, 2, 4])
def test_every_engine_gets_work_and_every_item_is_done_once(tmp_path, engines):
    results = run(tmp_path / "w", work(240, engines=engines), max_size=engines)
    assert sorted(result["number"] for result in results) == list(range(240))
    assert len({result["process"] for result in results}) == engines


def test_one_engine_beside_this_process_does_every_item_once(tmp_path):
    results = run(tmp_path / "w", work(200, seconds=0.01), local=True)
    assert sorted(result["number"] for result in results) == list(range(200))
    assert {result["process"] for result in results} == {os.getpid()}


def test_an_engine_that_no_machine_can_take_is_refused(tmp_path, monkeypatch):
    needs = PoolConfig(cpus=0.1, gpus=64)
    monkeypatch.setattr(session, "started_here", True)
    for local in (True, False):
        with pytest.raises(UsageError, match=r"pool.gpus = 64 on 1 node, and there is no such room: .* 0 GPUs"):
            run(tmp_path / "w", work(1), local=local, gpus=64)
    monkeypatch.setattr(session, "started_here", False)
    assert not check_fits(needs), "a cluster may grow"
    assert check_fits(PoolConfig(cpus=0.1))


def test_there_are_no_more_engines_than_items(tmp_path):
    run(tmp_path / "w", work(2), min_size=4, max_size=4)
    assert len(list((tmp_path / "w").iterdir())) <= 2


def test_a_process_that_dies_is_replaced(tmp_path):
    items = work(20)
    items[3]["dies"] = True
    results = run(tmp_path / "w", items)
    assert sorted(result["number"] for result in results) == list(range(20))
    assert len(list((tmp_path / "w").iterdir())) == 2


@pytest.mark.parametrize("engines", [1, 2])
def test_what_kills_its_workers_is_found_and_the_rest_is_done(tmp_path, engines):
    items = work(5)
    items[2]["kills"] = [5, 6]
    results = run(tmp_path / "w", items, min_size=engines, max_size=engines)
    assert sorted(result["number"] for result in results) == list(range(5))
    assert [result["parts"] for result in results if "parts" in result] == [[0, 1, 2, 3, 4, 7]]


def test_a_machine_on_which_every_process_dies_ends_the_run(tmp_path):
    with pytest.raises(EngineDied, match="keep crashing"):
        run(tmp_path / "w", work(2, kills=range(8)), engine_restarts=0)


def test_a_bad_engine_is_replaced_and_its_work_is_done(tmp_path):
    items = work(40, seconds=0.05)
    items[0]["retires"] = "once"
    results = run(tmp_path / "w", items, min_size=2, max_size=2)
    assert sorted(result["number"] for result in results) == list(range(40))
    assert len(list((tmp_path / "w").iterdir())) == 3


@PLACES
def test_only_when_no_engine_is_left_does_a_run_fail(tmp_path, local):
    with pytest.raises(EngineDied, match="this engine is bad"):
        run(tmp_path / "w", work(4, retires="always"), local=local)


@PLACES
def test_a_full_disk_of_a_worker_is_an_error_of_the_disk(tmp_path, local):
    with pytest.raises(OSError) as raised:
        run(tmp_path / "full", work(3, full=True), local=local)
    assert "free some" in str(storage_error(raised.value))


def test_the_other_workers_end_what_they_do_where_one_finds_the_disk_full(tmp_path):
    items, done = [*work(1, full=True), *({"number": 7 + i, "seconds": 2.0} for i in range(3))], []
    (tmp_path / "w").mkdir()
    board = RemoteBoard(board_name())
    engines = EngineWork(partial(Counting, folder=tmp_path / "w"), PoolConfig(cpus=0.1, min_size=2, max_size=2), board)
    with pytest.raises(OSError, match="No space left"):
        for result in run_job(engines, items, Store(str(tmp_path)), local=False):
            done.append(result["number"])
    assert sorted(done) == [7, 8, 9]
    assert board.stopped


@PLACES
def test_a_wrong_configuration_is_an_error_at_once(tmp_path, local):
    with pytest.raises(ConfigError, match="no such model"):
        run(tmp_path / "w", work(4, wrong=True), local=local)


_SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    "engines, delay", [(2, 0.3), pytest.param(4, 0.6, marks=_SLOW), pytest.param(8, 1.5, marks=_SLOW)]
)
def test_more_engines_join_and_read(tmp_path, model_folder, engines, delay):
    write_archive(tmp_path / "docs", count=120, words=120)
    sets = ["pool.min_size=1", f"pool.max_size={engines}", f"pool.cpus={0.8 / engines}", "pool.inflight=4"]
    sets += [f"engine.scripted_delay={delay}", "flush_seconds=0.2"]
    store = Store(str(tmp_path / "store"))
    config = load_config(store=store.url, engine__kind="scripted", engine__model=str(model_folder), sets=sets)
    ingest(Corpus(store, "c"), [str(tmp_path / "docs")], config, "ingest")
    seen: list[dict] = []
    done = ask("c", [OTTER], config, show=seen.append)
    assert done["readings"]["read_now"] == 120 and not done["readings"]["failed"]
    assert max(snapshot.get("engines", 0) for snapshot in seen) == engines
    assert Table(store, "answers").read("c").num_rows == 120
