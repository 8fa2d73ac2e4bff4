"""The reader of a server: one engine, loaded for its life, on which the readings of all requests are batched."""

import asyncio
import os
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from difflib import get_close_matches

from infra.cluster.loaded_engine import LoadedEngine, LocalEngine
from infra.readers import ReaderSpec
from infra.store.corpora import corpora
from infra.store.location import Corpus, Store
from memagent.config import Config
from memagent.errors import UsageError
from memagent.questions import ask as make_question
from memagent.reading.conversations import ReadingRequest, ReadingSpec
from memagent.reading.segmenting import segments
from memagent.records import ReadingResult, Turn, half, reading_id, text_hash
from pipelines.ask import AskRequest
from pipelines.web.api.protocol import ApiError, ChatRequest, Split
from pipelines.web.api.readings import CorpusReading, Reads, TextReading, text_reading_request, with_options

_MARKED = re.compile(r"<document>(.*)</document>", re.DOTALL)
"""From the first mark to the last one: a document may hold marks itself."""
_ENDS = {"last-paragraph": re.compile(r"\n[ \t\r]*\n"), "last-line": re.compile(r"\n")}
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
    marked = [match for text in texts if (match := _MARKED.search(text))]
    if marked:
        question = _MARKED.sub("", texts[-1])
        unmarked = sum(not _MARKED.search(text) for text in texts[:-1])
        return _made(_joined([match[1] for match in marked]), question, others + unmarked)
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


TEXT_MODEL = "memagent"
CORPUS, ARCHIVE = "corpus:", "archive:"
"""What the names of models that read a corpus begin with: each document by itself, or all of them concatenated."""
_RUNS = 4
"""Corpora that are asked at the same time; other questions to corpora wait for their turn."""


class HeldReader:
    """A policy, its engine in this process, and the store that it answers from."""

    def __init__(self, config: Config, split: Split | None = None) -> None:
        """Resolve the reader; nothing is loaded. A version that is promoted later is read by the next server.

        Raises ConfigError: model, template and engine do not fit together.
        """
        self.config, self.store = config, Store(config.store)
        self.spec = ReaderSpec(config)
        self._split = split
        self._engine = LoadedEngine(self.spec, config.pool.inflight, local=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self.engine_gone = asyncio.Event()
        """Set once the engine has died for good: whoever serves should end, and be started again."""
        self._runs = ThreadPoolExecutor(_RUNS, thread_name_prefix="memagent run")

    @property
    def not_found(self) -> str:
        """What is said where the text does not say."""
        return self.spec.template.not_found

    async def start(self) -> None:
        """Load the model, in the running event loop, to which the engine then belongs."""
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")  # it would say on every start what it does without
        self._loop = asyncio.get_running_loop()
        await self._engine.start()

    async def stop(self) -> None:
        """Free the engine. Readings have ended or were cancelled."""
        await asyncio.to_thread(self._runs.shutdown)
        await self._engine.stop()

    def models(self) -> list[str]:
        """Return the names of models: the text of a request, and the corpora of the store."""
        names = corpora(self.store)
        return [TEXT_MODEL, *(f"{kind}{name}" for name in names for kind in (CORPUS, ARCHIVE))]

    async def reading(self, request: ChatRequest) -> Reads:
        """Return what a request has read.

        Raises:
            ApiError: there is no such model, no document or no question.
            UsageError: the question does not fit the context window.
        """
        model = request.model
        if model == TEXT_MODEL:
            return await self._text(request)
        if model.startswith((CORPUS, ARCHIVE)) and model in await asyncio.to_thread(self.models):
            return self.ask(
                model.partition(":")[2],
                question_of(request),
                documents=request.documents,
                archive=model.startswith(ARCHIVE),
            )
        models = await asyncio.to_thread(self.models)
        near = get_close_matches(model, models, n=1)
        advice = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(models[:20])}"
        raise ApiError(404, f"there is no model {model!r}: {advice}", "model_not_found", "model")

    def ask(
        self, corpus: str, question: str, *, documents: tuple[str, ...] = (), archive: bool = False
    ) -> CorpusReading:
        """Return the reading of a corpus for a question, which begins when it is iterated over.

        Raises UsageError: the question is empty or too long.
        """
        assert self._loop is not None, "started"
        asked = make_question(question)
        if documents:
            asked = type(asked)(asked.question_id, asked.text, documents)
        self._check(question)
        engine = LocalEngine(self.spec, self._engine, self._loop)
        request = AskRequest(corpus, [asked], self.config, archive=archive, engine=engine)
        return CorpusReading(Corpus(self.store, corpus), request, self._runs.submit, self.spec.policy.policy_id)

    async def run(self, request: ReadingRequest, spec: ReadingSpec, record: Callable[[Turn], None]) -> ReadingResult:
        """Read on the engine, beside all other readings."""
        return await self.spec.method(request, spec, self._engine.new_client().generate, record).run()

    async def _text(self, request: ChatRequest) -> TextReading:
        given = text_and_question(request, self._split)
        for name, text in (("document", given.text), ("question", given.question)):
            if surrogate := half(text):
                raise UsageError(f"the {name} holds {surrogate}, an unpaired surrogate")
        self._check(given.question)
        spec = with_options(
            self.spec.scheme,
            answer_tokens=_least(request.max_completion_tokens or request.max_tokens, self.spec.reading.answer_tokens),
            temperature=request.temperature,
            top_p=request.top_p,
            seed=request.seed,
        )
        content_hash, config = text_hash(given.text), spec.config
        cut = await asyncio.to_thread(
            lambda: list(
                segments(
                    content_hash,
                    given.text,
                    spec.prompts.tokenizer,
                    segment_tokens=config.segment_tokens,
                    boundary=config.boundary,
                )
            )
        )
        policy = self.spec.policy.policy_id
        name = reading_id([content_hash], given.question, policy, config.hash(spec.prompts.template.hash))
        return TextReading(
            text_reading_request(name, given.question, cut), spec, self.run, policy, not_read=given.not_read
        )

    def _check(self, question: str) -> None:
        if window := self.spec.max_model_len:
            self.spec.scheme.check_window(self.spec.tokenizer.encode(question), window)


def _least(given: int | None, most: int) -> int | None:
    return None if given is None else min(given, most)
