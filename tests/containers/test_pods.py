"""Manifests with the sidecar, played as pods: limits, readiness, reload of the mounted ConfigMap, graceful shutdown."""

import subprocess
import sys

import images
import pytest
import yaml
from lab import ROOT, binary, eventually
from pods import Pod, load

sys.path.insert(0, str(ROOT / "tests" / "helm"))

from admission import Policy  # noqa: E402

RELOADS = 'weir_config_reloads_total{outcome="%s"}'


def manifest():
    return load(ROOT / "deploy" / "sidecar.yaml")


def added_by_policy():
    """Returns the example of the policies, with the pod as they change it."""
    policies = {o["kind"]: o for o in load(ROOT / "deploy" / "injector" / "injector.yaml")}
    policy = Policy(policies["MutatingAdmissionPolicy"], policies["ValidatingAdmissionPolicy"], policies["ConfigMap"])
    objects = load(ROOT / "deploy" / "injector" / "example.yaml")
    for o in objects:
        # Podman has no namespaces.
        o["metadata"].pop("namespace", None)
        if o["kind"] == "Deployment":
            template = {"apiVersion": "v1", "kind": "Pod"} | o["spec"]["template"]
            o["spec"]["template"] = {name: part for name, part in policy.admit(template).items() if name in ("metadata", "spec")}
    return objects


def added_by_command(*options):
    """Returns the example of the policies, without its configuration and with the sidecar of `weir inject`."""
    require("inject")
    objects = [o for o in load(ROOT / "deploy" / "injector" / "example.yaml") if o["kind"] in ("Deployment", "Service")]
    for o in objects:
        del o["metadata"]["namespace"]
    command = [binary(), "inject", "--limit", "100/s", "--image", images.WEIR, *options, "-"]
    injected = subprocess.run(command, input=yaml.safe_dump_all(objects), capture_output=True, text=True, timeout=60)
    assert injected.returncode == 0, injected.stderr
    return [o for o in yaml.safe_load_all(injected.stdout) if o]


def redirected_by_command():
    """Returns the same, with rules of the pod's network that lead clients of the application to Weir."""
    require("redirect")
    return added_by_command("--redirect")


def require(command):
    if subprocess.run([binary(), command, "--help"], capture_output=True, timeout=60).returncode:
        pytest.skip(f"the binary has no command {command}")


# Every manifest with the sidecar is one more case: a function that returns its objects.
CASES = [manifest, added_by_policy, added_by_command, redirected_by_command]


@pytest.fixture(params=CASES, ids=lambda case: case.__name__)
def pod(request, lab):
    played = Pod(lab, request.param())
    try:
        eventually(lambda: played.probe("startupProbe") == 200, "the startup probe succeeds")
        eventually(lambda: lab.status(f"{played.url}healthz") == 200, "the application responds through Weir")
        yield played
    except AssertionError:
        print(played.log())
        raise
    finally:
        played.remove()


def test_requests_above_the_burst_are_rejected(pod):
    [rule, *others] = pod.config_map()[1]["rules"]
    statuses = pod.lab.until_rejected(pod.url, 5000)
    assert statuses[-1] == 429 and set(statuses[:-1]) == {200}
    # The first requests may be those of the fixture.
    assert len(statuses) > rule.get("burst", 100) * 0.9
    assert pod.probe("readinessProbe") == 200
    if {"path": "/healthz"} in [other.get("match") for other in others]:
        # Probes of the application pass while its clients are rejected.
        assert pod.lab.status(f"{pod.url}healthz") == 200


def test_changed_config_map_is_applied_without_a_restart(pod):
    name, config = pod.config_map()
    started = pod.lab.container(pod.container("weir"))["State"]["StartedAt"]
    config["rules"][0] |= {"limit": "3/h", "burst": 3}
    pod.update(name, {"weir.yaml": yaml.safe_dump(config)})
    eventually(lambda: pod.metric(RELOADS % "applied"), "the new rules are applied")
    # Units that the fixture has used stay used.
    assert pod.lab.until_rejected(pod.url, 10) in ([200] * count + [429] for count in range(4))
    # An invalid version changes nothing, and is counted.
    pod.update(name, {"weir.yaml": "rules: ["})
    eventually(lambda: pod.metric(RELOADS % "rejected"), "the invalid version is rejected")
    assert pod.lab.status(pod.url) == 429
    assert pod.lab.container(pod.container("weir"))["State"]["StartedAt"] == started


def test_request_in_flight_is_completed_before_the_container_exits(pod):
    slow = pod.lab.start(*pod.lab.status_command(f"{pod.url}slow"))
    try:
        eventually(lambda: pod.metric("weir_upstream_requests_in_flight{"), "the request is in flight")
        assert slow.poll() is None
        pod.lab.run("podman", "stop", "--time=20", pod.container("weir"))
        assert slow.communicate(timeout=30)[0] == "200"
    finally:
        slow.kill()
    state = pod.lab.container(pod.container("weir"))["State"]
    assert state["ExitCode"] == 0, pod.log()


def test_container_runs_unprivileged_with_what_the_image_contains(pod, request):
    image = pod.lab.container(pod.container("weir"))
    # Connections of the user are not redirected, so that no other container may have it.
    user = 65523 if "redirected_by_command" in request.node.name else 65532
    assert image["Config"]["User"] == f"{user}:65532" and image["HostConfig"]["ReadonlyRootfs"]
    assert image["EffectiveCaps"] in (None, [])
    # The admin port acts on POST, so that only the pod reaches it.
    assert pod.lab.status(f"http://{pod.address}:9901/ready") == 0
    checked = pod.lab.run("podman", "exec", pod.container("weir"), "/usr/local/bin/weir", "check", "/etc/weir/weir.yaml")
    assert "weir.yaml" in checked, checked
    labels = image["Config"]["Labels"]
    assert labels["org.opencontainers.image.revision"] == images.REVISION


@pytest.mark.parametrize("pod", [manifest], ids=["manifest"], indirect=True)
def test_application_on_loopback_is_reached_only_through_weir(pod):
    upstream = pod.config_map()[1]["upstream"]["address"]
    assert upstream.startswith("127.0.0.1:")
    assert pod.lab.status(f"http://{pod.address}:{upstream.split(':')[1]}/") == 0
    assert pod.lab.status(pod.url) == 200
