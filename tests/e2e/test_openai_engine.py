"""The openai engine against a real server of the bundled model."""

import os
import shutil
import signal
import subprocess
import sys
import urllib.request

import pytest

from memagent.nano import bundled
from tests.e2e.conftest import Memagent, needle_archive
from tests.support.ports import first_port
from tests.support.waiting import wait_for

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    port = first_port(27_500, 400)
    log = tmp_path_factory.mktemp("server") / "log"
    command = [
        sys.executable,
        "-m",
        "vllm.entrypoints.openai.api_server",
        "--model",
        str(bundled()),
        "--served-model-name",
        "nano",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--enforce-eager",
        "--dtype",
        "float32",
        "--scheduling-policy",
        "priority",
    ]
    environment = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1"}
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, env=environment, start_new_session=True)
    try:
        wait_for(lambda: healthy(f"http://127.0.0.1:{port}/health"), process, log.read_text)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def healthy(url):
    try:
        with urllib.request.urlopen(url, timeout=20):
            return True
    except OSError:
        return False


@pytest.fixture(scope="module")
def taken(memagent, tmp_path_factory):
    """An archive that was taken in, and its questions."""
    folder = tmp_path_factory.mktemp("docs")
    questions = needle_archive(folder / "archive", 8, 40, seed=5)
    memagent.json("ingest", "o", str(folder / "archive"))
    return memagent, questions


def test_a_served_model_answers_as_the_one_in_process(taken, server, tmp_path):
    memagent, questions = taken
    # Each with a store of its own, so that neither finds what the other one has answered.
    beside = Memagent(str(shutil.copytree(memagent.store, tmp_path / "beside")))
    served = ["--engine", "openai", "--set", f"engine.base_url={server}", "--set", "engine.served_model=nano"]
    remote = memagent.json("ask", "o", "--questions", str(questions), *served)
    local = beside.json("ask", "o", "--questions", str(questions))
    assert remote["summary"]["readings"]["read_now"] == local["summary"]["readings"]["read_now"] == 8
    same = [a["answer"] == b["answer"] for a, b in zip(remote["answers"], local["answers"], strict=True)]
    assert sum(same) >= 7, "token ids in and out: the same conversations"
    assert remote["summary"]["prompt_tokens"] > 0 and remote["summary"]["engine"] == "openai"


def test_a_server_that_is_not_there_is_named(taken):
    memagent, _ = taken
    nowhere = ["--engine", "openai", "--set", "engine.base_url=http://127.0.0.1:9/v1"]
    said = memagent("ask", "o", "-q", "Who keeps a copy of every report?", *nowhere, status=2)
    assert "no OpenAI-compatible server answers at http://127.0.0.1:9/v1" in said
