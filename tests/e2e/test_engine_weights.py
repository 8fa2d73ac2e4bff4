"""A real engine that is given other weights says what the learner says of them."""

import json
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file

from infra.learner.checkpoint import write_model
from infra.learner.rank import write_adapter
from memagent.nano import bundled
from memagent.reading.tokens import load_tokenizer
from memagent.rl.config import load_recipe
from memagent.rl.model import FACTORS, adapt, adapted, load_model
from tests.e2e.conftest import ROOT

TAKER = """
import asyncio, json, socket, sys
from pathlib import Path
import torch
from safetensors.torch import load_file
from infra.engines.vllm import VllmEngine
from infra.learner.weights import Rendezvous, send
from memagent.config import EngineConfig
from memagent.reading.engine import Sampling

async def main(first, second, adapter):
    prompts = json.load(sys.stdin)
    engine = VllmEngine(first, EngineConfig(dtype="float32", lora_rank=8))
    await engine.start()

    async def say():
        sampling = Sampling(max_tokens=16, temperature=1.0, logprobs=True)
        said = await asyncio.gather(*(engine.generate(ids, sampling) for ids in prompts))
        print(json.dumps([[one.ids, one.logprobs, one.weight_version] for one in said]), flush=True)

    before = asyncio.create_task(say())
    await asyncio.sleep(0.1)
    await engine.update(adapter, "adapter")  # what is being said goes on, with what it began with
    assert not before.done()
    await before
    await say()
    await engine.update(second, "as files")
    await say()
    weights = {name: one.float() for name, one in load_file(Path(first) / "model.safetensors").items()}
    layout = tuple((name, tuple(one.shape), "float32") for name, one in weights.items())
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        meeting = Rendezvous("127.0.0.1", sock.getsockname()[1], 2, layout)
    sampling = Sampling(max_tokens=120, temperature=1.0, logprobs=True)
    running = [asyncio.create_task(engine.generate(ids, sampling)) for ids in prompts[:4]]
    await asyncio.sleep(0.1)
    given = asyncio.to_thread(send, meeting, weights.items(), torch.device("cpu"))
    await asyncio.gather(given, engine.receive(meeting, 1, "broadcast", keep=True))
    unfinished = [one for one in running if not one.done()]
    assert unfinished, "they go on with other weights"
    for one in await asyncio.gather(*unfinished):
        told = one.weight_version, len(one.ids), len(one.logprobs)
        assert told[0] == "broadcast" and told[1] == told[2], told
    await say()
    await engine.stop()

if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.slow
def test_all_of_an_update_arrives(tmp_path):
    first, second = bundled("sft"), bundled("rl")
    adapter, merged = with_factors(first, tmp_path)
    text = load_tokenizer(str(first)).encode((ROOT / "docs" / "training.md").read_text())
    prompts = [text[at : at + 200] for at in range(0, 4000, 200)]
    script = tmp_path / "taker.py"
    script.write_text(TAKER)
    done = subprocess.run(
        [sys.executable, str(script), str(first), str(second), str(adapter)],
        input=json.dumps(prompts),
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    said = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[[")]
    assert [{version for *_, version in one} for one in said] == [{""}, {"adapter"}, {"as files"}, {"broadcast"}]
    folders = first, merged, second, first
    for answers, own, other in zip(said, folders, (merged, first, first, second), strict=True):
        # Both in float32: what is left is the order in which they add.
        assert difference(prompts, answers, own) < 1e-5
        assert difference(prompts, answers, other) > 0.01


def with_factors(folder, made):
    """Write low-rank factors of a model as a training exports them, and the model with them merged in."""
    model = load_model(folder).model
    adapt(model, 8, 16.0)
    torch.manual_seed(0)
    factors = {name: 0.02 * torch.randn_like(one) for name, one in model.named_parameters() if name.endswith(FACTORS)}
    write_adapter(factors, load_recipe("smoke", ["learner.lora_rank=8", "learner.lora_alpha=16"]), made / "adapter")
    merged = {name: one.float() for name, one in load_file(folder / "model.safetensors").items()}
    for name in adapted(model):
        layer = name.removesuffix(".weight")
        merged[name] += 2.0 * factors[f"{layer}.up"] @ factors[f"{layer}.down"]
    write_model(merged, folder, made / "merged")
    return made / "adapter", made / "merged"


def difference(prompts, answers, folder):
    """Return the mean difference between the log-probabilities that an engine gave and those of a model folder."""
    model = load_model(folder)
    found = []
    for prompt, (ids, logprobs, _) in zip(prompts, answers, strict=True):
        whole = torch.tensor(prompt + ids)
        places = torch.arange(len(prompt), len(whole))
        with torch.no_grad():
            own, _ = model(whole, torch.arange(len(whole)), [(len(whole),)], places)
        found.append((own - torch.tensor(logprobs)).abs())
    return torch.cat(found).mean().item()
