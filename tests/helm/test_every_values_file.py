"""Guarantees of the chart for every file in values/, checked with the Helm engine and the Kubernetes schemas.

No cluster is needed. So these tests do not cover what only a cluster can show, such as scheduling and real probes.
"""

import re
import subprocess

import kubernetes_validate
import pytest
import yaml
from schemas import CUSTOM_GROUPS, validate_strictly
from support import (
    CHART, WEIR_BIN, check, config_of, configurations, containers, main_service, of_kind, only, pod, rendered,
    seconds, values_files, weir, weir_of,
)

NAMES = values_files()
every_file = pytest.mark.parametrize("name", NAMES)


def has_pods(name):
    return bool(of_kind(rendered(name), "Deployment"))


def has_config(name):
    return bool(configurations(rendered(name)))


every_pod = pytest.mark.parametrize("name", [name for name in NAMES if has_pods(name)])
every_known_pod = pytest.mark.parametrize("name", [name for name in NAMES if has_pods(name) and has_config(name)])


def test_there_are_enough_values_files():
    assert len(NAMES) >= 12


@every_file
def test_objects_satisfy_the_strict_schemas(name):
    for o in rendered(name).values():
        validate_strictly(o)


@pytest.mark.parametrize("name", ["defaults", "proxy-production", "rls-descriptors"])
def test_objects_satisfy_the_schemas_of_the_oldest_supported_version(name):
    oldest = re.search(r">=(\d+\.\d+)", (CHART / "Chart.yaml").read_text().split("kubeVersion")[1])[1]
    for o in rendered(name).values():
        if o["apiVersion"].split("/")[0] not in CUSTOM_GROUPS:
            kubernetes_validate.validate(o, oldest, strict=True)


@every_file
def test_names_and_labels_fit_a_dns_label(name):
    for kind, object_name in rendered(name):
        assert len(object_name) <= 63 and re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", object_name), (kind, object_name)


@every_file
def test_objects_have_the_recommended_labels(name):
    recommended = {"name", "instance", "version", "component", "part-of", "managed-by"}
    for o in rendered(name).values():
        if not o["metadata"]["name"].endswith(("extra-map", "-text")):
            assert {f"app.kubernetes.io/{label}" for label in recommended} <= o["metadata"]["labels"].keys()
            assert o["metadata"]["labels"]["helm.sh/chart"].startswith("weir-") or name == "every-value"


@every_pod
def test_selectors_find_the_pods_of_the_release_and_no_others(name):
    objects = rendered(name)
    deployment = only(objects, "Deployment")
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    selector = deployment["spec"]["selector"]["matchLabels"]
    assert selector.items() <= labels.items()
    # A version in the selector would cut off the running pods during an upgrade, and a Deployment's selector is
    # immutable.
    assert selector.keys() == {"app.kubernetes.io/name", "app.kubernetes.io/instance"}
    for service in of_kind(objects, "Service"):
        assert service["spec"]["selector"] == selector
    for kind, path in (("PodDisruptionBudget", "selector"), ("NetworkPolicy", "podSelector"), ("PodMonitor", "selector")):
        for o in of_kind(objects, kind):
            assert o["spec"][path]["matchLabels"] == selector
    for job in of_kind(objects, "Job"):
        assert not selector.items() <= job["spec"]["template"]["metadata"]["labels"].items()


@every_pod
def test_references_between_objects_resolve(name):
    objects = rendered(name)
    deployment = only(objects, "Deployment")
    assert all(m["name"] in {v["name"] for v in pod(objects)["volumes"]} for m in weir(objects)["volumeMounts"])
    if of_kind(objects, "ServiceAccount"):
        assert pod(objects)["serviceAccountName"] == only(objects, "ServiceAccount")["metadata"]["name"]
    for scaler in of_kind(objects, "HorizontalPodAutoscaler"):
        assert scaler["spec"]["scaleTargetRef"]["name"] == deployment["metadata"]["name"]
        assert "replicas" not in deployment["spec"]
    for monitor in of_kind(objects, "ServiceMonitor"):
        wanted = monitor["spec"]["selector"]["matchLabels"].items()
        selected = [s for s in of_kind(objects, "Service") if wanted <= s["metadata"]["labels"].items()]
        assert [p["name"] for s in selected for p in s["spec"]["ports"]] == ["metrics"]
    for monitor in of_kind(objects, "PodMonitor"):
        ports = {p["name"] for p in weir(objects)["ports"]}
        assert {e["port"] for e in monitor["spec"]["podMetricsEndpoints"]} <= ports


@every_pod
def test_configuration_is_mounted_as_a_directory(name):
    mounts = [m for m in weir(rendered(name))["volumeMounts"] if m["name"] == "weir-config"]
    assert mounts == [{"name": "weir-config", "mountPath": "/etc/weir", "readOnly": True}]


@every_pod
def test_weir_satisfies_the_restricted_pod_security_standard(name):
    pods = [pod(rendered(name))] + [job["spec"]["template"]["spec"] for job in of_kind(rendered(name), "Job")]
    for spec in pods:
        context = weir_of(spec)["securityContext"]
        assert context["runAsNonRoot"] and context["runAsUser"] == 65532
        assert context["readOnlyRootFilesystem"] and context["allowPrivilegeEscalation"] is False
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}


@every_pod
def test_weir_has_no_cpu_limit(name):
    assert "cpu" not in weir(rendered(name)).get("resources", {}).get("limits", {})


@every_pod
def test_readiness_is_the_state_of_weir_and_never_a_reason_to_restart(name):
    container = weir(rendered(name))
    assert container["startupProbe"]["httpGet"]["path"] == container["readinessProbe"]["httpGet"]["path"] == "/ready"
    assert container.get("livenessProbe", {}).get("httpGet", {}).get("path") != "/ready"


@every_known_pod
def test_grace_period_covers_the_shutdown(name):
    objects = rendered(name)
    drain = config_of(objects)["drain"]
    own = seconds(drain["delay"]) + seconds(drain["timeout"]) + 5
    container = weir(objects)
    pauses = [
        c["lifecycle"]["preStop"]["sleep"]["seconds"]
        for c in pod(objects)["containers"]
        if c is not container and "lifecycle" in c
    ]
    # The kubelet stops a native sidecar after the application, within the same period.
    before = max(pauses, default=0) if container.get("restartPolicy") == "Always" else 0
    assert pod(objects)["terminationGracePeriodSeconds"] >= own + before


@every_known_pod
def test_endpoint_is_removed_before_the_listener_closes(name):
    objects = rendered(name)
    if name == "minimal":
        return
    if weir(objects).get("restartPolicy") == "Always":
        # Weir gets the signal when the application has ended, so a delay of its own would only prolong the shutdown.
        assert config_of(objects)["drain"]["delay"] == "0s"
        application = next(c for c in pod(objects)["containers"] if c["name"] == "app")
        assert application["lifecycle"]["preStop"]["sleep"]["seconds"] >= 5
    else:
        assert seconds(config_of(objects)["drain"]["delay"]) >= 5


def listeners(config):
    """Returns the ports of the listeners, as `listeners` may be written."""
    found = config.get("listeners", [])
    found = found if isinstance(found, list) else [found]
    addresses = [entry["address"] if isinstance(entry, dict) else entry for entry in found]
    return [int(address.rsplit(":", 1)[1]) for address in addresses if not address.startswith("unix:")]


@every_known_pod
def test_ports_follow_the_configuration(name):
    objects = rendered(name)
    config = config_of(objects)
    probes = int(config["admin"]["probes"].rsplit(":", 1)[1])
    container = weir(objects)
    by_port = {p["name"]: p["containerPort"] for p in container["ports"]}
    assert [port for key, port in by_port.items() if key.split("-")[0] == "http"] == listeners(config)
    assert by_port["probes"] == probes
    assert {container[p]["httpGet"]["port"] for p in ("startupProbe", "readinessProbe")} == {probes}
    service = main_service(objects)
    targets = {p["name"]: p["targetPort"] for p in service["spec"]["ports"]}
    if listeners(config):
        first = config["listeners"][0] if isinstance(config["listeners"], list) else config["listeners"]
        scheme = "https" if isinstance(first, dict) and "tls" in first else "http"
        assert targets[scheme] == listeners(config)[0]
    if "rls" in config:
        assert targets["grpc"] == by_port["grpc"] == int(config["rls"]["address"].rsplit(":", 1)[1])
    monitored = of_kind(objects, "PodMonitor") + of_kind(objects, "ServiceMonitor")
    annotations = service["metadata"].get("annotations", {})
    assert annotations.get("prometheus.io/port") == (None if monitored else str(probes))
    for policy in of_kind(objects, "NetworkPolicy"):
        admitted = [p["port"] for rule in policy["spec"]["ingress"][:2] for p in rule["ports"]]
        assert sorted(admitted) == sorted(by_port.values())


@every_known_pod
def test_probes_of_the_application_use_the_port_of_weir(name):
    objects = rendered(name)
    for container in containers(pod(objects)):
        port = container.get("readinessProbe", {}).get("httpGet", {}).get("port")
        if container["name"] == "app":
            assert port == listeners(config_of(objects))[0]


@every_file
def test_check_validates_what_the_pods_will_mount(name):
    objects = rendered(name)
    for job in of_kind(objects, "Job"):
        annotations = job["metadata"]["annotations"]
        assert annotations["helm.sh/hook"] == "pre-install,pre-upgrade"
        spec = job["spec"]["template"]["spec"]
        container = weir_of(spec)
        assert container["args"][0] == "check" and container["args"][-1] == "/etc/weir/weir.yaml"
        assert len({e["name"] for e in container.get("env", [])}) == len(container.get("env", []))
        if not has_pods(name):
            continue
        assert container["image"] == weir(objects)["image"]
        volumes = {v["name"]: v for v in spec["volumes"]}
        assert all(m["name"] in volumes for m in container["volumeMounts"])
        assert not any("persistentVolumeClaim" in v for v in volumes.values())
        for volume in ("weir-config", "weir-descriptors"):
            mounted = [v["configMap"]["name"] for v in pod(objects)["volumes"] if v["name"] == volume]
            for map_name in mounted:
                checked = volumes[volume]["configMap"]["name"]
                if ("ConfigMap", map_name) in objects:
                    # The release's own objects do not exist before the first installation.
                    hook = objects["ConfigMap", checked]
                    assert hook["data"] == objects["ConfigMap", map_name]["data"]
                    assert int(hook["metadata"]["annotations"]["helm.sh/hook-weight"]) < 0
                else:
                    assert checked == map_name


@pytest.mark.skipif(not WEIR_BIN, reason="WEIR_BIN names no binary")
@every_file
def test_weir_accepts_the_configuration(name, tmp_path):
    objects = rendered(name)
    texts = configurations(objects)
    descriptors = next((o["data"] for (_, n), o in objects.items() if n.endswith("-descriptors")), {})
    for file, content in descriptors.items():
        (tmp_path / "descriptors").mkdir(exist_ok=True)
        (tmp_path / "descriptors" / file).write_text(content)
    for text in texts.values():
        # Files of volumes that only a pod has.
        text = text.replace("/etc/ratelimit", str(tmp_path / "descriptors"))
        for secret in ("tls.crt", "tls.key"):
            text = text.replace(f"/etc/weir-tls/{secret}", str(certificate(tmp_path) / secret))
        check(text, tmp_path)
    # The configurations of the injector are in the namespaces of its pods.
    assert texts or "existing" in name or name == "injector"


def certificate(directory):
    """Returns a directory with a self-signed certificate and its key."""
    if not (directory / "tls.crt").exists():
        command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
        files = ["-keyout", directory / "tls.key", "-out", directory / "tls.crt", "-subj", "/CN=shop.test"]
        subprocess.run([*command, *files], check=True, capture_output=True)
    return directory


def test_default_configurations_are_complete_apart_from_the_upstream():
    for path in (CHART / "files" / "config").glob("*.yaml"):
        config = yaml.safe_load(path.read_text())
        assert config.keys() >= {"admin", "drain", "workers"}, path
