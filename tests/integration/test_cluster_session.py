"""What Ray starts in this process: what reading needs, and nothing that serves a cluster."""

import psutil
import pytest
import ray


@pytest.mark.usefixtures("ray_in_process")
def test_nothing_of_a_cluster_is_started():
    commands = [" ".join(process.cmdline()) for process in psutil.Process().children(recursive=True)]
    assert any("raylet" in command for command in commands)
    for part in ("monitor.py", "log_monitor.py", "dashboard/dashboard.py"):
        assert not [command for command in commands if part in command], part
    assert ray.get(ray.remote(lambda: 7).remote()) == 7
    assert ray.cluster_resources()["CPU"] == 2
