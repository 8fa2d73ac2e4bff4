"""How servers of models differ, in one table, and what their requests and replies are then.

Pure functions of plain data. `infra.engines.openai` sends the requests, learns from errors and replies what its server
takes and gives, and remembers it (`ServerTraits`) while it runs.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from memagent.errors import RequestError, RetryableError
from memagent.reading.engine import Sampling
from memagent.records import Json

TAGS: Mapping[str, str] = {
    "<think>": "</think>",  # DeepSeek, Qwen and most others
    "<thinking>": "</thinking>",
    "<thought>": "</thought>",  # Gemini
    "[THINK]": "[/THINK]",  # Mistral
    "<seed:think>": "</seed:think>",  # Seed
    "◁think▷": "◁/think▷",  # Kimi
    "<|START_THINKING|>": "<|END_THINKING|>",  # Cohere
    "<|channel|>analysis": "<|channel|>final<|message|>",  # gpt-oss
}
"""Tags around reasoning within a response's text."""
FIELDS = ("reasoning_content", "reasoning", "thinking", "reasoning_details")
"""Fields of a message that hold its reasoning; vLLM and DeepSeek use the first, OpenRouter and Ollama the others."""
LIMITS = ("max_tokens", "max_completion_tokens")
"""Names of a response's limit. Servers of reasoning models refuse the first."""
DEFAULTS: Mapping[str, float | None] = {"seed": None, "top_p": 1.0, "temperature": 1.0}
"""Parameters that some servers refuse. They are left out then: a seed always, others where the value is the default."""
LENGTH = ("length", "max_tokens", "max_length", "max_output_tokens", "model_length")
"""Finish reasons of a response that has reached a limit."""
WITHHELD = ("content_filter", "refusal", "safety", "recitation", "sensitive", "guardrail_intervened")
"""Finish reasons of a response that the server does not give, or not whole."""
TEXT_PARTS = (None, "text", "output_text")
"""Types of the parts of a content that are its text; others are reasoning."""
_OPENING = re.compile(rf"^[ \t]*(?:{'|'.join(map(re.escape, TAGS))})", re.MULTILINE)
_UNSUPPORTED = re.compile(
    r"(?:un|not[ _])(?:supported|recognized|known|permitted|allowed|available)|does not (?:support|accept)|deprecated"
    r"|extra_forbidden|extra inputs|cannot (?:both )?be (?:used|set|specified)|\binstead\b|only the default",
    re.IGNORECASE,
)
_PERMANENT = re.compile(r"invalid|auth|permission|not_found|quota|billing|unsupported|context_length", re.IGNORECASE)
_FULL = 0.9
"""Share of a limit, as the server counts, from which a response was ended by that limit and not by the server's own."""
_SHOWN = 500


def without_reasoning(text: str, end: str = "") -> str:
    """Return a response without its reasoning.

    That is what follows the last closing tag (the prompt may hold the opening one), up to an opening tag at the
    beginning of a line that is never closed. `end` is one more closing tag, of a prompt template.
    """
    said = text
    for closing in (*TAGS.values(), *([end] if end else [])):
        said = said.rpartition(closing)[2]
    opening = _OPENING.search(said)
    return said[: opening.start()] if opening else said


@dataclass(frozen=True, slots=True)
class FailedCall:
    """An error as a server states it, by its status or in the body of a response with status 200."""

    status: int
    message: str
    code: str = ""
    parameter: str = ""
    retry_after: float = 0.0
    """Seconds."""

    @property
    def unsupported(self) -> bool:
        """Whether the server does not know something in the request."""
        return self.status in (400, 404, 405, 422) and bool(_UNSUPPORTED.search(f"{self.code} {self.message}"))

    def error(self, advice: str) -> RequestError | RetryableError:
        """Return it as an error; `advice` is for a request that the server does not know."""
        lasting = self.status == 429 and re.search(r"quota|billing|credit", self.code)
        if not lasting and (self.status in (408, 409, 425, 429) or self.status >= 500):
            return RetryableError(self.message, self.retry_after)
        return RequestError(self.message + (advice if self.status in (404, 405) or self.unsupported else ""))


@dataclass(frozen=True, slots=True)
class Reply:
    """A response as a server gives it."""

    text: str
    finish_reason: str
    """``stop``, ``length``, or one of `WITHHELD`."""
    reasoning: str = ""
    """Where its reasoning was, apart from the text; empty: there was none."""
    token_ids: list[int] | None = None
    logprobs: list[float] | None = None
    prompt_tokens: int | None = None
    cached_tokens: int = 0
    output_tokens: int | None = None
    """Tokens of text and reasoning, as the server counts."""


def parse(status: int, headers: Mapping[str, str], body: Any) -> Reply | FailedCall:
    """Interpret the response to a completion, of text or chat.

    Names of headers may be in any case; `body` is parsed JSON, or the text of a body that is not JSON.
    """
    if isinstance(body, dict) and status < 400:
        choices = body.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else None
        if isinstance(choice, dict) and not body.get("error") and not choice.get("error"):
            return _reply(choice, _mapping(body.get("usage")))
        if isinstance(choice, dict):
            body = {"error": body.get("error") or choice["error"]}
    return _failure(status, headers, body)


def _reply(choice: Json, usage: Json) -> Reply:
    message = _mapping(choice.get("message"))
    content = message.get("content") if message else choice.get("text")
    given = str(choice.get("finish_reason") or "stop").lower()
    reason = "length" if given in LENGTH else given if given in WITHHELD else "stop"
    counted = _mapping(usage.get("completion_tokens_details")).get("reasoning_tokens")
    parts = content if isinstance(content, list) else [content]
    hidden = any(isinstance(part, dict) and part.get("type") not in TEXT_PARTS for part in parts)
    apart = next((name for name in FIELDS if message.get(name)), "")
    return Reply(
        "".join(_text(part) for part in parts),
        "refusal" if message.get("refusal") else reason,
        reasoning=apart or ("parts of the content" if hidden else "the server, unseen" if counted else ""),
        token_ids=choice.get("token_ids"),
        logprobs=_mapping(choice.get("logprobs")).get("token_logprobs"),
        prompt_tokens=_count(usage.get("prompt_tokens")),
        cached_tokens=_count(_mapping(usage.get("prompt_tokens_details")).get("cached_tokens")) or 0,
        output_tokens=_count(usage.get("completion_tokens")),
    )


def _text(part: Any) -> str:
    text = part.get("text") if isinstance(part, dict) and part.get("type") in TEXT_PARTS else part
    return text if isinstance(text, str) else ""


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) else None


def _mapping(value: Any) -> Json:
    return value if isinstance(value, dict) else {}


def _failure(status: int, headers: Mapping[str, str], body: Any) -> FailedCall:
    error = body.get("error") or body if isinstance(body, dict) else body
    stated = _mapping(error)
    code = str(stated.get("code") or stated.get("type") or "")
    said = stated.get("message") or stated.get("detail") or (error if error else "nothing")
    message = said if isinstance(said, str) else json.dumps(said, ensure_ascii=False)
    if status < 400 and error is body and not code:
        message = f"the server gave no choices: {message}"
    if raw := _mapping(stated.get("metadata")).get("raw"):  # OpenRouter: what the provider behind it has said
        message += f": {raw}"
    message = f"HTTP {status}{', ' if code else ''}{code}: {message[:_SHOWN]}"
    if status < 400:
        status = int(code) if code.isdecimal() else 400 if _PERMANENT.search(code) else 502
    waits = _seconds({name.lower(): value for name, value in headers.items()}.get("retry-after", ""))
    return FailedCall(status, message, code, str(stated.get("param") or ""), retry_after=waits)


def _seconds(given: str) -> float:
    """Return the seconds of a Retry-After, which may be a date; 0: there is none."""
    try:
        if given.replace(".", "", 1).isdecimal():
            return float(given)
        return max(0.0, (parsedate_to_datetime(given) - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError):
        return 0.0


@dataclass(slots=True)
class ServerTraits:
    """What is known of a server so far."""

    limit: str = LIMITS[0]
    lists: bool = False
    """Whether it lists its models."""
    left_out: set[str] = field(default_factory=set)
    opens: bool = False
    """Its prompt template holds the tag that opens the reasoning: a response that is cut in there has no tag."""
    reasoning: str = ""
    """Where its reasoning was seen."""
    counts: bool = False
    """Whether it counts tokens."""

    def parameters(self, sampling: Sampling) -> Json:
        """Return a request's parameters."""
        wanted = {self.limit: sampling.max_tokens, **{name: getattr(sampling, name) for name in DEFAULTS}}
        return {name: value for name, value in wanted.items() if value is not None and name not in self.left_out}

    def adapt(self, failure: FailedCall, sent: Json) -> bool:
        """Learn from an error; return whether the request should be sent again, with other parameters.

        Raises:
            RequestError: it refuses a value that a setting gives.
        """
        if not failure.unsupported:
            return False
        for name in (*LIMITS, *DEFAULTS):
            if name not in sent or not (name == failure.parameter or re.search(rf"\b{name}\b", failure.message)):
                continue
            if name in LIMITS:
                self.limit = LIMITS[1]
                return name != self.limit
            if sent[name] != DEFAULTS[name] and DEFAULTS[name] is not None:
                raise RequestError(f"{failure.message}. Set reading.{name}={DEFAULTS[name]:g}")
            self.left_out.add(name)
            return True
        return False

    def said(self, reply: Reply, sampling: Sampling) -> str:
        """Return a reply's text without reasoning; empty if it was withheld, or cut before `max_tokens` of text."""
        cut = reply.finish_reason == "length"
        text = without_reasoning(reply.text)
        tagged = text != reply.text
        if tagged or reply.reasoning:
            self.reasoning = reply.reasoning or "tags within the text"
            self.opens |= tagged and not any(opening in reply.text for opening in TAGS)
        self.counts |= reply.prompt_tokens is not None
        reasoned = tagged or bool(reply.reasoning) or self.opens
        own_limit = reply.output_tokens is not None and reply.output_tokens < _FULL * sampling.max_tokens
        lost = reply.finish_reason in WITHHELD or (cut and (reasoned or own_limit))
        return "" if lost else text.strip() if tagged else text
