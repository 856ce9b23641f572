"""Guarantees of the chart that single values bring about, checked with the Helm engine."""

import copy
import http.server
import re
import shutil
import subprocess
import threading

import helm_python as helm
import pytest
import yaml
from support import (
    CHART, DEPLOY, KUBERNETES, ROOT, VALUES, by_name, chart, config_of, configurations, main_service, notes, of_kind,
    only, pod, render, rendered, weir,
)


def deployed(name="sidecar.yaml"):
    return by_name([(DEPLOY / name).read_text()])


def test_strict_lint_finds_nothing_above_a_remark():
    report = helm.lint(CHART, strict=True, kube_version=f"v{KUBERNETES}.0")
    remark = 1
    assert report["total_charts_linted"] == 1
    assert report["errors"] == []
    assert [m for m in report["messages"] if m["severity"] > remark] == []


# The values that render the plain manifest of the same name.
MANIFESTS = {
    "sidecar.yaml": "{}",
    "rls.yaml": """
        mode: rls
        replicaCount: 2
        podDisruptionBudget: { enabled: true }
        config:
          store: { redis: "redis://redis:6379" }
          rules: [{ name: per-address, domain: edge, key: [{ descriptor: remote_address }], limit: 100/s, burst: 200, scope: shared }]
    """,
}


def without_names(objects):
    """Returns the objects by kind and what makes them different, without names, labels and what depends on them."""
    found = {}
    for o in copy.deepcopy(list(objects.values())):
        spec = o.get("spec", {})
        part = "headless" if spec.get("clusterIP") == "None" else ""
        if o["metadata"].get("annotations", {}).get("helm.sh/hook") == "test":
            continue
        if o["kind"] == "ConfigMap":
            part = next(iter(o["data"]))
            o["data"] = {name: yaml.safe_load(text) for name, text in o["data"].items()}
        if o["kind"] == "Deployment":
            del spec["template"]["metadata"]
            spec.pop("revisionHistoryLimit", None)
            for volume in spec["template"]["spec"]["volumes"]:
                assert volume.pop("configMap")
        o["metadata"] = {"annotations": o["metadata"].get("annotations")}
        spec.pop("selector", None)
        found[o["kind"], part] = o
    hooks = [o for o in objects.values() if o["kind"] == "Pod"]
    assert len(found) == len(objects) - len(hooks)
    return found


@pytest.mark.parametrize("manifest", MANIFESTS)
def test_plain_manifest_is_the_render_apart_from_names_and_labels(manifest):
    values = yaml.safe_load(MANIFESTS[manifest]) | {"check": {"enabled": False}}
    assert without_names(render(yaml.safe_dump(values))) == without_names(deployed(manifest))


def test_native_sidecar_is_a_restarting_init_container():
    objects = render()
    assert [(c["name"], c["restartPolicy"]) for c in pod(objects)["initContainers"]] == [("weir", "Always")]
    assert [c["name"] for c in pod(objects)["containers"]] == ["app"]


def test_classic_sidecar_differs_only_in_its_place_and_its_drain():
    native, classic = render(), rendered("classic-sidecar")
    assert "initContainers" not in pod(classic)
    assert [c["name"] for c in pod(classic)["containers"]] == ["weir", "app"]
    assert weir(classic) | {"restartPolicy": "Always"} == weir(native)
    assert config_of(native)["drain"]["delay"] == "0s" and config_of(classic)["drain"]["delay"] == "5s"


def test_modes_without_application_have_one_container():
    for name in ("proxy", "rls"):
        objects = rendered(name)
        assert "initContainers" not in pod(objects)
        assert [c["name"] for c in pod(objects)["containers"]] == ["weir"]
        assert "restartPolicy" not in weir(objects)


# A change of each key, by its name in docs/reference/reload.md.
CHANGES = {
    "config": {"config": {"http": "http://127.0.0.1/x"}},
    "rules": {"rules": [{"name": "other", "key": [], "limit": "1/s"}]},
    "upstream": {"upstream": {"address": "127.0.0.1:4000"}},
    "upstreams": {"upstreams": [{"name": "a", "address": "127.0.0.1:4000"}]},
    "client_ip": {"client_ip": {"trusted_proxies": ["10.0.0.0/8"]}},
    "geo": {"geo": {"database": "/geo.mmdb"}},
    "plans": {"plans": {"of": {"header": "x-api-key"}, "members": {"a": "gold"}}},
    "jwt": {"jwt": {"jwks": {"file": "/keys.json"}}},
    "trailing_slash": {"trailing_slash": "ignore"},
    "ratelimit_headers": {"ratelimit_headers": "limited"},
    "ietf_headers": {"ietf_headers": True},
    "header_names": {"header_names": {"form": "plain"}},
    "via": {"via": "edge-1"},
    "alerts": {"alerts": {"webhook": "http://127.0.0.1:9093/"}},
    "log_keys": {"log_keys": "hash"},
    "elastic": {"elastic": {"signals": ["cpu"]}},
    "listeners[].tls": {"listeners": [{"address": "0.0.0.0:8080", "tls": {"certificate": "/a", "key": "/b"}}]},
    "listeners[].forward_proxy": {"listeners": [{"address": "0.0.0.0:8080", "forward_proxy": {"clients": "10.0.0.0/8", "destinations": "a.test"}}]},
    "listeners": {"listeners": [{"address": "0.0.0.0:8081"}]},
    "tracing.sample": {"tracing": {"otlp": "http://a:4318", "sample": "5%"}},
    "tracing": {"tracing": {"otlp": "http://b:4318"}},
    "workers": {"workers": 3},
    "admin": {"admin": {"probes": "0.0.0.0:9903"}},
    "access_log": {"access_log": "stdout"},
    "drain": {"drain": {"timeout": "11s"}},
    "overload": {"overload": {"requests": 5}},
    "limiter.max_keys": {"limiter": {"max_keys": 5000}},
    "state": {"state": {"file": "/state"}},
    "store": {"store": {"redis": "redis://a:6379"}},
    "rls": {"rls": {"address": "0.0.0.0:8081", "config": {"directory": "/rules"}}},
    "addresses": {"rls": {"address": "0.0.0.0:8082"}},
    "statsd": {"rls": {"address": "0.0.0.0:8081", "statsd": {"address": "a:8125"}}},
    "connections": {"rls": {"address": "0.0.0.0:8081", "connections": {"max": 5}}},
    "scope": {"rls": {"address": "0.0.0.0:8081", "scope": "local"}},
}
# Weir applies these at once, but the pod has their ports, or the time that they take to stop.
OF_THE_POD = {"listeners", "admin", "drain", "addresses", "state"}
# What a change is compared with, where it is more than the default.
BEFORE = {
    "tracing": {"tracing": {"otlp": "http://a:4318"}},
    "rls": {"rls": {"address": "0.0.0.0:8081"}},
    "addresses": {"rls": {"address": "0.0.0.0:8081"}},
    "statsd": {"rls": {"address": "0.0.0.0:8081"}},
    "connections": {"rls": {"address": "0.0.0.0:8081"}},
    "scope": {"rls": {"address": "0.0.0.0:8081"}},
}


def documented_keys():
    """Returns the keys that docs/reference/reload.md names, whether a new process applies them or not."""
    page = (ROOT / "docs" / "reference" / "reload.md").read_text()
    row = page.split("| applied at once | applied by a new process |")[1].splitlines()[2]
    # "of `rls` the addresses, ..."
    return [key for key in re.findall(r"`([^`]+)`", row) if key != "rls"] + ["addresses"]


def test_every_documented_key_of_a_reload_is_tried():
    assert set(documented_keys()) <= CHANGES.keys()


@pytest.mark.parametrize("key", documented_keys())
def test_changed_key_restarts_no_pod(key):
    before, after = (render(yaml.safe_dump({"config": c})) for c in (BEFORE.get(key.split(".")[0], {}), CHANGES[key]))
    assert only(before, "ConfigMap") != only(after, "ConfigMap")
    if key in OF_THE_POD:
        return
    before, after = only(before, "Deployment"), only(after, "Deployment")
    if key == "listeners[].tls":
        # The probe of the application leads through the listener, so it has to speak its protocol.
        app = after["spec"]["template"]["spec"]["containers"][0]
        assert app["readinessProbe"]["httpGet"].pop("scheme") == "HTTPS"
    assert before == after


def test_upgrade_of_the_chart_alone_restarts_no_pod(tmp_path):
    shutil.copytree(CHART, tmp_path / "weir")
    manifest = (tmp_path / "weir" / "Chart.yaml").read_text()
    (tmp_path / "weir" / "Chart.yaml").write_text(re.sub(r"\nversion: .*", "\nversion: 99.0.0", manifest))
    with helm.Chart.load(tmp_path / "weir") as newer:
        values = "image: { repository: weir }"
        templates = [only(render(values, loaded), "Deployment")["spec"]["template"] for loaded in (chart(), newer)]
    assert templates[0] == templates[1]


def test_maps_are_merged_lists_replaced_and_null_removes():
    config = config_of(render("config: {rules: [], drain: {timeout: 30s}, workers: null, upstream: echo}"))
    assert config["rules"] == [] and config["upstream"] == "echo" and "workers" not in config
    assert config["drain"] == {"delay": "0s", "timeout": "30s"}


def test_configuration_survives_yaml_1_1_and_large_counts():
    config = config_of(rendered("rules-of-all-kinds"))
    assert config["access_log"] is False and config["ratelimit_headers"] is False
    assert "4294967295/h" in [rule.get("limit") for rule in config["rules"]]
    config = config_of(render("config: {limiter: {max_keys: 999999999}, geo: {database: /x}, rules: [{name: a, match: {country: ['NO']}, action: deny}]}"))
    assert config["limiter"]["max_keys"] == 999999999 and config["rules"][0]["match"]["country"] == ["NO"]


def test_text_is_kept_to_the_letter():
    given = yaml.safe_load((VALUES / "config-text.yaml").read_text())["configText"]
    assert given.startswith("# Kept as it is.")
    assert all(text.strip() == given.strip() for text in configurations(rendered("config-text")).values())


def test_configuration_server_gets_only_the_bootstrap():
    config = config_of(rendered("central"))
    assert config.keys() == {"config", "listeners", "workers", "admin", "drain"}


def test_rules_of_envoyproxy_replace_the_native_default():
    objects = rendered("rls-descriptors")
    config = config_of(objects)
    assert config["rls"]["config"] == {"directory": "/etc/ratelimit"} and "rules" not in config
    mounts = {m["name"]: m["mountPath"] for m in weir(objects)["volumeMounts"]}
    assert mounts["weir-descriptors"] == "/etc/ratelimit"
    files = objects["ConfigMap", "hello-weir-descriptors"]["data"]
    assert yaml.safe_load(files["edge.yaml"])["domain"] == "edge"
    assert files["mobile.yaml"].startswith("# Text is kept as it is.")


def test_existing_config_maps_are_used_and_none_is_made():
    objects = rendered("rls-existing")
    assert not of_kind(objects, "ConfigMap")
    volumes = {v["name"]: v["configMap"]["name"] for v in pod(objects)["volumes"]}
    assert volumes == {"weir-config": "limits", "weir-descriptors": "limits-descriptors"}
    assert {p["name"]: p["containerPort"] for p in weir(objects)["ports"]}["grpc"] == 9091
    ports = {p["name"]: p["containerPort"] for p in weir(rendered("existing-config-map"))["ports"]}
    assert ports == {"http": 8888, "probes": 9999}


def test_rate_limit_service_has_a_headless_service_for_clients_that_balance():
    objects = rendered("rls")
    headless = objects["Service", "hello-weir-headless"]
    assert headless["spec"]["clusterIP"] == "None"
    for service in (headless, main_service(objects)):
        grpc = next(p for p in service["spec"]["ports"] if p["name"] == "grpc")
        assert (grpc["port"], grpc["appProtocol"]) == (8081, "kubernetes.io/h2c")


def test_alerts_and_dashboards_are_included_to_the_letter():
    objects = rendered("monitoring")
    alerts = yaml.safe_load((CHART / "files" / "alerts.yaml").read_text())
    assert only(objects, "PrometheusRule")["spec"]["groups"] == alerts["groups"]
    dashboards = [o for o in of_kind(objects, "ConfigMap") if o["metadata"]["labels"].get("grafana_dashboard") == "1"]
    files = {path.name: path.read_text() for path in (CHART / "files" / "dashboards").glob("*.json")}
    assert {name: text.strip() for o in dashboards for name, text in o["data"].items()} == {n: t.strip() for n, t in files.items()}
    assert all(o["metadata"]["annotations"] == {"grafana_folder": "Weir"} for o in dashboards)


def test_copies_of_alerts_and_dashboards_are_current():
    pairs = [(DEPLOY / "prometheus" / "alerts.yaml", CHART / "files" / "alerts.yaml")]
    pairs += [(path, CHART / "files" / "dashboards" / path.name) for path in (DEPLOY / "grafana").glob("*.json")]
    for source, copied in pairs:
        assert copied.exists() and copied.read_text() == source.read_text(), f"run helm/weir/update-files: {copied.name}"
    copies = {path.name for path in (CHART / "files" / "dashboards").glob("*.json")}
    assert copies == {path.name for path in (DEPLOY / "grafana").glob("*.json")}


def test_every_value_reaches_the_pod():
    given = helm.values_from_yaml((VALUES / "every-value.yaml").read_text())
    objects = rendered("every-value")
    container, spec = weir(objects), pod(objects)
    assert container["image"] == "registry.example.com/weir@sha256:" + "0" * 64
    assert container["args"] == ["run", "--log-format=json"]
    for name in ("imagePullSecrets", "nodeSelector", "tolerations", "affinity", "priorityClassName", "runtimeClassName",
                 "automountServiceAccountToken", "terminationGracePeriodSeconds"):
        assert spec[name] == given[name], name
    spread = spec["topologySpreadConstraints"][0]
    selector = only(objects, "Deployment")["spec"]["selector"]
    assert given["topologySpreadConstraints"][0].items() <= spread.items() and spread["labelSelector"] == selector
    assert container["env"] == given["extraEnv"] and container["envFrom"] == given["extraEnvFrom"]
    assert all(v in spec["volumes"] for v in given["extraVolumes"])
    assert all(m in container["volumeMounts"] for m in given["extraVolumeMounts"])
    assert given["extraContainers"][0] in spec["containers"] and given["extraInitContainers"][0] == spec["initContainers"][0]
    assert spec["dnsPolicy"] == "ClusterFirst" and spec["hostAliases"]
    assert container["livenessProbe"] == given["probes"]["liveness"]
    assert container["startupProbe"]["failureThreshold"] == 60 and container["readinessProbe"]["timeoutSeconds"] == 2
    assert next(c for c in spec["containers"] if c["name"] == "app")["lifecycle"]["preStop"]["sleep"]["seconds"] == 8
    deployment = only(objects, "Deployment")
    assert deployment["spec"]["strategy"] == given["strategy"]
    assert (deployment["spec"]["revisionHistoryLimit"], deployment["spec"]["minReadySeconds"]) == (3, 5)
    assert deployment["metadata"]["annotations"] == {"change": "12", "owner": "edge"}
    metadata = deployment["spec"]["template"]["metadata"]
    assert metadata["labels"]["tier"] == "web" and metadata["annotations"]["note"] == "1"
    own = [o for (_, name), o in objects.items() if name not in ("extra-map", "edge-proxy-text")]
    assert len(own) == len(objects) - 2
    assert all(o["metadata"]["labels"]["team"] == "edge" and o["metadata"]["annotations"]["owner"] == "edge" for o in own)
    service = main_service(objects)
    http = service["spec"]["ports"][0]
    assert (service["spec"]["type"], http["port"], http["nodePort"], http["appProtocol"]) == ("LoadBalancer", 8443, 30443, "http")
    assert service["metadata"]["annotations"]["prometheus.io/scrape"] == "false" and service["metadata"]["labels"]["exposed"]
    assert service["spec"]["externalTrafficPolicy"] == "Local" and service["spec"]["loadBalancerSourceRanges"]
    job = of_kind(objects, "Job")[0]["spec"]
    checked = job["template"]["spec"]
    assert job["activeDeadlineSeconds"] == 60 and checked["serviceAccountName"] == "checks"
    assert checked["containers"][0]["args"] == ["check", "--log-level=warn", "/etc/weir/weir.yaml"]
    assert {"name": "TOKEN", "value": "none"} in checked["containers"][0]["env"]
    policy = only(objects, "NetworkPolicy")["spec"]
    assert policy["policyTypes"] == ["Ingress", "Egress"] and policy["ingress"][2]["ports"][0]["port"] == 7
    assert policy["ingress"][0]["from"] == given["networkPolicy"]["from"]
    assert policy["ingress"][1]["from"] == given["networkPolicy"]["metricsFrom"]
    assert only(objects, "PodDisruptionBudget")["spec"]["minAvailable"] == "50%"
    scaler = only(objects, "HorizontalPodAutoscaler")["spec"]
    assert [m["type"] for m in scaler["metrics"]] == ["Resource", "Pods"] and scaler["behavior"]
    monitor = only(objects, "PodMonitor")
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    assert monitor["spec"]["podMetricsEndpoints"][0]["scrapeTimeout"] == "10s"


@pytest.mark.parametrize("name, expected", [
    ("defaults", 'the container "app"'),
    ("proxy", "in front of shop.default.svc:80"),
    ("proxy-shared", "in front of shop.default.svc:80"),
    ("proxy-production", "in front of the upstreams"),
    ("rls", "hello-weir.default.svc:8081"),
    ("library", "workloads of this release"),
    ("injector", "pods with the label weir.dev/inject=true"),
])
def test_notes_name_what_to_do_next(name, expected):
    text = notes((VALUES / f"{name}.yaml").read_text())
    assert expected in text
    if name == "injector":
        assert "create configmap limits --from-file=weir.yaml" in text and "helm" not in text
    elif name != "library":
        commands = [line for line in text.splitlines() if line.startswith("  ")]
        assert len(commands) == 3 and commands[0].endswith("rollout status deployment/hello-weir")


def test_notes_warn_about_pods_that_count_separately():
    assert "3 times a limit" in notes((VALUES / "proxy.yaml").read_text() + "\nreplicaCount: 3")
    assert "times a limit" not in notes((VALUES / "proxy-shared.yaml").read_text())


def test_longest_release_name_gives_valid_and_different_names():
    values = (VALUES / "rls-descriptors.yaml").read_text() + "\nmetrics: { serviceMonitor: { enabled: true }, dashboards: { enabled: true } }"
    values = yaml.safe_dump(yaml.safe_load(values))
    # Helm allows 53 characters. `render` fails if two objects of a kind have the same name.
    for _, name in render(values, name="r" * 53):
        assert len(name) <= 63 and not name.endswith("-")


def test_version_is_the_same_everywhere():
    crate = re.search(r'^version = "(.+)"', (ROOT / "Cargo.toml").read_text(), re.MULTILINE)[1]
    with helm.Chart.load(CHART) as loaded:
        assert loaded.metadata["appVersion"] == crate
    assert weir(deployed())["image"] == weir(deployed("rls.yaml"))["image"] == weir(render())["image"] == f"weir:{crate}"


SECRETS = """
extraEnv:
  - { name: PLAIN, value: x }
  - { name: POD_NAME, valueFrom: { fieldRef: { fieldPath: metadata.name } } }
  - { name: TOKEN, valueFrom: { secretKeyRef: { name: a, key: token } } }
extraEnvFrom: [{ prefix: P_, secretRef: { name: a } }, { configMapRef: { name: b } }]
extraVolumes:
  - { name: keys, secret: { secretName: a } }
  - { name: lists, configMap: { name: b } }
  - { name: both, projected: { sources: [{ secret: { name: a } }, { serviceAccountToken: { path: t } }] } }
  - { name: scratch, emptyDir: {} }
extraVolumeMounts:
  - { name: keys, mountPath: /keys }
"""


def test_check_does_not_wait_for_secrets_of_the_same_release():
    objects = render(SECRETS)
    job = of_kind(objects, "Job")[0]["spec"]["template"]["spec"]
    volumes = {volume["name"]: volume for volume in job["volumes"]}
    assert volumes["keys"]["secret"] == {"secretName": "a", "optional": True}
    assert volumes["lists"]["configMap"] == {"name": "b", "optional": True}
    assert volumes["both"]["projected"]["sources"] == [{"secret": {"name": "a", "optional": True}}, {"serviceAccountToken": {"path": "t"}}]
    assert volumes["scratch"] == {"name": "scratch", "emptyDir": {}}
    container = job["containers"][0]
    assert container["envFrom"] == [
        {"prefix": "P_", "secretRef": {"name": "a", "optional": True}}, {"configMapRef": {"name": "b", "optional": True}},
    ]
    token = {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "a", "key": "token", "optional": True}}}
    assert token in container["env"] and {"name": "PLAIN", "value": "x"} in container["env"]
    # The pods of the release still wait.
    assert "optional" not in repr(pod(objects))


TEXT = "{upstream: echo, listeners: '0.0.0.0:80', admin: {probes: '0.0.0.0:9902'}%s}"


@pytest.mark.parametrize("values, expected", [
    ({"mode": "proxy", "configText": TEXT % ""}, True),
    ({"mode": "proxy", "configText": TEXT % ", drain: {timeout: 5s}"}, True),
    ({"mode": "proxy", "configText": TEXT % ", drain: {delay: 5s}"}, False),
    ({"mode": "proxy", "configText": TEXT % ", drain: {delay: '${DELAY}'}", "terminationGracePeriodSeconds": 60}, False),
    ({"configText": TEXT % ""}, False),
    ({"mode": "proxy", "config": {"upstream": "a:80"}}, False),
    ({"mode": "proxy", "config": {"upstream": "a:80", "drain": {"delay": "0s"}}}, True),
    ({"mode": "rls", "config": {"drain": None}}, True),
    ({}, False),
    ({"sidecar": {"native": False}}, False),
    ({"mode": "proxy", "existingConfigMap": "a"}, False),
])
def test_notes_warn_of_a_configuration_without_a_drain_delay(values, expected):
    assert ("no `drain.delay`" in notes(yaml.safe_dump(values))) == expected


TLS = """
mode: proxy
config: { upstream: "shop:80", listeners: [{ address: "0.0.0.0:8443", tls: { certificate: /a, key: /b } }] }
"""


def test_service_of_a_tls_listener_has_the_port_and_the_name_of_https():
    ports = main_service(render(TLS))["spec"]["ports"]
    assert ports == [{"name": "https", "port": 443, "targetPort": 8443}]
    assert "curl -ik https://127.0.0.1:8080/" in notes(TLS)
    assert main_service(render(TLS + "service: { port: 8443 }"))["spec"]["ports"][0]["port"] == 8443


@pytest.mark.parametrize("listeners, scheme", [
    ("{ address: '0.0.0.0:8443', tls: { certificate: /a, key: /b } }", "HTTPS"),
    ("[{ address: '0.0.0.0:8443', tls: { certificate: /a, key: /b } }, '0.0.0.0:8080']", "HTTPS"),
    ("['0.0.0.0:8080', { address: '0.0.0.0:8443', tls: { certificate: /a, key: /b } }]", None),
    ("0.0.0.0:8080", None),
])
def test_probe_of_the_application_speaks_the_protocol_of_the_listener(listeners, scheme):
    app = next(c for c in pod(render(f"config: {{ listeners: {listeners} }}"))["containers"] if c["name"] == "app")
    assert app["readinessProbe"]["httpGet"].get("scheme") == scheme


@pytest.mark.parametrize("monitor", ["podMonitor", "serviceMonitor"])
def test_pods_of_a_monitor_are_not_scraped_by_annotations_as_well(monitor):
    annotated = main_service(render())["metadata"]["annotations"]
    assert annotated["prometheus.io/scrape"] == "true"
    objects = render(f"metrics: {{ {monitor}: {{ enabled: true }} }}")
    assert not any("prometheus.io/scrape" in o["metadata"].get("annotations", {}) for o in objects.values())


@pytest.mark.parametrize("replicas, least, smallest", [(1, 2, 2), (3, 2, 3), (2, 5, 5)])
def test_autoscaling_keeps_at_least_the_replicas_that_were_asked_for(replicas, least, smallest):
    values = f"{{ replicaCount: {replicas}, autoscaling: {{ enabled: true, minReplicas: {least} }} }}"
    assert only(render(values), "HorizontalPodAutoscaler")["spec"]["minReplicas"] == smallest


@pytest.mark.parametrize("request_, warns", [("50m", True), ("0.05", True), ("500m", False), ("1", False)])
def test_notes_warn_of_autoscaling_by_a_share_of_a_tiny_request(request_, warns):
    values = f"{{ autoscaling: {{ enabled: true }}, resources: {{ requests: {{ cpu: '{request_}' }} }} }}"
    assert ("Raise the request" in notes(values)) == warns


def test_runbook_links_of_all_alerts_begin_with_the_configured_address():
    objects = render("metrics: { prometheusRule: { enabled: true, runbookUrl: https://docs.example.com/weir/ } }")
    groups = only(objects, "PrometheusRule")["spec"]["groups"]
    links = [rule["annotations"]["runbook_url"] for group in groups for rule in group["rules"] if "alert" in rule]
    assert links and all(re.fullmatch(r"https://docs\.example\.com/weir/operations/alerts\.html#\w+", link) for link in links)


def test_chart_names_its_home_and_its_sources():
    manifest = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert manifest["home"].startswith("https://") and all(source.startswith("https://") for source in manifest["sources"])


def hook(values):
    return next(o for o in render(values).values() if o["metadata"].get("annotations", {}).get("helm.sh/hook") == "test")


def test_hook_of_helm_test_requests_the_service():
    environment = {e["name"]: e["value"] for e in hook("test: { path: /healthz }")["spec"]["containers"][0]["env"]}
    assert environment == {"URL": "http://hello-weir.default.svc:80/healthz"}
    environment = {e["name"]: e["value"] for e in hook(TLS)["spec"]["containers"][0]["env"]}
    assert environment == {"URL": "https://hello-weir.default.svc:443/"}
    environment = {e["name"]: e["value"] for e in hook("mode: rls")["spec"]["containers"][0]["env"]}
    assert environment == {"HOST": "hello-weir.default.svc", "PORT": "8081"}


class Respond(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(int(self.path.removeprefix("/")))
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.mark.skipif(not shutil.which("busybox"), reason="busybox is not installed")
def test_script_of_helm_test_passes_for_every_response_below_500(tmp_path):
    for tool in ("sh", "wget", "sed", "tail", "timeout"):
        (tmp_path / tool).symlink_to(shutil.which("busybox"))
    script = hook("{}")["spec"]["containers"][0]["args"][0]
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Respond) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        exits = {}
        for status in (200, 301, 404, 429, 500, 503):
            environment = {"PATH": str(tmp_path), "URL": f"{address}/{status}"}
            exits[status] = subprocess.run([tmp_path / "sh", "-c", script], env=environment, timeout=60).returncode
        server.shutdown()
    assert exits == {200: 0, 301: 0, 404: 0, 429: 0, 500: 1, 503: 1}
    # Nothing listens there any more.
    environment = {"PATH": str(tmp_path), "URL": f"{address}/200"}
    assert subprocess.run([tmp_path / "sh", "-c", script], env=environment, timeout=60).returncode == 1
