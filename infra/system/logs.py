"""Log lines: one JSON object each, without secrets, and the way of a worker's lines to the driver."""

import json
import logging
import os
import re
import socket
from collections import deque
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import TypedDict

PRODUCT = "memagent"
"""The logger above all of the product's."""
FIELDS = ("run_id", "corpus", "policy_id", "reading_id", "worker")
"""What a line says besides, where it is known."""
_LINES = 500
"""Lines of a worker that wait to be fetched; older ones are only in Ray's log of the worker."""
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASS|CREDENTIAL|AUTH", re.IGNORECASE)
_NO_SECRET = ("_FILE", "_PATH", "_ENV", "_MODE", "_SOCK")
_SHORTEST_SECRET = 8
_LOGIN = re.compile(r"(?<=://)[^/@\s]+@")
_BEARER = re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{8,}")

reading_id: ContextVar[str] = ContextVar("reading_id", default="")
"""The reading that this task is about."""


class LogLine(TypedDict):
    """A line of a worker: plain data."""

    at: float
    """Seconds since 1970."""
    level: int
    logger: str
    message: str
    exception: str
    """With its trace; empty: none."""
    reading_id: str
    worker: str
    """Host and process."""


class JsonFormatter(logging.Formatter):
    """Formats a record as a JSON object."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {name: value for name in FIELDS if (value := getattr(record, name, ""))}
        if exception := _exception(record):
            line["exception"] = exception
        # The text of each value, before quotes in it are escaped.
        return json.dumps({name: redacted(value) for name, value in line.items()}, ensure_ascii=False)


class TextFormatter(logging.Formatter):
    """Formats a record for people."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        """Return one line, and a trace below it."""
        return redacted(super().format(record))


def formatter(kind: str) -> logging.Formatter:
    """Return the formatter of a `logging.format`."""
    return JsonFormatter() if kind == "json" else TextFormatter()


def redacted(text: str) -> str:
    """Return a text without logins in addresses, authorization headers, and values of variables that hold secrets."""
    text = _BEARER.sub(r"\1 ***", _LOGIN.sub("***@", text))
    for name, value in os.environ.items():
        if len(value) >= _SHORTEST_SECRET and _SECRET.search(name) and not name.endswith(_NO_SECRET):
            text = text.replace(value, "***")
    return text


class WorkerLog(logging.Handler):
    """Keeps the product's lines of this process until they are fetched."""

    def __init__(self, level: str) -> None:
        """`level` is a `logging.level`."""
        super().__init__(level.upper())
        self._lines: deque[LogLine] = deque(maxlen=_LINES)
        self._worker = f"{socket.gethostname()}:{os.getpid()}"

    def attach(self) -> None:
        """Begin."""
        logger = logging.getLogger(PRODUCT)
        logger.setLevel(self.level)
        logger.addHandler(self)

    def detach(self) -> None:
        """End."""
        logging.getLogger(PRODUCT).removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a record; it also goes to this process's standard error, of which Ray makes a file."""
        line: LogLine = {
            "at": record.created,
            "level": record.levelno,
            "logger": record.name,
            "message": redacted(record.getMessage()),
            "exception": redacted(_exception(record)),
            "reading_id": reading_id.get(),
            "worker": self._worker,
        }
        self._lines.append(line)
        if logging.lastResort and not logging.getLogger().handlers:
            logging.lastResort.handle(record)

    def take(self) -> list[LogLine]:
        """Return the lines since the last call."""
        lines: list[LogLine] = []
        while self._lines:  # other threads may add some meanwhile
            lines.append(self._lines.popleft())
        return lines


def relay(lines: list[LogLine]) -> None:
    """Log lines of workers in this process, as they were."""
    for line in lines:
        logger = logging.getLogger(line["logger"])
        if logger.isEnabledFor(line["level"]):
            record = logging.makeLogRecord(
                {
                    "name": line["logger"],
                    "levelno": line["level"],
                    "levelname": logging.getLevelName(line["level"]),
                    "msg": line["message"],
                    "created": line["at"],
                    "exc_text": line["exception"] or None,
                    "reading_id": line["reading_id"],
                    "worker": line["worker"],
                }
            )
            logger.handle(record)


def _exception(record: logging.LogRecord) -> str:
    if record.exc_info:
        return logging.Formatter().formatException(record.exc_info)
    return record.exc_text or ""
