"""The scripted reader, also in a process of its own that can be killed like vLLM's."""

import asyncio
import json
import os
import sys
from dataclasses import asdict

from memagent.config import EngineConfig, ReadingConfig
from memagent.errors import EngineDied, RequestError
from memagent.reading.engine import Completion, Engine, EngineRequest, Sampling
from memagent.reading.prompts import Prompts, load_template
from memagent.reading.scripted import ScriptedEngine
from memagent.reading.tokens import load_tokenizer
from memagent.records import Json

_LINE = 16 * 2**20


class ScriptedProcess:
    """Talks to a child process over pipes, one JSON line per request."""

    def __init__(self, model: str, reading: ReadingConfig, config: EngineConfig) -> None:
        self._spec = json.dumps({"model": model, "reading": reading.model_dump(), "delay": config.scripted_delay})
        self._process: asyncio.subprocess.Process | None = None
        self._listener: asyncio.Task[None] | None = None
        self._waiting: dict[int, asyncio.Future[Json]] = {}
        self._next = 0

    async def start(self) -> None:
        """Start the child."""
        if self._process is None:
            command = (sys.executable, "-P", "-m", "infra.engines.scripted", self._spec)
            self._process = await asyncio.create_subprocess_exec(
                *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=_LINE
            )
            self._listener = asyncio.create_task(self._listen(self._process))

    async def generate(self, ids: list[int], sampling: Sampling, priority: int = 0) -> Completion:
        """Continue `ids`; see `memagent.reading.engine.Engine`."""
        process = self._process
        if process is None or process.returncode is not None or process.stdin is None:
            raise EngineDied("the scripted engine's process is gone")
        self._next += 1
        answer = self._waiting[self._next] = asyncio.get_running_loop().create_future()
        request = {"id": self._next, "ids": ids, "sampling": asdict(sampling)}
        try:
            process.stdin.write(json.dumps(request).encode() + b"\n")
            await process.stdin.drain()
        except (BrokenPipeError, ConnectionResetError) as error:
            raise EngineDied("the scripted engine's process is gone") from error
        response = await answer
        if "error" in response:
            raise RequestError(response["error"])
        return Completion(**response["completion"])

    async def stop(self) -> None:
        """End the child."""
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            process.kill()
            await process.wait()
        if self._listener is not None:
            await self._listener

    async def _listen(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        while line := await process.stdout.readline():
            response = json.loads(line)
            waiting = self._waiting.pop(response["id"], None)
            if waiting is not None and not waiting.done():
                waiting.set_result(response)
        await process.wait()
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(EngineDied("the scripted engine's process ended"))
        self._waiting.clear()


def make_engine(request: EngineRequest) -> Engine:
    """Make the engine, in this process or in one of its own (``engine.scripted_process``)."""
    if request.config.scripted_process:
        return ScriptedProcess(request.model, request.spec().config, request.config)
    return _CountedEngine(request.spec().prompts, delay=request.config.scripted_delay)


class _CountedEngine(ScriptedEngine):
    """Appends a byte to a file for each conversation, if the environment names one, so that repeats can be counted."""

    def __init__(self, prompts: Prompts, *, delay: float) -> None:
        super().__init__(prompts, delay=delay)
        path = os.environ.get("MEMAGENT_SCRIPTED_TALLY")
        self._tally = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT) if path else 0

    async def generate(self, ids: list[int], sampling: Sampling, priority: int = 0) -> Completion:
        completion = await super().generate(ids, sampling, priority)
        if self._tally:
            os.write(self._tally, b".")
        return completion


async def _serve(spec: Json) -> None:
    reading = ReadingConfig.model_validate(spec["reading"])
    prompts = Prompts(
        load_template(reading.template),
        load_tokenizer(spec["model"]),
        reading.layout,
        gate=reading.gate,
        early_exit=reading.early_exit,
    )
    engine = _CountedEngine(prompts, delay=spec["delay"])
    loop = asyncio.get_running_loop()
    requests = asyncio.StreamReader(limit=_LINE)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(requests), sys.stdin)
    running: set[asyncio.Task[None]] = set()

    async def answer(request: Json) -> None:
        sampling = Sampling(**{**request["sampling"], "stop_ids": tuple(request["sampling"]["stop_ids"])})
        response: Json = {"id": request["id"]}
        try:
            response["completion"] = asdict(await engine.generate(request["ids"], sampling))
        except RequestError as error:
            response["error"] = str(error)
        sys.stdout.write(json.dumps(response) + "\n")
        sys.stdout.flush()

    # The pipe ends with its other end, so this process never outlives the worker it serves.
    while line := await requests.readline():
        task = asyncio.create_task(answer(json.loads(line)))
        running.add(task)
        task.add_done_callback(running.discard)


if __name__ == "__main__":
    asyncio.run(_serve(json.loads(sys.argv[1])))
