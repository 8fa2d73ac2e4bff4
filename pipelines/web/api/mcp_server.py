"""The store as tools of an assistant (Model Context Protocol): over HTTP, or on standard input and output.

All tools but ``ask`` only read. ``ask`` keeps its answers in the store, as ``memagent ask`` does; it loads the model
when it is first called. Texts of documents are material: whoever shows them to a model must expect that they try to
instruct it.
"""

import asyncio
import signal
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from functools import wraps
from itertools import islice
from typing import Annotated, ParamSpec, TypeVar

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.transport_security import TransportSecuritySettings
from mcp_types import ToolAnnotations
from pydantic import BaseModel, Field
from starlette.applications import Starlette

from infra.cluster.session import lazy_ray
from infra.store.buckets import buckets
from infra.store.corpora import check_known, corpora, default_questions
from infra.store.documents import current_documents, documents_count
from infra.store.location import Corpus, Store
from infra.store.runs import withheld_runs
from memagent.config import Config
from memagent.errors import MemagentError
from memagent.version import __version__
from pipelines.answers import Answer
from pipelines.io.answers import GivenAnswer, answer_rows
from pipelines.views.counts import corpus_counts
from pipelines.web.api.protocol import About, ApiError, FoundAnswer
from pipelines.web.api.reader import AnswerEvidence, HeldReader, answer_evidence, found_answer

_READS = ToolAnnotations(read_only_hint=True, open_world_hint=False)
_ASKS = ToolAnnotations(read_only_hint=False, destructive_hint=False, idempotent_hint=True, open_world_hint=False)
_INSTRUCTIONS = (
    "Archives of long documents, read by a language model with a memory of fixed size. `corpora` lists them. `answers` "
    "gives what was answered before, at once; `ask` reads what has not been, which may take minutes. `evidence` gives "
    "the passages that an answer came from: quote them."
)
P = ParamSpec("P")
R = TypeVar("R")
CorpusName = Annotated[str, Field(description="Name of the corpus, as `corpora` lists it.")]
Limit = Annotated[int, Field(ge=1, le=1_000, description="Answers at most; the others are counted.")]
Pattern = Annotated[str | None, Field(description="Whole value, whatever its case; * stands for any characters.")]


class CorpusInfo(BaseModel):
    """A corpus of the store."""

    corpus: str
    documents: int
    default_questions: list[str]
    """Asked of it by every digest."""


class KnownAnswer(FoundAnswer):
    """An answer of an earlier run."""

    question: str
    answered_at: str


class KnownAnswers(BaseModel):
    """Answers of earlier runs."""

    answers: list[KnownAnswer]
    more: bool
    """Whether there are others that match."""
    withheld: int
    """Newer answers of the whole corpus that quality checks withhold."""


def anticipated(tool: Callable[P, Awaitable[R]]) -> Callable[P, Awaitable[R]]:
    """Have a tool say what is wrong where the product says so; the protocol withholds all other errors' texts."""

    @wraps(tool)
    async def told(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return await tool(*args, **kwargs)
        except (MemagentError, ApiError) as error:
            raise ToolError(str(error)) from error

    return told


class Tools:
    """The tools, and the reader once something is asked."""

    def __init__(self, config: Config, reader: HeldReader | None = None) -> None:
        """Make the tools of a store. Without a reader, which somebody else starts and stops, one is started when
        something is first asked.
        """
        self._config, self._store = config, Store(config.store)
        self._reader = reader
        self._starting = asyncio.Lock()

    async def corpora(self) -> list[CorpusInfo]:
        """List the corpora, with the numbers of their documents and their default questions."""
        return await asyncio.to_thread(lambda: [self._info(name) for name in corpora(self._store)])

    async def ask(
        self,
        corpus: CorpusName,
        question: Annotated[str, Field(description="One question, answered from each document by itself.")],
        context: Context,
        documents: Annotated[list[str] | None, Field(description="Ids or globs; by default all documents.")] = None,
        archive: Annotated[bool, Field(description="Read all documents concatenated: one answer.")] = False,
        limit: Limit = 20,
    ) -> About:
        """Ask a question of a corpus. What was answered before is not read again; what was not may take minutes."""
        await asyncio.to_thread(check_known, Corpus(self._store, corpus))
        reader = await self._started()
        reading = reader.ask(corpus, question, documents=tuple(documents or ()), archive=archive)
        kept: list[FoundAnswer] = []
        async with aclosing(reading.answers()) as answers:
            async for answer in answers:
                if answer.found and len(kept) < limit:
                    kept.append(answer)
                await context.report_progress(reading.progress.answers or 0)
        return reading.ended().about.model_copy(update={"answers": kept})

    async def answers(
        self,
        corpus: CorpusName,
        question: Pattern = None,
        document: Pattern = None,
        answer: Pattern = None,
        found: Annotated[bool | None, Field(description="Only what documents say (true), or do not say.")] = None,
        limit: Limit = 50,
    ) -> KnownAnswers:
        """Give the newest answers to questions that were asked before. Nothing is read."""
        given = {"question": question, "document": document, "answer": answer}
        where = [(name, pattern) for name, pattern in given.items() if pattern is not None]
        where += [] if found is None else [("found", str(found))]
        return await asyncio.to_thread(self._known, Corpus(self._store, corpus), where, limit)

    async def evidence(
        self,
        corpus: CorpusName,
        reading_id: Annotated[str, Field(description="Of the answer.")],
        around: Annotated[int, Field(ge=0, le=10_000, description="Characters before and after each place.")] = 500,
    ) -> AnswerEvidence:
        """Give the passages of documents that an answer came from, best first."""
        return await asyncio.to_thread(answer_evidence, Corpus(self._store, corpus), reading_id, around)

    async def stop(self) -> None:
        """Free the engine, if there is one."""
        if self._reader is not None:
            await self._reader.stop()

    async def _started(self) -> HeldReader:
        async with self._starting:
            if self._reader is None:
                reader = HeldReader(self._config)
                await reader.start()
                self._reader = reader
            return self._reader

    def _info(self, name: str) -> CorpusInfo:
        corpus = Corpus(self._store, name)
        parts = buckets(documents_count(corpus))
        count = sum(current_documents(corpus, ["doc_id"], part, ordered=False).num_rows for part in parts)
        questions = [question.text for question in default_questions(corpus)]
        return CorpusInfo(corpus=name, documents=count, default_questions=questions)

    def _known(self, corpus: Corpus, where: list[tuple[str, str]], limit: int) -> KnownAnswers:
        rows = [_known_answer(row) for row in islice(answer_rows(corpus, where=where), limit + 1)]
        withheld = corpus_counts(corpus)["withheld"] if withheld_runs(corpus) else 0
        return KnownAnswers(answers=rows[:limit], more=len(rows) > limit, withheld=withheld)


def _known_answer(row: GivenAnswer) -> KnownAnswer:
    return KnownAnswer(
        **dict(found_answer(Answer.from_row(row))), question=row["question"], answered_at=row["answered_at"].isoformat()
    )


def mcp_server(tools: Tools) -> MCPServer:
    """Return the MCP server of some tools."""
    server: MCPServer = MCPServer("memagent", instructions=_INSTRUCTIONS, version=__version__, log_level="WARNING")
    for tool, kind in ((tools.corpora, _READS), (tools.ask, _ASKS), (tools.answers, _READS), (tools.evidence, _READS)):
        server.add_tool(anticipated(tool), annotations=kind)
    return server


def http_app(server: MCPServer) -> Starlette:
    """Return the application of a server at ``/mcp``; whoever serves it checks names and tokens."""
    app: Starlette = server.streamable_http_app(
        transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False)
    )
    return app


def serve_stdio(config: Config) -> None:
    """Serve a store's tools until standard input ends, or a signal ends this process.

    What engines and libraries print goes to standard error meanwhile: the protocol has standard output for itself.
    """
    for sign in (signal.SIGINT, signal.SIGTERM):  # Python's handlers would wait for the thread that waits for input
        signal.signal(sign, signal.SIG_DFL)
    asyncio.run(_serve(config))


async def _serve(config: Config) -> None:
    tools = Tools(config)
    with lazy_ray(config.ray):
        try:
            await mcp_server(tools).run_stdio_async()
        finally:
            await tools.stop()
