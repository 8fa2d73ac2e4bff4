"""A training plan on the terminal."""

from rich.console import Console
from rich.table import Table as Grid

from memagent.rl.config import Recipe
from pipelines.training.plan import DECODE_SHARE, LEARNER_SHARE, PREFILL_SHARE, TrainingPlan


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
        ("main memory for each GPU, while it is the other's turn", made.host),
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
        f"about {made.step_minutes:.1f} minutes a step ({phases}), {made.step_minutes * steps / 60:.0f} hours for "
        f"{steps} steps; assumed: {LEARNER_SHARE:.0%} of the peak in the learner, {PREFILL_SHARE:.0%} in prompts, "
        f"{DECODE_SHARE:.0%} of the memory bandwidth in sampling; communication is not counted"
    )
    for problem in made.problems:
        console.print(f"[bold red]does not fit[/]: {problem}")
    if better is not None and (made.problems or better[1].step_minutes < 0.95 * made.step_minutes):
        sets = " ".join(f"--set {item}" for item in better[0])
        console.print(f"these {machines.gpus} GPUs are used better so ({better[1].step_minutes:.1f} minutes): {sets}")
