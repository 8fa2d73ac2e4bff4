"""The command that begins: it asks five things and writes a commented configuration file."""

import sys
from pathlib import Path
from typing import Annotated

import typer
from pydantic import JsonValue

from memagent.config import EngineConfig, load_config
from memagent.engine import ENGINES
from memagent.errors import UsageError

_FILE = Path("memagent.toml")


def init(
    output: Annotated[Path, typer.Option("-o", "--output", help="Write to this file.")] = _FILE,
    store: Annotated[str | None, typer.Option("--store", help="Keep everything in this folder or s3:// URL.")] = None,
    engine: Annotated[str | None, typer.Option("--engine", help="Use this engine: vllm, openai or scripted.")] = None,
    model: Annotated[str | None, typer.Option("--model", help="Use this model: nano, a folder, or a name.")] = None,
    gpus: Annotated[int | None, typer.Option(min=0, help="vllm: use this many GPUs per engine.")] = None,
    engines: Annotated[int | None, typer.Option(min=1, help="vllm: run this many engines in parallel.")] = None,
    base_url: Annotated[str | None, typer.Option(help="openai: call the server at this URL.")] = None,
    tokenizer: Annotated[str | None, typer.Option(help="openai: load the tokenizer from this folder or name.")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Ask nothing; keep defaults for what is not given.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
) -> None:
    """Ask five questions and write a commented configuration file.

    Without a terminal, or with --yes, nothing is asked.
    """
    from memagent.config_file import configuration_file
    from pipelines.output_file import output_file

    if output.exists() and not force:
        raise UsageError(f"{output} is there already: name another file by -o, or replace it by --force")
    ask = not yes and _asks()
    chosen: dict[str, JsonValue] = {
        "store": _answer("Where is everything kept (a folder, or s3://bucket/prefix)?", store, ".memagent", ask),
        "engine.kind": _answer(f"Which engine ({', '.join(ENGINES.built_in)})?", engine, "vllm", ask),
    }
    default = EngineConfig()
    chosen["engine.model"] = _answer("Which model (nano, a folder, or a Hugging Face name)?", model, "nano", ask)
    if chosen["engine.kind"] == "openai":
        chosen["engine.base_url"] = _answer("What is the server's address?", base_url, default.base_url, ask)
        words = "Which tokenizer does the model have (a folder or a Hugging Face name; empty: the model's own)?"
        if named := _answer(words, tokenizer, "", ask):
            chosen["engine.tokenizer"] = named
    elif chosen["engine.kind"] == "vllm":
        chosen["pool.gpus"] = _count("How many GPUs has one engine (0: CPU)?", gpus, 0, ask)
        chosen["pool.max_size"] = _count("How many engines may run side by side?", engines, 1, ask)
        if isinstance(cards := chosen["pool.gpus"], int) and cards > 1:
            chosen["engine.tensor_parallel"] = cards
    text = configuration_file(chosen)
    with output_file(output) as aside:
        aside.write_text(text, encoding="utf-8")
        load_config(str(aside))  # a value that cannot be used is said before the file is there
    typer.echo(f"{output}: memagent ask FOLDER -q 'a question' --config {output}")
    typer.echo(f"or, for every command: export MEMAGENT_CONFIG_FILE={output.absolute()}")


def _asks() -> bool:
    return sys.stdin.isatty()


def _answer(words: str, given: str | None, default: str, ask: bool) -> str:
    if given is not None or not ask:
        return default if given is None else given
    answer: str = typer.prompt(words, default=default, err=True)
    return answer.strip()


def _count(words: str, given: int | None, default: int, ask: bool) -> int:
    if given is not None or not ask:
        return default if given is None else given
    answer: int = typer.prompt(words, default=default, type=int, err=True)
    return answer
