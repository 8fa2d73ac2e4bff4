"""A pool that may grow does, and each of its engines gets work."""

import math

import pytest

from infra.cluster.engine_pool import _CALLS, _size
from infra.store import Corpus, Store
from infra.tables.delta import Table
from memagent.config import PoolConfig, load_config
from pipelines.ask import ask
from pipelines.stages.ingest import ingest
from pipelines.stages.read import _blocks
from tests.integration.test_pipeline import OTTER, write_archive

_SCALES_UP = 1.75
"""Blocks in hand over blocks worked on, from which Ray Data adds an actor."""


@pytest.mark.parametrize("blocks", [3, 17, 63, 64, 500, 100_000])
@pytest.mark.parametrize(("least", "most"), [(1, 2), (1, 4), (2, 8)])
def test_a_full_worker_is_above_ray_datas_threshold(least, most, blocks):
    options = _size(PoolConfig(min_size=least, max_size=most), blocks)
    calls, held = options["max_concurrent_calls_per_actor"], options["max_tasks_in_flight_per_actor"]
    assert held / calls >= _SCALES_UP and 1 <= calls <= _CALLS
    assert held <= max(2, math.ceil(blocks / min(most, blocks))), "the others find work when they are up"


def test_there_are_no_more_engines_than_blocks():
    assert _size(PoolConfig(min_size=1, max_size=4), 1)["size"] == 1
    assert _size(PoolConfig(min_size=2, max_size=4), 3)["max_size"] == 3
    assert _size(PoolConfig(min_size=4, max_size=4), 2)["size"] == 2


def test_a_pool_of_fixed_size_holds_what_it_works_on_and_one_more():
    options = _size(PoolConfig(min_size=4, max_size=4), 1000)
    assert (options["size"], options["max_concurrent_calls_per_actor"]) == (4, _CALLS)
    assert options["max_tasks_in_flight_per_actor"] == _CALLS + 1


def item(stream, left):
    return {"reading_id": f"{stream}-{left}", "places": [{"content_hash": stream}], "left": left}


def test_blocks_are_cut_by_conversations_and_streams_stay_whole():
    items = [item(f"d{i}", left) for i in range(200) for left in (3, i)]
    blocks = _blocks(items, 1)
    assert sum(map(len, blocks)) == 400
    assert all(len(block) == 2 or len(block) * 4 <= 128 for block in blocks)
    assert len(_blocks(items[:4], 8)) == 2, "a stream is never cut"
    assert len(_blocks([item(f"d{i}", 1) for i in range(64)], 4)) == 8, "little work is shared, too"


@pytest.mark.usefixtures("ray_in_process")
def test_a_second_engine_joins_and_reads(tmp_path, model_folder):
    write_archive(tmp_path / "docs", count=120, words=120)
    sets = ["pool.min_size=1", "pool.max_size=2", "pool.cpus=0.4", "pool.inflight=4"]
    sets += ["engine.scripted_delay=0.3", "flush_seconds=0.2"]
    store = Store(str(tmp_path / "store"))
    config = load_config(store=store.url, engine__kind="scripted", engine__model=str(model_folder), sets=sets)
    ingest(Corpus(store, "c"), [str(tmp_path / "docs")], config, "ingest")
    seen: list[dict] = []
    done = ask("c", [OTTER], config, show=seen.append)
    assert done["readings"]["read_now"] == 120 and not done["readings"]["failed"]
    assert max(snapshot.get("engines", 0) for snapshot in seen) == 2
    assert Table(store, "answers").read("c").num_rows == 120
