"""Requests and responses of the endpoint: OpenAI's chat completions, and what a reading says besides."""

import logging
import re
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from starlette.responses import JSONResponse

from infra.store.location import storage_error
from memagent.errors import EngineDied, MemagentError, RequestError, UsageError
from memagent.records import Level

_log = logging.getLogger("memagent.api")


class ApiError(Exception):
    """What a client is told instead of an answer."""

    def __init__(
        self, status: int, message: str, code: str | None = None, param: str | None = None, retry_after: int = 0
    ) -> None:
        """Say what is wrong: the status of HTTP (from 500 on the server is at fault), a message for people, a stable
        word for programs, the wrong parameter, and the seconds after which the client may try again (0: it is not
        told).
        """
        super().__init__(message)
        self.status, self.message, self.code, self.param = status, message, code, param
        self.retry_after = retry_after

    def body(self) -> Mapping[str, object]:
        """Return the error object."""
        kinds = {401: "authentication_error", 429: "rate_limit_error"}
        kind = kinds.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> JSONResponse:
        """Return the error as a response."""
        headers = {"Retry-After": str(self.retry_after)} if self.retry_after else {}
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        return JSONResponse(self.body(), self.status, headers)


def api_error(error: BaseException) -> ApiError:
    """Classify what a reading has raised; what nobody expected is logged, and not told."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, ValidationError):
        deepest = max(error.errors(), key=lambda one: len(one["loc"]))  # the part of a message, not the message
        place = ".".join(map(str, deepest["loc"]))
        message = deepest["msg"].removeprefix("Value error, ")
        return ApiError(400, f"{place or 'the request'}: {message}", "invalid_value", place or None)
    if isinstance(error, UsageError | RequestError):
        return ApiError(400, str(error), "cannot_be_read")
    if isinstance(error, EngineDied):
        return ApiError(503, str(error), "engine_died")
    if isinstance(error, MemagentError):
        return ApiError(503, str(error), "reading_failed")
    if said := storage_error(error):
        return ApiError(503, said, "store_failed")
    _log.error("a request failed", exc_info=error)
    return ApiError(500, f"the server failed ({type(error).__name__}); its log says where", "internal_error")


Split = Literal["last-paragraph", "last-line"]
MOST_ANSWERS = 1_000
"""Answers about documents of a corpus in one response, unless the request says otherwise."""


class _Given(BaseModel):
    # Clients send many parameters that mean nothing to a reading (`user`, `store`, `frequency_penalty`, ...).
    model_config = ConfigDict(extra="ignore", frozen=True)


class ContentPart(_Given):
    """A part of a message's content."""

    type: str
    text: str = ""

    @field_validator("type")
    @classmethod
    def _is_text(cls, kind: str) -> str:
        if kind != "text":
            raise ValueError(f"a part of type {kind!r} cannot be read: send text")
        return kind


class Message(_Given):
    """A message of a chat."""

    role: str
    content: str | tuple[ContentPart, ...] | None = None

    @property
    def text(self) -> str:
        """Its text; parts are joined by blank lines."""
        if isinstance(self.content, str) or self.content is None:
            return self.content or ""
        return "\n\n".join(part.text for part in self.content)


class StreamOptions(_Given):
    """How a stream ends."""

    include_usage: bool = False


class ResponseFormat(_Given):
    """The format of a response."""

    type: str = "text"


class ChatRequest(_Given):
    """The body of ``POST /v1/chat/completions``. `document`, `split`, `documents` and `limit` are memagent's own."""

    model: str
    messages: tuple[Message, ...] = Field(min_length=1)
    document: str | None = None
    """The text that is read; the last user message is then the question."""
    split: Split | None = None
    """What of the last user message is the question; all before it is read."""
    documents: tuple[str, ...] = Field((), max_length=1_000)
    """Of a corpus: ids or globs of the documents that are asked."""
    limit: int = Field(MOST_ANSWERS, ge=0, le=100_000)
    """Of a corpus: answers in the response at most; the others are counted."""
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = Field(None, ge=1, lt=2**31)
    max_completion_tokens: int | None = Field(None, ge=1, lt=2**31)
    temperature: float | None = Field(None, ge=0, le=100)
    top_p: float | None = Field(None, gt=0, le=1)
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    stop: str | tuple[str, ...] | None = None
    n: int | None = None
    logprobs: bool | None = None
    response_format: ResponseFormat | None = None
    tools: list[object] | None = None
    functions: list[object] | None = None

    @model_validator(mode="after")
    def _can_be_done(self) -> "ChatRequest":
        wrong = {
            "n": (self.n or 1) != 1,
            "logprobs": bool(self.logprobs),
            "response_format": self.response_format is not None and self.response_format.type != "text",
            "tools": bool(self.tools),
            "functions": bool(self.functions),
        }
        if refused := [name for name, is_wrong in wrong.items() if is_wrong]:
            raise ValueError(f"a reading has no {refused[0]}: leave it out")
        return self

    @property
    def stops(self) -> tuple[str, ...]:
        """Texts before which the answer ends."""
        given = (self.stop,) if isinstance(self.stop, str) else self.stop or ()
        return tuple(text for text in given if text)


_BEGIN, _END = "<document>", "</document>"
_ENDS: Mapping[str, re.Pattern[str]] = {"last-paragraph": re.compile(r"\n[ \t\r]*\n"), "last-line": re.compile(r"\n")}
_READ = {"user", "system", "developer", "assistant"}
_HOW = (
    "give the text as `document` (in extra_body of OpenAI's client), between <document> and </document>, or as a user "
    "message before the question; or say with `split` that the last message ends with the question"
)


@dataclass(frozen=True, slots=True)
class TextAndQuestion:
    """What a request wants read."""

    text: str
    question: str
    not_read: int = 0
    """Messages of which nothing is read."""


def question_of(request: ChatRequest) -> str:
    """Return what is asked of a corpus: the last user message.

    Raises ApiError: there is none, or the request brings a document of its own.
    """
    if request.document is not None:
        message = "a corpus has its documents: leave `document` out, or ask the model memagent"
        raise ApiError(400, message, "invalid_value", "document")
    return _stripped(_user_texts(request)[-1])


def text_and_question(request: ChatRequest, split: Split | None = None) -> TextAndQuestion:
    """Return what of a chat is the document and what the question; see the rule above. The last message is split by
    `split` where the request does not say.

    Raises ApiError: there is no document or no question.
    """
    texts, split = _user_texts(request), request.split or split
    others = len(request.messages) - len(texts)
    if request.document is not None:
        return _made(request.document, texts[-1], others + len(texts) - 1)
    marked = [_marked(text) for text in texts]
    documents = [document for document, _ in marked if document is not None]
    if documents:
        unmarked = sum(document is None for document, _ in marked[:-1])
        return _made(_joined(documents), marked[-1][1], others + unmarked)
    if split is not None:
        before, question = _split(texts[-1], split)
        return _made(_joined([*texts[:-1], before]), question, others)
    return _made(_joined(texts[:-1]), texts[-1], others)


def _user_texts(request: ChatRequest) -> list[str]:
    """Return the texts of the user's messages, the question's among them as the last."""
    for index, message in enumerate(request.messages):
        if message.role not in _READ:
            where = f"messages.{index}.role"
            raise ApiError(400, f"{where}: a message of role {message.role!r} cannot be read", "invalid_value", where)
    if request.messages[-1].role != "user":
        raise ApiError(400, "the last message is not the user's, so nothing is asked", "no_question", "messages")
    return [message.text for message in request.messages if message.role == "user"]


def _marked(text: str) -> tuple[str | None, str]:
    """Return the document between the first mark and the last one (it may hold marks itself), and what is beside it."""
    start, end = text.find(_BEGIN), text.rfind(_END)
    if start < 0 or end < start:
        return None, text
    return text[start + len(_BEGIN) : end], text[:start] + text[end + len(_END) :]


def _made(text: str, question: str, not_read: int) -> TextAndQuestion:
    if not text.strip():
        raise ApiError(400, f"there is no document to read: {_HOW}", "no_document", "messages")
    return TextAndQuestion(text, _stripped(question), not_read)


def _stripped(question: str) -> str:
    if not question.strip():
        raise ApiError(400, "the question is empty: it is the last user message", "no_question", "messages")
    return question.strip()


def _joined(texts: Sequence[str]) -> str:
    return "\n\n".join(text for text in texts if text.strip())


def _split(text: str, split: Split) -> tuple[str, str]:
    stripped = text.rstrip()
    ends = [match.span() for match in _ENDS[split].finditer(stripped)]
    start, end = ends[-1] if ends else (0, 0)
    return stripped[:start], stripped[end:]


class TokenUsage(BaseModel):
    """Tokens of all conversations that were held for a request, cached ones among the prompt's."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0
    prompt_tokens_details: dict[str, int] = Field(default_factory=dict)

    @classmethod
    def of(cls, prompt: int, cached: int, output: int) -> "TokenUsage":
        """Make one of the counts of readings."""
        return cls(
            prompt_tokens=prompt,
            completion_tokens=output,
            total_tokens=prompt + output,
            prompt_tokens_details={"cached_tokens": cached},
        )


class EvidencePlace(BaseModel):
    """A place that an answer came from, by characters of the document, from start to end (exclusive)."""

    document: str
    """Id of the document; empty for a text of the request."""
    quote: str
    """The sentence of the document that says the answer, or supports it best; empty: there is none."""
    quote_start: int | None
    quote_end: int | None
    verbatim: bool
    """Whether the quote says the answer word for word."""
    segment: int | None
    """Index of the segment in which the memory gained the answer; null: a person marked the place."""
    segment_start: int
    segment_end: int
    page: int | None = None
    """Of a PDF, from 1."""


class FoundAnswer(BaseModel):
    """One answer, with its evidence."""

    document: str
    """Id of the document; empty for a text of the request, and for a concatenated corpus."""
    answer: str
    found: bool
    evidence: list[EvidencePlace]
    reading_id: str
    confidence: Level | None = None
    """How far to trust the answer, by held-out answers; null: the reader declares none."""
    warnings: list[str] = Field(default_factory=list)
    """What speaks against the answer, and what of the document's text was not read, or read by OCR."""
    review: str = ""
    """What people's verdicts on it come to: accepted, corrected, rejected or disputed; empty: there are none."""


class About(BaseModel):
    """The field ``memagent`` of a response."""

    question: str = ""
    answers: list[FoundAnswer] = Field(default_factory=list)
    readings: int = 0
    """All of the request's, answered before ones among them."""
    found: int = 0
    failed: int = 0
    """Their reasons are in the corpus's quarantine."""
    unread: int = 0
    """Not read, since the budget was spent; the same question goes on with them."""
    segments: int = 0
    """Segments read now."""
    conversations: int = 0
    run_id: str | None = None
    """Of a corpus: the run in the store."""
    policy_id: str = ""
    warnings: list[str] = Field(default_factory=list)
    """What speaks against all answers to the question, also those that are not found; which are withheld or lacking."""
    messages_not_read: int = 0
    """System and assistant messages, and what precedes a question whose document is given."""


class ReadingProgress(BaseModel):
    """How far a reading is: the field ``memagent`` of a stream's chunks before the answer."""

    segments_read: int | None = None
    """Of a text."""
    segments: int | None = None
    answers: int | None = None
    """Of a corpus: documents that are answered, found or not."""


class ChatCompletion:
    """The objects of one response: their id, time and model are the same."""

    def __init__(self, model: str) -> None:
        self._head = {"id": f"chatcmpl-{uuid.uuid4().hex}", "created": int(time.time()), "model": model}

    def whole(self, content: str, finish_reason: str, usage: TokenUsage, about: About) -> dict[str, object]:
        """Return a response that is not streamed."""
        message = {"role": "assistant", "content": content, "refusal": None}
        choice = {"index": 0, "message": message, "finish_reason": finish_reason, "logprobs": None}
        return {
            **self._head,
            "object": "chat.completion",
            "choices": [choice],
            "usage": usage.model_dump(),
            "memagent": about.model_dump(),
        }

    def chunk(
        self, delta: dict[str, str], finish_reason: str | None = None, about: BaseModel | None = None
    ) -> dict[str, object]:
        """Return a chunk of a stream."""
        choice = {"index": 0, "delta": delta, "finish_reason": finish_reason, "logprobs": None}
        extra = {} if about is None else {"memagent": about.model_dump(exclude_none=isinstance(about, ReadingProgress))}
        return {**self._head, "object": "chat.completion.chunk", "choices": [choice], **extra}

    def usage(self, usage: TokenUsage) -> dict[str, object]:
        """Return the chunk that ends a stream whose client wants the usage."""
        return {**self._head, "object": "chat.completion.chunk", "choices": [], "usage": usage.model_dump()}
