"""Archives from Python: ask a folder, a bucket or a corpus, and take the answers as they are found.

    from memagent import Archive

    for answer in Archive("contracts").ask("Which law governs this agreement?"):
        print(answer.document, answer.answer, answer.quote)

`memagent.Archive` is this one; importing `memagent` alone does not load it.
"""

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Generator, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from weakref import WeakSet

from memagent.config import Config, load_config
from memagent.errors import UsageError
from memagent.questions import ask as make_question
from memagent.records import Question
from pipelines.answers import Answer, Answers, AnswerTable

__all__ = ["Answer", "AnswerTable", "Answers", "Archive", "AsyncAnswers"]


_BEGUN = WeakSet[Answers]()
os.register_at_fork(after_in_child=_BEGUN.clear)


def _stop_runs() -> None:
    """Stop the runs that go on: a thread in native code would crash the interpreter at its end."""
    _end(list(_BEGUN), stop=True, seconds=60.0)


# Functions of `atexit` come too late: Python has closed its executors by then, with which runs write what they have.
threading._register_atexit(_stop_runs)  # type: ignore[attr-defined]


def _end(runs: Sequence[Answers], *, stop: bool, seconds: float | None = None) -> None:
    """Wait for the end of runs. They take turns, so all are stopped before one is waited for."""
    for run in runs if stop else ():
        run.stop()
    for run in runs:
        run.join(seconds)


class Archive:
    """Documents that can be asked: those of a folder, file, glob or ``s3://`` URL, or of a corpus by its name.

    What was read is kept in the store, so that asking again reads only what is new. In a ``with`` block Ray stays
    between questions; without one it starts for each of them that has something to read.
    """

    def __init__(
        self,
        source: str | os.PathLike[str],
        *,
        store: str | os.PathLike[str] | None = None,
        model: str | None = None,
        engine: str | None = None,
        config: str | os.PathLike[str] | Config | None = None,
        settings: Sequence[str] = (),
    ) -> None:
        """Name an archive. Nothing is read and nothing is written.

        Args:
            source: a folder, file, glob or ``s3://`` URL, of which a corpus is made on the way; or a corpus's name.
            store: folder or ``s3://`` URL where everything is kept; by default as configured (``.memagent``).
            model: ``nano``, a model folder, or a Hugging Face name.
            engine: ``vllm``, ``openai``, ``scripted``, or an installed package's.
            config: a TOML file, or a configuration, which the other arguments do not change.
            settings: ``section.key=value`` strings, as for ``--set``.

        Raises:
            ConfigError: a key or value cannot be used.
        """
        if not isinstance(config, Config):
            config = load_config(
                None if config is None else str(config),
                list(settings),
                store=None if store is None else str(store),
                engine__model=model,
                engine__kind=engine,
            )
        if "://" not in config.store:  # workers have other working directories
            config = config.model_copy(update={"store": str(Path(config.store).expanduser().resolve())})
        self.source = str(source)
        self.config = config
        self._stack, self._begun = ExitStack(), WeakSet[Answers]()

    def __repr__(self) -> str:
        return f"Archive({self.source!r}, store={self.config.store!r})"

    def __enter__(self) -> Self:
        from infra.cluster.session import lazy_ray

        self._stack.enter_context(lazy_ray(self.config.ray))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._stack:
            _end(list(self._begun), stop=kind is not None)

    def ask(
        self,
        *questions: str | Question,
        archive: bool = False,
        reread: bool = False,
        fetch: bool = True,
        progress: bool | None = None,
    ) -> Answers:
        """Ask questions of every document; return the answers, which come while they are iterated over.

        The reading begins at once, in a thread; runs of one process take turns. What was answered before is not read
        again. A ``with`` block waits for its runs at its end (`Answers.stop` ends one earlier). After an exception, and
        at the end of the program, they are stopped, and asking again goes on.

        Args:
            questions: texts, or `Question` objects with documents of their own or gold answers.
            archive: read all documents concatenated, and give one answer.
            reread: read again what other versions of the model have answered.
            fetch: look at the source for new and changed documents first.
            progress: show progress; None: in a notebook only.

        Raises:
            UsageError: there is no question, no such corpus or no such file.
        """
        from infra.store.location import Store
        from pipelines.ask import AskRequest
        from pipelines.target import find_target

        if not questions:
            raise UsageError("no question: archive.ask('a question')")
        tables = Store(self.config.store)
        tables.check_reachable()
        if others := [text for text in questions if not isinstance(text, str | Question)]:
            raise UsageError(f"a question is a text, not a {type(others[0]).__name__}: archive.ask('one', 'another')")
        wanted = [text if isinstance(text, Question) else make_question(text) for text in questions]
        whom = find_target(tables, self.source, fetch=fetch)
        request = AskRequest(whom.corpus.name, wanted, self.config, archive=archive, reread=reread)
        begun = Answers(whom, request, progress)
        self._begun.add(begun)
        _BEGUN.add(begun)
        return begun

    def aask(self, *questions: str | Question, **options: Any) -> "AsyncAnswers":
        """Ask as `ask` does, for ``async for`` and ``await``; the arguments are the same."""
        return AsyncAnswers(self.ask(*questions, **options))

    def answers(self) -> AnswerTable:
        """Return the newest answer to every question for every document; nothing is read.

        Raises:
            UsageError: there is no such corpus, or it has no documents.
        """
        from infra.store.location import Store
        from pipelines.target import find_target

        return AnswerTable(find_target(Store(self.config.store), self.source, fetch=False).corpus)


class AsyncAnswers:
    """Answers for programs that run an event loop, which is never blocked."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers

    def __await__(self) -> Generator[Any, None, Answers]:
        return self._ended().__await__()

    async def _ended(self) -> Answers:
        try:
            await asyncio.to_thread(self._answers.wait)
        except asyncio.CancelledError:
            self._answers.stop()
            raise
        return self._answers

    async def __aiter__(self) -> AsyncIterator[Answer]:
        found = iter(self._answers)
        try:
            while (answer := await asyncio.to_thread(next, found, None)) is not None:
                yield answer
        except asyncio.CancelledError:
            self._answers.stop()
            raise
