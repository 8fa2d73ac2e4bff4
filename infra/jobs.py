"""Where Ray runs: in this process, on a cluster, or behind a cluster's Jobs API."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from memagent.config import RayConfig
from memagent.errors import UsageError

_PASSED_ON = ("AWS_ENDPOINT_URL", "AWS_REGION", "AWS_DEFAULT_REGION", "MEMAGENT_", "VLLM_")
"""Environment variables that workers of a cluster need as well. Keys are not among them: a cluster shows
its jobs' environment to whoever sees its dashboard, so it must hold its credentials itself."""


@contextmanager
def ray_session(config: RayConfig) -> Iterator[None]:
    """Have Ray for the body: use the running session, join the cluster, or start Ray in this process.

    Raises:
        UsageError: the cluster cannot be reached.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Workers at the usual niceness of 15 starve beside anything else on a laptop; and what a killed
    # worker leaves behind (an engine's process) must go with it.
    os.environ.setdefault("RAY_worker_niceness", "0")
    os.environ.setdefault("RAY_kill_child_processes_on_worker_exit_with_raylet_subreaper", "1")
    import ray

    quiet_ray_data()
    if ray.is_initialized():
        yield
        return
    options: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    if config.address:
        options |= {"address": config.address, "runtime_env": cluster_environment(config)}
    else:
        options |= {"num_cpus": config.cpus, "include_dashboard": False}
    try:
        ray.init(**options)
    except ConnectionError as error:
        raise UsageError(f"no Ray cluster at {config.address}: {error}") from error
    try:
        yield
    finally:
        ray.shutdown()


def quiet_ray_data() -> None:
    """Keep Ray Data's progress bars and plans off the terminal: the product shows its own."""
    import ray.data

    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.enable_operator_progress_bars = False
    context.print_on_execution_start = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)


def cluster_environment(config: RayConfig) -> dict[str, Any]:
    """Return the runtime environment for a cluster: as configured, with the variables that workers need."""
    variables = {k: v for k, v in os.environ.items() if k.startswith(_PASSED_ON)}
    environment = dict(config.runtime_env)
    environment["env_vars"] = {**variables, **environment.get("env_vars", {})}
    return environment
