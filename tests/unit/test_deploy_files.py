"""The files of infra/deploy, as far as they can be held without a cluster."""

import ray
import yaml

from tests.pages import ROOT


def test_the_ray_cluster_asks_for_a_token_and_lets_few_in():
    cluster, policy = yaml.safe_load_all((ROOT / "infra" / "deploy" / "raycluster.yaml").read_text())
    spec, name = cluster["spec"], cluster["metadata"]["name"]
    assert spec["rayVersion"] == ray.__version__, "as installed"
    assert spec["authOptions"] == {"mode": "token"}
    mine = {"ray.io/cluster": name}
    assert policy["kind"] == "NetworkPolicy" and policy["spec"]["podSelector"]["matchLabels"] == mine
    inside, clients = policy["spec"]["ingress"]
    assert "ports" not in inside and [port["port"] for port in clients["ports"]] == [8265]
    assert all("podSelector" in peer or "namespaceSelector" in peer for peer in inside["from"] + clients["from"])
    groups = [spec["headGroupSpec"], *spec["workerGroupSpecs"]]
    for container in (container for group in groups for container in group["template"]["spec"]["containers"]):
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert container["resources"]["limits"]["memory"] == container["resources"]["requests"]["memory"]
