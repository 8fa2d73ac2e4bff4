"""The log of a run: warnings of the product and of Ray, kept in the store as ``runs/<run_id>/log.txt``."""

import logging
from collections import deque
from types import TracebackType
from typing import Self

from infra.store import Store

_LOGGERS = ("memagent", "ray")
_LINES = 2_000
"""The newest ones are kept."""


class RunLog(logging.Handler):
    """Collects warnings while its body runs, and writes them to the store at the end, if there are any."""

    def __init__(self, store: Store, run_id: str) -> None:
        super().__init__(logging.WARNING)
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
        self._store, self._run_id = store, run_id
        self._lines: deque[str] = deque(maxlen=_LINES)

    def emit(self, record: logging.LogRecord) -> None:
        """Take a record. Where nothing else handles the product's warnings, they go to standard error as well."""
        self._lines.append(self.format(record))
        if record.name.startswith("memagent") and not logging.getLogger().handlers and logging.lastResort:
            logging.lastResort.handle(record)

    def __enter__(self) -> Self:
        for name in _LOGGERS:
            logging.getLogger(name).addHandler(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name in _LOGGERS:
            logging.getLogger(name).removeHandler(self)
        if self._lines:
            self._store.write_bytes(("\n".join(self._lines) + "\n").encode(), "runs", self._run_id, "log.txt")
