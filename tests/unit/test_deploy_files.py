"""The files of infra/deploy/kubernetes, as far as they can be held without a cluster."""

import json
import re
import shlex
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import ray
import yaml
from ray.dashboard.modules.job.cli import submit
from typer.main import get_command

from memagent.config import Config, validate
from pipelines.cli.main import app
from tests.support.kuberay import check
from tests.support.pages import ROOT

FOLDER = ROOT / "infra" / "deploy" / "kubernetes"
SECRETS = {
    "memagent": {"auth_token"},  # KubeRay's
    "memagent-redis": {"password"},
    "memagent-metrics": {"token"},
    "memagent-s3": set(),
}
"""Secrets that the operator makes, and their keys."""
KUBECTL = pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs kubectl, which has kustomize")


def loaded(name: str) -> list[dict[str, Any]]:
    return [manifest for manifest in yaml.safe_load_all((FOLDER / name).read_text()) if manifest]


def kustomization(folder: str) -> dict[str, Any]:
    (read,) = loaded(f"{folder}/kustomization.yaml")
    return read


def base() -> list[dict[str, Any]]:
    return [manifest for name in kustomization("base")["resources"] for manifest in loaded(f"base/{name}")]


def engines(overlay: str) -> dict[str, Any]:
    """Return the group of workers that an overlay adds."""
    (operation,) = yaml.safe_load((FOLDER / overlay / "engines.yaml").read_text())
    assert (operation["op"], operation["path"]) == ("add", "/spec/workerGroupSpecs/-")
    return operation["value"]


def manifests(overlay: str) -> list[dict[str, Any]]:
    found = base()
    (cluster,) = [manifest for manifest in found if manifest["kind"] == "RayCluster"]
    cluster["spec"]["workerGroupSpecs"].append(engines(overlay))
    return found


@cache
def kustomized(folder: str) -> list[dict[str, Any]]:
    done = subprocess.run(["kubectl", "kustomize", str(FOLDER / folder)], capture_output=True, text=True, check=True)
    assert not done.stderr, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def pods(manifests: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the specs of all pods."""
    for manifest in manifests:
        spec = manifest.get("spec", {})
        if manifest["kind"] in ("RayCluster", "RayJob"):
            cluster = spec.get("rayClusterSpec", spec)
            yield from (g["template"]["spec"] for g in [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]])
        elif manifest["kind"] == "CronJob":
            yield spec["jobTemplate"]["spec"]["template"]["spec"]
        elif "template" in spec:
            yield spec["template"]["spec"]


def references(manifests: list[dict[str, Any]], word: str) -> set[str]:
    """Return the names that `configMap`, `secretKeyRef` and the like refer to."""
    found = set()

    def walk(node: Any) -> None:
        if isinstance(node, dict):
            for key, value in node.items():
                if key in (word, f"{word}Ref", f"{word}KeyRef") and isinstance(value, dict):
                    found.add(value.get("name") or value["secretName"])
                walk(value)
        elif isinstance(node, list):
            for item in node:
                walk(item)

    walk(manifests)
    return found


@pytest.mark.parametrize("overlay", ["cpu", "gpu"])
def test_every_manifest_has_the_fields_of_its_kind(overlay):
    for manifest in [*manifests(overlay), *loaded("base/raycluster.yaml")]:
        check(manifest)


def test_a_wrong_field_is_found():
    (cluster,) = loaded("base/raycluster.yaml")
    cluster["spec"]["headGroupSpec"]["template"]["spec"]["containers"][0]["imagePullPolicies"] = "Always"
    with pytest.raises(AssertionError, match="imagePullPolicies"):
        check(cluster)
    (night,) = loaded("base/schedule.yaml")
    night["spec"]["concurrencyPolicies"] = "Forbid"
    with pytest.raises(AssertionError, match="concurrencyPolicies"):
        check(night)


@KUBECTL
@pytest.mark.parametrize("folder", ["cpu", "gpu", "job"])
def test_what_kustomize_makes_of_it_has_them_too(folder):
    made = kustomized(folder)
    for manifest in made:
        check(manifest)
        assert manifest["kind"] == "Namespace" or manifest["metadata"]["namespace"] == "memagent"
    known = {m["metadata"]["name"] for m in made if m["kind"] == "ConfigMap"}
    assert references(made, "configMap") <= known and references(made, "configMap")
    assert references(made, "secret") <= set(SECRETS)
    for pod in pods(made):
        for container in pod["containers"]:
            assert re.search(r"[:@].+", container["image"].rpartition("/")[2]), "pinned"


@KUBECTL
def test_a_job_has_the_cluster_of_its_overlay_and_nothing_that_stands_already():
    made = {manifest["kind"]: manifest for manifest in kustomized("job")}
    assert set(made) == {"ConfigMap", "RayJob"}
    (cluster,) = [manifest for manifest in kustomized("gpu") if manifest["kind"] == "RayCluster"]
    assert made["RayJob"]["spec"]["rayClusterSpec"] == cluster["spec"]
    assert made["RayJob"]["spec"]["backoffLimit"] == 0, "what it has read is in the store"


@pytest.mark.parametrize("overlay", ["cpu", "gpu"])
def test_no_pod_has_rights_that_it_does_not_need(overlay):
    for pod in pods(manifests(overlay)):
        user = pod["securityContext"]
        assert user["runAsNonRoot"] is True and user["seccompProfile"] == {"type": "RuntimeDefault"}
        head = any(container["name"] == "ray-head" for container in pod["containers"])
        assert pod["automountServiceAccountToken"] is head, "the autoscaler beside the head asks for pods"
        for container in pod["containers"]:
            assert container["securityContext"]["allowPrivilegeEscalation"] is False
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
            assert container["resources"]["limits"]["memory"] == container["resources"]["requests"]["memory"]


def test_secrets_are_only_named():
    found = base() + [{"engines": engines(overlay)} for overlay in ("cpu", "gpu")]
    assert not [manifest for manifest in found if manifest.get("kind") == "Secret"]
    assert references(found, "secret") == set(SECRETS)
    text = "\n".join(path.read_text() for path in FOLDER.rglob("*.*ml"))
    keys = re.findall(r"secretKeyRef: {name: ([\w-]+), key: (\w+)}", text)
    assert keys and all(key in SECRETS[name] for name, key in keys)


def test_the_ray_cluster_asks_for_a_token_and_keeps_its_state():
    (cluster,) = loaded("base/raycluster.yaml")
    spec = cluster["spec"]
    assert spec["rayVersion"] == ray.__version__, "as installed"
    assert spec["authOptions"] == {"mode": "token"}
    (redis, service) = loaded("base/redis.yaml")
    assert spec["gcsFaultToleranceOptions"]["redisAddress"] == f"{service['metadata']['name']}:6379"
    assert service["spec"]["selector"] == redis["spec"]["template"]["metadata"]["labels"]
    assert redis["spec"]["volumeClaimTemplates"], "a Redis that is moved keeps it, too"


def test_few_come_in():
    policies = {policy["metadata"]["name"]: policy["spec"] for policy in loaded("base/networkpolicy.yaml")}
    assert policies["nothing"] == {"podSelector": {}, "policyTypes": ["Ingress"]}
    inside, clients, prometheus = policies["ray"]["ingress"]
    assert "ports" not in inside
    assert clients["from"] == [{"podSelector": {"matchLabels": {"memagent.io/client": "true"}}}]
    assert [port["port"] for port in clients["ports"]] == [8265]
    head = loaded("base/raycluster.yaml")[0]["spec"]["headGroupSpec"]["template"]["spec"]["containers"][0]
    assert prometheus["ports"][0]["port"] in {port["containerPort"] for port in head["ports"]}
    for policy in policies.values():
        for rule in policy.get("ingress", []):
            assert rule["from"] and all("podSelector" in peer or "namespaceSelector" in peer for peer in rule["from"])
    (night,) = loaded("base/schedule.yaml")
    labels = night["spec"]["jobTemplate"]["spec"]["template"]["metadata"]["labels"]
    assert labels["memagent.io/client"] == "true", "else it does not reach the Jobs API"


def test_gpu_pods_have_several_gpus_and_take_spot_nodes():
    group, small = engines("gpu"), engines("cpu")
    (container,) = group["template"]["spec"]["containers"]
    gpus = container["resources"]["limits"]["nvidia.com/gpu"]
    assert gpus > 1 and container["resources"]["requests"]["nvidia.com/gpu"] == gpus
    config = validate(Config, tomllib.loads((FOLDER / "gpu" / "memagent.toml").read_text()), "")
    assert gpus % config.pool.gpus == 0 and config.pool.max_size == group["maxReplicas"] * gpus / config.pool.gpus
    for each in (group, small):
        keys = {toleration["key"] for toleration in each["template"]["spec"]["tolerations"]}
        assert "memagent.io/spot" in keys and ("nvidia.com/gpu" in keys) == (each is group)
    names = {container["name"] for container in group["template"]["spec"]["containers"]}
    assert names == {"ray-worker"}


def test_configurations_and_commands_are_those_of_the_product():
    for folder in ("base", "gpu"):
        config = validate(Config, tomllib.loads((FOLDER / folder / "memagent.toml").read_text()), "")
        assert config.ray.address == "auto" and config.logging.format == "json"
    commands = get_command(app).commands
    (night,) = loaded("base/schedule.yaml")
    (submitter,) = night["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    *ray_job, last = submitter["command"]
    options = {option for param in submit.params for option in param.opts}
    assert ray_job[:3] == ["ray", "job", "submit"] and last == "--"
    assert all(word in options for word in ray_job if word.startswith("--"))
    program, command, _, *given = submitter["args"]
    assert program == "memagent" and set(given) <= option_names(commands[command])
    (job,) = loaded("job/spec/job.yaml")
    program, command, *given = shlex.split(job["spec"]["entrypoint"])
    assert program == "memagent" and {word for word in given if word.startswith("--")} <= option_names(
        commands[command]
    )
    metrics = loaded("base/metrics.yaml")[0]["spec"]["template"]["spec"]["containers"][0]["args"]
    assert {word for word in metrics[1:] if word.startswith("--")} <= option_names(commands[metrics[0]])


def option_names(command: Any) -> set[str]:
    return {option for param in command.params for option in (*param.opts, *param.secondary_opts)}


def test_the_policy_of_the_bucket_names_one_prefix_and_no_wildcards():
    policy = json.loads((ROOT / "infra" / "deploy" / "s3-policy.json").read_text())
    for statement in policy["Statement"]:
        assert statement["Effect"] == "Allow" and not any("*" in action for action in statement["Action"])
        resources = statement["Resource"]
        assert all(resource.startswith("arn:aws:s3:::my-") for resource in resources)
