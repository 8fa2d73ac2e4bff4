"""Warnings of a run are kept in the store."""

import logging

from infra.store import Store
from pipelines.runs import RunLog


def test_warnings_of_the_product_and_of_ray_are_kept(tmp_path, capsys):
    store = Store(str(tmp_path))
    with RunLog(store, "r"):
        logging.getLogger("memagent.pool").warning("an engine is retired")
        logging.getLogger("ray.core").warning("spilled")
        logging.getLogger("memagent.pool").info("a detail")
        logging.getLogger("elsewhere").warning("of somebody else")
    lines = store.read_bytes("runs", "r", "log.txt").decode().splitlines()
    assert [line.split(" ", 3)[2:] for line in lines] == [
        ["WARNING", "memagent.pool an engine is retired"],
        ["WARNING", "ray.core spilled"],
    ]
    logging.getLogger("memagent.pool").warning("after the run")
    assert len(store.read_bytes("runs", "r", "log.txt").decode().splitlines()) == 2


def test_a_run_without_warnings_has_no_log(tmp_path):
    with RunLog(Store(str(tmp_path)), "r"):
        pass
    assert not list(tmp_path.iterdir())
