"""Metrics of a store, scraped from the real endpoint while runs go on and after they have ended."""

import os
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from prometheus_client.parser import text_string_to_metric_families

from infra.store.corpora import remember
from infra.store.location import Corpus
from memagent.config import load_config
from memagent.records import Question
from pipelines.ask import ask, digest
from pipelines.web.metrics import FAMILIES
from tests.support.flowing import ROOT
from tests.support.model_server import chat, model_server
from tests.support.waiting import wait_for

OTTER = Question("otter", "What is the pass number for amber-otter?")
NOWHERE = Question("nowhere", "What is the fee?", documents=("no such document",))


@pytest.fixture
def endpoint(store, tmp_path) -> Iterator["Endpoint"]:
    """`memagent metrics` over a store that has no runs yet."""
    file = tmp_path / "token"
    file.write_text("the-token-of-this-test\n")
    command = ["metrics", "--store", store.url, "--port", "0", "--token-file", str(file)]
    with serving(command) as address:
        yield Endpoint(address, "the-token-of-this-test")


@contextmanager
def serving(command: list[str]) -> Iterator[str]:
    process = subprocess.Popen(
        [sys.executable, "-m", "memagent", *command], stdout=subprocess.PIPE, text=True, cwd=ROOT, env=os.environ
    )
    try:
        assert process.stdout is not None
        yield process.stdout.readline().split()[1]
        process.terminate()
        assert process.wait() == 0 and process.stdout.read().endswith("stopped\n")
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


class Endpoint:
    def __init__(self, address: str, token: str) -> None:
        self.address, self._token = address, token

    def get(self, token: str | None = None) -> str:
        request = urllib.request.Request(self.address, headers={"Authorization": f"Bearer {token or self._token}"})
        with urllib.request.urlopen(request) as response:
            assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
            return response.read().decode()

    def samples(self) -> dict[tuple[str, ...], float]:
        """Return the samples by name and label values, without the corpus."""
        families = text_string_to_metric_families(self.get())
        return {
            (sample.name, *[value for label, value in sample.labels.items() if label != "corpus"]): sample.value
            for family in families
            for sample in family.samples
            if not sample.name.endswith("_created")
        }


@pytest.fixture
def config(store, model_folder):
    sets = ["flush_seconds=0.2", "pool.gpus=0", "pool.max_size=2"]
    return load_config(store=store.url, engine__kind="scripted", engine__model=str(model_folder), sets=sets)


def test_what_is_scraped_is_what_the_summaries_say(store, archive, config, endpoint):
    assert endpoint.samples() == {}
    remember(Corpus(store, "c"), sources=[str(archive)])
    night = digest("c", [OTTER, NOWHERE], config)
    bulk = ask("c", [Question("heron", "What is the pass number for silver-heron?")], config)
    seen = wait_for(lambda: (s := endpoint.samples()).get(("memagent_runs_total", "ask", "completed")) and s)
    for kind, run in (("digest", night), ("ask", bulk)):
        assert run["conversations"] > 0
        expected = {
            "memagent_readings_answered_total": run["readings"]["read_now"],
            "memagent_documents_read_total": run["documents_read"],
            "memagent_segments_total": run["segments"],
            "memagent_conversations_total": run["conversations"],
            "memagent_prompt_tokens_total": run["prompt_tokens"],
            "memagent_cached_tokens_total": run["cached_tokens"],
            "memagent_completion_tokens_total": run["output_tokens"],
            "memagent_memories_cut_total": run["memories_cut"],
            "memagent_engine_deaths_total": run["engine_deaths"],
            "memagent_engine_seconds_total": run["engine_uptime"],
            "memagent_gpu_seconds_total": 0.0,
            "memagent_run_seconds_total": run["seconds"],
        }
        assert {name: seen[name, kind] for name in expected} == expected
        assert run["documents_read"] == 4 and run["engine_uptime"] > 0
    assert seen["memagent_failures_total", "digest", "no-document"] == 1
    assert not [key for key in seen if key[:2] == ("memagent_failures_total", "ask")]
    assert seen["memagent_ingested_documents_total", "digest"] == 4
    assert seen["memagent_ingested_sources_total", "digest", "new"] == 4
    assert seen["memagent_runs_total", "digest", "failed"] == 1, "a question about no document"
    assert seen["memagent_stage_seconds_total", "ask", "read"] == bulk["stage_seconds"]["read"]
    assert {key[0].removesuffix("_total") for key in seen} <= set(FAMILIES)


def test_a_running_run_is_seen_while_it_runs(store, archive, config, endpoint):
    remember(Corpus(store, "c"), sources=[str(archive)])
    digest("c", [Question("before", "What is before?")], config)
    was_seen = threading.Event()
    with model_server([chat("Nothing is said of it.")], refuses=lambda _: was_seen.wait() and None) as server:
        sets = [f"engine.base_url={server.url}", "engine.served_model=m", "engine.protocol=chat"]
        sets += ["reading.template=plain", "flush_seconds=0.2", "pool.gpus=0", "pool.max_size=2"]
        held = load_config(store=store.url, engine__kind="openai", engine__model=config.engine.model, sets=sets)
        run = threading.Thread(target=ask, args=("c", [OTTER], held))
        run.start()
        try:
            running = ("memagent_runs_open", "ask", "running")
            busy = (running, ("memagent_engines_up", "ask"), ("memagent_readings_in_flight", "ask"))
            seen = wait_for(lambda: all((s := endpoint.samples()).get(name) for name in busy) and s)
        finally:
            was_seen.set()
            run.join()
    flying, queued = (seen[f"memagent_readings_{name}", "ask"] for name in ("in_flight", "queued"))
    assert flying + queued == 4 and seen["memagent_readings_answered_total", "ask"] == 0
    after = wait_for(lambda: running not in (s := endpoint.samples()) and s)
    assert after["memagent_runs_total", "ask", "completed"] == 1 and ("memagent_readings_in_flight", "ask") not in after
    assert after["memagent_readings_answered_total", "ask"] == 4


def test_nobody_reads_metrics_without_the_token(tmp_path):
    file = tmp_path / "token"
    file.write_text("a-token-long-enough")
    with serving(["metrics", "--store", str(tmp_path / "s"), "--port", "0", "--token-file", str(file)]) as address:
        for given in ("wrong-token", "é"):
            with pytest.raises(urllib.error.HTTPError) as refused:
                Endpoint(address, "x").get(given)
            assert refused.value.code == 401
            refused.value.close()
        assert Endpoint(address, "a-token-long-enough").get().startswith("# HELP memagent_")
