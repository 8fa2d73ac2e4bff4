"""The commands ``policies``: versions of the reader and their promotion. Importing them loads nothing heavy."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from memagent.errors import UsageError
from pipelines.cli.options import Common, display, out, takes
from pipelines.views.formatting import plain

if TYPE_CHECKING:
    from infra.store.location import Store
    from infra.store.schemas import PolicyRow
    from memagent.rl.promotion import PromotionSpec
    from pipelines.promote import PromotionRecord


app = typer.Typer(help="List, show, promote, roll back and compare reader versions.", add_completion=False)

IdArgument = Annotated[str, typer.Argument(help="Policy ID, unique prefix, or `promoted`.")]
CorpusOption = Annotated[
    list[str] | None,
    typer.Option("--corpus", help="Also compare on this corpus's answered questions; may be repeated."),
]
CheckOption = Annotated[
    list[str] | None, typer.Option("--check", help="Set a key of the promotion check, such as n=50.")
]

PromotionOption = Annotated[
    list[str] | None, typer.Option("--promotion", help="Compare on a .jsonl or .parquet file of questions and answers.")
]
ColumnsOption = Annotated[
    list[str] | None, typer.Option("--columns", help="Name the files' columns: question=NAME, text=NAME, answers=NAME.")
]


@app.callback(invoke_without_command=True)
@takes("json")
def policies(given: Common, context: typer.Context) -> None:
    """Show the versions of the reader and their status."""
    if context.invoked_subcommand is None:
        _list(given)
    elif given != Common():
        raise UsageError(f"options go after the command: memagent policies {context.invoked_subcommand} ... --store S")


def _list(given: Common) -> None:
    """List all versions, oldest first."""
    from infra.store.policies import policies as registered

    tables = given.open_store()
    rows = registered(tables)
    if given.json:
        out({"policies": rows})
    elif rows:
        Console().print(versions_table(rows))
    else:
        typer.echo(f"no versions in {tables.url}: configured models are used directly")


app.command("list")(takes("json")(_list))


@app.command()
@takes("json")
def show(given: Common, policy_id: IdArgument) -> None:
    """Show all details of a version."""
    from infra.store.policies import policy

    row = policy(given.open_store(), policy_id)
    if given.json:
        out(row)
        return
    for name, value in row.items():
        if name not in ("corpus", "promotion"):
            shown = json.dumps(value) if isinstance(value, dict | list) else value
            typer.echo(f"{name:<13} {plain('' if shown is None else shown)}")
    if row["promotion"]:
        show_comparison(row["promotion"])


@app.command()
@takes("model", "engine", "json")
def promote(
    given: Common,
    policy_id: IdArgument,
    force: Annotated[bool, typer.Option("--force", help="Promote without a check, even if refused.")] = False,
    corpus: CorpusOption = None,
    check: CheckOption = None,
    promotion: PromotionOption = None,
    columns: ColumnsOption = None,
) -> None:
    """Promote a version if it beats the promoted one."""
    from infra.store.policies import policy
    from infra.store.policies import promote as run_promote

    spec, tables = promotion_spec(check, corpus, promotion, columns), given.open_store()
    row = policy(tables, policy_id)
    candidate = row["policy_id"]
    settings = replace(given, set_=[*_engine_of(row, given.config), *(given.set_ or [])]).settings
    if force:
        row = run_promote(tables, candidate, "by hand", force=True)
        out(row) if given.json else typer.echo(f"{row['policy_id']} is promoted: {row['reason']}")
        return
    from pipelines.promote import run_promotion

    with display(given.json) as show_:
        record = run_promotion(settings, candidate, spec=spec, show=show_)
    out(record) if given.json else show_comparison(record)
    raise typer.Exit(0 if record["promoted"] else 1)


@app.command()
@takes("json")
def rollback(
    given: Common,
    name: Annotated[str | None, typer.Argument(help="Lineage; optional if only one has a promoted version.")] = None,
) -> None:
    """Return to the previously promoted version."""
    from infra.store.policies import policies as registered
    from infra.store.policies import rollback as run_rollback

    tables = given.open_store()
    current = {row["name"]: row["policy_id"] for row in registered(tables) if row["status"] == "promoted"}
    if name is None:
        if len(current) != 1:
            which = f"name one of {', '.join(sorted(current))}" if current else "no version of any model is promoted"
            raise UsageError(f"nothing was rolled back: {which}")
        (name,) = current
    row = run_rollback(tables, name, instead_of=current.get(name))
    if given.json:
        out({"name": name, "promoted": row})
    elif row is None:
        typer.echo(f"no version of {name} is promoted any more: its base model is used")
    else:
        typer.echo(f"{row['policy_id']} is promoted again")


@app.command()
@takes("engine", "json")
def compare(
    given: Common,
    a: Annotated[str, typer.Argument(help="Policy ID, unique prefix, `promoted`, nano@shipped, or a folder.")],
    b: Annotated[str, typer.Argument(help="Version to compare with.")],
    corpus: CorpusOption = None,
    check: CheckOption = None,
) -> None:
    """Compare two versions; change no status."""
    from pipelines.promote import compare_policies

    spec, tables = promotion_spec(check, corpus), given.open_store()
    with display(given.json) as show_:
        record = compare_policies(given.settings, _model(tables, a), _model(tables, b), spec=spec, show=show_)
    out(record) if given.json else show_comparison(record)


def versions_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return registered versions as a table for the terminal."""
    styles = {"promoted": "bold green", "refused": "red", "retired": "dim"}
    table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0))
    for name in ("policy", "status", "parent", "made", "check", "reason"):
        table.add_column(name, no_wrap=name in ("policy", "status", "made"), overflow="fold")
    for row in rows:
        overall = (row["promotion"] or {}).get("overall")
        gain = f"{overall['difference']:+.1%}" if overall else "–"
        policy_id, reason = (Text(plain(row[name])) for name in ("policy_id", "reason"))
        parent = Text(plain(row["parent"].removeprefix(row["name"])))
        status = Text(row["status"], style=styles.get(row["status"], ""))
        table.add_row(policy_id, status, parent, f"{row['made_at']:%Y-%m-%d}", Text(gain), reason)
    return table


def show_comparison(record: "PromotionRecord | Mapping[str, Any]") -> None:
    """Print a comparison, by group and overall: p is of a loss of the margin in groups, and overall of no gain."""
    table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0))
    for name in ("samples", "n", "docs", "candidate", "incumbent", "difference", "95% interval", "p", "failed"):
        table.add_column(name, justify="left" if name == "samples" else "right")
    for group in (*record["groups"], record["overall"]):
        p = group["p"] if group is record["overall"] else group["p_margin"]
        table.add_row(
            Text(plain(group["name"])),
            f"{group['n']:,}",
            f"{group['documents']:,}",
            f"{group['candidate']:.1%}",
            f"{group['incumbent']:.1%}",
            f"{group['difference']:+.1%}",
            f"{group['low']:+.1%} to {group['high']:+.1%}",
            f"{p:.2g}",
            f"{group['candidate_failed']} / {group['incumbent_failed']}",
        )
    console = Console()
    console.print(Text(f"{plain(record['candidate'])} against {plain(record['incumbent'])}", style="bold"))
    console.print(table)
    power_, counts = record["power"], record["questions"]
    stated = f"power at {power_['gain']:+.0%}, as stated before reading: {power_['power']:.0%}"
    console.print(
        f"{stated}; candidate {power_['look']} against this version, level {power_['alpha']:.2g}", style="dim"
    )
    if counts["there"] > counts["asked"]:
        left_out = (
            "{unvouched} not vouched for by people, {trained_on} on texts of training, {without_text} without text"
        )
        console.print(f"questions left out: {left_out.format_map(counts)}", style="dim")
    console.print(Text(plain(record["reason"])))


def _engine_of(row: "PolicyRow", config: str | None) -> list[str]:
    """Return the engines of the recipe that a version was trained by, where the operator says nothing else."""
    from memagent.settings import beneath

    recipe = row["config"] or {}
    return beneath({name: recipe.get(name) or {} for name in ("engine", "pool")}, config)


def _model(store: "Store", argument: str) -> str:
    """Return the value of `engine.model` for an argument; short forms of registered ids are expanded."""
    from infra.store.policies import policy

    short = argument.rpartition("@")[2] == "promoted" or re.fullmatch(r"[0-9a-f]{2,12}", argument)
    return policy(store, argument)["policy_id"] if short else argument


def promotion_spec(
    check: list[str] | None, corpora: list[str] | None, data: list[str] | None = None, columns: list[str] | None = None
) -> "PromotionSpec":
    """Return the promotion check that the options configure; lists are separated by commas."""
    from memagent.config import validate
    from memagent.rl.promotion import PromotionSpec

    paths = [path if "://" in path else str(Path(path).expanduser().absolute()) for path in data or ()]
    given = {"corpora": corpora, "data": paths, "columns": columns}
    keys: dict[str, Any] = {name: value for name, value in given.items() if value}
    for item in check or []:
        key, sign, value = item.partition("=")
        if not sign:
            raise UsageError(f"--check {item!r}: write it as key=value")
        many = key in ("kinds", "lengths", "texts", "corpora", "data", "columns")
        keys[key] = [part.strip() for part in value.strip("[]").split(",") if part.strip()] if many else value
    return validate(PromotionSpec, keys, "check.")
