"""The plan of a training on GPUs: what ranks and engines hold, how long a step takes, and what does not fit."""

import json
import logging
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table as Grid

from infra.readers import bundled_version
from memagent.errors import ConfigError
from memagent.rl.config import Recipe, with_sets
from memagent.rl.footprint import (
    GIB,
    MemoryPart,
    ModelShape,
    StepTokens,
    counted,
    disk,
    learner_flops,
    model_shard,
    optimizer_states,
    rank_memory,
    reference,
    step_tokens,
    weight_bytes,
)
from pipelines.views.formatting import duration


@dataclass(frozen=True, slots=True)
class Gpu:
    """A kind of GPU."""

    name: str
    gib: float
    """Memory that a process finds."""
    tflops: float
    """Peak of dense bfloat16 products, in 10^12 operations a second."""
    terabytes: float
    """Memory bandwidth, in 10^12 bytes a second."""


GPUS = {
    "a100-40": Gpu("A100 40 GB", 39, 312, 1.55),
    "a100": Gpu("A100 80 GB", 79, 312, 2.0),
    "l4": Gpu("L4", 22, 121, 0.3),
    "l40s": Gpu("L40S", 44, 362, 0.86),
    "h100": Gpu("H100", 79, 989, 3.35),
    "h200": Gpu("H200", 139, 989, 4.8),
    "b200": Gpu("B200", 178, 2250, 8.0),
}


@dataclass(frozen=True, slots=True)
class Machines:
    """The GPUs that there are."""

    gpus: int
    per_node: int = 8
    gpu: Gpu = GPUS["h100"]


_RAY_NAMES = {"A100-40G": "a100-40", "A100-80G": "a100"}


def known_gpus(accelerators: Iterable[str]) -> list[Gpu]:
    """Return the kinds of GPUs that are known, of those that Ray names."""
    return [gpu for name in accelerators if (gpu := GPUS.get(_RAY_NAMES.get(name, name.lower()))) is not None]


def load_shape(model: str, config: Path | None = None) -> ModelShape:
    """Read the sizes of a model: a folder, a bundled version, or a Hugging Face name, whose ``config.json`` alone is
    fetched.

    Raises:
        ConfigError: there is no such file (`config`: here already), or it is of another kind of model.
    """
    path = config or (bundled_version(model) or Path(model).expanduser()) / "config.json"
    if config is None and not path.is_file():
        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

        try:
            path = Path(hf_hub_download(model, "config.json"))
        except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
            raise ConfigError(
                f"config.json of {model!r} is unavailable ({type(error).__name__}): give it with --model-config FILE"
            ) from error
    try:
        return ModelShape.of(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error


_RANK_ASLEEP_GIB = 2.0
"""What a rank leaves on its GPU beside its shard of the model, while it is the engine's turn."""
_log = logging.getLogger("memagent.training")
LEARNER_SHARE = 0.35
"""Share of a GPU's peak that the learner's matrix products reach."""
PREFILL_SHARE = 0.45
"""The same of an engine's prompts."""
DECODE_SHARE = 0.6
"""Share of a GPU's memory bandwidth that sampling reaches."""
_SWITCH_SECONDS = 20.0
"""Of a turn: engines put to sleep and woken, the reference moved to main memory and back."""
_HOST_BANDWIDTH = 14e9
"""Bytes a second at which a rank's optimiser, in main memory, goes through its states and back: 3.9 s for 1.75 billion
parameters, measured beside an H200 with 16 cores a rank."""
ENGINE_SHARE = 0.9
"""An engine's share of its GPU where a recipe says nothing."""


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """A recipe on machines."""

    machines: Machines
    ranks: int
    engines: int
    engine_gpus: int
    shared: bool
    rank: list[MemoryPart]
    """Memory of a rank."""
    engine: list[MemoryPart]
    """Memory of an engine's GPU."""
    host: list[MemoryPart]
    """Main memory for each GPU, beside what processes need of their own."""
    disk: list[MemoryPart]
    engine_share: float
    """Share of a GPU that an engine takes (``engine.gpu_memory``)."""
    engine_room: float
    """The most that it may take beside what stays there of a rank."""
    tokens: StepTokens
    minutes: dict[str, float]
    """Of a step, by phase; phases of a shared GPU follow each other."""
    problems: list[str] = field(default_factory=list)
    """Why it cannot run; empty if it can."""

    @property
    def used(self) -> int:
        """GPUs that are used."""
        apart = self.ranks + self.engines * self.engine_gpus
        return max(self.ranks, self.engines * self.engine_gpus) if self.shared else apart

    @property
    def step_minutes(self) -> float:
        """Minutes of a step."""
        return sum(self.minutes.values())


def plan(recipe: Recipe, shape: ModelShape, machines: Machines) -> TrainingPlan:
    """Plan a recipe, of whose model `shape` is, on machines.

    Raises:
        ConfigError: the recipe lacks what a plan needs.
    """
    learner = recipe.learner
    engines = 0 if recipe.rollout.teacher else int(recipe.pool.get("max_size", 1))
    engine_gpus = max(1, round(float(recipe.pool.get("gpus", 1))))
    tokens = step_tokens(recipe)
    share = float(recipe.engine.get("gpu_memory", ENGINE_SHARE))
    made = TrainingPlan(
        machines,
        learner.world_size,
        engines,
        engine_gpus,
        shared=learner.placement == "shared",
        rank=rank_memory(shape, recipe),
        engine=_engine_memory(shape, recipe, machines.gpu, engine_gpus, share) if engines else [],
        host=_host_memory(shape, recipe, engine_gpus, machines.per_node),
        disk=disk(shape, recipe),
        engine_share=share,
        engine_room=_engine_room(shape, recipe, machines.gpu),
        tokens=tokens,
        minutes=_minutes(shape, recipe, machines.gpu, tokens=tokens, engine_gpus=engines * engine_gpus),
    )
    made.problems.extend(_problems(made, recipe))
    return made


def fit(recipe: Recipe, shape: ModelShape, machines: Machines) -> tuple[list[str], TrainingPlan] | None:
    """Return the overrides that use the machines best, and their plan: of those that fit, the quickest step.

    Tried are turns on all GPUs, and learner and engines apart on halves and quarters. None if nothing fits.
    """
    best: tuple[list[str], TrainingPlan] | None = None
    size = max(1, round(float(recipe.pool.get("gpus", 1))))
    teacher = recipe.rollout.teacher
    parts = {machines.gpus // 4, machines.gpus // 2, machines.gpus * 3 // 4} - {0}
    splits = [(machines.gpus, "shared"), *((part, "apart") for part in parts)]
    for ranks, placement in [(machines.gpus, "apart")] if teacher else splits:
        engines = (machines.gpus if placement == "shared" else machines.gpus - ranks) // size
        if not engines and not teacher:
            continue
        sets = [f"learner.world_size={ranks}", f"learner.placement={placement}"]
        sets += [] if teacher else [f"pool.min_size={engines}", f"pool.max_size={engines}"]
        if placement == "shared":
            sets += ["learner.zero_stage=3", "learner.weight_sync=files", "rollout.max_off_policy_steps=0"]
        # The loader's own rules: what it refuses is not proposed.
        other = with_sets(recipe, sets)
        room = _engine_room(shape, other, machines.gpu)
        if float(recipe.engine.get("gpu_memory", ENGINE_SHARE)) > room > 0:
            sets.append(f"engine.gpu_memory={room}")
            other = with_sets(recipe, sets)
        candidate = plan(other, shape, machines)
        if not candidate.problems and (best is None or candidate.step_minutes < best[1].step_minutes):
            best = sets, candidate
    return best


def check_memory(recipe: Recipe, model: Path, accelerators: Iterable[str]) -> None:
    """Refuse a training whose ranks do not fit the GPUs of a cluster, of kinds as Ray names them.

    Kinds other than those of `GPUS`, and models of other kinds, pass.

    Raises:
        ConfigError: saying what a rank needs.
    """
    known = known_gpus(accelerators)
    if not recipe.learner.gpus or not known:
        return
    try:
        shape = load_shape(str(model))
    except ConfigError as error:
        _log.warning("the memory of the ranks is not checked: %s", error)
        return
    smallest = min(known, key=lambda gpu: gpu.gib)
    if (problem := _rank_problem(rank_memory(shape, recipe), smallest)) is not None:
        raise ConfigError(f"{problem}. memagent train plan says what does.")


def _engine_memory(shape: ModelShape, recipe: Recipe, gpu: Gpu, size: int, share: float) -> list[MemoryPart]:
    width = weight_bytes(recipe)
    weights = shape.parameters * width / size
    room = share * gpu.gib * GIB - weights - 2 * GIB
    tokens = max(0.0, room) / (shape.kv_bytes() / size)
    return [
        MemoryPart("weights", weights, f"{counted(shape.parameters)} x {width} bytes / {size} GPUs"),
        MemoryPart("steps", 2 * GIB, "activations and graphs of a step"),
        MemoryPart("key-value cache", max(0.0, room), f"{tokens:,.0f} tokens, what is left of {share:.0%} of the GPU"),
    ]


def _host_memory(shape: ModelShape, recipe: Recipe, size: int, per_node: int) -> list[MemoryPart]:
    """Return what main memory holds for a GPU: weights on their way to engines, and what waits for its turn."""
    width = weight_bytes(recipe)
    count, whole = f"{counted(shape.parameters)} x {width} bytes", shape.parameters * width
    parts = []
    if recipe.learner.weight_sync == "files" and not recipe.rollout.teacher:
        why = f"{count}, twice a node: in Ray's object store, and as files that its engines share"
        parts.append(MemoryPart("weights for engines", 2 * whole / per_node, why))
    if recipe.learner.placement == "shared":
        parts += optimizer_states(shape, recipe) + reference(shape, recipe)
    if recipe.learner.placement == "shared" and not recipe.rollout.teacher:
        parts.append(MemoryPart("an engine's weights", whole / size, f"{count} / {size} GPUs, while it sleeps"))
    return parts


def _engine_room(shape: ModelShape, recipe: Recipe, gpu: Gpu) -> float:
    """Return the share of a GPU that an engine may take, in steps of a hundredth."""
    if recipe.learner.placement != "shared":
        return 1.0
    stays = model_shard(shape, recipe).gib + _RANK_ASLEEP_GIB
    return max(0, math.floor(100 * (1 - stays / gpu.gib))) / 100


def _minutes(shape: ModelShape, recipe: Recipe, gpu: Gpu, tokens: StepTokens, engine_gpus: int) -> dict[str, float]:
    """Estimate the phases of a step."""
    peak = gpu.tflops * 1e12
    learn = learner_flops(shape, recipe, tokens) / (recipe.learner.world_size * peak * LEARNER_SHARE)
    if not engine_gpus:  # a teacher reads, in no time
        return {"learn": learn / 60}
    prefill = shape.forward_flops(tokens.prefilled, tokens.attended) / (engine_gpus * peak * PREFILL_SHARE)
    # A step of decoding reads the weights once, and the cache of each sequence; it gives a token to each.
    length = tokens.sampled / max(1, tokens.conversations)
    sequences = max(1.0, min(256.0, 0.6 * gpu.gib * GIB / (shape.kv_bytes() * length)))
    read = weight_bytes(recipe) * shape.parameters + sequences * length * shape.kv_bytes()
    rate = sequences * gpu.terabytes * 1e12 * DECODE_SHARE / read
    decode = tokens.response / (engine_gpus * rate)
    sync = 0.0 if recipe.learner.weight_sync == "adapters" else weight_bytes(recipe) * shape.parameters / 20e9
    rollout = prefill + decode
    phases = {"rollout": rollout, "learn": learn, "weight_sync": sync}
    if recipe.learner.placement == "shared":
        steps = recipe.rollout.prompts // recipe.learner.minibatch_prompts
        states = sum(part.bytes for part in optimizer_states(shape, recipe))
        phases["switch"] = _SWITCH_SECONDS + steps * 2 * states / _HOST_BANDWIDTH
    elif recipe.rollout.max_off_policy_steps:  # engines sample while the learner works
        phases["rollout"] = max(0.0, rollout - learn)
    return {name: seconds / 60 for name, seconds in phases.items()}


def _problems(made: TrainingPlan, recipe: Recipe) -> Iterator[str]:
    gpu = made.machines.gpu
    if made.used > made.machines.gpus:
        yield (
            f"it wants {made.used} GPUs ({made.ranks} ranks, {made.engines} engines of {made.engine_gpus}), and there "
            f"are {made.machines.gpus}"
        )
    if (problem := _rank_problem(made.rank, gpu)) is not None:
        yield problem
    if not made.engines:
        return
    if made.engine[-1].bytes <= 0:
        yield (
            f"an engine's weights need {made.engine[0].gib:.1f} GiB of a {gpu.name}: raise pool.gpus and "
            "engine.tensor_parallel"
        )
    if made.engine_share > made.engine_room:
        yield (
            f"an engine takes {made.engine_share:.0%} of the GPU, and beside what stays there of a rank there is room "
            f"for {made.engine_room:.0%}: engine.gpu_memory"
        )
    if made.engine_gpus > made.machines.per_node and int(recipe.pool.get("nodes", 1)) == 1:
        yield f"an engine wants {made.engine_gpus} GPUs of a node, and a node has {made.machines.per_node}: pool.nodes"


def _rank_problem(parts: Sequence[MemoryPart], gpu: Gpu) -> str | None:
    held = sum(part.gib for part in parts)
    if held <= gpu.gib:
        return None
    largest = max(parts, key=lambda part: part.bytes).name
    return (
        f"a rank needs {held:.1f} GiB, and a {gpu.name} has {gpu.gib:g}: most of it is {largest}. Raise "
        "learner.world_size or learner.zero_stage, lower learner.token_budget, or set "
        "learner.activation_checkpointing or learner.lora_rank"
    )


def show_plan(made: TrainingPlan, recipe: Recipe, better: tuple[list[str], TrainingPlan] | None) -> None:
    """Print a plan."""
    console = Console(highlight=False, soft_wrap=True)
    machines = made.machines
    nodes = -(-machines.gpus // machines.per_node)
    console.print(f"{recipe.model} on {machines.gpus} x {machines.gpu.name}, {nodes} nodes of {machines.per_node}")
    how = "by turns on the same GPUs" if made.shared else "on GPUs of their own"
    console.print(
        f"{made.ranks} learner ranks (ZeRO-{recipe.learner.zero_stage}) and {made.engines} engines of "
        f"{made.engine_gpus} GPUs, {how}: {made.used} of {machines.gpus} GPUs\n"
    )
    for title, parts in (
        (f"a rank's GPU, of {machines.gpu.gib:g} GiB", made.rank),
        (f"an engine's GPU, of {machines.gpu.gib:g} GiB", made.engine),
        ("main memory for each GPU", made.host),
        ("disk", made.disk),
    ):
        if not parts:
            continue
        grid = Grid(title=title, title_justify="left", show_header=False, box=None, padding=(0, 2))
        grid.add_column(justify="right")
        for part in parts:
            grid.add_row(f"{part.gib:,.1f} GiB", part.name, part.why)
        if parts is made.rank:
            grid.add_row(f"{sum(part.gib for part in parts):,.1f} GiB", "together", "")
        console.print(grid)
    tokens = made.tokens
    console.print(
        f"\na step: {tokens.conversations:,} conversations, {tokens.sampled / 1e6:,.0f} million tokens sampled; the "
        f"learner computes {tokens.computed / 1e6:,.0f} million of them, as shared prefixes count once "
        f"({tokens.sampled / tokens.computed:.1f} times fewer)"
    )
    phases = ", ".join(f"{name} {minutes:.1f}" for name, minutes in made.minutes.items())
    steps = recipe.stage.max_steps
    console.print(
        f"about {made.step_minutes:.1f} minutes a step ({phases}), {duration(60 * made.step_minutes * steps)} for "
        f"{steps} step{'s' if steps != 1 else ''}; assumed: {LEARNER_SHARE:.0%} of the peak in the learner, "
        f"{PREFILL_SHARE:.0%} in prompts, {DECODE_SHARE:.0%} of the memory bandwidth in sampling; communication is not "
        "counted"
    )
    for problem in made.problems:
        console.print(f"[bold red]does not fit[/]: {problem}")
    if better is not None and (made.problems or better[1].step_minutes < 0.95 * made.step_minutes):
        sets = " ".join(f"--set {item}" for item in better[0])
        console.print(f"these {machines.gpus} GPUs are used better so ({better[1].step_minutes:.1f} minutes): {sets}")
