"""The child process that parses sources, so that a crash or a hang takes nothing else down.

Started by `infra.sources.sandbox.Guard` as ``python -m infra.sources.sandbox_child <descriptor> <options>``.
"""

import json
import mimetypes
import os
import resource
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle
from typing import BinaryIO

from infra.sources import FORMATS, Parsed, is_table, parse_file
from infra.sources.base import Allowance
from infra.system.confinement import confine
from infra.system.processes import end_with, usable_cores, usable_memory
from memagent.config import IngestConfig
from memagent.errors import ConfigError, SourceError, missing_extra
from memagent.records import text_hash

_LEAST_MEMORY = 512 * 2**20
_TOLD = 10
"""Times within `ingest.parse_seconds` that it says that it gets on."""


def main() -> None:
    """Answer requests until the other end is closed."""
    connection = Connection(int(sys.argv[1]))
    options = IngestConfig.model_validate_json(sys.argv[2])
    end_with(os.getppid())  # even in the middle of a file that hangs
    memory = _Memory()
    if options.confine:
        mimetypes.init()  # openpyxl looks at the system's list, a file that is out of reach afterwards
        for suffix in filter(FORMATS.origin, FORMATS):  # another package's modules may be anywhere
            with suppress(ConfigError):
                FORMATS[suffix]
        confine()
    connection.send_bytes(b"ready")
    while True:
        try:
            name = json.loads(connection.recv_bytes())["name"]
            file = open(recv_handle(connection), "rb")  # noqa: SIM115 - closed below
        except EOFError:
            return
        with file:
            error = _answer(connection, file, name, options=options, memory=memory)
        connection.send_bytes(_frame({"end": error and {"reason": error.reason, "detail": error.detail}}))


class _Memory:
    """Limits this process's memory to what it has and what a source may need: a share of the machine's at most."""

    def __init__(self) -> None:
        self._share = max(_LEAST_MEMORY, usable_memory() // usable_cores())
        self._statm = open("/proc/self/statm") if sys.platform == "linux" else None  # noqa: SIM115

    def allow(self, allowance: Allowance) -> None:
        if allowance.memory is None or self._statm is None:
            return
        self._statm.seek(0)
        has = int(self._statm.read().split()[0]) * resource.getpagesize()
        most = has + min(allowance.memory, self._share)
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def _answer(
    connection: Connection, file: BinaryIO, name: str, *, options: IngestConfig, memory: _Memory
) -> SourceError | None:
    told = time.monotonic()

    def gets_on() -> None:
        nonlocal told
        if time.monotonic() - told > options.parse_seconds / _TOLD:
            told = time.monotonic()
            connection.send_bytes(_frame({"gets_on": True}))

    def send() -> None:
        memory.allow(Allowance(options, os.fstat(file.fileno()).st_size, is_table(name)))
        for record in parse_file(file, name, options, gets_on):
            if isinstance(record, Parsed):
                head = {**asdict(record), "text": "", "content_hash": text_hash(record.text)}
                connection.send_bytes(_frame({"parsed": head}))
                connection.send_bytes(record.text.encode("utf-8"))
            else:
                connection.send_bytes(_frame({"refused": asdict(record)}))

    return guarded(send)


def guarded(parse: Callable[[], object]) -> SourceError | None:
    """Parse a source; return what is wrong with it, whatever its parser raised."""
    try:
        parse()
    except SourceError as error:
        return error
    except MemoryError:
        return SourceError("too-large", "it needs more memory than ingest.max_bytes or a parser's share of the machine")
    except RecursionError:
        return SourceError("too-deep", "it nests too deeply to be read")
    except BrokenPipeError:
        sys.exit(1)  # nobody listens any more
    except Exception as error:  # parsers of hostile bytes raise anything; each is this source's fault
        first = (str(error).splitlines() or [""])[0]
        if missing := missing_extra(error):
            return SourceError("not-installed", missing)
        return SourceError("broken", f"it cannot be parsed: {type(error).__name__}: {first[:200]}")
    return None


def _frame(message: dict[str, object]) -> bytes:
    return json.dumps(message).encode()


if __name__ == "__main__":
    main()
