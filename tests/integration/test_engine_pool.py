"""A pool that may grow does, and each of its engines gets work; one that is lost costs nothing."""

import errno
import os

import pytest

from infra.cluster import engine_pool, session
from infra.cluster.engine_pool import check_fits, fatal, run_on_engines
from infra.store import Corpus, Store
from infra.tables.delta import Table
from memagent.config import PoolConfig, load_config
from memagent.errors import ConfigError, EngineDied, UsageError
from pipelines.ask import ask
from pipelines.cli.storage_errors import storage_error
from pipelines.stages.ingest import ingest
from tests.integration.test_pipeline import OTTER, write_archive

pytestmark = pytest.mark.usefixtures("ray_in_process")


class Counting:
    """Answers with its process; some of its kind fail."""

    def __init__(self, folder):
        self.folder = folder
        self.number = len(list(folder.iterdir()))
        (folder / str(os.getpid())).touch()

    async def run(self, item):
        import asyncio

        await asyncio.sleep(item.get("seconds", 0))
        if item.get("dies") and not item["losses"]:
            os._exit(1)
        if item.get("kills") is not None and item["number"] <= item["kills"] < item["number"] + item["conversations"]:
            os._exit(1)
        if item.get("retires") and not item["losses"]:
            return fatal(EngineDied("this engine is bad"))
        if item.get("full"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if item.get("wrong"):
            return fatal(ConfigError("no such model"))
        return {"number": item["number"], "process": os.getpid()}


def work(count, **more):
    return [{"number": number, "conversations": 1, "losses": 0, **more} for number in range(count)]


def run(folder, items, culprits=None, **pool):
    folder.mkdir(exist_ok=True)
    return list(run_on_engines(Counting, (folder,), items, PoolConfig(cpus=0.1, **pool), culprits))


class Halving:
    """Cuts items by their conversations."""

    def halves(self, item):
        half = item["conversations"] // 2
        rest = {"number": item["number"] + half, "conversations": item["conversations"] - half}
        return [{**item, "conversations": half}, {**item, **rest}] if half else [item]

    def lost(self, item):
        return {"number": item["number"], "process": "lost"}


@pytest.mark.parametrize("engines", [1, 2, 4, 8])
def test_every_engine_gets_work_and_every_item_is_done_once(tmp_path, engines):
    results = run(tmp_path / "w", work(200, seconds=0.1), min_size=1, max_size=engines)
    assert sorted(result["number"] for result in results) == list(range(200))
    assert len({result["process"] for result in results}) == engines


def test_an_engine_that_no_machine_can_take_is_refused(tmp_path, monkeypatch):
    needs = PoolConfig(cpus=0.1, gpus=64)
    monkeypatch.setattr(session, "started_here", True)
    with pytest.raises(UsageError, match=r"pool.gpus = 64 on 1 node, and there is no such room: .* 0 GPUs"):
        list(run_on_engines(Counting, (tmp_path,), work(1), needs))
    monkeypatch.setattr(session, "started_here", False)
    assert not check_fits(needs), "a cluster may grow"
    assert check_fits(PoolConfig(cpus=0.1))


def test_there_are_no_more_engines_than_items(tmp_path):
    run(tmp_path / "w", work(2), min_size=4, max_size=4)
    assert len(list((tmp_path / "w").iterdir())) <= 2


def test_a_process_that_dies_is_replaced(tmp_path):
    items = work(20)
    items[3]["dies"] = True
    results = run(tmp_path / "w", items, min_size=1, max_size=1)
    assert sorted(result["number"] for result in results) == list(range(20))
    assert len(list((tmp_path / "w").iterdir())) == 2


@pytest.mark.parametrize("engines", [1, 2])
def test_what_kills_its_workers_is_found_and_the_rest_is_done(tmp_path, engines):
    items = [item | {"number": 8 * item["number"], "conversations": 8} for item in work(5, kills=21)]
    results = run(tmp_path / "w", items, Halving(), min_size=engines, max_size=engines)
    assert [result["number"] for result in results if result["process"] == "lost"] == [21]
    assert sorted(result["number"] for result in results) == [0, 8, 16, 20, 21, 22, 24, 32], "halves of the block at 16"


def test_a_machine_on_which_every_process_dies_ends_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr(engine_pool, "_BISECTIONS", 2)
    items = [item | {"conversations": 2**30, "kills": 10**6} for item in work(3)]
    with pytest.raises(EngineDied, match="processes end"):
        run(tmp_path / "w", items, Halving(), min_size=1, max_size=1, engine_restarts=1)


def test_a_bad_engine_is_retired_and_its_work_goes_elsewhere(tmp_path):
    items = work(40, seconds=0.05)
    items[0]["retires"] = True
    results = run(tmp_path / "w", items, min_size=2, max_size=2)
    assert sorted(result["number"] for result in results) == list(range(40))


def test_an_engine_that_was_ended_for_want_of_work_comes_back_for_that_of_a_bad_one(tmp_path):
    items = work(2)
    items[0] |= {"retires": True, "seconds": 3.0}  # the other engine has nothing left by then
    results = run(tmp_path / "w", items, min_size=2, max_size=2)
    assert sorted(result["number"] for result in results) == [0, 1]
    assert len(list((tmp_path / "w").iterdir())) == 3


def test_only_when_no_engine_is_left_does_a_run_fail(tmp_path):
    with pytest.raises(EngineDied, match="this engine is bad"):
        run(tmp_path / "w", work(4, retires=True), min_size=1, max_size=1)


def test_a_full_disk_of_a_worker_is_an_error_of_the_disk(tmp_path):
    with pytest.raises(OSError) as raised:
        run(tmp_path / "full", work(3, full=True))
    assert "free some" in str(storage_error(raised.value))


def test_the_other_workers_end_what_they_do_where_one_finds_the_disk_full(tmp_path):
    items, done = [*work(1, full=True), {"number": 7, "conversations": 1, "losses": 0, "seconds": 2.0}], []
    (tmp_path / "w").mkdir()
    pool = PoolConfig(cpus=0.1, min_size=2, max_size=2)
    with pytest.raises(OSError, match="No space left"):
        for result in run_on_engines(Counting, (tmp_path / "w",), items, pool, None):
            done.append(result["number"])
    assert done == [7]


def test_a_wrong_configuration_is_an_error_at_once(tmp_path):
    with pytest.raises(ConfigError, match="no such model"):
        run(tmp_path / "w", work(4, wrong=True), min_size=2, max_size=2)


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
