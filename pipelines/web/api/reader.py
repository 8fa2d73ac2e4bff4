"""The reader of a server: one engine, loaded for its life, on which the readings of all requests are batched."""

import asyncio
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from difflib import get_close_matches

from infra.cluster.loaded_engine import LoadedEngine, LocalEngine
from infra.cluster.session import lazy_ray
from infra.readers import ReaderSpec
from infra.store import Corpus, Store
from infra.tables.corpora import corpora
from memagent.config import Config
from memagent.conversations import ReadingRequest, ReadingSpec
from memagent.errors import UsageError
from memagent.questions import ask as make_question
from memagent.records import ReadingResult, Turn, half, reading_id, text_hash
from memagent.segmenting import segments
from pipelines.ask import AskRequest
from pipelines.web.api.errors import ApiError
from pipelines.web.api.messages import question_of, text_and_question
from pipelines.web.api.protocol import ChatRequest, Split
from pipelines.web.api.readings import CorpusReading, Reads, TextReading, text_reading_request, with_options

TEXT_MODEL = "memagent"
CORPUS, ARCHIVE = "corpus:", "archive:"
"""What the names of models that read a corpus begin with: each document by itself, or all of them concatenated."""
_RUNS = 4
"""Corpora that are asked at the same time; other questions to corpora wait for their turn."""


class HeldReader:
    """A policy, its engine in this process, and the store that it answers from."""

    def __init__(self, config: Config, split: Split | None = None) -> None:
        """Resolve the reader; nothing is loaded.

        Args:
            config: store, model, reading, engine. A version that is promoted later is read by the next server.
            split: how a last message is split where a request does not say.

        Raises:
            ConfigError: model, template and engine do not fit together.
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

    @contextmanager
    def session(self) -> Iterator[None]:
        """Hold Ray for all runs of the body, should one have so much to plan that it needs it."""
        with lazy_ray(self.config.ray):
            yield

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

        Raises:
            UsageError: the question is empty or too long.
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
