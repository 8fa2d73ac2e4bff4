"""Commands of memagent as jobs of a cluster, through Ray's Jobs API."""

import asyncio
import os
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from infra.cluster.session import cluster_environment
from memagent.config import Config
from memagent.errors import MemagentError, UsageError

_POLL_SECONDS = 1.0
_ENDS = (1, 3, 4)
"""Exit statuses of a command that may have done its work: something failed, budget spent, or answers withheld."""
_OWNER = "memagent.owner"
_LAST_WORDS = 2_000
"""Characters of a job's output at the end of an error message."""


def run_job(config: Config, argv: list[str], submission: str, line: Callable[[str], None], *, owner: str = "") -> str:
    """Run a command of memagent as a Ray job on the configured cluster, and wait for it.

    A job of the same name that runs already (this flow run was restarted) is followed, not started again.

    Args:
        config: the configuration, with `ray.jobs_address`.
        argv: the command's arguments; its result is printed as JSON.
        submission: the job's name.
        line: is given each line of the job's output as it comes.
        owner: names the server whose flow run it is of.

    Returns:
        Empty if the command ended with status 0. With another one of `_ENDS` the end of its output: either some items
        failed, or are left or withheld, or the command itself failed, which the store shows.

    Raises:
        MemagentError: the job was stopped or ended otherwise; the message ends with its last words.
    """
    from ray.job_submission import JobStatus

    ray = config.ray
    client = _jobs_client(str(ray.jobs_address))
    known = {job.submission_id: job.status for job in client.list_jobs()}
    if known.get(submission) not in (JobStatus.PENDING, JobStatus.RUNNING):
        if submission in known:
            client.delete_job(submission)
        settings = config.model_copy(update={"ray": ray.model_copy(update={"jobs_address": None, "address": "auto"})})
        client.submit_job(
            submission_id=submission,
            # The cluster's interpreter, by absolute path where it is this machine's.
            entrypoint=shlex.join([ray.python or sys.executable, "-m", "pipelines.cli", *argv, "--json"]),
            metadata={_OWNER: owner},
            entrypoint_num_cpus=ray.job_cpus or None,
            entrypoint_memory=round(ray.job_memory_gib * 2**30) if ray.job_cpus else None,
            runtime_env={
                **cluster_environment(ray),
                "env_vars": {**cluster_environment(ray)["env_vars"], "MEMAGENT_CONFIG": settings.model_dump_json()},
            },
        )
    last_words = _follow(client, submission, line)
    job = client.get_job_info(submission)
    if job.status == JobStatus.SUCCEEDED:
        return ""
    if job.status == JobStatus.FAILED and job.driver_exit_code in _ENDS:
        return last_words or str(job.message)
    raise MemagentError(f"Ray job {submission} ended as {job.status}: {job.message or ''}\n{last_words}")


def _follow(client: Any, submission: str, line: Callable[[str], None]) -> str:
    """Pass on a job's output line by line until the job has ended; return the end of it.

    The output is streamed over one connection. After a reconnect, lines that were shown are skipped.
    """
    from aiohttp import ClientError

    shown, begun, last_words = 0, "", ""

    async def follow() -> None:
        nonlocal shown, begun, last_words
        seen = 0
        async for text in client.tail_job_logs(submission):
            new = text[max(0, shown - seen) :]
            seen += len(text)
            shown = max(shown, seen)
            last_words = (last_words + new)[-_LAST_WORDS:]
            *lines, begun = (begun + new).split("\n")
            for log_line in lines:
                line(log_line)

    while True:
        has_ended = client.get_job_status(submission).is_terminal()
        try:
            asyncio.run(follow())
        except (RuntimeError, ClientError, OSError) as error:
            if has_ended:  # and its output is no longer available
                line(f"(the rest of the output is lost: {error})")
                break
        else:
            if client.get_job_status(submission).is_terminal():
                break
        time.sleep(_POLL_SECONDS)
    if begun:
        line(begun)
    return last_words


def stop_job(jobs_address: str, part: str) -> None:
    """Stop the Ray jobs whose submission has `part` in its name; none that runs is no error."""
    client = _jobs_client(jobs_address)
    for job in client.list_jobs():
        if part in (job.submission_id or "") and not job.status.is_terminal():
            client.stop_job(job.submission_id)


def open_jobs(jobs_address: str, owner: str) -> list[str]:
    """Return the names of an owner's jobs that have not ended."""
    jobs = _jobs_client(jobs_address).list_jobs()
    return [
        str(job.submission_id)
        for job in jobs
        if not job.status.is_terminal() and (job.metadata or {}).get(_OWNER) == owner
    ]


def _jobs_client(address: str) -> Any:
    """Connect to a Jobs API, with Ray's own token if there is one."""
    from ray.exceptions import AuthenticationError
    from ray.job_submission import JobSubmissionClient

    token = os.environ.get("RAY_AUTH_TOKEN", "")
    file = Path(os.environ.get("RAY_AUTH_TOKEN_PATH", "~/.ray/auth_token")).expanduser()
    if not token and file.is_file():
        token = file.read_text(encoding="utf-8").strip()
    try:
        return JobSubmissionClient(address, headers={"Authorization": f"Bearer {token}"} if token else None)
    except ConnectionError as error:
        raise UsageError(f"no Ray Jobs API at {address}: {error}") from error
    except AuthenticationError as error:
        raise UsageError(
            f"the Ray cluster at {address} wants its token: put it into ~/.ray/auth_token or RAY_AUTH_TOKEN"
        ) from error
