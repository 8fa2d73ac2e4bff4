"""Parsing in a child process: a source that crashes or hangs the parser is an error like any other.

The child is handed an open file, has no keys, and confines itself (`infra.system.confinement`).
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from multiprocessing.reduction import send_handle
from typing import IO, BinaryIO

from infra.sources.base import Parsed, Refused
from infra.sources.listing import open_source
from memagent.config import IngestConfig
from memagent.errors import SourceError

_START_SECONDS = 120.0
_HEAD_BYTES = 2**20
_BYTES_PER_CHAR = 4
"""A message is a head or a text in UTF-8; one that is longer than any text may be is not taken in."""
_ENVIRONMENT = ("LANG", "LC_", "LD_LIBRARY_PATH", "PATH", "TZ")
"""What the child is given of the environment: no key of anything. It is handed its sources open."""


def parser_environment() -> dict[str, str]:
    """Return the environment of a process that parses sources: where its modules are, and nothing else."""
    environment = {name: value for name, value in os.environ.items() if name.startswith(_ENVIRONMENT)}
    return environment | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


class Guard:
    """A child process that parses one source after another, and is replaced when it dies.

    Not thread-safe. `close` it, or let the process that holds it end.
    """

    def __init__(self, options: IngestConfig, module: str = "infra.sources.sandbox_child") -> None:
        """Prepare, for columns and limits; the child, which runs a module, starts with the first source."""
        self.options = options
        self._module = module
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._errors: IO[bytes] | None = None
        self._left = 0.0

    def parse(self, path: str, name: str) -> Iterator[tuple[Parsed, str] | Refused]:
        """Yield the texts of a source, each with its content hash, and the rows that are none.

        Raises:
            SourceError: as `infra.sources.parse`, and ``timeout``, ``crashed``.
            RuntimeError: the child cannot be started.
        """
        with open_source(path, self.options.max_bytes) as raw:
            yield from self._parse(raw, name)

    def _parse(self, raw: BinaryIO, name: str) -> Iterator[tuple[Parsed, str] | Refused]:
        connection = self._connection or self._start()
        finished = False
        self._left = self.options.source_seconds
        try:
            connection.send_bytes(json.dumps({"name": name}).encode())
            send_handle(connection, raw.fileno(), None)
            while True:
                message = json.loads(self._receive(connection))
                if "end" in message:
                    finished = True
                    if message["end"]:
                        raise SourceError(**message["end"])
                    return
                if "gets_on" in message:
                    continue
                if "refused" in message:
                    yield Refused(**message["refused"])
                    continue
                head = message["parsed"]
                content_hash = head.pop("content_hash")
                text, warnings = self._receive(connection).decode("utf-8"), tuple(head["warnings"])
                yield Parsed(**{**head, "text": text, "warnings": warnings}), content_hash
        except (EOFError, OSError) as error:
            raise SourceError("crashed", f"the parser died reading it ({self._last_words()})") from error
        finally:
            if not finished:  # discard the child's remaining messages
                self.close()

    def close(self) -> None:
        """End the child."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        if self._errors is not None:
            self._errors.close()
            self._errors = None

    def _receive(self, connection: Connection) -> bytes:
        """Return the child's next message. Only the time spent waiting for it counts."""
        options = self.options
        begun = time.monotonic()
        if self._left <= 0 or not connection.poll(min(options.parse_seconds, self._left)):
            if self._left < options.parse_seconds:
                seconds = options.source_seconds
                raise SourceError("timeout", f"it was not read within {seconds:g} s; see ingest.source_seconds")
            seconds = options.parse_seconds
            raise SourceError("timeout", f"the parser said nothing for {seconds:g} s; see ingest.parse_seconds")
        message = connection.recv_bytes(_HEAD_BYTES + _BYTES_PER_CHAR * options.max_bytes)
        self._left -= time.monotonic() - begun
        return message

    def _start(self) -> Connection:
        self.close()
        ours, theirs = Pipe()
        environment = parser_environment()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - the child's, for as long as it lives
        self._process = subprocess.Popen(
            # -P: a file in the working folder, perhaps the archive itself, must not be imported as a module.
            [sys.executable, "-P", "-m", self._module, str(theirs.fileno()), self.options.model_dump_json()],
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._errors,
            env=environment,
        )
        theirs.close()
        try:
            ready = ours.poll(_START_SECONDS) and ours.recv_bytes() == b"ready"
        except EOFError:
            ready = False
        if not ready:
            self._errors.seek(0)
            errors = self._errors.read()[-2000:].decode(errors="replace")
            ours.close()
            self.close()
            raise RuntimeError(f"the parser process does not start: {errors}")
        self._connection = ours
        return ours

    def _last_words(self) -> str:
        if self._process is None:
            return "it is gone"
        try:
            code = self._process.wait(timeout=5.0)
        except subprocess.TimeoutExpired:
            return "it closed its connection"
        if code == 0:  # a crash with status 0: someone else (Ray, in its workers) took the real one
            return "its status is not known"
        return f"signal {signal.Signals(-code).name}" if code < 0 else f"status {code}"
