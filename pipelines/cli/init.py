"""The command that begins: it asks five things and writes a commented configuration file."""

import json
import sys
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, TypeVar

import typer
from pydantic import BaseModel, JsonValue

from memagent.config import Config, EngineConfig, ReadingConfig, load_config, validate
from memagent.errors import ConfigError, UsageError
from memagent.reading.engine import ENGINES
from memagent.records import Json
from memagent.settings import put

T = TypeVar("T", str, int)
_WIDTH = 100


def configuration_file(chosen: Mapping[str, JsonValue]) -> str:
    """Return a configuration file (TOML) with the chosen values by dotted key (``engine.model``); all other keys are
    comments with their defaults.
    """
    lines = [
        "# Configuration of memagent. Use it by --config FILE, or name it in $MEMAGENT_CONFIG_FILE.",
        "# A key that stands as a comment has its default; options on the command line come before this file.",
        "",
        *_keys(Config, "", chosen),
    ]
    for name, field in Config.model_fields.items():
        section = ReadingConfig if name == "reading" else field.annotation
        if isinstance(section, type) and issubclass(section, BaseModel):
            lines += ["", *_comment((section.__doc__ or "").strip()), f"[{name}]", *_keys(section, f"{name}.", chosen)]
    return "\n".join(lines) + "\n"


def _keys(section: type[BaseModel], prefix: str, chosen: Mapping[str, JsonValue]) -> Iterator[str]:
    for name, field in section.model_fields.items():
        if name == "reading" or (isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)):
            continue
        yield from _comment(field.description or "")
        default = field.get_default(call_default_factory=True)
        if f"{prefix}{name}" in chosen:
            yield f"{name} = {_toml(chosen[f'{prefix}{name}'])}"
        else:
            yield f"# {name} = {_toml(default)}" if default is not None else f"# {name}: not set"
        yield ""


def _comment(text: str) -> list[str]:
    words = " ".join(text.replace("``", "").replace("`", "").split())
    return textwrap.wrap(words, _WIDTH, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False)


def _toml(value: JsonValue) -> str:
    """Return a value as TOML; texts, numbers, lists and empty tables of JSON are the same there."""
    if isinstance(value, dict):
        inside = ", ".join(f"{name} = {_toml(one)}" for name, one in value.items())
        return f"{{ {inside} }}" if inside else "{}"
    return json.dumps(list(value) if isinstance(value, tuple) else value, ensure_ascii=False)


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
    from pipelines.io.writer import output_file

    if output.exists() and not force:
        raise UsageError(f"{output} is there already: name another file by -o, or replace it by --force")
    ask = not yes and _asks()
    chosen: dict[str, JsonValue] = {}

    def answer(key: str, words: str, value: T | None, default: T) -> T:
        while True:  # one answer that cannot be used costs none of the others
            given_now = _answer(words, value, default, ask)
            data: Json = {}
            for name, one in {**chosen, key: given_now}.items():
                if one:
                    put(data, name, one)
            try:
                validate(Config, data, "")
                break
            except ConfigError as error:
                if value is not None or not ask:
                    raise
                typer.echo(str(error), err=True)
        chosen[key] = given_now
        return given_now

    place = answer("store", "Where is everything kept (a folder, or s3://bucket/prefix)?", store, ".memagent")
    chosen["store"] = place if "://" in place else str(Path(place).expanduser().absolute())
    kind = answer("engine.kind", f"Which engine ({', '.join(ENGINES.built_in)})?", engine, "vllm")
    answer("engine.model", "Which model (nano, a folder, or a Hugging Face name)?", model, "nano")
    if kind == "openai":
        answer("engine.base_url", "What is the server's address?", base_url, EngineConfig().base_url)
        words = "Which tokenizer does the model have (a folder or a Hugging Face name; empty: the model's own)?"
        if not answer("engine.tokenizer", words, tokenizer, ""):
            del chosen["engine.tokenizer"]
    elif kind == "vllm":
        cards = answer("pool.gpus", "How many GPUs has one engine (0: CPU)?", gpus, 0)
        answer("pool.max_size", "How many engines may run side by side?", engines, 1)
        if cards > 1:
            chosen["engine.tensor_parallel"] = cards
    text = configuration_file(chosen)
    with output_file(output) as aside:
        aside.write_text(text, encoding="utf-8")
        load_config(str(aside))  # a value that cannot be used is said before the file is there
    typer.echo(f"{output}: memagent ask FOLDER -q 'a question' --config {output}")
    typer.echo(f"or, for every command: export MEMAGENT_CONFIG_FILE={output.absolute()}")


def _asks() -> bool:
    return sys.stdin.isatty()


def _answer(words: str, given: T | None, default: T, ask: bool) -> T:
    if given is not None or not ask:
        return default if given is None else given
    answer: T = typer.prompt(words, default=default, type=type(default), err=True)
    return answer.strip() if isinstance(answer, str) else answer
