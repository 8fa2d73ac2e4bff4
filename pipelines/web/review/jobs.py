"""Questions and digests that are started on the review pages: the same commands as on a terminal, in child processes.

A child has the review server's whole configuration in its environment, ends with the review server, and what it prints
goes to a log.
"""

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import IO, Literal

from infra.processes import end, environment_of_children, tree
from memagent.config import Config
from memagent.errors import UsageError
from pipelines.formatting import plain
from pipelines.run_names import new_run_id

_AT_ONCE = 1
_KEPT = 20
_LAST_BYTES = 4_000


@dataclass
class Job:
    """A command that was started here."""

    run_id: str
    what: str
    process: "subprocess.Popen[bytes]"
    log: IO[bytes] = field(repr=False)

    @property
    def state(self) -> Literal["running", "completed", "failed"]:
        """How far it is; a command in which anything failed has failed."""
        status = self.process.poll()
        return "running" if status is None else "failed" if status else "completed"

    def last_lines(self) -> str:
        """Return the end of what it has printed."""
        size = os.fstat(self.log.fileno()).st_size
        data = os.pread(self.log.fileno(), _LAST_BYTES, max(0, size - _LAST_BYTES))
        return plain(data.decode("utf-8", "replace")).strip()


class Jobs:
    """The commands that were started here, one running at a time."""

    def __init__(self, config: Config) -> None:
        self._environment = {**environment_of_children(), "MEMAGENT_CONFIG": config.model_dump_json(exclude_unset=True)}
        self._lock = threading.Lock()
        self.started: list[Job] = []
        """Newest first."""

    def ask(self, corpus: str, questions: Sequence[str], *, archive: bool) -> Job:
        """Ask questions of a corpus.

        Raises:
            UsageError: another command is running.
        """
        options = [f"--question={question}" for question in questions] + (["--archive"] if archive else [])
        return self._start("ask", corpus, options, f"ask {corpus}: {'; '.join(questions)}")

    def digest(self, corpus: str) -> Job:
        """Update a corpus and the answers to its default questions, as the nightly digest does.

        Raises:
            UsageError: another command is running.
        """
        return self._start("digest", corpus, [], f"digest {corpus}")

    def stop(self) -> None:
        """End what is running."""
        for job in self.started:
            if job.process.poll() is None:
                end(tree(job.process.pid))
                job.process.wait()
            job.log.close()

    def _start(self, command: str, corpus: str, options: list[str], what: str) -> Job:
        run_id = new_run_id()
        line = [
            *(sys.executable, "-P", "-m", "infra.processes", str(os.getpid()), "pipelines.cli", command),
            *(*options, f"--run-id={run_id}", "--", corpus),
        ]
        with self._lock:
            if sum(job.state == "running" for job in self.started) >= _AT_ONCE:
                raise UsageError("a run that was started here is still running: wait until it has ended")
            log = tempfile.TemporaryFile()  # noqa: SIM115  (it lives as long as the job is shown)
            process = subprocess.Popen(
                line, env=self._environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
            job = Job(run_id, what, process, log)
            self.started.insert(0, job)
            for old in self.started[_KEPT:]:
                old.log.close()
            del self.started[_KEPT:]
        return job
