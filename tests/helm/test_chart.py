"""Guarantees of the chart and of deploy/sidecar.yaml, checked with the Helm engine and the Kubernetes schemas.

No cluster is needed. So these tests do not cover what only a cluster can show, such as scheduling and real probes.
"""

import copy
import os
import pathlib
import re
import subprocess

import helm_python as helm
import kubernetes_validate
import pytest
import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
CHART = ROOT / "helm" / "weir"
KUBERNETES = "1.34"

# Sets all values that the defaults leave empty, so that every branch of the templates is rendered.
EVERY_VALUE = """
image: {repository: weir, tag: "9", digest: "sha256:%s", pullPolicy: Always}
imagePullSecrets: [{name: pull}]
nameOverride: edge
fullnameOverride: edge-proxy
replicaCount: 3
commonLabels: {team: edge}
podAnnotations: {note: "1"}
podLabels: {tier: web}
nodeSelector: {disk: ssd}
tolerations: [{key: spot, operator: Exists}]
affinity: {podAntiAffinity: {preferredDuringSchedulingIgnoredDuringExecution: []}}
topologySpreadConstraints: [{maxSkew: 1, topologyKey: zone, whenUnsatisfiable: ScheduleAnyway}]
priorityClassName: high
serviceAccount: {create: true, name: edge, annotations: {a: b}}
automountServiceAccountToken: true
service: {type: LoadBalancer, port: 8443, annotations: {prometheus.io/scrape: "false", extra: "1"}}
app: {command: [serve], env: [{name: A, value: b}], ports: [{containerPort: 7}], livenessProbe: {exec: {command: [ok]}}}
config: {listeners: [{address: "0.0.0.0:18080"}], admin: {probes: "0.0.0.0:19902"}}
extraEnv: [{name: REDIS, value: there}]
extraArgs: [--log-format=json]
extraVolumes: [{name: state, emptyDir: {}}]
extraVolumeMounts: [{name: state, mountPath: /var/lib/weir}]
terminationGracePeriodSeconds: 60
""" % ("0" * 64)


def render(values="{}"):
    """Returns the objects of a release by kind; the chart creates at most one object of each kind."""
    with helm.Chart.load(CHART) as chart:
        parsed = helm.values_from_yaml(values)
        chart.validate_schema(parsed)
        files = chart.render(parsed, name="hello", namespace="default")
    return by_kind(text for path, text in files.items() if path.endswith(".yaml"))


def deployed():
    return by_kind([(ROOT / "deploy" / "sidecar.yaml").read_text()])


def by_kind(texts):
    objects = [o for text in texts for o in yaml.safe_load_all(text) if o]
    assert len({o["kind"] for o in objects}) == len(objects)
    return {o["kind"]: o for o in objects}


def readme_values(example):
    return re.findall(r"```yaml\n(.+?)```", (CHART / "README.md").read_text(), re.DOTALL)[example]


SOURCES = {
    "deploy": deployed,
    "chart": render,
    "chart-plain-container": lambda: render("sidecar: {native: false}"),
    "chart-every-value": lambda: render(EVERY_VALUE),
    "chart-readme": lambda: render(readme_values(0)),
    "chart-readme-volumes": lambda: render(readme_values(1)),
    "chart-readme-store": lambda: render(readme_values(2)),
}
every_source = pytest.mark.parametrize("source", SOURCES)


def pod(objects):
    return objects["Deployment"]["spec"]["template"]["spec"]


def weir(objects):
    containers = pod(objects).get("initContainers", []) + pod(objects)["containers"]
    return next(c for c in containers if c["name"] == "weir")


def rules_file(objects):
    return objects["ConfigMap"]["data"]["weir.yaml"]


def seconds(duration):
    return int(re.fullmatch(r"(\d+)s", duration)[1])


def test_strict_lint_finds_nothing_above_a_remark():
    report = helm.lint(CHART, strict=True, kube_version=f"v{KUBERNETES}.0")
    remark = 1
    assert report["total_charts_linted"] == 1
    assert report["errors"] == []
    assert [m for m in report["messages"] if m["severity"] > remark] == []


def test_default_render_is_the_plain_manifest_apart_from_names_and_labels():
    def anonymous(objects):
        objects = copy.deepcopy(objects)
        for o in objects.values():
            o["metadata"] = {"annotations": o["metadata"].get("annotations")}
        objects["ConfigMap"]["data"] = {name: yaml.safe_load(text) for name, text in objects["ConfigMap"]["data"].items()}
        deployment = objects["Deployment"]["spec"]
        del deployment["selector"]
        del deployment["template"]["metadata"]["labels"]
        assert pod(objects)["volumes"][0].pop("configMap")
        del objects["Service"]["spec"]["selector"]
        if not deployment["template"]["metadata"]:
            del deployment["template"]["metadata"]
        return objects

    assert anonymous(render()) == anonymous(deployed())


@every_source
def test_names_and_labels_hold_the_objects_together(source):
    objects = SOURCES[source]()
    labels = objects["Deployment"]["spec"]["template"]["metadata"]["labels"].items()
    selector = objects["Deployment"]["spec"]["selector"]["matchLabels"]
    assert selector.items() <= labels
    assert objects["Service"]["spec"]["selector"] == selector
    # A version in the selector would cut off the running pods during an upgrade, and a Deployment's selector is
    # immutable.
    assert selector.keys() <= {"app.kubernetes.io/name", "app.kubernetes.io/instance"}
    volume = next(v for v in pod(objects)["volumes"] if v["name"] == "weir-config")
    assert volume["configMap"] == {"name": objects["ConfigMap"]["metadata"]["name"]}
    if "ServiceAccount" in objects:
        assert pod(objects)["serviceAccountName"] == objects["ServiceAccount"]["metadata"]["name"]


@every_source
def test_objects_satisfy_the_strict_kubernetes_schema(source):
    for o in SOURCES[source]().values():
        kubernetes_validate.validate(o, KUBERNETES, strict=True)


@every_source
def test_rules_are_mounted_as_a_directory(source):
    mounts = [m for m in weir(SOURCES[source]())["volumeMounts"] if m["name"] == "weir-config"]
    assert mounts == [{"name": "weir-config", "mountPath": "/etc/weir", "readOnly": True}]


@every_source
def test_weir_satisfies_the_restricted_pod_security_standard(source):
    objects = SOURCES[source]()
    context = weir(objects)["securityContext"]
    assert context["runAsNonRoot"] and context["runAsUser"] == 65532
    assert context["readOnlyRootFilesystem"] and context["allowPrivilegeEscalation"] is False
    assert context["capabilities"] == {"drop": ["ALL"]}
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}


@every_source
def test_weir_has_a_memory_limit_and_no_cpu_limit(source):
    assert weir(SOURCES[source]())["resources"]["limits"].keys() == {"memory"}


@every_source
def test_weir_is_never_restarted_for_the_state_of_the_application(source):
    container = weir(SOURCES[source]())
    assert "livenessProbe" not in container
    assert container["startupProbe"]["httpGet"]["path"] == container["readinessProbe"]["httpGet"]["path"] == "/ready"


@every_source
def test_grace_period_covers_the_drain(source):
    objects = SOURCES[source]()
    drain = yaml.safe_load(rules_file(objects))["drain"]
    grace = pod(objects)["terminationGracePeriodSeconds"]
    assert grace >= seconds(drain["delay"]) + seconds(drain["timeout"]) + 5


@every_source
def test_application_outlives_its_endpoint(source):
    objects = SOURCES[source]()
    application = next(c for c in pod(objects)["containers"] if c["name"] != "weir")
    delay = seconds(yaml.safe_load(rules_file(objects))["drain"]["delay"])
    assert application["lifecycle"]["preStop"]["sleep"]["seconds"] >= delay


@every_source
def test_ports_follow_the_configuration(source):
    objects = SOURCES[source]()
    config = yaml.safe_load(rules_file(objects))
    listener, probes = (int(a.rsplit(":", 1)[1]) for a in (config["listeners"][0]["address"], config["admin"]["probes"]))
    container = weir(objects)
    assert [p["containerPort"] for p in container["ports"]] == [listener, probes]
    assert {container[p]["httpGet"]["port"] for p in ("startupProbe", "readinessProbe")} == {probes}
    assert objects["Service"]["spec"]["ports"][0]["targetPort"] == listener
    assert objects["Service"]["metadata"]["annotations"]["prometheus.io/port"] == str(probes)


def test_native_sidecar_is_a_restarting_init_container():
    objects = render()
    assert [(c["name"], c["restartPolicy"]) for c in pod(objects)["initContainers"]] == [("weir", "Always")]
    assert [c["name"] for c in pod(objects)["containers"]] == ["app"]


def test_plain_sidecar_differs_only_in_its_place():
    native, plain = render(), render("sidecar: {native: false}")
    assert "initContainers" not in pod(plain)
    assert [c["name"] for c in pod(plain)["containers"]] == ["weir", "app"]
    assert weir(plain) | {"restartPolicy": "Always"} == weir(native)


def test_changed_rule_restarts_no_pod():
    changed = render("config: {rules: [{name: other, key: [], limit: 1/s}]}")
    assert changed["ConfigMap"] != render()["ConfigMap"]
    assert changed["Deployment"] == render()["Deployment"]


def test_configuration_survives_yaml_1_1_and_large_counts():
    config = yaml.safe_load(rules_file(render("config: {big: 4294967295, word: 'off', bare: off, country: ['NO']}")))
    assert config["big"] == 4294967295
    assert (config["word"], config["bare"], config["country"]) == ("off", False, ["NO"])


def test_every_value_reaches_the_pod():
    objects = render(EVERY_VALUE)
    assert weir(objects)["image"] == "weir@sha256:" + "0" * 64
    assert weir(objects)["args"] == ["run", "--log-format=json"]
    spec = pod(objects)
    given = helm.values_from_yaml(EVERY_VALUE)
    for name in ("imagePullSecrets", "nodeSelector", "tolerations", "affinity", "topologySpreadConstraints",
                 "priorityClassName", "automountServiceAccountToken", "terminationGracePeriodSeconds"):
        assert spec[name] == given[name], name
    assert weir(objects)["env"] == given["extraEnv"]
    assert given["extraVolumes"][0] in spec["volumes"]
    assert given["extraVolumeMounts"][0] in weir(objects)["volumeMounts"]
    assert all(o["metadata"]["labels"]["team"] == "edge" for o in objects.values())
    metadata = objects["Deployment"]["spec"]["template"]["metadata"]
    assert metadata["labels"]["tier"] == "web" and metadata["annotations"] == {"note": "1"}
    assert objects["Deployment"]["spec"]["replicas"] == 3
    service = objects["Service"]
    assert (service["spec"]["type"], service["spec"]["ports"][0]["port"]) == ("LoadBalancer", 8443)
    assert service["metadata"]["annotations"]["prometheus.io/scrape"] == "false"


@pytest.mark.parametrize("values", [
    "replicas: 2",
    "image: {tagg: x}",
    "serviceAccount: {crate: true}",
    "service: {prot: 80}",
    "sidecar: {nativ: false}",
    "app: {readynessProbe: {}}",
    "resources: {limit: {}}",
    "replicaCount: two",
    "image: {digest: latest}",
    "app: {name: weir}",
    "config: {admin: {probes: null}}",
    "config: {listeners: []}",
    "config: {admin: {probes: nowhere}}",
])
def test_value_the_chart_does_not_know_is_refused(values):
    with pytest.raises(helm.HelmValuesError):
        render(values)


def test_version_is_the_same_everywhere():
    crate = re.search(r'^version = "(.+)"', (ROOT / "Cargo.toml").read_text(), re.MULTILINE)[1]
    with helm.Chart.load(CHART) as chart:
        assert chart.metadata["appVersion"] == crate
    assert weir(deployed())["image"] == weir(render())["image"] == f"weir:{crate}"


@pytest.mark.skipif("WEIR_BIN" not in os.environ, reason="WEIR_BIN names no binary")
@pytest.mark.parametrize("source", [*SOURCES, "image"])
def test_weir_accepts_the_rules(source, tmp_path):
    file = ROOT / "config" / "container.yaml"
    if source != "image":
        file = tmp_path / "weir.yaml"
        file.write_text(rules_file(SOURCES[source]()))
    # Environment variables that the README takes from the pod and a secret.
    env = os.environ | {"REDIS_PASSWORD": "secret", "POD_NAME": "hello-0"}
    command = [os.environ["WEIR_BIN"], "check", file]
    check = subprocess.run(command, capture_output=True, text=True, timeout=60, env=env)
    assert check.returncode == 0, check.stdout + check.stderr
