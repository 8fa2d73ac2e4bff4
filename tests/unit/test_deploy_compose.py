"""`infra/deploy/compose.yaml`: by the schema of Compose, and by what memagent, Ray and Prefect take."""

import json
import os
import re
import stat
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator
from ray.scripts.scripts import healthcheck, start
from typer.main import get_command

from memagent.config import Config, validate
from pipelines.cli.main import app
from pipelines.flows.serve import ServingPlan
from tests.support.pages import ROOT

DEPLOY = ROOT / "infra" / "deploy"
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
SERVICES = COMPOSE["services"]
OWN = {name: each for name, each in SERVICES.items() if "MEMAGENT_IMAGE" in each["image"]}
ONCE = {"bucket"}
"""Services that end when they are done."""


def options(command: object) -> set[str]:
    return {option for param in command.params for option in (*param.opts, *param.secondary_opts)}  # type: ignore[attr-defined]


def test_it_is_a_composition():
    schema = json.loads((ROOT / "tests" / "data" / "compose-spec.json").read_text())
    problems = [f"{each.json_path}: {each.message}" for each in Draft202012Validator(schema).iter_errors(COMPOSE)]
    assert not problems
    broken = {**COMPOSE, "services": {"a": {**SERVICES["s3"], "comand": []}}}
    assert list(Draft202012Validator(schema).iter_errors(broken)), "the schema refuses what there is not"


def test_ports_are_open_on_this_machine_alone():
    ports = [port for each in SERVICES.values() for port in each.get("ports", [])]
    assert len(ports) >= 4 and all(re.fullmatch(r"127\.0\.0\.1:\d+:\d+", port) for port in ports)


def test_every_image_is_pinned_and_may_be_given_by_digest():
    for name, each in SERVICES.items():
        variable, default = re.fullmatch(r"\$\{(\w+):-(.+)\}", each["image"]).groups()
        assert variable.endswith("_IMAGE") and re.search(r":[\w.-]+$", default), name
        assert not default.endswith(":latest")
    dockerfile = (DEPLOY / "Dockerfile").read_text()
    assert re.search(r"^ARG BASE=python:3\.11[\w.-]+$", dockerfile, re.MULTILINE) and "FROM ${BASE}" in dockerfile
    assert not re.search("@sha256:[0-9a-f]", dockerfile), "a digest is nothing to be made up"
    (check,) = re.findall(r"^RUN (case .*? esac)$", dockerfile, re.MULTILINE | re.DOTALL)
    pinned, tag = f"python@sha256:{'0' * 64}", "python:3.11"
    for base, unpinned, status in ((pinned, "no", 0), (tag, "no", 1), (tag, "yes", 0)):
        given = {"BASE": base, "UNPINNED": unpinned}
        ran = subprocess.run(["sh", "-c", check], env=given, capture_output=True, text=True)
        assert ran.returncode == status and ("has no digest" in ran.stderr) == (base == tag)


def test_secrets_are_files_and_each_is_made_and_used(tmp_path):
    folder = tmp_path / "secrets"
    subprocess.run(["sh", str(DEPLOY / "secrets.sh"), str(folder)], check=True, capture_output=True)
    made = {path.name: path.read_text() for path in folder.iterdir()}
    assert {Path(secret["file"]).name for secret in COMPOSE["secrets"].values()} == set(made)
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in folder.iterdir())
    assert len(set(made.values())) == len(made) and all(len(text) >= 20 for text in made.values())
    assert made["prefect_auth"].startswith("memagent:")
    (identity,) = json.loads(made["s3.json"])["identities"]
    assert identity["credentials"] == [{"accessKey": made["s3_access_key"], "secretKey": made["s3_secret_key"]}]
    assert all(action.endswith(":memagent") for action in identity["actions"]), "one bucket"
    subprocess.run(["sh", str(DEPLOY / "secrets.sh"), str(folder)], check=True, capture_output=True)
    assert {path.name: path.read_text() for path in folder.iterdir()} == made, "those that are there stay"
    used = {name for each in SERVICES.values() for name in each.get("secrets", [])}
    assert used == set(COMPOSE["secrets"])
    for name, each in SERVICES.items():
        variables = each.get("environment", {})
        files = {v.removeprefix("/run/secrets/") for k, v in variables.items() if v.startswith("/run/secrets/")}
        assert files <= set(each.get("secrets", [])), name
        secret = re.compile(r"KEY|TOKEN|PASSWORD|AUTH_STRING")
        assert all(k.endswith("_FILE") for k in variables if secret.search(k)), name
    assert "/infra/deploy/secrets/" in (ROOT / ".gitignore").read_text().splitlines()


def test_every_service_is_watched_and_waits_for_what_it_needs():
    for name, each in SERVICES.items():
        assert name in ONCE or name == "runner" or each["healthcheck"]["test"], name
        for needed, how in each.get("depends_on", {}).items():
            once = how["condition"] == "service_completed_successfully"
            assert once == (needed in ONCE) and (once or "healthcheck" in SERVICES[needed]), (name, needed)
        hosts = set(re.findall(r"//([a-z0-9]+)[:/]", json.dumps(each.get("environment", {})))) & set(SERVICES)
        for host in hosts:
            assert set(each["networks"]) & set(SERVICES[host]["networks"]), f"{name} does not reach {host}"


def test_the_containers_of_the_product_have_no_rights():
    for name, each in OWN.items():
        assert each["cap_drop"] == ["ALL"] and "no-new-privileges:true" in each["security_opt"], name
        assert each["user"].startswith("${MEMAGENT_UID") and "privileged" not in each
        assert each["entrypoint"] == ["/opt/memagent/infra/deploy/with-secrets.sh"]
    assert os.access(DEPLOY / "with-secrets.sh", os.X_OK)


def test_commands_are_those_of_the_product_of_ray_and_of_prefect():
    for name in ("head", "worker"):
        program, verb, *given = SERVICES[name]["command"]
        assert (program, verb) == ("ray", "start")
        assert {word.partition("=")[0] for word in given} <= options(start), name
        *_, check, address, place = SERVICES[name]["healthcheck"]["test"]
        assert check == "health-check" and address in options(healthcheck) and place == "head:6379"
    program, command, *given = SERVICES["metrics"]["command"]
    assert program == "memagent"
    assert {word for word in given if word.startswith("--")} <= options(get_command(app).commands[command])
    *module, store, plan = SERVICES["runner"]["command"]
    assert module == ["python", "-m", "pipelines.cli.up"] and store == SERVICES["head"]["environment"]["MEMAGENT_STORE"]
    ServingPlan(**json.loads(plan)).check_schedules()
    compile(SERVICES["bucket"]["command"][-1], "bucket", "exec")


@pytest.mark.parametrize("name", ["memagent", "runner"])
def test_the_configurations_are_the_products(name):
    config = validate(Config, tomllib.loads(COMPOSE["configs"][name]["content"]), "")
    port = SERVICES["head"]["ports"][0].rpartition(":")[2]
    assert config.ray.jobs_address == (f"http://head:{port}" if name == "runner" else None)
    assert config.logging.format == "json"
