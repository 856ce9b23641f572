"""Guarantees of the mode `injector`: which sidecar its policies add to a pod, and what they say to a pod that cannot have it."""

import copy
import pathlib
import re

import kubernetes_validate
import pytest
import yaml
from admission import Denied, Policy, defaulted
from support import DEPLOY, KUBERNETES_OF_POLICIES, ROOT, by_name, only, pod, render, weir_of

CASES = {case["name"]: case for case in yaml.safe_load((pathlib.Path(__file__).parent / "injected_pods.yaml").read_text())}
INJECTED = [name for name, case in CASES.items() if "port" in case]
PLAIN = DEPLOY / "injector" / "injector.yaml"
LABEL = "weir.dev/inject"


def policy_of(objects, **parameters):
    config = copy.deepcopy(only(objects, "ConfigMap"))
    for name, value in parameters.items():
        if value is None:
            del config["data"][name]
        else:
            config["data"][name] = value
    return Policy(only(objects, "MutatingAdmissionPolicy"), only(objects, "ValidatingAdmissionPolicy"), config)


@pytest.fixture(scope="module")
def plain():
    return by_name([PLAIN.read_text()])


@pytest.fixture(scope="module")
def policy(plain):
    return policy_of(plain)


def asking(case):
    """Returns the pod of a case as it is created, with the label."""
    given = {"apiVersion": "v1", "kind": "Pod", "metadata": {}} | copy.deepcopy(case["pod"])
    given["metadata"].setdefault("name", "case")
    given["metadata"].setdefault("labels", {})[LABEL] = "true"
    return given


def sidecar():
    """Returns Weir's container of the plain manifest."""
    return weir_of(pod(by_name([(DEPLOY / "sidecar.yaml").read_text()])))


def expected(case):
    """Returns the pod that a case should become."""
    wanted = defaulted(asking(case))
    spec = wanted["spec"]
    listener = case.get("listener", 8080)
    container = sidecar()
    published = case.get("published", {})
    container["ports"][0] |= {"name": case.get("moved", "http"), "containerPort": listener} | published
    container["env"] = [{"name": "WEIR_PORT", "value": str(listener)}, {"name": "APP_PORT", "value": str(case["port"])}]
    spec.setdefault("initContainers", []).append(container)
    spec.setdefault("volumes", []).append({"name": "weir-config", "configMap": {"name": case.get("config_map", "weir-config")}})
    spec["terminationGracePeriodSeconds"] = case.get("grace", 30)
    for given in spec["containers"]:
        for port in given.get("ports", []):
            if published.items() <= port.items() and port["containerPort"] == case["port"]:
                for field in published:
                    del port[field]
            if port.get("name") == case.get("moved", ""):
                del port["name"]
        if given["name"] in case.get("paused", []):
            given.setdefault("lifecycle", {})["preStop"] = {"sleep": {"seconds": 5}}
    for action, port in zip(actions(spec), case.get("probes", []), strict=True):
        action["port"] = port
    return defaulted(wanted)


def actions(spec):
    """Returns the HTTP and TCP requests of probes and hooks of the application."""
    found = []
    for container in spec["containers"]:
        handlers = [container.get(name) for name in ("startupProbe", "readinessProbe", "livenessProbe")]
        handlers += [container.get("lifecycle", {}).get(name) for name in ("postStart", "preStop")]
        found += [handler[kind] for handler in handlers if handler for kind in ("httpGet", "tcpSocket") if kind in handler]
    return found


def test_there_are_enough_pods():
    assert len(INJECTED) >= 20 and len(CASES) - len(INJECTED) >= 12


@pytest.mark.parametrize("name", INJECTED)
def test_pod_gets_the_sidecar_of_the_plain_manifest(name, policy):
    admitted = policy.admit(asking(CASES[name]))
    assert admitted == expected(CASES[name])
    kubernetes_validate.validate(admitted, KUBERNETES_OF_POLICIES, strict=True)
    # A reinvocation changes nothing.
    assert policy.admit(admitted) == admitted


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if "unchanged" in case])
def test_pod_with_a_sidecar_is_left_alone(name, policy):
    given = asking(CASES[name])
    assert policy.admit(given) == defaulted(given)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if "problem" in case])
def test_pod_that_cannot_have_it_is_rejected_with_what_to_do(name, policy):
    given = asking(CASES[name])
    with pytest.raises(Denied) as denied:
        policy.admit(given)
    assert str(denied.value) == CASES[name]["problem"]
    # The message is one line, as the API server requires, and not cut off.
    assert "\n" not in CASES[name]["problem"] and len(CASES[name]["problem"]) < 5 * 1024
    assert policy.mutate(defaulted(given)) == defaulted(given)


def test_every_reason_is_documented():
    page = (ROOT / "docs" / "operations" / "inject-by-policy.md").read_text()
    rows = [row.split(" | ")[0] for row in page.split("| message begins with |")[1].splitlines() if row.startswith("| `")]
    begins = [begin for row in rows for begin in re.findall(r"`([^`]+)`", row)]
    problems = [case["problem"] for case in CASES.values() if "problem" in case]
    assert [problem for problem in problems if not problem.startswith(tuple(begins))] == []


def test_pod_without_the_label_is_left_alone(policy):
    for case in CASES.values():
        given = asking(case)
        del given["metadata"]["labels"][LABEL]
        assert policy.admit(given) == defaulted(given)


@pytest.mark.parametrize("parameters, problem", [
    ({"image": None}, "the ConfigMap weir-injector has no image: set its key image"),
    ({"image": ""}, "the ConfigMap weir-injector has no image: set its key image"),
    ({"configMap": None}, "no ConfigMap with the configuration: set the annotation weir.dev/config-map, or configMap in the ConfigMap weir-injector"),
    ({"listenerPort": "0"}, "port of Weir's listener: not a number from 1 to 65535: 0"),
])
def test_parameters_that_are_missing_reject_the_pod(parameters, problem, plain):
    with pytest.raises(Denied) as denied:
        policy_of(plain, **parameters).admit(asking(CASES[INJECTED[0]]))
    assert str(denied.value) == problem


def test_parameters_choose_image_configuration_and_port(plain):
    chosen = policy_of(plain, image="registry.example.com/weir:2", configMap="limits", listenerPort="15001")
    spec = chosen.admit(asking(CASES[INJECTED[0]]))["spec"]
    container = weir_of(spec)
    assert container["image"] == "registry.example.com/weir:2" and container["ports"][0]["containerPort"] == 15001
    assert spec["volumes"][-1]["configMap"] == {"name": "limits"}
    # The chart's port is the default of a ConfigMap without one.
    default = policy_of(plain, listenerPort=None).admit(asking(CASES[INJECTED[0]]))
    assert weir_of(default["spec"])["ports"][0]["containerPort"] == 8080


def test_missing_mutation_rejects_the_pod(plain):
    broken = policy_of(plain)
    broken.mutate = lambda given: given
    with pytest.raises(Denied, match="the sidecar is missing: the MutatingAdmissionPolicy weir-injector or its binding"):
        broken.admit(asking(CASES[INJECTED[0]]))


def test_both_policies_are_bound_with_the_same_parameters_to_the_same_pods(plain):
    mutating, validating = only(plain, "MutatingAdmissionPolicy"), only(plain, "ValidatingAdmissionPolicy")
    bindings = [only(plain, f"{kind}AdmissionPolicyBinding")["spec"] for kind in ("Mutating", "Validating")]
    assert mutating["spec"]["matchConstraints"] == validating["spec"]["matchConstraints"]
    names = [variable["name"] for variable in validating["spec"]["variables"]]
    assert validating["spec"]["variables"] == mutating["spec"]["variables"][:len(names)]
    parameters = only(plain, "ConfigMap")["metadata"]
    for policy_, binding in zip((mutating, validating), bindings, strict=True):
        assert policy_["spec"]["paramKind"] == {"apiVersion": "v1", "kind": "ConfigMap"}
        assert policy_["spec"]["failurePolicy"] == "Fail"
        assert binding["policyName"] == policy_["metadata"]["name"]
        assert binding["paramRef"] == {"name": parameters["name"], "namespace": parameters["namespace"], "parameterNotFoundAction": "Deny"}
    assert bindings[1]["validationActions"] == ["Deny"]


EVERY_VALUE = """
mode: injector
image: { repository: registry.example.com/weir, tag: "2", pullPolicy: Always }
imagePullSecrets: [{ name: registry }, { name: mirror }]
injector: { configMap: limits }
config: { listeners: "0.0.0.0:18080", admin: { probes: "0.0.0.0:19902" }, drain: { timeout: 60s } }
resources: { requests: { cpu: 1, memory: 64Mi }, limits: { memory: 1Gi } }
probes: { startup: { failureThreshold: 60 }, liveness: { httpGet: { path: /live, port: 19902 } } }
shutdown: { delaySeconds: 8 }
extraArgs: [--log-format=json]
extraEnv: [{ name: POD, valueFrom: { fieldRef: { fieldPath: metadata.name } } }, { name: TEXT, value: 'a "quoted" \\ text' }]
extraEnvFrom: [{ secretRef: { name: tokens, optional: true } }]
extraVolumes: [{ name: geo, persistentVolumeClaim: { claimName: geo } }, { name: keys, secret: { secretName: keys, defaultMode: 288, items: [{ key: a, path: b }] } }]
extraVolumeMounts: [{ name: geo, mountPath: /geo }, { name: keys, mountPath: /keys, readOnly: true }]
"""


def test_values_of_the_chart_reach_the_sidecar_as_in_other_modes():
    given = yaml.safe_load(EVERY_VALUE)
    objects = render(EVERY_VALUE)
    admitted = policy_of(objects).admit(asking(CASES[INJECTED[0]]))
    kubernetes_validate.validate(admitted, KUBERNETES_OF_POLICIES, strict=True)
    spec = admitted["spec"]
    library = render(yaml.safe_dump({name: value for name, value in given.items() if name not in ("mode", "injector")}))
    wanted, found = weir_of(pod(library)), weir_of(spec)
    assert found["env"][:2] == [{"name": "WEIR_PORT", "value": "18080"}, {"name": "APP_PORT", "value": "3000"}]
    found["env"] = found["env"][2:]
    assert found == defaulted({"spec": {"containers": [quantities_as_text(wanted)]}})["spec"]["containers"][0]
    assert spec["imagePullSecrets"] == given["imagePullSecrets"]
    assert spec["volumes"] == [{"name": "weir-config", "configMap": {"name": "limits"}}, *given["extraVolumes"]]
    assert spec["terminationGracePeriodSeconds"] == pod(library)["terminationGracePeriodSeconds"] == 83
    assert spec["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"] == 8


def test_pull_secret_of_the_pod_is_not_repeated():
    given = asking(CASES[INJECTED[0]])
    given["spec"]["imagePullSecrets"] = [{"name": "own"}, {"name": "mirror"}]
    admitted = policy_of(render(EVERY_VALUE)).admit(given)
    assert admitted["spec"]["imagePullSecrets"] == [{"name": "own"}, {"name": "mirror"}, {"name": "registry"}]


def quantities_as_text(container):
    changed = copy.deepcopy(container)
    for kind in changed["resources"].values():
        kind |= {name: str(quantity) for name, quantity in kind.items()}
    return changed


def test_no_pause_with_a_delay_of_zero():
    admitted = policy_of(render("mode: injector\nshutdown: { delaySeconds: 0 }")).admit(asking(CASES[INJECTED[0]]))
    assert "lifecycle" not in admitted["spec"]["containers"][0]


def test_chart_renders_only_the_policies_and_their_parameters():
    objects = render("mode: injector")
    assert sorted(kind for kind, _ in objects) == [
        "ConfigMap", "MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding",
    ]
    clusterwide = [o for o in objects.values() if o["kind"] != "ConfigMap"]
    assert all("namespace" not in o["metadata"] for o in clusterwide)


# The example


def test_example_gets_the_sidecar_and_its_service_leads_there(policy):
    objects = by_name([(DEPLOY / "injector" / "example.yaml").read_text()])
    namespace, deployment = only(objects, "Namespace"), only(objects, "Deployment")
    selector = policy.mutating["matchConstraints"]["namespaceSelector"]["matchLabels"]
    assert selector.items() <= namespace["metadata"]["labels"].items()
    template = {"apiVersion": "v1", "kind": "Pod"} | copy.deepcopy(deployment["spec"]["template"])
    admitted = policy.admit(template)
    spec = admitted["spec"]
    mounted = spec["volumes"][-1]["configMap"]["name"]
    assert "weir.yaml" in objects["ConfigMap", mounted]["data"]
    # As the endpoints of a Service are found: the first container with a port of this name.
    target = only(objects, "Service")["spec"]["ports"][0]["targetPort"]
    ports = [(c["name"], p["containerPort"]) for c in spec["containers"] + spec["initContainers"] for p in c.get("ports", []) if p.get("name") == target]
    assert ports[0] == ("weir", 8080)
    assert all(o["metadata"].get("namespace") == namespace["metadata"]["name"] for o in objects.values() if o["kind"] != "Namespace")


def test_plain_manifest_is_what_the_chart_renders(plain):
    rendered = render("mode: injector", name="weir-injector", namespace="weir-system")
    for (kind, name), o in rendered.items():
        kept = copy.deepcopy(plain[kind, name])
        for one in (kept, copied := copy.deepcopy(o)):
            one["metadata"].pop("labels", None)
        assert kept == copied
    assert set(plain) - set(rendered) == {("Namespace", "weir-system")}
