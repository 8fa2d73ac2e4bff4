"""The learner, with all that a recipe may choose of its layout, on tiny models, against plain PyTorch.

Each layout takes steps, lets go of the GPU and takes it back, writes a checkpoint, goes on from it on the same ranks
and on another number of them, and exports its weights. What is compared is the change of the weights, as a vector: its
distance from the one that it should be, relative to that one's length. 1 is as far off as not having learnt at all.

python -m benchmarks.layouts --gpus 2    # 0: two ranks on CPUs; status 1: a layout failed
"""

import argparse
import asyncio
import json
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import ValidationError
from safetensors.torch import load_file, save_file
from torch import Tensor

from benchmarks.record import Row, arguments, result, write
from infra.learner.group import LearnerGroup, RankActor, RankLost
from infra.learner.weights import Rendezvous, receive
from infra.readers import ReaderSpec
from memagent.config import load_config
from memagent.nano import bundled
from memagent.rl.config import Recipe
from memagent.rl.footprint import FAMILIES
from memagent.rl.loss import ResponseTokens, token_loss
from memagent.rl.model import PolicyModel, adapt, adapted, load_model
from memagent.rl.packing import Packed, Unit, items, pack
from memagent.rl.reward import Reward
from memagent.rl.trajectory import Conversation, Group, Trajectory, with_advantages

RATE = 1e-3
_RANK = 4
"""Of LoRA."""
_BEFORE, _STEPS = 2, 3
"""Steps before the checkpoint, and steps altogether."""
_CLOSE = {"float32": 1e-3, "bfloat16": 0.2}
"""Distance from plain float32 training up to which a layout passes; Adam makes much of the rounding of small gradients,
whose direction is all that it follows in its first steps."""
_LOGPROB = {"float32": 1e-3, "bfloat16": 0.1}
"""The same of log-probabilities under the weights that engines get."""


@dataclass(frozen=True, slots=True)
class Layout:
    """What a recipe may choose."""

    zero_stage: Literal[1, 2, 3]
    dtype: Literal["float32", "bfloat16"]
    lora: bool
    placement: Literal["apart", "shared"]
    family: str = "qwen2"

    def recipe(self, model: Path, ranks: int, gpus: float) -> Recipe:
        """Return the recipe of a training on so many ranks.

        Raises:
            ValidationError: it is not offered.
        """
        learner = {
            "zero_stage": self.zero_stage,
            "dtype": self.dtype,
            "lora_rank": _RANK if self.lora else 0,
            "lora_alpha": 2 * _RANK,
            "placement": self.placement,
            "world_size": ranks,
            "gpus": gpus,
            "threads": 1,
            "lr": RATE,
            "warmup_steps": 0,
            "minibatch_prompts": 2,
            "token_budget": 160,
        }
        return Recipe.model_validate({"model": str(model), "rollout": {"prompts": 2}, "learner": learner})


def layouts() -> list[Layout]:
    """Return every layout that a recipe may choose, and for each other family of models one."""
    offered = []
    for chosen in product((1, 2, 3), ("float32", "bfloat16"), (False, True), ("apart", "shared")):
        layout = Layout(*chosen)  # type: ignore[arg-type]
        try:
            layout.recipe(Path("model"), 1, 0)
        except ValidationError:
            continue
        offered.append(layout)
    others = sorted(set(FAMILIES) - {"qwen2"})
    return offered + [Layout(3, "float32", lora=False, placement="apart", family=family) for family in others]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a layout. Distances are relative (see the module); None: not tried."""

    layout: Layout
    step: float | None = None
    """Of three steps from plain PyTorch's in float32."""
    resumed: float | None = None
    """Of going on from a checkpoint from going on without one."""
    other_ranks: float | None = None
    """The same on another number of ranks."""
    logprob: float | None = None
    """Largest difference of a log-probability under the weights that an engine gets as files."""
    broadcast: float | None = None
    """Largest difference of a weight that an engine gets by broadcast."""
    seconds: float = 0.0
    error: str = ""
    """What it ended with, if not with numbers."""

    @property
    def problem(self) -> str:
        """What is wrong; empty if nothing is."""
        if self.error:
            return self.error
        close = _CLOSE[self.layout.dtype]
        limits = [("step", close), ("resumed", close), ("other_ranks", close), ("broadcast", 0.0)]
        limits.append(("logprob", _LOGPROB[self.layout.dtype]))
        found = [(name, getattr(self, name) or 0.0, most) for name, most in limits]
        return ", ".join(f"{name} {value:.2g} > {most:g}" for name, value, most in found if not value <= most)


async def outcomes(folder: Path, gpus: int, tried: Sequence[Layout] = ()) -> list[Outcome]:
    """Try layouts, by default all, on the learner's own actors, in the Ray session that runs.

    All nodes see `folder`, which is for models and checkpoints. Each of the `gpus` has a rank, but one of several
    receives weights; with 0 there are two ranks on CPUs.
    """
    ranks, width = (max(1, gpus - 1), 1.0) if gpus else (2, 0.0)
    chosen = list(tried or layouts())
    first = _model(folder, chosen[0].family)
    found: dict[Layout, Outcome] = {}
    for size in (ranks, 1) if ranks > 1 else (ranks,):
        group = LearnerGroup(_reader(first), chosen[0].recipe(first, size, width))
        await group.start()
        try:
            for layout in chosen:
                before = found.get(layout)
                if before and before.error:
                    continue
                trial = _Trial(folder, layout, group, layout.recipe(_model(folder, layout.family), size, width))
                found[layout] = await trial.run(before, broadcasts=gpus != 1)
        finally:
            await group.stop()
    return list(found.values())


class _Trial:
    def __init__(self, folder: Path, layout: Layout, group: LearnerGroup, recipe: Recipe) -> None:
        self._layout, self._group, self._recipe = layout, group, recipe
        name = "-".join(map(str, (layout.family, layout.zero_stage, layout.dtype, layout.lora, layout.placement)))
        self._home = folder / "trials" / name
        self._url = str(self._home)

    async def run(self, before: Outcome | None, *, broadcasts: bool) -> Outcome:
        """Train, and go on from a checkpoint; with an outcome of another number of ranks, go on from the one of these.

        `broadcasts` says whether there is a place for a receiver.
        """
        started, outcome = time.monotonic(), before or Outcome(self._layout)
        try:
            if before is None:
                outcome = await self._first(broadcasts)
            else:
                other = await self._resume()
                outcome = replace(outcome, other_ranks=self._off(other, load_file(self._home / "whole.safetensors")))
        except Exception as error:  # whatever a layout ends with is its outcome
            where = "on other ranks: " if before else ""
            outcome = replace(outcome, error=f"{where}{type(error).__name__}: {error}")
            if isinstance(error, RankLost):
                await self._group.restart()
        seconds = (before.seconds if before else 0.0) + time.monotonic() - started
        return replace(outcome, seconds=round(seconds, 1))

    async def _first(self, broadcasts: bool) -> Outcome:
        group = self._group
        shutil.rmtree(self._home, ignore_errors=True)
        await group.begin(_reader(Path(self._recipe.model)), self._recipe)
        for step in range(_BEFORE):
            await group.learn(_batch(step))
        await group.call(RankActor.offload)
        await group.call(RankActor.reload)
        await group.call(RankActor.save, self._url, "checkpoint")
        await group.call(RankActor.saved)
        for step in range(_BEFORE, _STEPS):
            await group.learn(_batch(step))
        whole = (await group.call(RankActor.merged))[0]
        save_file(whole, self._home / "whole.safetensors")
        if self._layout.lora:
            await group.call(RankActor.export_to, self._url, "adapter", adapter=True)
        logprob = await self._logprob()
        broadcast = await self._broadcast() if broadcasts else None
        expected = by_hand(self._recipe)
        resumed = await self._resume()
        return Outcome(
            self._layout,
            step=self._off(whole, expected),
            resumed=self._off(resumed, whole),
            logprob=logprob,
            broadcast=broadcast,
        )

    async def _resume(self) -> dict[str, Tensor]:
        group = self._group
        await group.begin(_reader(Path(self._recipe.model)), self._recipe)
        await group.call(RankActor.load_from, self._url, "checkpoint")
        for step in range(_BEFORE, _STEPS):
            await group.learn(_batch(step))
        return (await group.call(RankActor.merged))[0]

    def _off(self, weights: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> float:
        """Return the relative distance of a change of the weights from the expected one."""
        initial = load_file(Path(self._recipe.model) / "model.safetensors")
        far = sum(float((weights[name] - expected[name]).double().square().sum()) for name in initial)
        length = sum(float((expected[name] - initial[name]).double().square().sum()) for name in initial)
        if not length:
            return float("inf")
        return float((far / length) ** 0.5)

    async def _logprob(self) -> float:
        """Compare the ranks' log-probabilities with those of a model loaded from what engines get."""
        import ray

        files = (await self._group.call(RankActor.weights))[0]
        folder = self._home / "engine"
        folder.mkdir()
        for name, content in files.items():
            (folder / name).write_bytes(ray.get(content))
        row = _alone(_batch(_STEPS))
        theirs = (await self._group.call(RankActor.score, [row]))[0][0]
        model = load_model(folder, getattr(torch, self._layout.dtype))
        with torch.no_grad():
            ours = _scores(model, row)
        return float((ours - torch.tensor(theirs)).abs().max())

    async def _broadcast(self) -> float:
        """Compare what a receiver gets with what is written as files."""
        import ray

        meeting = (await self._group.call(RankActor.meeting, 1))[0]
        gpus = self._recipe.learner.gpus
        receiver = ray.remote(_receive).options(num_cpus=0, num_gpus=gpus).remote(meeting, bool(gpus))
        await self._group.call(RankActor.send, meeting)
        got = await receiver
        kept = load_file(self._home / "engine" / "model.safetensors")
        return max(float((torch.tensor(got[name]) - kept[name].float()).abs().max()) for name in kept)


def _receive(meeting: Rendezvous, gpu: bool) -> dict[str, Any]:
    device = torch.device("cuda", 0) if gpu else torch.device("cpu")
    return {name: weight.float().cpu().numpy() for name, weight in receive(meeting, 1, device)}


def by_hand(recipe: Recipe) -> dict[str, Tensor]:
    """Train in plain PyTorch: float32, no sharding, no packing, a conversation at a time."""
    learner = recipe.learner
    torch.manual_seed(recipe.stage.seed)
    policy = load_model(recipe.model, getattr(torch, learner.dtype))
    if learner.lora_rank:
        adapt(policy.model, learner.lora_rank, learner.lora_alpha)
    policy = policy.float().train()
    trained = [one for one in policy.parameters() if one.requires_grad]
    optimiser = torch.optim.AdamW(trained, lr=learner.lr, betas=learner.betas, weight_decay=learner.weight_decay)
    for step in range(_STEPS):
        optimiser.zero_grad()
        flat = items([one for group in _batch(step) for one in group.trajectories])
        tokens = sum(len(item.conversation.response_ids) for item in flat)
        for item in flat:
            row = pack([Unit((item,))])
            new = _scores(policy, row)
            sampled, advantage = torch.tensor(row.logprobs), torch.tensor(row.advantages)
            given = ResponseTokens(new.detach(), sampled, advantage, row.lengths)
            torch.autograd.backward(token_loss(new, given, recipe.loss).objective / tokens)
        torch.nn.utils.clip_grad_norm_(trained, learner.gradient_clip)
        optimiser.step()
    model: Any = policy.model
    changed = adapted(model)
    whole = {name: one.detach() for name, one in model.named_parameters()}
    for name, layer in changed.items():
        whole[name] = whole[name] + layer.scale * (layer.up @ layer.down).detach()
    return whole


def _scores(policy: PolicyModel, row: Packed) -> Tensor:
    scores: Tensor = policy(
        torch.tensor(row.ids), torch.tensor(row.positions), row.blocks, targets=torch.tensor(row.targets)
    )[0]
    return scores


def _alone(groups: Sequence[Group]) -> Packed:
    flat = items([one for group in groups for one in group.trajectories])
    return pack([Unit((item,)) for item in flat])


_VOCABULARY = 320


def _batch(step: int) -> list[Group]:
    """Make two groups of rollouts of which the conversations begin alike, as those of a reading do."""
    return [with_advantages(_group(random.Random(2 * step + i))) for i in range(2)]


def _group(rng: random.Random) -> Group:
    sections = [[rng.randrange(_VOCABULARY) for _ in range(40)] for _ in range(2)]
    trajectories = []
    for number in range(4):
        conversations = []
        for section in sections:
            asked = [*section, *(rng.randrange(_VOCABULARY) for _ in range(rng.randint(2, 9)))]
            said = [rng.randrange(_VOCABULARY) for _ in range(rng.randint(2, 9))]
            conversations.append(Conversation(asked, said, [-5.0 - rng.random() for _ in said], "update"))
        paid = float(number % 2)
        trajectories.append(Trajectory("made", number, tuple(conversations), Reward(paid, paid, paid)))
    return Group("made", tuple(trajectories))


_SIZES = {
    "vocab_size": _VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 1024,
    "pad_token_id": 0,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "tie_word_embeddings": False,
    "sliding_window": 16,
    "initializer_range": 0.1,
}


def _model(folder: Path, family: str) -> Path:
    """Save a tiny random model of a family, once."""
    home = folder / "models" / family
    if home.is_dir():
        return home
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **_SIZES)).float().save_pretrained(home)
    shutil.copyfile(bundled() / "tokenizer.json", home / "tokenizer.json")
    (home / "reading.json").write_text(json.dumps({"template": "nano"}), encoding="utf-8")
    return home


def _reader(model: Path) -> ReaderSpec:
    return ReaderSpec(load_config(None, ["engine.kind=vllm"], store=str(model.parent), engine__model=str(model)))


def main() -> None:
    import ray
    from transformers.utils.logging import disable_progress_bar

    from infra.cluster.session import ray_session

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpus", type=int, help="use this many GPUs; 0: two CPU ranks; default: all")
    parser.add_argument("--folder", type=Path, help="keep models and checkpoints here; default: temporary")
    arguments(parser)
    given = parser.parse_args()
    disable_progress_bar()
    with tempfile.TemporaryDirectory() as made, ray_session(load_config().ray):
        gpus = int(ray.cluster_resources().get("GPU", 0)) if given.gpus is None else given.gpus
        found = asyncio.run(outcomes(given.folder or Path(made), gpus))
    print(json.dumps([{**asdict(one), "problem": one.problem} for one in found], indent=1))
    rows = []
    for one in found:
        layout = one.layout
        trained = "LoRA" if layout.lora else "all"
        name = f"{layout.family}, ZeRO-{layout.zero_stage}, {layout.dtype}, {trained}, {layout.placement}"
        values = {column: getattr(one, column) for column in ("step", "resumed", "other_ranks", "logprob", "broadcast")}
        rows += [Row(name, value, column=column) for column, value in values.items() if value is not None]
        rows += [Row(name, one.problem, column="problem")] if one.problem else []
    write(result("layouts", "Layouts of the learner: distance from plain PyTorch", rows, given))
    sys.exit(any(one.problem for one in found))


if __name__ == "__main__":
    main()
