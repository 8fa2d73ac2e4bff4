"""A review server that is killed has lost no verdict that it said it had."""

import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import httpx
import pytest

from infra.store.delta import Table
from tests.support.made_up_run import CORPUS, contracts, local_store
from tests.support.ports import first_port
from tests.support.review_service import csrf, home, known
from tests.support.waiting import wait_for

__all__ = ["home"]
ROOT = Path(__file__).parents[2]


class Served:
    """A review server in a process of its own."""

    def __init__(self, store: str, port: int) -> None:
        self.address = f"http://127.0.0.1:{port}"
        command = [sys.executable, "-m", "memagent", "review", "--store", store, "--port", str(port)]
        self.process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, env={**os.environ})
        assert self.process.stdout is not None
        while "stop with" not in (line := self.process.stdout.readline()):
            assert line, "it did not start"
            if named := re.search(r"once with (\S+)", line):
                self.link = named[1]

    def __enter__(self) -> httpx.Client:
        self.client = httpx.Client(base_url=self.address, headers={"Origin": self.address}, timeout=120)
        assert self.client.get(self.link).status_code == 303
        return self.client

    def __exit__(self, *_: object) -> None:
        self.client.close()
        self.process.send_signal(signal.SIGINT)
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.mark.parametrize("times", [2])
def test_no_verdict_that_was_acknowledged_is_lost(home, times):
    run = contracts(local_store(home), 20)
    run.save()
    known(run.store)
    readings = [row["reading_id"] for row in run.answers]
    saved: dict[str, str] = {}
    port = first_port(25_000, 400)
    for _ in range(times):
        served = Served(run.store.url, port)
        with served as client:
            wait_for(lambda client=client: f"{len(readings) + 2} answers" in client.get("/").text)
            token = csrf(client.get("/").text)
            left = [reading for reading in readings if reading not in saved]
            killer = threading.Timer(0.7, served.process.kill)
            killer.start()
            try:
                for number, reading in enumerate(left):
                    fields = {"csrf": token, "said": "corrected", "answer": f"said {number}"}
                    done = client.post(f"/answers/{CORPUS}/{reading}/verdict", data=fields)
                    assert done.status_code == 303, done.text
                    saved[reading] = fields["answer"]
            except httpx.HTTPError:
                pass
            killer.join()
    assert len(saved) >= 2
    with Served(run.store.url, port) as client:
        reading, answer = next(reversed(saved.items()))
        wait_for(lambda: answer in client.get(f"/answers/{CORPUS}/{reading}").text)
    # One that was on the disk, and not acknowledged, was given again: the last one counts.
    rows = Table(run.store, "feedback").read(CORPUS).sort_by("given_at").to_pylist()
    assert {row["reading_id"]: row["answer"] for row in rows}.items() >= saved.items()
    assert len(rows) == len({(row["reading_id"], row["given_at"]) for row in rows}), "and none is there twice"
