"""The log of a run: what the product and Ray say while it lasts, in the store and on standard error."""

import logging
import sys
from collections import deque
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Self

from infra.logs import PRODUCT, formatter
from infra.store import Corpus, Store
from memagent.config import LoggingConfig

_LOGGERS = (PRODUCT, "ray")
_LINES = 2_000
"""The newest ones are kept."""


@dataclass(frozen=True, slots=True)
class LoggedRun:
    """What each line of a run's log says of it."""

    run_id: str
    corpus: str
    policy_id: str


class RunLog(logging.Handler):
    """Collects warnings of the product and of Ray while its body runs, and writes them to ``runs/<id>/log.txt``.

    Lines of workers are among them (`infra.logs.relay`).
    """

    def __init__(self, corpus: Corpus, run_id: str, policy_id: str, config: LoggingConfig) -> None:
        super().__init__(config.level.upper())
        self.setFormatter(formatter(config.format))
        self._store: Store = corpus.store
        self._run = LoggedRun(run_id, corpus.name, policy_id)
        self._json = config.format == "json"
        self._lines: deque[str] = deque(maxlen=_LINES)
        self._before = logging.NOTSET

    def emit(self, record: logging.LogRecord) -> None:
        """Take a record. Where nothing else handles the product's lines, they go to standard error as well."""
        # Handlers of the loggers above, which come next, find them too.
        vars(record).update(asdict(self._run))
        line = self.format(record)
        self._lines.append(line)
        if record.name.startswith(PRODUCT) and not logging.getLogger().handlers:
            print(line if self._json else line.split(" ", 4)[4], file=sys.stderr, flush=True)

    def __enter__(self) -> Self:
        logger = logging.getLogger(PRODUCT)
        self._before = logger.level
        if logger.getEffectiveLevel() > self.level:
            logger.setLevel(self.level)
        for name in _LOGGERS:
            logging.getLogger(name).addHandler(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name in _LOGGERS:
            logging.getLogger(name).removeHandler(self)
        logging.getLogger(PRODUCT).setLevel(self._before)
        if self._lines:
            lines = "\n".join(self._lines) + "\n"
            self._store.write_bytes(lines.encode(), "runs", self._run.run_id, "log.txt")
