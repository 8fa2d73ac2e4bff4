"""The child process that parses sources, so that a crash or a hang takes nothing else down.

Started by `infra.sources.sandbox.Guard` as ``python -m infra.sources.sandbox_child <descriptor> <options>``.
"""

import json
import os
import resource
import sys
from dataclasses import asdict
from multiprocessing.connection import Connection

import psutil

from infra.processes import end_with
from infra.sources import Parsed, is_table, parse
from infra.sources.base import Allowance
from memagent.config import IngestConfig
from memagent.errors import SourceError
from memagent.records import Json, text_hash


def main() -> None:
    """Answer requests until the other end is closed."""
    connection = Connection(int(sys.argv[1]))
    options = IngestConfig.model_validate_json(sys.argv[2])
    end_with(os.getppid())  # even in the middle of a file that hangs
    connection.send_bytes(b"ready")
    while True:
        try:
            request = json.loads(connection.recv_bytes())
        except EOFError:
            return
        error = _answer(connection, request, options)
        connection.send_bytes(_frame({"end": error and {"reason": error.reason, "detail": error.detail}}))


def _limit_memory(allowance: Allowance) -> None:
    """Limit the process's memory to what it has plus what a source may need."""
    more = allowance.memory
    if more is None:
        return
    memory = psutil.Process().memory_info().vms + more
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (memory if hard == resource.RLIM_INFINITY else min(memory, hard), hard))


def _answer(connection: Connection, request: Json, options: IngestConfig) -> SourceError | None:
    try:
        _limit_memory(Allowance(options, request["size"], is_table(request["name"])))
        for record in parse(request["path"], request["name"], options):
            if isinstance(record, Parsed):
                head = {**asdict(record), "text": "", "content_hash": text_hash(record.text)}
                connection.send_bytes(_frame({"parsed": head}))
                connection.send_bytes(record.text.encode("utf-8"))
            else:
                connection.send_bytes(_frame({"refused": asdict(record)}))
    except SourceError as error:
        return error
    except MemoryError:
        return SourceError("too-large", "it needs more memory than ingest.max_bytes and ingest.max_ratio provide for")
    except RecursionError:
        return SourceError("too-deep", "it nests too deeply to be read")
    except BrokenPipeError:
        sys.exit(1)  # nobody listens any more
    except Exception as error:  # parsers of hostile bytes raise anything; each is this source's fault
        first = (str(error).splitlines() or [""])[0]
        return SourceError("broken", f"it cannot be parsed: {type(error).__name__}: {first[:200]}")
    return None


def _frame(message: dict[str, object]) -> bytes:
    return json.dumps(message).encode()


if __name__ == "__main__":
    main()
