"""The example environment of verifiers, in an environment of its own, against a policy of this process."""

import asyncio
import json
import re
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import memagent
from memagent.evaluation.grading import judge
from memagent.evaluation.suites import Suite
from memagent.evaluation.texts import load_texts
from tests.support.pages import ROOT

EXAMPLE = ROOT / "examples" / "verifiers"
READING = {"segment_tokens": 254, "memory_tokens": 64, "answer_tokens": 64}
_RUN = """
import asyncio, json, sys
import verifiers.v1 as vf
from verifiers.v1.utils.loaders import load_environment
from memagent_suite import MemoryHarnessConfig, SuiteConfig

async def main(address, text, reading):
    suite = SuiteConfig(id="memagent_suite", lengths=[900], kinds=["niah_single_1"], n=2, text=[text])
    agent = vf.AgentConfig(
        harness=MemoryHarnessConfig(id="memagent_suite", **reading), runtime=vf.SubprocessConfig()
    )
    env = load_environment(vf.SingleAgentEnvConfig(taskset=suite, agent=agent))
    client = vf.EvalClientConfig(base_url=address, api_key_var="POLICY_KEY")
    ctx = vf.ModelContext(client=client, model="policy", sampling=vf.SamplingConfig())
    async with env.serving():
        episodes = [await env.run_slot(slot, ctx) for task in env.taskset for slot in env.slots(task)]
    for episode in episodes:
        (trace,) = episode.traces
        errors = [error.message for error in [*episode.errors, *trace.errors]]
        print(json.dumps({
            "id": trace.task.data.id, "reward": trace.reward, "answer": trace.info.get("answer"), "errors": errors,
            "branches": trace.num_branches, "segments": trace.metrics.get("segments"),
        }))

asyncio.run(main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3])))
"""


_UPDATE = re.compile(
    r"Question: (.*?)\n\nMemory so far:\n(.*)\n\nNext section:\n(.*)\n\nWrite the new memory", re.DOTALL
)
_LAST = re.compile(r"the memory that you kept:\n(.*)\n\nQuestion: ", re.DOTALL)


def respond(prompt: str) -> str:
    """Continue a prompt of the template `plain` by rule: note the sentence with the key, answer its number."""
    if update := _UPDATE.search(prompt):
        question, memory, segment = update.groups()
        key = re.search(r"[a-z]+-[a-z]+", question)
        assert key, question
        sentence = re.search(rf"[^.]*{key[0]}[^.]*\d+", segment)
        return sentence[0].strip() if sentence else memory
    last = _LAST.search(prompt)
    assert last, prompt
    numbers = re.findall(r"\d+", last[1])
    return numbers[-1] if numbers else "not found"


@pytest.fixture
def policy() -> Iterator[str]:
    """A chat server whose model reads by rule; its address."""

    class Chat(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            message = {"role": "assistant", "content": respond(body["messages"][-1]["content"])}
            usage = {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            answer = {"id": "1", "object": "chat.completion", "created": 0, "model": "policy", "choices": [choice]}
            data = json.dumps({**answer, "usage": usage}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Chat)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()
    server.server_close()


@pytest.mark.slow
def test_suites_are_an_environment_of_verifiers(tmp_path: Path, policy: str) -> None:
    made = subprocess.run(["bash", "infra/tools.sh", "verifiers"], cwd=ROOT, capture_output=True, text=True)
    if made.returncode:
        pytest.skip(f"verifiers cannot be installed here: {made.stderr[-300:]}")
    (tmp_path / "hay.txt").write_text("The committee met in spring. Members asked for a list of dates.\n\n" * 40)
    command = [str(ROOT / made.stdout.strip() / "bin" / "python"), "-c", _RUN, policy, str(tmp_path / "hay.txt")]
    paths = {"PYTHONPATH": f"{EXAMPLE}:{ROOT}", "PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "POLICY_KEY": "x"}
    done = subprocess.run([*command, json.dumps(READING)], capture_output=True, text=True, env=paths, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    found = {row["id"]: row for row in map(json.loads, done.stdout.splitlines())}

    spec = memagent.ReadingSpec.load(template="plain", layout="question-first", gate=False, **READING)

    async def generate(prompt: str, most: int) -> str:
        return respond(prompt)

    suite = Suite("needles", kinds=("niah_single_1",), lengths=(900,), n=2)
    texts = load_texts([tmp_path / "hay.txt"])
    (group,) = suite.groups()
    right = 0.0
    for sample in group.samples(spec.prompts.tokenizer, texts):
        row = found.pop(sample.sample_id)
        result = asyncio.run(memagent.read(sample.text(), sample.question, memagent.from_text(generate, spec), spec))
        right += row["reward"]
        assert row["errors"] == [] and (row["answer"], row["reward"]) == (
            result.answer,
            judge(sample, result.answer).score,
        )
        assert row["segments"] == result.segments > 2
        assert row["branches"] == result.segments + 1, "every update and the answer, each a conversation of its own"
    assert not found and right == 2.0
