"""Training methods side by side: short trainings of one weak reader, three seeds each, read on tasks held out.

    python -m benchmarks.methods [--folder DIR] [--steps 6] [--tasks 96]

The weak reader is nano@sft after some supervised steps whose targets overlook every other fact and write the exit's
marker at random: its gates are there and say nothing. Every method trains it on the same tasks, with the same reading,
number of rollouts and learning rate, and its last weights are compared. With a folder, what was done in an earlier call
is kept.
"""

import argparse
import asyncio
import json
import random
import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM

from benchmarks.record import ROOT, Row, arguments, result, write
from examples.nano.needle_data import NeedleData, Turns
from infra.cluster.session import ray_session
from infra.readers import ReaderSpec
from infra.store.location import Store
from memagent.evaluation.stats import Comparison, compare
from memagent.evaluation.texts import load_texts
from memagent.nano import bundled
from memagent.reading.conversations import ReadingSpec
from memagent.reading.prompts import Prompts, load_template
from memagent.reading.tokens import load_tokenizer
from memagent.rl.rollout import RewardConfig, roll_out
from memagent.rl.trajectory import Trajectory
from pipelines.training.checkpoints import Checkpoints
from pipelines.training.data import splits
from pipelines.training.run import train
from pipelines.training.settings import TrainingRun, prepare

METHODS: dict[str, tuple[str, ...]] = {
    "Multi-Conv DAPO": (),
    "per trajectory": ("loss.normaliser='trajectories'",),
    "GRU-Mem": ("method.name='gru-mem'", "reward.weights={task=1.0, exit=0.3}"),
    "InfoMem": ("method.name='infomem'",),
    "HiMPO": ("method.name='himpo'",),
}
"""What each sets over the recipe below, as the shipped recipes do."""
SEEDS = (1, 2, 3)
TEXTS = (str(ROOT / "docs"),)
RECIPE = """
[reading]
template = "nano-exit"
early_exit = true

[rollout]
prompts = 8
group_size = 8
segments = 4
dynamic_sampling = false

[reward]
weights = { task = 1.0 }

[loss]
clip_high = 0.28
kl_coef = 0.005

[learner]
minibatch_prompts = 8
lr = 5e-5
warmup_steps = 1
token_budget = 8192
threads = 1

[stage]
save_every = 100
validate_every = 100
validate_with = 1
"""
_OVERLOOKED, _LEAVES = 0.5, 0.1
_SFT_STEPS, _TREES = 150, 4
_LAST = 4
"""Steps at the end of a training whose rollouts are looked at."""
NOTE = """\
The weak reader is `nano@sft` after {sft} supervised steps whose targets leave out every other fact and write the exit's
marker in a tenth of all updates, whatever they hold. "Conversations saved" is the share of a reading's conversations
that an early exit left out. All methods had the same tasks, number of rollouts ({steps} steps of 8 groups of 8) and
learning rate; the settings were chosen once, for none of them. Intervals are Student's over the trainings, one a seed:
the paired difference to Multi-Conv DAPO is within noise where its interval has 0 in it. So short a training of so small
a reader says whether a method does what it pays for, and little of what it is worth to a large one.
"""


def make_weak(folder: Path) -> Path:
    """Write the weak reader to `folder`."""
    tokenizer = load_tokenizer(str(bundled("sft")))
    template = load_template("nano-exit")
    prompts = Prompts(template, tokenizer, "section-first", gate=True, early_exit=True)
    data = NeedleData(Turns(prompts), load_texts([Path(text) for text in TEXTS]), seed=0)
    rng, end, leave = random.Random(0), prompts.stop_ids[0], tokenizer.literal(template.exit)
    model = AutoModelForCausalLM.from_pretrained(bundled("sft"), dtype=torch.float32).train()
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.0)
    for step in range(_SFT_STEPS):
        pairs = []
        for tree in (data.tree(("number", "word"), 200) for _ in range(_TREES)):
            for turn in tree.branches:
                noted = turn.response[:-1]
                if turn.kind.endswith("/note") and rng.random() < _OVERLOOKED:
                    noted = tokenizer.literal(template.same)
                marker = leave if rng.random() < _LEAVES else []
                pairs.append(([*tree.prefix, *turn.prompt], [*noted, *marker, end]))
        pairs += [
            (turn.prompt, turn.response) for tree in data.answers(("number", "word"), 4) for turn in tree.branches
        ]
        loss = _loss(model, pairs)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad()
        if step % 25 == 0:
            print(f"weak reader, step {step}: {loss.item():.3f}", flush=True)
    aside = folder.with_suffix(".part")
    shutil.copytree(bundled("sft"), aside, dirs_exist_ok=True)
    weights = {name: one.to(torch.bfloat16).contiguous() for name, one in model.state_dict().items()}
    weights.pop("lm_head.weight", None)  # tied
    save_file(weights, aside / "model.safetensors", metadata={"format": "pt"})
    aside.rename(folder)
    return folder


def _loss(model: Any, pairs: Sequence[tuple[list[int], list[int]]]) -> torch.Tensor:
    longest = max(len(prompt) + len(response) for prompt, response in pairs)
    ids = torch.zeros(len(pairs), longest, dtype=torch.long)
    wanted = torch.full((len(pairs), longest), -100)
    for i, (prompt, response) in enumerate(pairs):
        whole = torch.tensor([*prompt, *response])
        ids[i, : len(whole)] = whole
        wanted[i, len(prompt) : len(whole)] = whole[len(prompt) :]
    logits = model(input_ids=ids).logits  # padding is at the end: nothing looks at it
    return cross_entropy(logits[:, :-1].flatten(0, 1), wanted[:, 1:].flatten())


def settings(folder: Path, method: str, seed: int, steps: int, model: Path, *sets: str) -> TrainingRun:
    """Return the training of a method and a seed."""
    recipe = folder / "recipe.toml"
    recipe.write_text(RECIPE, encoding="utf-8")
    given = (*METHODS[method], f"stage.seed={seed}", f"stage.max_steps={steps}", *sets)
    return prepare(str(recipe), ["needles"], TEXTS, store=str(folder / "store"), sets=given, model=str(model))


def trained(run: TrainingRun) -> Path:
    """Train, or take what was trained before; return the folder of the last weights."""
    began = time.monotonic()
    summary = train(run)
    store, checkpoints = Store(run.config.store), Checkpoints(Store(run.config.store), run.run_id)
    print(f"{time.monotonic() - began:6.0f} s  {run.run_id}: {summary['steps']} steps", flush=True)
    return Path(store.path(*checkpoints.exported(run.recipe.stage.max_steps, "model")))


async def read_all(folder: Path, readers: dict[str, Path], count: int, longest: int) -> None:
    """Have each reader read the held-out tasks greedily, and keep what came out in ``NAME.json``."""
    if all((folder / f"{name}.json").exists() for name in readers):
        return
    weak = readers["weak reader"]
    run = settings(folder, "Multi-Conv DAPO", 99, 1, weak, f"rollout.segments={longest}")
    tasks = [splits(run).validation.task(i) for i in range(count)]
    reader = ReaderSpec(run.config)
    spec = ReadingSpec(reader.scheme.prompts, reader.scheme.config.model_copy(update={"temperature": 0.0}))
    engine: Any = reader.make_engine()
    await engine.start()
    try:
        for name, model in readers.items():
            if (folder / f"{name}.json").exists():
                continue
            await engine.update(str(model), name)
            pay = RewardConfig({"task": 1.0})
            read = await asyncio.gather(*(roll_out(task, 0, spec, engine.generate, pay) for task in tasks))
            (folder / f"{name}.json").write_text(json.dumps([_kept(one) for one in read]), encoding="utf-8")
            print(f"read by {name}", flush=True)
    finally:
        await engine.stop()


def _kept(one: Trajectory) -> dict[str, float]:
    trace = one.trace
    assert trace is not None
    gates = list(zip(trace.updates, trace.evidence or (), strict=False))
    right = sum(update.changed == holds for update, holds in gates)
    return {
        "accuracy": one.reward.parts["task"],
        "conversations saved": (trace.segments - len(trace.updates)) / (trace.segments + 1),
        "updates where the gate is right": right / len(gates) if gates else 0.0,
    }


def values(folder: Path, method: str, seeds: Sequence[int], what: str) -> tuple[list[float], list[str]]:
    """Return a method's values over its seeds and tasks, and the seed of each."""
    found, clusters = [], []
    for seed in seeds:
        for one in json.loads((folder / f"{method} {seed}.json").read_text(encoding="utf-8")):
            found.append(one[what])
            clusters.append(str(seed))
    return found, clusters


def sampled(folder: Path, run_id: str) -> float:
    """Return the share of the segments that rollouts read in the last steps of a training."""
    checkpoints = Checkpoints(Store(str(folder / "store")), run_id)
    checkpoints.read()
    last = [float(row["segments_read"]) for row in checkpoints.metrics[-_LAST:]]
    return sum(last) / len(last)


def rows(folder: Path, seeds: Sequence[int], run_ids: dict[str, str]) -> list[Row]:
    """Return what was measured of the seeds that all methods have; trainings are named by method and seed."""
    weak = json.loads((folder / "weak reader.json").read_text(encoding="utf-8"))
    made = []
    for what in weak[0]:
        middle = sum(one[what] for one in weak) / len(weak)
        made.append(Row(what, round(100 * middle, 1), "%", "weak reader", n=len(weak)))
        base, clusters = values(folder, "Multi-Conv DAPO", seeds, what)
        for method in METHODS:
            own, _ = values(folder, method, seeds, what)
            made.append(_row(what, method, compare(own, [0.0] * len(own), clusters), "%"))
            if method != "Multi-Conv DAPO":
                made.append(_difference(what, method, compare(own, base, clusters)))
    what, names = "segments read by rollouts, last steps", [str(seed) for seed in seeds]
    base = [sampled(folder, run_ids[f"Multi-Conv DAPO {seed}"]) for seed in seeds]
    for method in METHODS:
        own = [sampled(folder, run_ids[f"{method} {seed}"]) for seed in seeds]
        made.append(_row(what, method, compare(own, [0.0] * len(own), names), "%"))
        if method != "Multi-Conv DAPO":
            made.append(_difference(what, method, compare(own, base, names)))
    return made


def _difference(what: str, method: str, found: Comparison) -> Row:
    within = found.low <= 0.0 <= found.high
    note = "none" if not found.better and not found.worse else "within noise" if within else "beyond noise"
    return replace(_row(f"{what}: difference", method, found, "points"), note=note)


def _row(name: str, column: str, found: Comparison, unit: str) -> Row:
    interval = (round(100 * found.low, 1), round(100 * found.high, 1))
    return Row(name, round(100 * found.difference, 1), unit, column, interval, n=found.n)


def main() -> None:
    """Make the weak reader, train, read and record."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, default=None, help="what is done is kept here")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--tasks", type=int, default=96, help="held-out tasks")
    parser.add_argument("--longest", type=int, default=6, help="segments of a held-out task at most")
    arguments(parser)
    given = parser.parse_args()
    folder = (given.folder or Path(tempfile.mkdtemp())).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    weak = folder / "reader"
    if not weak.exists():
        make_weak(weak)
    readers, run_ids, done = {"weak reader": weak}, dict[str, str](), list[int]()
    for seed in SEEDS:
        runs = {method: settings(folder, method, seed, given.steps, weak) for method in METHODS}
        run_ids |= {f"{method} {seed}": run.run_id for method, run in runs.items()}
        with ray_session(runs["HiMPO"].config.ray):
            readers |= {f"{method} {seed}": trained(run) for method, run in runs.items()}
        asyncio.run(read_all(folder, readers, given.tasks, given.longest))
        done.append(seed)
        name = "training-methods" if given.record is None else given.record
        given.record = name
        made = result("methods", "Training methods on a weak reader", rows(folder, done, run_ids), given, seed=SEEDS[0])
        write(replace(made, note=NOTE.format(sft=_SFT_STEPS, steps=given.steps)))
    if given.folder is None:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
