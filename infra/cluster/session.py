"""Where Ray runs: in this process or on a cluster."""

import asyncio
import gc
import logging
import os
import shlex
import signal
import sys
import tempfile
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, nullcontext, redirect_stdout, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from filelock import FileLock
from tenacity import RetryCallState, Retrying, retry_if_exception, stop_after_attempt, wait_random_exponential

from infra.cluster.board import BoardActor
from memagent.config import Config, RayConfig
from memagent.errors import MemagentError, UsageError
from memagent.records import Json

_STARTS = 5
_TURN_SECONDS = 120.0
"""Longest time that a start waits for another one."""
_PAUSE = wait_random_exponential(multiplier=1, max=10)
"""Between attempts."""

_PASSED_ON = ("AWS_ENDPOINT_URL", "AWS_REGION", "AWS_DEFAULT_REGION", "MEMAGENT_", "VLLM_")
"""Environment variables that are passed on to workers of a cluster. Keys are not among them: a cluster shows
its jobs' environment to whoever sees its dashboard, so the cluster must have its own credentials."""
_log = logging.getLogger("memagent.ray")
verbose = False
"""Show Ray's log and the output of its workers on standard error."""
started_here = False
"""Whether Ray runs in this process: no other node will join."""
_KEPT_HERE = ("MEMAGENT_CONFIG", "MEMAGENT_CONFIG_FILE")
"""Not passed on: jobs and workers get the configuration that was read from them."""


@contextmanager
def ray_session(config: RayConfig) -> Iterator[None]:
    """Provide Ray for the body: use the running session, join the cluster, or start Ray in this process.

    Raises:
        UsageError: the cluster cannot be reached.
        MemagentError: Ray does not start in this process.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Workers with Ray's default niceness of 15 starve on a busy laptop and may take minutes to start; by default the
    # driver waits for the first of them, forever if they are given up.
    os.environ.setdefault("RAY_worker_niceness", "0")
    os.environ.setdefault("RAY_worker_register_timeout_seconds", "300")
    os.environ.setdefault("RAY_prestart_worker_first_driver", "0")
    # By default, idle workers beyond the number of cores end after a second, and the next stage must start its own.
    os.environ.setdefault("RAY_idle_worker_killing_time_threshold_ms", "60000")
    import ray

    quiet_ray_data()
    if ray.is_initialized():
        yield
        return
    level = logging.INFO if verbose else logging.ERROR
    options: dict[str, Any] = {"logging_level": level, "log_to_driver": verbose}
    if config.address:
        options["address"] = config.address
        if "RAY_JOB_CONFIG_JSON_ENV_VAR" not in os.environ:  # a submitted job has its environment already
            options["runtime_env"] = cluster_environment(config)
    else:
        # "local": otherwise Ray joins any cluster on this machine, and refuses num_cpus.
        options |= {"address": "local", "num_cpus": config.cpus, "include_dashboard": False}
        home = Path.home() / ".ray"  # Ray writes its token there for all to read, and who has it runs code as this user
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        home.chmod(0o700)
    with _held_by_a_thread(options):
        if not verbose:
            _keep_ray_off_the_terminal()
        global started_here
        started_here = not config.address
        # Ray prints warnings to standard output, which is reserved for the command's result. A run in a thread is part
        # of a program that prints in others, and a redirection is of the whole process.
        main = threading.current_thread() is threading.main_thread()
        try:
            with redirect_stdout(sys.stderr) if main else nullcontext():
                yield
        finally:
            started_here = False
            _board.cache_clear()


@contextmanager
def _held_by_a_thread(options: dict[str, Any]) -> Iterator[None]:
    """Start Ray in a thread that waits for the end of the body, and ends Ray then.

    In the main thread Ray would replace the handler of SIGTERM, by which Prefect tells a cancelled flow from a crash.
    The thread has to stay, since Ray's processes end with the thread that has started them. From any thread Ray sets
    another handler, beside Python's, which prints a stack: Python's is set again.
    """
    import ray

    started, over = Future[None](), threading.Event()

    def hold() -> None:
        try:
            _start_ray(options)
        except BaseException as error:
            started.set_exception(error)
            return
        started.set_result(None)
        over.wait()
        ray.shutdown()

    thread = threading.Thread(target=hold, name="memagent ray", daemon=True)
    thread.start()
    try:
        started.result()
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGTERM))
        yield
    finally:
        over.set()
        thread.join()


def _keep_ray_off_the_terminal() -> None:
    """Leave Ray's warnings to other handlers of its logger, such as a run's log. To be called once Ray has started."""
    logger = logging.getLogger("ray")
    logger.setLevel(logging.WARNING)
    for handler in [handler for handler in logger.handlers if type(handler).__module__.startswith("ray.")]:
        logger.removeHandler(handler)
    if not logger.handlers:  # otherwise Python prints unhandled warnings
        logger.addHandler(logging.NullHandler())


_open_blocks: list[RayConfig] = []
"""Of `lazy_ray`, in all threads, outermost first."""
_session = ExitStack()
"""Ends Ray, if a block has started it."""
_beginning = threading.Lock()
"""Runs of one server have threads of their own."""


@contextmanager
def lazy_ray(config: RayConfig) -> Iterator[None]:
    """Start Ray lazily, on the first `ensure_ray()` in the body: a run with nothing to do starts none.

    Blocks that are open at once, in whatever threads, share one session, which ends with the last of them.
    """
    with _beginning:
        _open_blocks.append(config)
    try:
        yield
    finally:
        with _beginning:
            _open_blocks.remove(config)
            if not _open_blocks:
                _session.close()


def ensure_ray() -> None:
    """Start Ray if it is not running yet, inside `lazy_ray`. Raises UsageError, MemagentError: as `ray_session`."""
    import ray

    with _beginning:
        if _open_blocks and not ray.is_initialized():
            _session.enter_context(ray_session(_open_blocks[0]))


def ray_runs() -> bool:
    """Return whether Ray runs already, so that a small job that may use it costs no start."""
    ray = sys.modules.get("ray")
    return ray is not None and ray.is_initialized()


def board_name() -> str:
    """Return the name of this session's `BoardActor`: unique, so that an earlier one that is ending is not found."""
    import ray

    local = ray.get_runtime_context()
    return _board(local.get_node_id(), local.get_job_id())[0]


@lru_cache(maxsize=1)
def _board(*session: str) -> tuple[str, Any]:
    import ray

    name = f"memagent-board-{uuid.uuid4().hex}"
    actor = ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)(BoardActor).options(name=name).remote()
    return name, actor


def _start_ray(options: dict[str, Any]) -> None:
    import ray

    # Ray's processes have fixed timeouts for each other (15 and 30 s), which a busy machine sometimes misses.
    starts = Retrying(
        retry=retry_if_exception(_came_too_late),
        stop=stop_after_attempt(_STARTS),
        wait=_PAUSE,
        before_sleep=_clear_away,
        reraise=True,
    )
    try:
        with _dropped_processes_ignored(), _one_after_another():
            starts(ray.init, **options)
    except ConnectionError as error:
        raise UsageError(f"no Ray cluster at {options.get('address')}: {error}") from error
    except Exception as error:
        if not _came_too_late(error):
            raise
        raise MemagentError(
            f"Ray does not start here, after {_STARTS} attempts: {error}. Is the machine overloaded, or out of memory? "
            "Ray's own words are in /tmp/ray/session_latest/logs."
        ) from error


def _clear_away(state: RetryCallState) -> None:
    import ray

    error = state.outcome.exception() if state.outcome else None
    # As text: a kept log record would keep the error alive, and with it open resources.
    _log.warning("Ray did not start (%s); trying again", str(error))
    ray.shutdown()


@contextmanager
def _one_after_another() -> Iterator[None]:
    """Serialise this user's starts of Ray on this machine: concurrent starts time each other out."""
    lock = FileLock(Path(tempfile.gettempdir()) / f"memagent-ray-start-{os.getuid()}.lock", mode=0o600)
    with suppress(TimeoutError, OSError):  # a hanging start or a read-only folder must not block this one
        lock.acquire(timeout=_TURN_SECONDS)
    try:
        yield
    finally:
        lock.release()


@contextmanager
def _dropped_processes_ignored() -> Iterator[None]:
    """Suppress ResourceWarnings of failed starts: Ray ends their processes without waiting for them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        yield
        gc.collect()


def _came_too_late(error: BaseException) -> bool:
    return isinstance(error, TimeoutError) or type(error) in (Exception, RuntimeError)


def raised(error: BaseException) -> BaseException:
    """Unwrap the exception from RayTaskError."""
    return getattr(error, "cause", None) or error


def quiet_ray_data() -> None:
    """Keep Ray Data's progress bars and plans off the terminal: the product shows its own."""
    import ray.data
    from ray.data.context import AutoscalingConfig

    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.enable_operator_progress_bars = False
    context.print_on_execution_start = False
    context.memory_usage_poll_interval_s = None  # a thread for each block under way, for numbers that nobody reads
    # They ask for a new engine's options only to look at them: each time a placement group would be set aside.
    context.issue_detectors_config.detectors = []
    context.execution_no_progress_timeout_s = -1  # a cluster may have no room for hours; engines have a watchdog
    # Engines are doubled as soon as all calls of those that run are busy; one is ended once hardly any is.
    context.autoscaling_config = AutoscalingConfig(
        actor_pool_util_upscaling_threshold=0.5, actor_pool_util_downscaling_threshold=0.1
    )
    logging.getLogger("ray.data").setLevel(logging.ERROR)


def cluster_environment(config: RayConfig) -> Json:
    """Return the runtime environment for a cluster: as configured, with the variables that workers need."""
    variables = {k: v for k, v in os.environ.items() if k.startswith(_PASSED_ON) and k not in _KEPT_HERE}
    environment = dict(config.runtime_env)
    environment["env_vars"] = {**variables, **environment.get("env_vars", {})}
    return environment


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
        argv: the command's arguments (`pipelines.flows.parameters.command`).
        submission: the job's name.
        line: is given each line of the job's output as it comes.
        owner: names the server whose flow run it is of.

    Returns:
        Empty if the command ended with status 0. With another one of `_ENDS` the end of its output: either some items
        failed, or are left or withheld, or the command itself failed, which the store shows.

    Raises MemagentError: the job was stopped or ended otherwise; the message ends with its last words.
    """
    from ray.job_submission import JobStatus

    ray = config.ray
    client = _jobs_client(str(ray.jobs_address))
    known = {job.submission_id: job.status for job in client.list_jobs()}
    if known.get(submission) not in (JobStatus.PENDING, JobStatus.RUNNING):
        if submission in known:
            client.delete_job(submission)
        settings = config.model_copy(update={"ray": ray.model_copy(update={"jobs_address": None, "address": "auto"})})
        environment = cluster_environment(ray)
        environment["env_vars"]["MEMAGENT_CONFIG"] = settings.model_dump_json()
        client.submit_job(
            submission_id=submission,
            # The cluster's interpreter, by absolute path where it is this machine's.
            entrypoint=shlex.join([ray.python or sys.executable, "-m", "memagent", *argv]),
            metadata={_OWNER: owner},
            entrypoint_num_cpus=ray.job_cpus or None,
            entrypoint_memory=round(ray.job_memory_gib * 2**30) if ray.job_cpus else None,
            runtime_env=environment,
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
