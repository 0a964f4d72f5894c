"""The manifests, the chart and the image: what can be tried of them without a Kubernetes."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from penstock.cluster.nats_connection import OLDEST
from penstock.configuration import known_names as setting_names
from penstock.configuration import load, variable

KUBERNETES = "1.29"
HELM = "v3.18.4"
ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "helm" / "penstock"
PLAIN = sorted((DEPLOY / "kubernetes").glob("*.yaml"))


def documents(text: str) -> list[dict[str, Any]]:
    return [each for each in yaml.safe_load_all(text) if each]


def of_kind(found: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [each for each in found if each["kind"] == kind]


def check_schemas(found: list[dict[str, Any]]) -> None:
    """Nothing unknown, and nothing of a wrong type."""
    for each in found:
        if "monitoring.coreos.com" not in each["apiVersion"]:  # of the operator of Prometheus
            kubernetes_validate.validate(each, KUBERNETES, strict=True)


def check(found: list[dict[str, Any]], *, in_cluster: bool) -> None:
    """What every set of manifests has to have, whoever wrote it."""
    (workload,) = of_kind(found, "StatefulSet")
    spec = workload["spec"]
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    labels = spec["template"]["metadata"]["labels"]
    selectors = [spec["selector"]["matchLabels"]]
    selectors += [each["spec"]["selector"] for each in of_kind(found, "Service")]
    assert all(selector.items() <= labels.items() for selector in selectors)
    assert spec["serviceName"] in {each["metadata"]["name"] for each in of_kind(found, "Service")}
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    for probe, path in (
        ("readiness", "/readyz"),
        ("liveness", "/healthz"),
        ("startup", "/healthz"),
    ):
        assert container[f"{probe}Probe"]["httpGet"] == {"path": path, "port": "http"}
    assert ports == {"http": 8080}
    assert pod["securityContext"]["runAsNonRoot"]
    for each in [container, *pod.get("initContainers", ())]:
        assert each["securityContext"]["readOnlyRootFilesystem"]
        assert each["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    volumes = {v["name"] for v in pod["volumes"]}
    volumes |= {claim["metadata"]["name"] for claim in spec["volumeClaimTemplates"]}
    assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
    settings = {
        each["name"]: each.get("value", "")
        for each in container["env"]
        if each["name"].startswith("PENSTOCK_")
    }
    assert settings.keys() <= {variable(name) for name in setting_names()}
    config = load(environ={n: v.replace("$(POD_NAME)", "penstock-0") for n, v in settings.items()})
    assert config.config.require_keys
    assert bool(config.config.cluster) == in_cluster
    if in_cluster:
        assert spec["podManagementPolicy"] == "Parallel"
        assert pod["affinity"]["podAntiAffinity"]
        assert container["lifecycle"]["preStop"]
        assert of_kind(found, "PodDisruptionBudget")[0]["spec"]["maxUnavailable"] == 1
        assert of_kind(found, "NetworkPolicy")
        headless = config.config.advertise.partition(".")[2].partition(":")[0].partition(".")[0]
        assert headless == spec["serviceName"]


@pytest.mark.parametrize("path", PLAIN, ids=lambda path: path.stem)
def test_plain_manifests_belong_together(path: Path) -> None:
    check(documents(path.read_text("utf-8")), in_cluster=path.stem == "cluster")


@pytest.mark.parametrize("path", PLAIN, ids=lambda path: path.stem)
def test_plain_manifests_fit_the_schemas_of_kubernetes(path: Path) -> None:
    check_schemas(documents(path.read_text("utf-8")))


def test_a_setting_that_kubernetes_does_not_know_is_noticed() -> None:
    (workload,) = of_kind(documents(PLAIN[0].read_text("utf-8")), "StatefulSet")
    workload["spec"]["template"]["spec"]["terminationGraceSeconds"] = 60
    with pytest.raises(kubernetes_validate.ValidationError):
        check_schemas([workload])


class Helm:
    """Renders the chart without that of NATS, which is not fetched here."""

    def __init__(self, binary: str, folder: Path) -> None:
        self._binary = binary
        self._chart = folder / "penstock"
        shutil.copytree(CHART, self._chart)
        about = yaml.safe_load((self._chart / "Chart.yaml").read_text("utf-8"))
        del about["dependencies"]
        (self._chart / "Chart.yaml").write_text(yaml.safe_dump(about))

    def __call__(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self._binary, *words, "--kube-version", f"{KUBERNETES}.0", str(self._chart)],
            capture_output=True,
            text=True,
            check=False,
        )


@pytest.fixture
def helm(tmp_path: Path) -> Helm:
    binary = shutil.which("helm")
    if binary is None:
        pytest.skip("there is no helm on this machine; the torture builds one where there is Go")
    return Helm(binary, tmp_path)


KEYS = ("--set", "keys.existingSecret=penstock-keys")


def check_chart(helm: Helm, *, in_cluster: bool) -> None:
    options = ("--set", f"cluster.enabled={str(in_cluster).lower()}")
    done = helm("template", "shop", *KEYS, *options, "--set", "serviceMonitor.enabled=true")
    assert done.returncode == 0, done.stderr
    found = documents(done.stdout)
    check(found, in_cluster=in_cluster)
    check_schemas(found)
    assert of_kind(found, "ServiceMonitor")


def environment(found: list[dict[str, Any]]) -> dict[str, str]:
    (workload,) = of_kind(found, "StatefulSet")
    (container,) = workload["spec"]["template"]["spec"]["containers"]
    return {each["name"]: each.get("value", "") for each in container["env"]}


def check_nats(helm: Helm) -> None:
    """The servers are where their chart puts them, and nobody but the nodes gets at them."""
    for release, name in (("shop", "shop-nats"), ("nats-shop", "nats-shop")):
        found = documents(helm("template", release, *KEYS).stdout)
        settings = environment(found)
        assert settings["PENSTOCK_CLUSTER"] == f"nats://{name}:4222"
        monitors = settings["PENSTOCK_CLUSTER_MONITORS"].split(",")
        assert monitors == [f"http://{name}-{n}.{name}-headless:8222" for n in range(3)]
        of_servers, of_nodes = (
            next(
                each["spec"]
                for each in of_kind(found, "NetworkPolicy")
                if each["spec"]["podSelector"]["matchLabels"]["app.kubernetes.io/name"] == which
            )
            for which in ("nats", "penstock")
        )
        among_them, by_nodes = of_servers["ingress"]
        assert among_them["from"] == [{"podSelector": of_servers["podSelector"]}]
        assert by_nodes["from"] == [{"podSelector": of_nodes["podSelector"]}]
        assert [port["port"] for port in by_nodes["ports"]] == [4222, 8222]
    own = ("nats.enabled=false", "cluster.servers=nats://a:4222", "cluster.monitors=http://a:8222")
    secrets = ("cluster.credentialsSecret=who", "cluster.tlsSecret=ca")
    done = helm("template", "shop", *KEYS, *(w for each in own + secrets for w in ("--set", each)))
    assert done.returncode == 0, done.stderr
    found = documents(done.stdout)
    check(found, in_cluster=True)
    check_schemas(found)
    assert len(of_kind(found, "NetworkPolicy")) == 1
    (workload,) = of_kind(found, "StatefulSet")
    pod = workload["spec"]["template"]["spec"]
    named = {v["name"]: v["secret"]["secretName"] for v in pod["volumes"] if "secret" in v}
    paths = {m["mountPath"]: named.get(m["name"]) for m in pod["containers"][0]["volumeMounts"]}
    settings = environment(found)
    assert paths[os.path.dirname(settings["PENSTOCK_CLUSTER_CREDENTIALS"])] == "who"
    assert paths[os.path.dirname(settings["PENSTOCK_CLUSTER_TLS_CA"])] == "ca"


def check_lint(helm: Helm) -> None:
    linted = helm("lint", "--strict", *KEYS)
    assert linted.returncode == 0, linted.stdout
    refused = helm("template", "shop")
    assert refused.returncode != 0
    assert "existingSecret" in refused.stderr


@pytest.mark.parametrize("in_cluster", [True, False])
def test_the_chart_renders(helm: Helm, in_cluster: bool) -> None:
    check_chart(helm, in_cluster=in_cluster)


def test_the_chart_finds_nats_and_guards_it(helm: Helm) -> None:
    check_nats(helm)


def test_the_chart_is_linted_and_wants_a_key(helm: Helm) -> None:
    check_lint(helm)


@pytest.mark.torture
@pytest.mark.timeout(0)
def test_the_chart_renders_with_a_helm_built_here(tmp_path: Path) -> None:
    go = shutil.which("go")
    if go is None:
        pytest.skip("there is no Go on this machine")
    built = subprocess.run(
        [go, "install", f"helm.sh/helm/v3/cmd/helm@{HELM}"],
        env={**os.environ, "GOBIN": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    if built.returncode:
        pytest.skip(f"helm cannot be built: {built.stderr[-500:]}")
    helm = Helm(str(tmp_path / "helm"), tmp_path)
    check_lint(helm)
    check_nats(helm)
    for in_cluster in (True, False):
        check_chart(helm, in_cluster=in_cluster)


def test_nats_is_of_a_version_that_is_taken() -> None:
    """Since 2.12 the chart has the version of the server that it installs."""
    about = yaml.safe_load((CHART / "Chart.yaml").read_text("utf-8"))
    (nats,) = about["dependencies"]
    oldest = re.fullmatch(r"\^(\d+)\.(\d+)\.\d+", nats["version"])
    assert oldest
    assert tuple(map(int, oldest.groups())) >= OLDEST


def test_nats_is_told_to_sync() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text("utf-8"))
    assert values["nats"]["config"]["jetstream"]["merge"]["sync_interval"] == "always"


@pytest.mark.torture
@pytest.mark.timeout(0)
def test_the_steps_of_the_image_work_in_a_clean_folder(tmp_path: Path) -> None:
    """Where no Docker runs: what is copied, and what is installed from it."""
    text = (ROOT / "Dockerfile").read_text("utf-8")
    source = tmp_path / "src"
    source.mkdir()
    for words in re.findall(r"^COPY (?!--from)(.+)$", text, re.MULTILINE):
        *names, target = words.split()
        for name in names:
            origin = ROOT / name
            if origin.is_dir():
                shutil.copytree(origin, source / target)
            else:
                shutil.copy(origin, source)
    (steps,) = re.findall(r"^RUN (python -m venv .+)$", text, re.MULTILINE)
    steps = steps.replace("/opt/penstock", str(tmp_path / "opt"))
    steps = steps.replace("python -m venv", f"{sys.executable} -m venv")
    done = subprocess.run(
        steps, shell=True, cwd=source, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    command = [str(tmp_path / "opt" / "bin" / "penstock"), "cluster", "--help"]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0
