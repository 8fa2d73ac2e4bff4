"""The scripts of infra/deploy: with secrets from files, and over an allocation of Slurm whose commands are made up."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from ray.scripts.scripts import healthcheck, start

from tests.support.pages import HERE, ROOT
from tests.support.waiting import wait_for

DEPLOY = ROOT / "infra" / "deploy"
SCRIPTS = sorted([*DEPLOY.rglob("*.sh"), *DEPLOY.rglob("*.sbatch"), *(ROOT / "infra").glob("*.sh")])
FAKES = {
    "scontrol": 'printf "node-1\\nnode-2\\nnode-3\\n"',
    "hostname": "echo 10.0.0.1 fe80::1",
    # Runs what it is given, as a step; the options before it go into the record.
    "srun": """
given=()
while [ "${1:0:1}" = - ]; do given+=("$1"); shift; done
echo "srun ${given[*]} :: $*" >> "$RECORD"
exec "$@" """,
    "ray": """
trap 'echo "ray ended: $2" >> "$RECORD"; exit 0' TERM
echo "ray $* token=${RAY_AUTH_TOKEN:0:4}${#RAY_AUTH_TOKEN} mode=$RAY_AUTH_MODE" >> "$RECORD"
case $1 in
  health-check) [ "$(grep -c health-check "$RECORD")" -gt "$TRIES" ]; exit ;;
esac
[ "$2 $HEAD" != "--head dies" ] || exit 7
while :; do sleep 0.05; done""",
    "memagent": """
echo "memagent $* config=$MEMAGENT_CONFIG" >> "$RECORD"
trap 'echo "memagent ended" >> "$RECORD"; exit 143' TERM
while [ "$(grep -c "^ray start" "$RECORD")" -lt "$STEPS" ]; do sleep 0.05; done
[ "$WORK" != long ] || while :; do sleep 0.05; done
exit "$WORK" """,
}


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_every_script_is_one(path):
    shell = "bash" if "bash" in path.read_text().splitlines()[0] else "sh"
    subprocess.run([shell, "-n", str(path)], check=True)
    if shellcheck := shutil.which("shellcheck"):
        done = subprocess.run([shellcheck, str(path)], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout


@pytest.fixture
def allocation(tmp_path):
    """Three nodes of Slurm, and an installation, all made up."""
    for folder in ("system", "bin", "tmp"):
        (tmp_path / folder).mkdir()
    for name, body in FAKES.items():
        path = tmp_path / ("bin" if name in ("ray", "memagent") else "system") / name
        path.write_text(f"#!/bin/bash\n{body}\n")
        path.chmod(0o755)
    (tmp_path / "bin" / "python").write_text(f'#!/bin/bash\nexec {sys.executable} "$@"\n')
    (tmp_path / "bin" / "python").chmod(0o755)
    return {
        **HERE,
        "PATH": f"{tmp_path / 'system'}:{os.environ['PATH']}",
        "RECORD": str(tmp_path / "record"),
        "MEMAGENT_BIN": str(tmp_path / "bin"),
        "TMPDIR": str(tmp_path / "tmp"),
        "SLURM_SUBMIT_DIR": str(tmp_path),
        "SLURM_JOB_ID": "4711",
        "SLURM_JOB_NODELIST": "node-[1-3]",
        "SLURM_JOB_NUM_NODES": "3",
        "SLURM_CPUS_ON_NODE": "32",
        "SLURM_GPUS_ON_NODE": "4",
        "TRIES": "2",
        "HEAD": "lives",
        "STEPS": "2",
        "WORK": "0",
    }


def begun(allocation, *command):
    script = ["bash", str(DEPLOY / "slurm" / "memagent.sbatch"), *command]
    return subprocess.Popen(script, env=allocation, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def record(allocation):
    path = Path(allocation["RECORD"])
    return path.read_text().splitlines() if path.exists() else []


@pytest.mark.parametrize("status", [0, 1])
def test_a_command_runs_on_a_cluster_over_all_nodes(allocation, status, tmp_path):
    own = tmp_path / "own.toml"
    own.write_text('store = "/shared/store"\n[pool]\nmax_size = 12\n')
    job = begun({**allocation, "WORK": str(status), "MEMAGENT_CONFIG_FILE": str(own)}, "digest", "contracts")
    assert job.communicate()[0] == "" and job.returncode == status, "the command's own"
    lines = record(allocation)
    head, workers = [line for line in lines if line.startswith("srun") and " start " in line]
    assert "--nodelist=node-1" in head and f"--node-ip-address=10.0.0.1 --port={20_000 + 711 * 8}" in head
    assert "--dashboard-host=127.0.0.1" in head and "--num-gpus=4" in head and "--num-cpus=32" in head
    assert "--nodes=2 --ntasks=2 --exclude=node-1" in workers and "--address=10.0.0.1:25688" in workers
    tokens = {
        re.search(r"token=(\w{4})64 mode=token", line)[1]
        for line in lines
        if line.startswith("ray ") and "token=" in line
    }
    assert len(tokens) == 1, "one token, made for this job"
    (command,) = [line for line in lines if line.startswith("memagent ")]
    assert command.startswith("memagent --log-format json digest contracts config=")
    config = json.loads(command.partition("config=")[2])
    assert config == {"store": "/shared/store", "pool": {"max_size": 12}, "ray": {"address": "10.0.0.1:25688"}}
    assert sum(line.startswith("ray ended") for line in lines) == 2, "nothing is left running"
    given = {word.partition("=")[0] for line in (head, workers) for word in line.split(" :: ")[1].split()[2:]}
    assert given <= {option for param in start.params for option in param.opts}
    checks = [line.split()[2] for line in lines if line.startswith("ray health-check")]
    assert len(checks) == 3 and set(checks) <= {option for param in healthcheck.params for option in param.opts}


def test_one_node_has_no_workers(allocation):
    job = begun(
        {**allocation, "SLURM_JOB_NUM_NODES": "1", "STEPS": "1", "SLURM_GPUS_ON_NODE": ""},
        "train",
        "--recipe",
        "my.toml",
    )
    job.communicate()
    assert job.returncode == 0
    (head,) = [line for line in record(allocation) if line.startswith("srun") and " start " in line]
    assert "num-gpus" not in head


def test_the_end_of_the_time_ends_the_command_first(allocation):
    job = begun({**allocation, "WORK": "long"}, "digest", "contracts")
    wait_for(lambda: any(line.startswith("memagent --log") for line in record(allocation)), job)
    job.send_signal(signal.SIGTERM)
    job.communicate()
    assert job.returncode == 143
    ends = [line for line in record(allocation) if " ended" in line]
    assert ends[0] == "memagent ended" and len(ends) == 3


def test_a_head_that_does_not_start_is_said(allocation):
    job = begun({**allocation, "HEAD": "dies", "TRIES": "1000"}, "digest", "contracts")
    assert "Ray's head does not start on node-1" in job.communicate()[0]
    assert job.returncode == 1 and not [line for line in record(allocation) if line.startswith("memagent ")]


def test_without_a_command_it_says_how_it_is_used(allocation):
    job = begun(allocation)
    assert job.communicate()[0].startswith("usage: sbatch") and job.returncode == 2


def with_secrets(folder, code, **variables):
    command = ["sh", str(DEPLOY / "with-secrets.sh"), "sh", "-c", code]
    environment = {"PATH": os.environ["PATH"], "SECRETS_FOLDER": str(folder), **variables}
    return subprocess.run(command, env=environment, capture_output=True, text=True)


def test_variables_come_from_the_files_of_secrets_and_no_others(tmp_path):
    (tmp_path / "key").write_text("with a blank, and $HOME\n")
    (tmp_path / "pg").write_text("word")
    url = "PREFECT_SERVER_DATABASE_CONNECTION_URL"
    code = f'echo "$AWS_KEY|${{AWS_KEY_FILE-}}|$MEMAGENT_CONFIG_FILE|${url}|${{POSTGRES_PASSWORD-}}"'
    done = with_secrets(
        tmp_path,
        code,
        AWS_KEY_FILE=f"{tmp_path}/key",
        MEMAGENT_CONFIG_FILE="/etc/memagent.toml",
        POSTGRES_PASSWORD_FILE=f"{tmp_path}/pg",
        POSTGRES_HOST="postgres",
    )
    url = "postgresql+asyncpg://prefect:word@postgres:5432/prefect"
    assert done.stdout == f"with a blank, and $HOME||/etc/memagent.toml|{url}|\n", done.stderr
    assert with_secrets(tmp_path, "exit 3").returncode == 3
    missing = with_secrets(tmp_path, "true", AWS_KEY_FILE=f"{tmp_path}/nothing")
    assert missing.returncode == 2 and "AWS_KEY_FILE" in missing.stderr
