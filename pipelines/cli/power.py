"""The command ``policies power``: how many questions a promotion check needs. Importing it loads nothing heavy."""

from typing import TYPE_CHECKING, Annotated

import typer

from memagent.errors import UsageError
from pipelines.cli.options import JsonOption, out

if TYPE_CHECKING:
    from memagent.rl.power import PowerTable


def power(
    questions: Annotated[str, typer.Option(help="Assume these questions per document, comma-separated.")] = "1,5,20",
    documents: Annotated[str, typer.Option(help="Assume these numbers of documents.")] = "25,50,100,200,400,800",
    gain: Annotated[float, typer.Option(min=0.001, max=0.5, help="Assume this gain: 0.05 is 5 points.")] = 0.05,
    correlation: Annotated[float, typer.Option(min=0, max=1, help="Assume this correlation within a document.")] = 0.1,
    discordance: Annotated[
        float, typer.Option(min=0.001, max=1, help="Assume this share of questions only one version answers.")
    ] = 0.2,
    look: Annotated[int, typer.Option(min=1, help="Assume this is the nth candidate compared.")] = 1,
    alpha: Annotated[
        float, typer.Option(min=1e-6, max=0.5, help="Bound false promotions by this probability.")
    ] = 0.025,
    margin: Annotated[float, typer.Option(min=0.001, max=0.999, help="Rule out this loss.")] = 0.05,
    json_: JsonOption = False,
) -> None:
    """Print the promotion check's power by promotion set size."""
    from memagent.rl.power import power_table
    from memagent.rl.promotion import PromotionSpec

    spec = PromotionSpec(alpha=alpha, margin=margin, correlation=correlation, discordance=discordance)
    counts, sizes = _numbers(questions, "--questions"), _numbers(documents, "--documents")
    table = power_table(spec, counts, sizes, gain=gain, look=look)
    out(table) if json_ else show_power(table)


def _numbers(text: str, option: str) -> list[int]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(part.isdecimal() and int(part) for part in parts):
        raise UsageError(f"{option} {text!r}: whole numbers from 1, separated by commas")
    return [int(part) for part in parts]


def show_power(power_table: "PowerTable") -> None:
    """Print a table of power as Markdown."""
    head = ["questions a document", *(f"{n:,} documents" for n in power_table["documents"]), "documents for 80%"]
    typer.echo("| " + " | ".join(head) + " |\n" + "| --- " * len(head) + "|")
    for line in power_table["lines"]:
        needed = f"{line['needed']:,}" if line["needed"] is not None else "–"
        cells = [str(line["questions"]), *(f"{value:.0%}" for value in line["power"]), needed]
        typer.echo("| " + " | ".join(cells) + " |")
