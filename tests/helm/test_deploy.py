"""Guarantees of deploy/: manifests, kustomize, compose, and the examples with Envoy and meshes."""

import copy
import pathlib
import shutil
import subprocess
import sys

import pytest
import yaml
from schemas import validate_strictly
from support import CHART, DEPLOY, WEIR_BIN, by_name, check, check_file, configurations, containers, of_kind, only, pod, render, seconds, weir, weir_of

ENVOY = shutil.which("envoy", path=str(pathlib.Path(sys.executable).parent)) or shutil.which("envoy")
# Directories with files that are neither manifests nor values of the chart.
MANIFESTS = ["sidecar.yaml", "rls.yaml", "kustomize/example/shop.yaml", "istio/gateway.yaml", "envoy-gateway/envoy-gateway.yaml",
             "envoy-gateway/policy.yaml", "envoy-gateway/patch.yaml", "gateway-api/route.yaml", "injector/injector.yaml", "injector/example.yaml"]
VALUES = ["istio/values.yaml", "istio/sidecar.yaml", "linkerd/values.yaml", "gateway-api/values.yaml"]
CONFIGURATIONS = ["envoy/weir.yaml", "systemd/weir.yaml", "compose/config/weir.yaml", "kustomize/example/weir.yaml"]
OTHERS = {"envoy/envoy.yaml", "compose/compose.yaml", "kustomize/component/kustomization.yaml",
          "kustomize/component/sidecar.yaml", "kustomize/example/kustomization.yaml"}


def load(name):
    return [o for o in yaml.safe_load_all((DEPLOY / name).read_text()) if o]


def test_every_file_is_covered_by_a_test():
    tested_elsewhere = ("prometheus/", "grafana/")
    found = {str(path.relative_to(DEPLOY)) for path in DEPLOY.rglob("*.yaml")}
    found = {name for name in found if not name.startswith(tested_elsewhere)}
    assert found == {*MANIFESTS, *VALUES, *CONFIGURATIONS, *OTHERS}


@pytest.mark.parametrize("name", MANIFESTS + VALUES + [*OTHERS])
def test_example_begins_with_what_it_is_and_how_to_apply_it(name):
    text = (DEPLOY / name).read_text()
    assert text.startswith("# ")
    if name not in ("sidecar.yaml", "rls.yaml", "istio/values.yaml", "gateway-api/values.yaml") and "kustomize" not in name:
        assert "\n#   " in text and "Expect" in text or name == "compose/compose.yaml"


@pytest.mark.parametrize("name", MANIFESTS)
def test_objects_satisfy_the_strict_schemas(name):
    for o in load(name):
        validate_strictly(o)


@pytest.mark.parametrize("name", ["sidecar.yaml", "rls.yaml"])
def test_names_and_labels_hold_the_objects_together(name):
    objects = by_name([(DEPLOY / name).read_text()])
    deployment = only(objects, "Deployment")
    labels = deployment["spec"]["template"]["metadata"]["labels"].items()
    selector = deployment["spec"]["selector"]["matchLabels"]
    assert selector.items() <= labels
    assert all(service["spec"]["selector"] == selector for service in of_kind(objects, "Service"))
    mounted = {v["configMap"]["name"] for v in pod(objects)["volumes"]}
    assert mounted == {name for kind, name in objects if kind == "ConfigMap"}


@pytest.mark.skipif(not WEIR_BIN, reason="WEIR_BIN names no binary")
@pytest.mark.parametrize("name", ["sidecar.yaml", "rls.yaml"])
def test_weir_accepts_the_configuration_in_a_manifest(name, tmp_path):
    objects = by_name([(DEPLOY / name).read_text()])
    for text in configurations(objects).values():
        check(text, tmp_path)


IN_PODS = [DEPLOY / name for name in ("sidecar.yaml", "rls.yaml", "injector/example.yaml", "kustomize/example/weir.yaml")]


@pytest.mark.parametrize("path", [*IN_PODS, *sorted((CHART / "files" / "config").iterdir())], ids=lambda path: path.name)
def test_pods_may_have_addresses_of_ipv4_ipv6_or_both(path):
    text = path.read_text()
    assert '"[::]:' in text and " 0.0.0.0:" not in text


@pytest.mark.skipif(not WEIR_BIN, reason="WEIR_BIN names no binary")
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_weir_accepts_the_configuration(name):
    check_file(DEPLOY / name)


@pytest.mark.parametrize("name", VALUES)
def test_values_render_objects_that_the_comments_name(name, tmp_path):
    comments = [line.lstrip("# ") for line in (DEPLOY / name).read_text().splitlines() if line.startswith("#")]
    others = {"istio/values.yaml": "istio/gateway.yaml", "gateway-api/values.yaml": "gateway-api/route.yaml"}
    comments += (DEPLOY / others.get(name, name)).read_text().replace("# ", "").splitlines()
    command = next(line.split() for line in comments if line.strip().startswith("helm install"))
    assert command[command.index("-f") + 1] == f"deploy/{name}"
    namespace = command[command.index("--namespace") + 1] if "--namespace" in command else "default"
    objects = render((DEPLOY / name).read_text(), name=command[2], namespace=namespace)
    for o in objects.values():
        validate_strictly(o)
    services = {service["metadata"]["name"] for service in of_kind(objects, "Service")}
    if name.startswith("gateway-api"):
        backends = [b["name"] for o in load("gateway-api/route.yaml") for r in o["spec"]["rules"] for b in r["backendRefs"]]
        assert set(backends) <= services
    if name == "istio/values.yaml":
        assert "weir.limits.svc" in (DEPLOY / "istio/gateway.yaml").read_text()
        assert {"weir", "weir-headless"} <= services and namespace == "limits"
    if WEIR_BIN:
        for text in configurations(objects).values():
            check(text, tmp_path)


# Kustomize


def test_component_adds_the_container_of_the_plain_manifest():
    patch = load("kustomize/component/sidecar.yaml")[0]["spec"]["template"]["spec"]
    plain = pod(by_name([(DEPLOY / "sidecar.yaml").read_text()]))
    assert weir_of(patch) == weir_of(plain)
    # Longer ones of applications are theirs.
    assert "terminationGracePeriodSeconds" not in patch and "terminationGracePeriodSeconds" in plain


def test_component_and_example_refer_to_files_that_exist():
    for directory in ("component", "example"):
        base = DEPLOY / "kustomize" / directory
        kustomization = yaml.safe_load((base / "kustomization.yaml").read_text())
        files = kustomization.get("resources", []) + kustomization.get("components", [])
        files += [patch["path"] for patch in kustomization.get("patches", [])]
        files += [file for generator in kustomization.get("configMapGenerator", []) for file in generator["files"]]
        assert files and all((base / file).exists() for file in files)


def test_example_has_the_label_and_the_config_map_of_the_component():
    component = load("kustomize/component/kustomization.yaml")[0]
    key, value = component["patches"][0]["target"]["labelSelector"].split("=")
    shop = load("kustomize/example/shop.yaml")
    assert shop[0]["metadata"]["labels"][key] == value
    volume = load("kustomize/component/sidecar.yaml")[0]["spec"]["template"]["spec"]["volumes"][0]
    generator = load("kustomize/example/kustomization.yaml")[0]["configMapGenerator"][0]
    assert volume["configMap"]["name"] == generator["name"]
    # A name with a hash would restart the pods for each changed rule.
    assert generator["options"]["disableNameSuffixHash"] is True


@pytest.mark.skipif(not shutil.which("kubectl"), reason="kubectl is not installed")
def test_example_is_built_by_kustomize():
    command = ["kubectl", "kustomize", str(DEPLOY / "kustomize" / "example")]
    built = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert built.returncode == 0, built.stderr
    objects = by_name([built.stdout])
    for o in objects.values():
        validate_strictly(o)
    assert weir(objects)["restartPolicy"] == "Always"
    assert [c["name"] for c in containers(pod(objects))] == ["weir", "shop"]
    assert configurations(objects).keys() == {"weir-config"}


@pytest.mark.skipif(not shutil.which("kubectl"), reason="kubectl is not installed")
def test_component_keeps_the_grace_period_of_the_application(tmp_path):
    shutil.copytree(DEPLOY / "kustomize", tmp_path, dirs_exist_ok=True)
    shop = tmp_path / "example" / "shop.yaml"
    text = shop.read_text()
    assert "terminationGracePeriodSeconds: 30\n" in text
    shop.write_text(text.replace("terminationGracePeriodSeconds: 30\n", "terminationGracePeriodSeconds: 120\n"))
    built = subprocess.run(["kubectl", "kustomize", str(tmp_path / "example")], capture_output=True, text=True, timeout=60)
    assert built.returncode == 0, built.stderr
    assert pod(by_name([built.stdout]))["terminationGracePeriodSeconds"] == 120


def test_grace_period_of_the_example_covers_both_containers():
    application = pod({("Deployment", "shop"): load("kustomize/example/shop.yaml")[0]})
    pause = application["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"]
    drain = load("kustomize/example/weir.yaml")[0]["drain"]
    time_to_stop = 10
    minimum = pause + time_to_stop + seconds(drain["timeout"]) + 5
    assert application["terminationGracePeriodSeconds"] >= minimum


# Compose


def test_compose_file_satisfies_the_schema():
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", DEPLOY / "compose" / "compose.yaml"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stdout + result.stderr


def test_compose_services_are_those_of_the_configuration():
    compose = load("compose/compose.yaml")[0]["services"]
    config = load("compose/config/weir.yaml")[0]
    assert config["upstream"]["address"].split(":")[0] in compose
    assert config["store"]["redis"].removeprefix("redis://").split(":")[0] in compose
    proxy = compose["weir"]
    assert (DEPLOY / "compose" / proxy["build"] / "Dockerfile").resolve().exists()
    host, container = proxy["volumes"][0].split(":")[:2]
    assert (DEPLOY / "compose" / host / "weir.yaml").exists() and container == "/etc/weir"
    assert proxy["ports"][0].rsplit(":", 1)[1] == config["listeners"][0]["address"].rsplit(":", 1)[1]
    assert proxy["read_only"] and proxy["cap_drop"] == ["ALL"]


# Envoy


def envoy_accepts(config, tmp_path):
    file = tmp_path / "envoy.yaml"
    file.write_text(yaml.safe_dump(config, sort_keys=False))
    command = [ENVOY, "--mode", "validate", "-c", file, "--log-level", "error"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stdout + result.stderr


def bootstrap():
    return copy.deepcopy(load("envoy/envoy.yaml")[0])


def connection_manager(config):
    return config["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]


needs_envoy = pytest.mark.skipif(not ENVOY, reason="envoy is not installed")


@needs_envoy
def test_envoy_accepts_the_static_configuration(tmp_path):
    envoy_accepts(bootstrap(), tmp_path)


@needs_envoy
def test_envoy_accepts_the_patches_of_istio(tmp_path):
    http_filter, virtual_host = (patch["patch"]["value"] for patch in load("istio/gateway.yaml")[0]["spec"]["configPatches"])
    config = bootstrap()
    manager = connection_manager(config)
    manager["http_filters"][0] = http_filter
    host = manager["route_config"]["virtual_hosts"][0]
    host["routes"] = [{"match": {"prefix": "/"}, "route": {"cluster": "service"}}]
    host |= virtual_host
    cluster = http_filter["typed_config"]["rate_limit_service"]["grpc_service"]["envoy_grpc"]["cluster_name"]
    config["static_resources"]["clusters"][1]["name"] = cluster
    envoy_accepts(config, tmp_path)


@needs_envoy
def test_envoy_accepts_the_patches_of_envoy_gateway(tmp_path):
    listener, routes, cluster = load("envoy-gateway/patch.yaml")[0]["spec"]["jsonPatches"]
    config = bootstrap()
    resources = config["static_resources"]
    manager = connection_manager(config)
    assert listener["operation"]["path"].endswith("/typed_config/http_filters/0")
    manager["http_filters"][0] = listener["operation"]["value"]
    assert routes["operation"]["path"] == "/virtual_hosts/0/rate_limits"
    manager["route_config"]["virtual_hosts"][0]["rate_limits"] = routes["operation"]["value"]
    resources["clusters"][1] = cluster["operation"]["value"]
    envoy_accepts(config, tmp_path)


def test_domain_of_every_filter_has_rules():
    assert {rule["domain"] for rule in load("envoy/weir.yaml")[0]["rules"]} == {"edge"}
    assert {rule["domain"] for rule in load("istio/values.yaml")[0]["config"]["rules"]} == {"edge"}
    filters = [connection_manager(bootstrap())["http_filters"][0]]
    filters.append(load("istio/gateway.yaml")[0]["spec"]["configPatches"][0]["patch"]["value"])
    filters.append(load("envoy-gateway/patch.yaml")[0]["spec"]["jsonPatches"][0]["operation"]["value"])
    assert [f["typed_config"]["domain"] for f in filters] == ["edge"] * 3


def test_envoy_gateway_runs_the_image_of_the_chart():
    gateway = load("envoy-gateway/envoy-gateway.yaml")[0]
    image = gateway["provider"]["kubernetes"]["rateLimitDeployment"]["container"]["image"]
    assert image == weir(by_name([(DEPLOY / "sidecar.yaml").read_text()]))["image"]
