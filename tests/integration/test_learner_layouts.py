"""Layouts of the learner: all pass on CPUs, and what is off is called so."""

import asyncio
import json
import subprocess
import sys
from dataclasses import replace

import pytest

from benchmarks import layouts as benchmark
from benchmarks.layouts import Layout, Outcome, layouts
from memagent.rl.footprint import FAMILIES
from tests.support.pages import HERE, ROOT

LAYOUT = Layout(3, "bfloat16", lora=False, placement="shared")


def test_every_layout_that_a_recipe_may_choose_is_tried():
    tried = layouts()
    assert {one.family for one in tried} == set(FAMILIES)
    own = [one for one in tried if one.family == "qwen2"]
    assert len(set(own)) == 16 and {one.zero_stage for one in own if one.placement == "shared"} == {3}


def test_the_page_has_the_same_layouts():
    page = (ROOT / "docs" / "training.md").read_text()
    for one in layouts():
        row = f"| {one.family} | {one.zero_stage} | {one.dtype} | {'LoRA' if one.lora else 'all'} | {one.placement} |"
        assert row in page


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ({"step": 1.0}, "step 1 > 0.2"),
        ({"resumed": float("nan")}, "resumed nan > 0.2"),
        ({"logprob": 0.3}, "logprob 0.3 > 0.1"),
        ({"broadcast": 1e-6}, "broadcast 1e-06 > 0"),
        ({"error": "AssertionError: FusedAdam"}, "AssertionError: FusedAdam"),
        ({"step": 0.1, "resumed": 0.01, "other_ranks": None, "logprob": 0.02, "broadcast": 0.0}, ""),
    ],
)
def test_what_is_off_is_called_so(found, said):
    assert replace(Outcome(LAYOUT), **found).problem == said


def test_a_layout_that_fails_is_told_of_once(tmp_path, monkeypatch):
    class Group:
        """Ranks on which nothing can be loaded."""

        def __init__(self, *_):
            pass

        async def start(self):
            pass

        stop = start

        async def begin(self, *_):
            raise RuntimeError("no room")

    monkeypatch.setattr(benchmark, "LearnerGroup", Group)
    (one,) = asyncio.run(benchmark.outcomes(tmp_path, 0, [LAYOUT]))
    assert one.problem == "RuntimeError: no room"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_all_layouts_pass_on_cpus(tmp_path):
    command = [sys.executable, "-m", "benchmarks.layouts", "--gpus", "0", "--folder", str(tmp_path), "--record", ""]
    made = subprocess.run(command, cwd=ROOT, env=HERE, capture_output=True, text=True, timeout=500)
    outcomes = json.loads(made.stdout)
    assert [one["problem"] for one in outcomes] == [""] * len(layouts()) and made.returncode == 0
    assert all(one["step"] is not None and one["resumed"] is not None for one in outcomes)
    assert all(one["other_ranks"] is not None and one["broadcast"] == 0.0 for one in outcomes)
    assert max(one["step"] for one in outcomes if one["layout"]["dtype"] == "float32") < 1e-3
    adapter = tmp_path / "trials" / "qwen2-3-float32-True-shared" / "adapter" / "adapter_config.json"
    assert json.loads(adapter.read_text())["peft_type"] == "LORA"
