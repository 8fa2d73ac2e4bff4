"""The commands ``evaluate``, ``scores``, ``harvest``, ``feedback`` and ``qa``. Importing them loads nothing heavy."""

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
from pipelines.cli.live import summary as run_summary
from pipelines.cli.options import Common, CorpusArgument, display, finish, out, takes
from pipelines.views.formatting import plain

if TYPE_CHECKING:
    from infra.store.runs import ScoreLine
    from memagent.evaluation.suites import Suite
    from pipelines.evaluate import Evaluation

_UNITS = {"": 1, "k": 1_000, "m": 1_000_000}


@takes("model", "engine", "json", "run_id")
def evaluate(
    given: Common,
    suite: Annotated[str, typer.Option(help="Use this suite: needles, ruler, contracts or files.")] = "needles",
    lengths: Annotated[str, typer.Option(help="Use these lengths in tokens: 8k,128k,3.5m (HotpotQA: documents).")] = "",
    kinds: Annotated[str, typer.Option(help="Use these kinds, comma-separated; default: all.")] = "",
    n: Annotated[int, typer.Option("--n", min=1, help="Read this many samples per kind and length, or file.")] = 100,
    data: Annotated[
        list[Path] | None, typer.Option(help="Read this folder of contracts, or files; may be repeated.")
    ] = None,
    passages: Annotated[Path | None, typer.Option(help="Extend HotpotQA's questions with these passages.")] = None,
    text: Annotated[list[Path] | None, typer.Option(help="Hide needles in these texts; default: readmes.")] = None,
    control: Annotated[
        str | None, typer.Option(help="Run a control: no-document, wrong-document or answer-removed.")
    ] = None,
    reworded: Annotated[
        bool, typer.Option("--reworded", help="Ask in wordings not seen in nano's fine-tuning.")
    ] = False,
    method: Annotated[str | None, typer.Option(help="Read by memagent, truncate, bm25 or map-reduce.")] = None,
    window: Annotated[int | None, typer.Option(help="Give other methods a window of this many tokens.")] = None,
    against: Annotated[str | None, typer.Option(help="Compare with this model on the same samples.")] = None,
    seed: Annotated[int, typer.Option(help="Draw samples with this seed.")] = 0,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the report to this HTML file.")] = None,
    write: Annotated[Path | None, typer.Option(help="Only write the samples, as RULER's JSON lines.")] = None,
) -> None:
    """Score a model on needles, RULER, contracts or files."""
    from memagent.evaluation.suites import Suite

    chosen = Suite(
        suite,  # type: ignore[arg-type]
        kinds=tuple(part.strip() for part in kinds.split(",") if part.strip()),
        lengths=_lengths(lengths),
        n=n,
        seed=seed,
        data=tuple(str(path) for path in data or []),
        passages=str(passages) if passages else None,
        control=control,  # type: ignore[arg-type]
        reworded=reworded,
    )
    chosen.check()
    texts = tuple(str(path) for path in text or [])
    methods = [*([f"method={method}"] if method else []), *([f"window_tokens={window}"] if window else [])]
    given = replace(given, set_=[*(given.set_ or []), *methods])
    if write is not None:
        _write(chosen, texts, given, write)
    else:
        _run(chosen, texts, given, against, output)


def _run(suite: "Suite", texts: tuple[str, ...], given: Common, against: str | None, output: Path | None) -> None:
    """Evaluate the model, and another on the same samples; print and keep the scores."""
    from pipelines.evaluate import compare, evaluate
    from pipelines.report.evaluation import write_evaluation

    settings = given.settings
    with display(given.json) as show:
        summary = evaluate(suite, settings, texts=texts, run_id=given.run_id, show=show)
        if against is not None:
            other = evaluate(suite, replace(given, model=against).settings, texts=texts, show=show)
            failed = other["readings"]["failed"]
            summary["against"] = {"run_id": other["run_id"], "policy_id": other["policy_id"], "failed": failed}
            summary["paired"] = compare(given.open_store(), summary["run_id"], other["run_id"])
    if output is not None:
        summary["report"] = str(write_evaluation(given.open_store(), summary["run_id"], output))
    out(summary) if given.json else evaluation_summary(Console(), summary)
    failed = summary["readings"]["failed"] + summary.get("against", {}).get("failed", 0)
    raise typer.Exit(1 if failed else 0)


@takes("json")
def scores(
    given: Common,
    suite: Annotated[str | None, typer.Option(help="Show only this suite.")] = None,
    run: Annotated[list[str] | None, typer.Option(help="Show only this run, or `last`; may be repeated.")] = None,
    pictures: Annotated[Path | None, typer.Option(help="Write plots of the shown runs to this folder.")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write a run's report to this HTML file.")
    ] = None,
) -> None:
    """Show and plot the scores of all evaluations."""
    from infra.store.runs import resolve
    from pipelines.evaluate import by_run, score_table
    from pipelines.report.evaluation import draw, write_evaluation

    tables = given.open_store()
    evaluations = by_run(score_table(tables, suite))
    if not evaluations:
        of = f" of suite {suite}" if suite else ""
        raise UsageError(f"there are no scores{of} in {tables.url} yet: memagent evaluate --suite needles --lengths 8k")
    known = [row["run_id"] for row in evaluations]
    chosen = {resolve(name, known, tables.url, "evaluation") for name in run or []}
    evaluations = [row for row in evaluations if not chosen or row["run_id"] in chosen]
    run_ids_shown = [row["run_id"] for row in evaluations]
    plots = [str(path) for path in draw(tables, run_ids_shown, pictures)] if pictures else []
    report = str(write_evaluation(tables, evaluations[-1]["run_id"], output)) if output is not None else ""
    if given.json:
        out({"runs": evaluations, "pictures": plots, **({"report": report} if report else {})})
        return
    console = Console()
    for evaluation in evaluations:
        console.print(scores_table(evaluation))
    for path in plots:
        console.print(path, markup=False, highlight=False)
    if report:
        console.print(f"report of {evaluations[-1]['run_id']}: {report}", markup=False, highlight=False, soft_wrap=True)


def _write(suite: "Suite", texts: tuple[str, ...], given: Common, folder: Path) -> None:
    from infra.readers import ReaderSpec
    from pipelines.stages.make_samples import write_files

    written = write_files(suite, texts, ReaderSpec(given.settings).tokenizer, folder)
    if given.json:
        out({"files": [{"path": str(path), "samples": count} for path, count in written]})
        return
    for path, count in written:
        typer.echo(f"{count:>6} samples  {path}")


def _lengths(text: str) -> tuple[int, ...]:
    lengths = []
    for part in text.split(",") if text else []:
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kKmM]?)\s*", part)
        if not match or not float(match[1]):
            raise UsageError(f"--lengths {text!r}: write lengths as 8k,128k,3.5m (k is 1,000, m is 1,000,000)")
        lengths.append(round(float(match[1]) * _UNITS[match[2].lower()]))
    return tuple(dict.fromkeys(lengths))


def evaluation_summary(console: Console, summary: Mapping[str, Any]) -> None:
    """Print an evaluation: the run, its scores, and the comparison if there is one."""
    run_summary(console, {**summary, "scores": None})
    console.print()
    console.print(score_lines(summary["evaluation"], "Scores"))
    if "paired" in summary:
        console.print(Text(_compared(summary["paired"], summary["against"]["policy_id"])))
    run_id = summary["run_id"]
    report = summary.get("report") or f"memagent scores --run {run_id} -o report.html"
    console.print(Text(f"report: {report}; readings: memagent report {run_id}"), soft_wrap=True)


def scores_table(run: "Evaluation") -> Table:
    """Return the scores of one evaluation as a table."""
    parts = [run["run_id"], run["suite"], run["policy_id"], run["method"]]
    if run["control"]:
        parts.append(f"control {run['control']}")
    return score_lines(run["lines"], "  ".join(plain(part) for part in parts))


def score_lines(lines: Sequence["ScoreLine"], title: str) -> Table:
    """Return score lines as a table."""
    table = Table(title=Text(title, style="bold"), title_justify="left", box=None, header_style="dim", padding=(0, 1))
    for name in ("task", "length", "measure", "value", "95% interval", "n", "failed"):
        if name in ("task", "measure"):  # a truncated name is ambiguous
            table.add_column(name, overflow="fold")
        else:
            table.add_column(name, justify="right", no_wrap=True)
    for line in lines:
        cells = (
            Text(plain(line["task"])),
            f"{line['length']:,}" if line["length"] else "as it is",
            Text(plain(line["metric"])),
            f"{line['value']:.1%}",
            f"{line['low']:.1%} to {line['high']:.1%}",
            f"{line['n']:,}",
            Text(f"{line['failed']:,}", style="bold red" if line["failed"] else ""),
        )
        table.add_row(*cells)
    return table


def _compared(paired: Mapping[str, Any], other: str) -> str:
    return (
        f"against {plain(other)}: {paired['difference']:+.1%} ({paired['low']:+.1%} to {paired['high']:+.1%}), "
        f"p = {paired['p']:.3g} by a sign-flip permutation test ({paired['method']}), "
        f"n = {paired['n']}, better on {paired['better']}, worse on {paired['worse']}"
    )


FileArgument = Annotated[Path, typer.Argument(help=".parquet or .jsonl file.")]
FormatOption = Annotated[
    str | None,
    typer.Option(
        help="Use these columns: verl, openrlhf, memagent or own; default: verl in Parquet, own in JSON lines."
    ),
]


@takes("model", "engine", "json", "run_id")
def harvest(
    given: Common,
    corpus: CorpusArgument,
    agreement: Annotated[int, typer.Option(min=0, help="Sample this many readings of questions without gold.")] = 0,
    generate: Annotated[int, typer.Option(min=0, help="Generate this many questions from segments.")] = 0,
    least_share: Annotated[
        float, typer.Option(min=0, max=1, help="Require this share of sampled readings to agree.")
    ] = 0.7,
    exclude_tag: Annotated[list[str] | None, typer.Option(help="Leave out documents with this tag; '': none.")] = None,
) -> None:
    """Make training rows from answers, feedback, agreement and generated questions."""
    from infra.store.corpora import check_name
    from pipelines.harvest import HarvestOptions
    from pipelines.harvest import harvest as run

    options = HarvestOptions(agreement, generate, least_share=least_share)
    if exclude_tag is not None:
        options = replace(options, exclude=tuple(tag for tag in exclude_tag if tag))
    with display(given.json) as show:
        summary = run(check_name(corpus), given.settings, options, run_id=given.run_id, show=show)
    finish(summary, given.json, status=0)


@takes("json")
def feedback(
    given: Common,
    file: Annotated[Path, typer.Argument(help=".csv, .xlsx or .jsonl file with reading_id, verdict, answer.")],
    corpus: Annotated[str | None, typer.Argument(help="Import only readings of this corpus; default: all.")] = None,
    reviewer: Annotated[str | None, typer.Option(help="Import the verdicts as this person's.")] = None,
) -> None:
    """Import accepted, rejected and corrected answers."""
    from pipelines.io.feedback import take_feedback
    from pipelines.web.address import token_file

    if reviewer is not None:
        token_file("review", reviewer)  # refuses what is no name on the review pages
    summary = take_feedback(given.open_store(), file, corpus, reviewer or "")
    finish(summary, given.json, status=1 if summary["unknown_readings"] else 0)


qa = typer.Typer(help="Exchange training rows with other tools.", add_completion=False, no_args_is_help=True)


@qa.command("export")
@takes("json")
def export(given: Common, corpus: CorpusArgument, file: FileArgument, format: FormatOption = None) -> None:
    """Export a corpus's training rows to a file."""
    from pipelines.io.qa_files import export_qa

    rows = export_qa(given.open_corpus(corpus), file, format)
    finish({"kind": "export", "corpus": corpus, "rows": rows, "file": str(file)}, given.json, status=0)


@qa.command("import")
@takes("json", "run_id")
def import_(
    given: Common,
    corpus: CorpusArgument,
    file: FileArgument,
    format: FormatOption = None,
    columns: Annotated[
        list[str] | None, typer.Option(help="Name the file's columns: question=NAME, text=NAME, answers=NAME.")
    ] = None,
) -> None:
    """Import gold answers and their texts into a corpus."""
    from memagent.evaluation.records import columns_of
    from pipelines.io.qa_files import import_qa

    named = columns_of(columns or ())
    summary = import_qa(given.open_corpus(corpus), file, given.run_id, columns=named, format=format)
    finish(summary, given.json, status=0)
