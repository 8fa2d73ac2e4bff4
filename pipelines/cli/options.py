"""Shared by the commands: common options, the configuration from them, and exit status."""

import json
import os
import tempfile
import webbrowser
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import cached_property, wraps
from inspect import Parameter, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

import typer
from rich.console import Console
from rich.text import Text

from memagent.config import Config, load_config
from memagent.errors import UsageError
from pipelines.views.formatting import breached, number, one_line, plain, withheld_by

if TYPE_CHECKING:
    from infra.store.location import Corpus, Store
    from infra.store.runs import QuestionRollup
    from memagent.records import Progress


StoreOption = Annotated[
    str | None, typer.Option("--store", help="Use this store: folder or s3:// URL (or $MEMAGENT_STORE).")
]
ConfigOption = Annotated[str | None, typer.Option("--config", help="Read configuration from this TOML file.")]
SetOption = Annotated[list[str] | None, typer.Option("--set", help="Set a key: section.key=value; may be repeated.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document to standard output.")]
HOST = "127.0.0.1"
HostOption = Annotated[str, typer.Option(help="Listen on this address; put a TLS proxy before it.")]
UrlOption = Annotated[str | None, typer.Option(help="Accept requests under this URL of a proxy.")]
OpenOption = Annotated[bool, typer.Option("--open", help="Open the run's report in the browser.")]
CorpusArgument = Annotated[str, typer.Argument(help="Name of the corpus.")]
log_format: str | None = None
"""`--log-format`, which stands before the command; None: as configured."""


@dataclass(frozen=True)
class Common:
    """The options that several commands have, as the user gave them; those that a command lacks keep their defaults."""

    store: StoreOption = None
    config: ConfigOption = None
    set_: SetOption = None
    model: Annotated[str | None, typer.Option(help="Use this model: nano, a folder, or a Hugging Face name.")] = None
    engine: Annotated[str | None, typer.Option(help="Use this engine: vllm, openai, scripted, or a plugin's.")] = None
    parallel_spans: Annotated[int | None, typer.Option(help="Read a document in this many parts in parallel.")] = None
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Estimate the work; read nothing.")] = False
    wait: Annotated[bool, typer.Option(help="Wait for conflicting runs.")] = True
    budget: Annotated[
        str | None, typer.Option(help="Stop at this budget: 90min, 2h, 5Mtok or 12.50EUR (`cost.budget`).")
    ] = None
    max_failed: Annotated[
        str | None, typer.Option(help="Fail above this number or percent of failures; else warn (`max_failed`).")
    ] = None
    force: Annotated[bool, typer.Option("--force", help="Skip the quality checks; show the answers.")] = False
    json: JsonOption = False
    answers: Annotated[bool, typer.Option(help="Include answers in the --json output.")] = True
    run_id: Annotated[str | None, typer.Option(hidden=True, help="Name this run.")] = None

    @cached_property
    def settings(self) -> Config:
        """The configuration that they give."""
        return configured(
            self.store,
            self.config,
            self.set_,
            engine__model=self.model,
            engine__kind=self.engine,
            reading__parallel_spans=self.parallel_spans,
            wait=None if self.wait else False,
            cost__budget=self.budget,
            max_failed=self.max_failed,
            quality__withhold=False if self.force else None,
        )

    def open_store(self) -> "Store":
        """Return the store that the configuration names."""
        from infra.store.location import Store

        return Store(self.settings.store)

    def open_corpus(self, name: str) -> "Corpus":
        """Return a corpus of that store."""
        from infra.store.location import Corpus

        return Corpus(self.open_store(), name)


Command = Callable[..., None]
OptionName = Literal[
    "model", "engine", "parallel_spans", "dry_run", "wait", "budget", "max_failed", "force", "json", "answers", "run_id"
]


def takes(*names: OptionName) -> Callable[[Command], Command]:
    """Give a command --store, --config and --set, and those of the other common options that are named.

    The command gets them as one `Common`, its first argument. Typer reads the options from a command's signature, which
    then has them after the command's own.
    """
    taken = ("store", "config", "set_", *names)
    shared = [
        Parameter(field.name, Parameter.KEYWORD_ONLY, default=field.default, annotation=field.type)
        for field in fields(Common)
        if field.name in taken
    ]

    def bind(command: Command) -> Command:
        @wraps(command)
        def bound(**values: Any) -> None:
            command(Common(**{name: values.pop(name) for name in taken}), **values)

        plain_signature = signature(command)
        _, *own = plain_signature.parameters.values()
        bound.__signature__ = plain_signature.replace(parameters=[*own, *shared])  # type: ignore[attr-defined]
        return bound

    return bind


def configured(store: str | None, config: str | None, sets: list[str] | None, **overrides: object) -> Config:
    """Return the configuration from a file, `sets` and single keys, with the store as an absolute path or a URL."""
    settings = load_config(config, sets, store=store, logging__format=log_format, **overrides)
    if "://" not in settings.store:
        # Ray workers and Prefect runs have other working directories.
        folder = Path(settings.store).expanduser().resolve()
        _check_folder(folder)
        settings = settings.model_copy(update={"store": str(folder)})
    elif settings.store.startswith("s3://"):
        from infra.store.location import Store

        Store(settings.store).check_reachable()
    return settings


def _check_folder(folder: Path) -> None:
    """Refuse a store that can be no folder; what would be made is not made yet."""
    there = next(parent for parent in (folder, *folder.parents) if os.path.exists(parent))
    if not there.is_dir():
        raise UsageError(f"store {folder}: {there} is a file; a store is a folder or an s3:// URL")
    if there != folder and not os.access(there, os.W_OK | os.X_OK):
        raise UsageError(f"store {folder}: no folder can be made in {there}")


@contextmanager
def display(json_: bool) -> "Iterator[Progress | None]":
    """Show progress while the body runs, except with --json."""
    if json_:
        yield None
        return
    from pipelines.cli.live import Display

    with Display() as display:
        yield display.update


def finish(summary: Mapping[str, Any], json_: bool, status: int) -> NoReturn:
    """Print a summary and exit with a status."""
    if json_:
        out(summary)
    else:
        from pipelines.cli.live import summary as show_summary

        console = Console()
        if summary.get("rollup"):
            show_rollup(console, summary["rollup"], summary["corpus"], summary["run_id"])
        show_summary(console, summary)
        show_gates(console, summary)
        show_held(console, summary)
    raise typer.Exit(status)


def out(data: Any) -> None:
    """Print JSON."""
    typer.echo(json.dumps(data, default=str))


def open_report(store: "Store", run_id: str) -> None:
    """Write a run's report beside the run, or to a temporary file where that is on S3, and show it."""
    from pipelines.report.page import write, write_to_store

    if store.is_s3:
        path = write(store, run_id, Path(tempfile.mkdtemp(prefix="memagent-")) / f"{run_id}.html")
    else:
        path = Path(write_to_store(store, run_id))
    typer.echo(str(path), err=True)
    show_file(path)


def warn_of_source(store: "Store", path: Path) -> None:
    """Say of which corpora a file that was written becomes a document."""
    from infra.store.corpora import readers_of

    for name in readers_of(store, str(path)):
        typer.echo(f"{path} lies in a source of corpus {name}: the next run reads it as a document", err=True)


def show_file(path: Path) -> None:
    """Show a file in the browser; where there is none, its path was printed."""
    webbrowser.open(path.absolute().as_uri())


_QUESTIONS = 20
_ANSWERS = 5
_NAMED = 5
_CHARS = 60
"""Of an answer in a list."""


def show_rollup(console: Console, rollup: Sequence["QuestionRollup"], corpus: str, run_id: str) -> None:
    """Print a digest's roll-up: at most twenty questions, and five of everything that a question has."""
    from pipelines.cli.live import pairs

    for question in rollup[:_QUESTIONS]:
        console.print(Text(_short(question["question"], 200), style="bold"))
        console.print(pairs((f"  {name}", value) for name, value in _lines(question)))
    if len(rollup) > _QUESTIONS:
        console.print(Text(f"{number(len(rollup) - _QUESTIONS)} more questions: --json has them", style="dim"))
    if rollup:
        console.print(Text(f"every answer: memagent answers {corpus} --run {run_id}", style="dim"), soft_wrap=True)
        console.print()


def _lines(question: "QuestionRollup") -> list[tuple[str, Text]]:
    none = f", {number(question['unanswered'])} without an answer" if question["unanswered"] else ""
    lines = [("found", Text(f"{number(question['found'])} of {number(question['documents'])}{none}"))]
    if question["answers"]:
        most = [f"{_short(answer)} ({number(count)})" for answer, count in question["answers"][:_ANSWERS]]
        lines.append(("answers", Text(", ".join(most) + _others(question["distinct"] - len(most)))))
    if question["changed_count"]:
        named = [
            f"{plain(change['document'])}: {_short(change['before']) or 'not found'}"
            f"{' (corrected by people)' if change.get('corrected') else ''} → {_short(change['now']) or 'not found'}"
            for change in question["changed"][:_NAMED]
        ]
        more = _others(question["changed_count"] - len(named))
        lines.append(("changed", Text(f"{number(question['changed_count'])}: " + "; ".join(named) + more, "yellow")))
    if question["new_count"]:
        names = [_short(name) for name in question["new_documents"][:_NAMED]]
        more = _others(question["new_count"] - len(names))
        lines.append(("new", Text(f"{number(question['new_count'])}: " + ", ".join(names) + more)))
    if question.get("corrected"):
        lines.append(("corrected", Text(f"{number(question['corrected'])} by people")))
    if question["gone_count"]:
        gone = [_short(name) for name in question["gone"][:_NAMED]]
        more = _others(question["gone_count"] - len(gone))
        lines.append(("no longer asked", Text(f"{number(question['gone_count'])}: " + ", ".join(gone) + more)))
    if not question["changed_count"] and not question["new_count"] and not question["gone_count"]:
        lines.append(("", Text("no answer is new or changed", "dim")))
    return lines


def _others(count: int) -> str:
    return f", and {number(count)} more" if count > 0 else ""


def _short(text: str, most: int = _CHARS) -> str:
    line = one_line(text)
    return line if len(line) <= most else line[: most - 1] + "…"


def show_held(console: Console, summary: Mapping[str, Any]) -> None:
    """Print that some of a run's answers are of withheld digests."""
    if withheld := summary.get("withheld_answers"):
        console.print()
        console.print(Text(plain(withheld["says"]), style="bold"), soft_wrap=True)


def show_gates(console: Console, summary: Mapping[str, Any]) -> None:
    """Print which limits of the quality checks a digest is beyond, and what can be done where it is withheld."""
    said, title = breached(summary), "Beyond the limits of [quality]"
    if withheld_by(summary):
        title = "Withheld: this digest has no new answers, and is not what the next one is compared with"
        if summary["readings"].get("withheld"):
            title = "Withheld: these answers are not shown"
            said.append(f"see them: memagent answers {summary['corpus']} --withheld")
        said.append(f"accept it: memagent release {summary['run_id']}")
    if said:
        console.print()
        console.print(Text(title, style="bold"))
        for line in said:
            console.print(Text(plain(line)), soft_wrap=True)
