"""`weir inject`: what it prints fits the schemas of Kubernetes, and it adds the container that the chart and deploy/ have."""

import json
import pathlib
import subprocess

import pytest
import yaml
from schemas import validate_strictly
from support import CHART, DEPLOY, ROOT, WEIR_BIN, check, rendered, weir, weir_of

INJECT = ROOT / "crates" / "inject"
MANIFESTS = sorted((INJECT / "tests" / "manifests").iterdir())
# Two ports with equal rights, between which the user chooses.
OPTIONS = {"search.yaml": ["--port", "9200"]}
REJECTED = {"database.yaml", "node-exporter.yaml"}


def run(command, *arguments, text=None):
    return subprocess.run(
        [WEIR_BIN, command, *arguments, "-"], input=text, capture_output=True, text=True, timeout=60, check=False
    )


def objects(text):
    """Returns the objects of YAML documents, or of a stream of JSON, without lists."""
    if text.startswith("{"):
        decoder, found, at = json.JSONDecoder(), [], 0
        while at < len(text.rstrip()):
            o, at = decoder.raw_decode(text, at)
            found.append(o)
            at += len(text[at:]) - len(text[at:].lstrip())
    else:
        found = [o for o in yaml.safe_load_all(text) if o]
    return [item for o in found for item in o.get("items", [o])]


@pytest.mark.parametrize("redirect", [[], ["--redirect"]], ids=["services", "redirect"])
@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_injected_manifests_fit_the_schemas_and_are_restored(path, redirect, tmp_path):
    text = path.read_bytes().decode()
    options = ["--limit", "50/s", *redirect, *OPTIONS.get(path.name, [])]
    injected = run("inject", *options, text=text)
    if path.name in REJECTED:
        assert (injected.returncode, injected.stdout) == (2, ""), "a manifest that cannot be injected is not printed"
        return
    assert injected.returncode == 0, injected.stderr
    found = objects(injected.stdout)
    for o in found:
        if o["metadata"]["name"] != "worker":
            validate_strictly(o)
    configurations = [o["data"]["weir.yaml"] for o in found if o["kind"] == "ConfigMap"]
    assert configurations
    for configuration in configurations:
        check(configuration, tmp_path)
    assert run("inject", "--check", *options, text=injected.stdout).returncode == 0
    assert run("inject", "--check", *options, text=text).returncode == 1
    assert run("uninject", text=injected.stdout).stdout == text.replace("\r\n", "\n")


def source():
    return yaml.safe_load((INJECT / "src" / "sidecar.yaml").read_text())


def test_deploy_and_kustomize_have_the_container_of_inject():
    for path in [DEPLOY / "sidecar.yaml", DEPLOY / "kustomize" / "component" / "sidecar.yaml"]:
        deployment = next(o for o in yaml.safe_load_all(path.read_text()) if o["kind"] == "Deployment")
        assert weir_of(deployment["spec"]["template"]["spec"]) == source(), path


def test_the_chart_renders_the_container_of_inject():
    container = weir(rendered("defaults"))
    container["image"] = source()["image"]
    assert container == source()


def test_the_defaults_of_the_chart_are_those_of_inject():
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    container = source()
    assert values["securityContext"] == container["securityContext"]
    assert values["resources"] == container["resources"]
    for probe in ["startup", "readiness"]:
        timing = {key: value for key, value in container[f"{probe}Probe"].items() if key != "httpGet"}
        assert values["probes"][probe] == timing
