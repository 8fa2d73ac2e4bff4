"""Schemas of Kubernetes' own kinds, and of KubeRay's by the fields of its API reference (ray.io/v1)."""

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

from jsonschema import Draft7Validator

from tests.support.pages import ROOT

_TEXT, _NUMBER, _SWITCH = {"type": "string"}, {"type": "integer"}, {"type": "boolean"}
_TEXTS = {"type": "object", "additionalProperties": _TEXT}


def _object(required: str = "", **properties: Any) -> dict[str, Any]:
    closed = {"type": "object", "properties": properties, "additionalProperties": False}
    return {**closed, "required": required.split()}


def _kubernetes(name: str) -> dict[str, str]:
    return {"$ref": f"#/definitions/{name}"}


_POD = _kubernetes("core.v1.PodTemplateSpec")
_CREDENTIAL = _object(value=_TEXT, valueFrom=_kubernetes("core.v1.EnvVarSource"))
_GROUP = {"rayStartParams": _TEXTS, "template": _POD, "labels": _TEXTS, "resources": _TEXTS}
CLUSTER = _object(
    "headGroupSpec",
    rayVersion=_TEXT,
    suspend=_SWITCH,
    authOptions=_object(mode={"enum": ["token", "disabled"]}, secretName=_TEXT, enableK8sTokenAuth=_SWITCH),
    enableInTreeAutoscaling=_SWITCH,
    autoscalerOptions=_object(
        version={"enum": ["v1", "v2"]},
        idleTimeoutSeconds=_NUMBER,
        upscalingMode={"enum": ["Default", "Aggressive", "Conservative"]},
        image=_TEXT,
        securityContext=_kubernetes("core.v1.SecurityContext"),
        resources=_kubernetes("core.v1.ResourceRequirements"),
    ),
    gcsFaultToleranceOptions=_object(
        redisAddress=_TEXT, redisUsername=_CREDENTIAL, redisPassword=_CREDENTIAL, externalStorageNamespace=_TEXT
    ),
    headServiceAnnotations=_TEXTS,
    headGroupSpec=_object("template", serviceType=_TEXT, enableIngress=_SWITCH, **_GROUP),
    workerGroupSpecs={
        "type": "array",
        "items": _object(
            "groupName template maxReplicas minReplicas",
            groupName=_TEXT,
            replicas=_NUMBER,
            minReplicas=_NUMBER,
            maxReplicas=_NUMBER,
            numOfHosts=_NUMBER,
            idleTimeoutSeconds=_NUMBER,
            suspend=_SWITCH,
            **_GROUP,
        ),
    },
)
JOB = _object(
    "entrypoint rayClusterSpec",
    entrypoint=_TEXT,
    submissionMode={"enum": ["K8sJobMode", "HTTPMode", "InteractiveMode", "SidecarMode"]},
    shutdownAfterJobFinishes=_SWITCH,
    ttlSecondsAfterFinished=_NUMBER,
    activeDeadlineSeconds=_NUMBER,
    backoffLimit=_NUMBER,
    runtimeEnvYAML=_TEXT,
    entrypointNumCpus={"type": "number"},
    suspend=_SWITCH,
    rayClusterSpec=CLUSTER,
)


@cache
def _schemas() -> dict[str, Any]:
    return json.loads((ROOT / "tests" / "data" / "kubernetes-1.33.json").read_text())


def check(manifest: Mapping[str, Any]) -> None:
    """Check a manifest: each of its fields is one that its kind has, and has the type that it should."""
    known = _schemas()
    kind = manifest["kind"]
    own = {"RayCluster": CLUSTER, "RayJob": JOB}.get(kind)
    if own is None:
        schema = _kubernetes(known["kinds"][kind])
    else:
        assert manifest["apiVersion"] == "ray.io/v1"
        schema = _object("spec", apiVersion=_TEXT, kind=_TEXT, metadata=_kubernetes("meta.ObjectMeta"), spec=own)
    problems = Draft7Validator({**schema, "definitions": known["definitions"]}).iter_errors(manifest)
    named = f"{kind} {manifest['metadata']['name']}"
    assert not (said := [f"{named}: {each.json_path}: {each.message[:200]}" for each in problems]), said
