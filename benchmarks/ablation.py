"""Reading with and without reinforcement learning, by the length of the text: MemAgent's ablation (arXiv 2507.02259).

    python -m benchmarks.ablation score FOLDER --name NAME --segments 8,32,128 [--texts FILE]
    python -m benchmarks.ablation train FOLDER --merged FOLDER --texts FILE [--contracts FOLDER]
    python -m benchmarks.ablation record --scores FILE --scores FILE

``score`` asks for planted facts in texts of so many segments; ``train`` takes steps of Multi-Conv DAPO on planted facts
and contracts, with the product's learner, rewards and packing; ``record`` puts scores together and draws them. On a
machine with PyTorch alone: rollouts are sampled by `benchmarks.torch_engine`.
"""

import argparse
import asyncio
import json
import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import torch

from benchmarks.record import FOLDER, Row, arguments, result, write
from benchmarks.torch_engine import TorchEngine
from infra.learner.rank import Learner, Rank
from memagent.config import ReadingConfig
from memagent.evaluation.ruler import DraftRequest, find_kind, make_samples
from memagent.evaluation.stats import mean
from memagent.reading.chat import for_model
from memagent.reading.conversations import ReadingSpec
from memagent.reading.prompts import load_template
from memagent.reading.tokens import load_tokenizer
from memagent.rl.config import Recipe, RewardRecipe, load_recipe
from memagent.rl.dataset import Cut, Dataset, DatasetRequest, DatasetSplits, Mixed, Task, make_task
from memagent.rl.packing import balance, items, pack, units
from memagent.rl.rollout import Batch, roll_out, roll_out_group
from memagent.rl.sources import contracts, halves, needles
from memagent.rl.trajectory import with_advantages

KINDS = ("niah_single_1", "niah_single_2", "niah_multikey_1")
_FULL = 0.8
"""Typical fill of a segment with soft boundaries."""
_TOKENS = 256
"""Tokens of a segment."""
_PAY = RewardRecipe(weights={"task": 1.0})


def spec_of(folder: Path, **changes: object) -> ReadingSpec:
    """Return a model's prompts and reading, with some keys changed."""
    given = json.loads((folder / "reading.json").read_text(encoding="utf-8"))
    reading = ReadingConfig(**{**given, **changes})
    template = for_model(load_template(reading.template), str(folder), reading.chat_options, reading.system_prompt)
    return ReadingSpec.compile(reading, template, load_tokenizer(str(folder)))


def texts_of(file: Path) -> list[str]:
    """Return passages, put together to texts of a few pages."""
    passages = [json.loads(line)["text"] for line in file.read_text(encoding="utf-8").splitlines()]
    return ["\n\n".join(passages[first : first + 20]) for first in range(0, len(passages), 20)]


def planted(spec: ReadingSpec, texts: Sequence[str], count: int, n: int) -> list[tuple[str, Task]]:
    """Return tasks of about `count` segments, `n` of each kind."""
    cut = Cut(spec.prompts.tokenizer, spec.config, most=10**6)
    tokens = int(count * _TOKENS * _FULL)
    found = []
    for kind in KINDS:
        shuffled = random.Random(f"{kind} {count}").sample(list(texts), len(texts))
        request = DraftRequest(find_kind(kind), tokens, spec.prompts.tokenizer, texts=shuffled)
        for sample in make_samples(request, n, seed=7):
            task = make_task(sample, sample.sample_id, cut(sample.text()), 10**6, random.Random(0))
            found.append((kind, task))
    return found


async def score(given: argparse.Namespace) -> list[Row]:
    """Return the share of right answers by length and kind."""
    spec = spec_of(given.folder, temperature=0.0)
    engine = TorchEngine(given.folder, rows=given.rows, stops=spec.prompts.stop_ids)
    _, texts = halves(texts_of(given.texts))
    rows: list[Row] = []
    for count in map(int, given.segments.split(",")):
        asked = planted(spec, texts, count, given.n)
        if given.contracts and count <= 32:
            held = _contracts(given, Cut(spec.prompts.tokenizer, spec.config, count)).validation
            asked += [("contracts", held.task(i)) for i in range(2 * given.n)]
        began = time.monotonic()
        made = await asyncio.gather(*(roll_out(task, 0, spec, generate=engine.generate, pay=_PAY) for _, task in asked))
        right: dict[str, list[float]] = {}
        reasons: Counter[str] = Counter()
        for (kind, task), one in zip(asked, made, strict=True):
            value = task.judge("" if one.answer == spec.prompts.template.not_found else one.answer)
            for name in (kind, *(["planted facts"] if kind != "contracts" else [])):
                right.setdefault(name, []).append(value)
            reasons["cut" if any(turn.cut for turn in one.conversations) else "whole"] += 1
        length = round(sum(len(task.segments) for _, task in asked) / len(asked))
        for name, values in right.items():
            found = mean("right", values)
            interval = (round(100 * found.low, 1), round(100 * found.high, 1))
            row = Row(f"{name}, {count} segments", round(100 * found.value, 1), "%", given.name, interval, found.n)
            rows.append(row)
            print(row, flush=True)
        print(f"{length} segments, {dict(reasons)}, {time.monotonic() - began:.0f} s", flush=True)
        given.out.write_text(json.dumps([asdict(row) for row in rows]), encoding="utf-8")
    return rows


def _contracts(given: argparse.Namespace, cut: Cut) -> DatasetSplits:
    return contracts(DatasetRequest(str(given.contracts), cut, list, seed=11, validation_seed=12, store_url=""))


def data(given: argparse.Namespace, recipe: Recipe, spec: ReadingSpec) -> Dataset:
    """Return the training tasks."""
    cut = Cut(spec.prompts.tokenizer, spec.config, recipe.rollout.segments)
    texts = texts_of(given.texts)
    request = DatasetRequest("", cut, lambda: texts, seed=5, validation_seed=6, store_url="")
    made: list[Dataset] = [needles(request).train]
    if given.contracts:
        made.append(_contracts(given, cut).train)
    return Mixed(tuple(made), (2.0, 1.0)[: len(made)], seed=5)


def learn(learner: Learner, recipe: Recipe, batch: Batch) -> dict[str, float]:
    """Take one optimiser step on a batch."""
    groups = [with_advantages(group, recipe.loss.baseline) for group in batch.kept]
    flat = items([one for group in groups for one in group.trajectories])
    made = units(flat, recipe.learner.token_budget)
    bins = balance([unit.tokens for unit in made], 1, recipe.learner.token_budget)[0]
    rows = [pack([made[i] for i in bin_]) for bin_ in bins]
    tokens = sum(len(item.conversation.response_ids) for item in flat)
    sums = learner.learn(rows, tokens)
    return sums | {"computed": float(sum(len(row.ids) for row in rows)), "response_tokens": float(tokens)}


async def train(given: argparse.Namespace) -> None:
    """Take steps until the time is over; write the weights, merged, as a model folder."""
    layout = ["learner.zero_stage=1", f"learner.lora_rank={given.rank}", f"learner.lora_alpha={2 * given.rank}"]
    if torch.cuda.is_available():
        layout += ["learner.gpus=1", "learner.dtype=bfloat16"]
    layout += [f"rollout.prompts={given.prompts}", "rollout.group_size=8", f"rollout.segments={given.segments}"]
    layout += [f"learner.minibatch_prompts={given.prompts}", f"learner.lr={given.lr}", "learner.warmup_steps=2"]
    layout += ["loss.kl_coef=0.0", "loss.clip_high=0.28", "learner.token_budget=32768", *given.set]
    recipe = load_recipe("nano-cpu", layout)
    spec = spec_of(given.folder, temperature=recipe.rollout.temperature)
    learner = Learner(str(given.folder), recipe, Rank(port=29_517))
    engine = TorchEngine(given.folder, rows=given.rows, stops=spec.prompts.stop_ids, version="0")
    tasks, number, began = data(given, recipe, spec), 0, time.monotonic()
    log = given.out.with_suffix(".jsonl").open("w", encoding="utf-8")
    step = 0
    while time.monotonic() - began < 60 * given.minutes:
        step += 1
        batch, at = Batch(recipe.rollout.prompts, not recipe.rollout.dynamic_sampling), time.monotonic()
        seen: list[float] = []
        while batch.missing:
            wanted = max(1, given.rows // recipe.rollout.group_size)
            drawn = [tasks.task(number + i) for i in range(wanted)]
            number += wanted
            calls = [
                roll_out_group(task, recipe.rollout.group_size, spec, generate=engine.generate, pay=_PAY)
                for task in drawn
            ]
            for group in await asyncio.gather(*calls):
                seen += group.rewards
                with suppress(ValueError):  # one more than a batch has
                    batch.take(group)
        sampled = time.monotonic() - at
        sums = learn(learner, recipe, batch)
        learned = time.monotonic() - at - sampled
        engine.take(learner._states.model_weights(), str(step))
        row = {"step": step, "reward": sum(seen) / len(seen), "all_right": batch.all_right, "rollouts": len(seen)}
        row |= {"all_wrong": batch.all_wrong, "rollout_s": round(sampled, 1), "learn_s": round(learned, 1)} | sums
        log.write(json.dumps(row) + "\n")
        log.flush()
        print(json.dumps(row), flush=True)
    learner.export_adapter(given.out.with_suffix(""))
    learner.export(given.merged)
    (given.merged / "reading.json").write_text((given.folder / "reading.json").read_text(encoding="utf-8"))
    learner.stop()


def figure(rows: Sequence[Row], file: Path) -> None:
    """Draw the shares of planted facts by the length of the text."""
    from pipelines.report.plots import accuracy_by_length

    drawn = []
    for row in rows:
        if row.name.startswith("planted facts") and row.n:
            length = int(int(row.name.split()[2]) * _FULL * _TOKENS)
            right = round(row.n * float(row.value) / 100)
            one = {"method": row.column, "length": length}
            drawn += [one | {"score": float(i < right)} for i in range(row.n)]
    with tempfile.TemporaryDirectory() as folder:
        made = accuracy_by_length(drawn, Path(folder), published=False)
        shutil.copy(next(path for path in made if path.suffix == ".png"), file)


def record(given: argparse.Namespace) -> None:
    """Write the record of some scores, and the figure."""
    found = [Row(**data) for file in given.scores for data in json.loads(file.read_text(encoding="utf-8"))]
    rows = [row for row in found if not row.name.startswith("niah")]
    title = "A real language model as it is, taught, and after rewards, by the length of the text"
    write(result("ablation", title, rows, given, number_format="bfloat16"))
    figure(rows, FOLDER.parent / "ablation.png")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["score", "train", "record"])
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--out", type=Path, help="file of the scores, or of the steps")
    parser.add_argument("--scores", type=Path, action="append", default=[])
    parser.add_argument("--texts", type=Path, help='JSONL with "text"')
    parser.add_argument("--contracts", type=Path)
    parser.add_argument("--name", default="as it is")
    parser.add_argument("--segments", default="8,32,128")
    parser.add_argument("--n", type=int, default=32, help="tasks of each kind")
    parser.add_argument("--rows", type=int, default=512)
    parser.add_argument("--merged", type=Path)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--set", action="append", default=[])
    arguments(parser)
    given = parser.parse_args()
    if given.what == "record":
        record(given)
    else:
        asyncio.run(score(given) if given.what == "score" else train(given))


if __name__ == "__main__":
    main()
