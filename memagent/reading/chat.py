"""A model's own chat template: what stands around a user's message, and what ends a response.

The template is rendered once, around a mark in place of the message. What is before and after the mark is tokenised
with the model's control tokens; the message's wording, documents and memories are spliced in between as token ids. So
training and sampling see the same tokens, whatever a template does to the text of messages.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from jinja2 import TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from pydantic import JsonValue

from memagent.errors import ConfigError
from memagent.reading.prompts import Template
from memagent.reading.tokens import model_file, model_json

_MARK, _REPLY = "memagent-7f3a-message", "memagent-7f3a-reply"
_GENERATION = re.compile(r"\{%(-?)\s*(?:end)?generation\s*(-?)%\}")
"""Tags by which transformers marks an assistant's tokens: comments here, which take white space as they do."""
_DAY = "2025-01-01"
"""What templates get for today: with the date of the day, every day's readings would be another policy's."""


@dataclass(frozen=True, slots=True)
class ChatFrame:
    """What a chat template puts around a user's message."""

    before: str
    after: str
    """Up to where the model's response begins."""
    end: str
    """What ends a response; empty if the template shows none."""


def chat_frame(model: str, options: Mapping[str, JsonValue], system: str = "") -> ChatFrame | None:
    """Render the chat template of a model folder or Hugging Face name; None if it has none.

    `options` are variables of the template, such as ``enable_thinking``; `system` is a message before the user's: if it
    is empty there is none, or the template's own.

    Raises:
        ConfigError: the template cannot be rendered, or changes what it is given.
    """
    config = model_json(model, "tokenizer_config.json")
    source = _source(model, config)
    if source is None:
        return None
    tokens = {name: _text(value) for name, value in config.items() if name.endswith("_token")}
    messages = [{"role": "system", "content": system}] if system else []
    messages.append({"role": "user", "content": _MARK})

    def render(messages: list[dict[str, str]], prompt: bool) -> str:
        given = {**tokens, **options, "messages": messages, "add_generation_prompt": prompt}
        try:
            return str(_environment().from_string(_GENERATION.sub(r"{#\1 \2#}", source)).render(given))
        except Exception as error:  # a template is code from outside, in a sandbox
            hint = "; it may know no system message: --set reading.system_prompt=" if system else ""
            raise ConfigError(f"the chat template of {model} cannot be rendered: {error}{hint}") from error

    before, *rest = render(messages, True).split(_MARK)
    whole = render([*messages, {"role": "assistant", "content": _REPLY}], False)
    if len(rest) != 1 or whole.count(_REPLY) != 1:
        raise ConfigError(
            f"the chat template of {model} does not hold a message once, as it is: give a wording of your own with "
            "--set reading.template=FILE.toml"
        )
    return ChatFrame(before, rest[0], whole.partition(_REPLY)[2].strip())


def for_model(template: Template, model: str, options: Mapping[str, JsonValue], system: str = "") -> Template:
    """Return a template of one user message with the chat template of a model around it; others as they are.

    Raises:
        ConfigError: as `chat_frame`.
    """
    frame = chat_frame(model, options, system) if template.chat else None
    if frame is None:
        return template
    return replace(template, chat=False, before=frame.before, after=frame.after, end=frame.end)


def _source(model: str, config: Mapping[str, Any]) -> str | None:
    file = model_file(model, "chat_template.jinja")
    if file is not None:
        return file.read_text(encoding="utf-8")
    found = config.get("chat_template")
    if isinstance(found, list):  # several, by name
        named = [one for one in found if isinstance(one, dict) and one.get("name") == "default"]
        found = next((one.get("template") for one in named), None)
    return found if isinstance(found, str) else None


def _text(token: Any) -> str:
    return str(token.get("content", "")) if isinstance(token, dict) else str(token or "")


def _environment() -> ImmutableSandboxedEnvironment:
    """Return the environment that transformers documents for chat templates."""
    made = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    made.filters["tojson"] = lambda value, **options: json.dumps(value, ensure_ascii=False, **options)
    known: dict[str, Callable[..., Any]] = {"raise_exception": _refuse, "strftime_now": lambda _: _DAY}
    made.globals.update(known)
    return made


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)
