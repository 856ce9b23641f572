"""Manifests with the sidecar, played as pods: limits, readiness, reload of the mounted ConfigMap, graceful shutdown."""

import images
import pytest
import yaml
from lab import ROOT, eventually
from pods import Pod, load

URL = "http://127.0.0.1:8080/"
RELOADS = 'weir_config_reloads_total{outcome="%s"}'
# Every manifest with the sidecar is one more case: its name, and a function that returns its objects.
CASES = {"sidecar.yaml": lambda: load(ROOT / "deploy" / "sidecar.yaml")}


@pytest.fixture(params=CASES)
def pod(request, lab):
    played = Pod(lab, CASES[request.param]())
    try:
        eventually(lambda: played.probe("startupProbe") == 200, "the startup probe succeeds")
        eventually(lambda: played.network.status(f"{URL}healthz") == 200, "the application responds through Weir")
        yield played
    except AssertionError:
        print(played.log())
        raise
    finally:
        played.remove()


def config_map(pod):
    """Returns the mounted ConfigMap with the configuration."""
    return next(o for o in pod.objects if o["kind"] == "ConfigMap" and "weir.yaml" in o["data"])


def test_requests_above_the_burst_are_rejected(pod):
    burst = yaml.safe_load(config_map(pod)["data"]["weir.yaml"])["rules"][0]["burst"]
    statuses = pod.network.until_rejected(URL, 5000)
    assert statuses[-1] == 429 and set(statuses[:-1]) == {200}
    assert len(statuses) > burst
    # Probes of the application pass while its clients are rejected.
    assert pod.network.status(f"{URL}healthz") == 200
    assert pod.probe("readinessProbe") == 200


def test_changed_config_map_is_applied_without_a_restart(pod):
    config = config_map(pod)
    name, config = config["metadata"]["name"], yaml.safe_load(config["data"]["weir.yaml"])
    started = pod.lab.container(pod.container("weir"))["State"]["StartedAt"]
    config["rules"][0] |= {"limit": "3/h", "burst": 3}
    pod.update(name, {"weir.yaml": yaml.safe_dump(config)})
    eventually(lambda: pod.network.metric(RELOADS % "applied"), "the new rules are applied")
    assert pod.network.until_rejected(URL, 10) in ([200, 200, 200, 429], [200, 200, 429])
    # An invalid version changes nothing, and is counted.
    pod.update(name, {"weir.yaml": "rules: ["})
    eventually(lambda: pod.network.metric(RELOADS % "rejected"), "the invalid version is rejected")
    assert pod.network.status(URL) == 429
    assert pod.lab.container(pod.container("weir"))["State"]["StartedAt"] == started


def test_request_in_flight_is_completed_before_the_container_exits(pod):
    slow = pod.lab.start(*pod.network.status_command(f"{URL}slow"))
    try:
        eventually(lambda: pod.network.metric("weir_upstream_requests_in_flight{"), "the request is in flight")
        assert slow.poll() is None
        pod.lab.run("podman", "stop", "--time=20", pod.container("weir"))
        assert slow.communicate(timeout=30)[0] == "200"
    finally:
        slow.kill()
    state = pod.lab.container(pod.container("weir"))["State"]
    assert state["ExitCode"] == 0, pod.log()


def test_container_runs_unprivileged_with_what_the_image_contains(pod):
    image = pod.lab.container(pod.container("weir"))
    assert image["Config"]["User"] == "65532:65532" and image["HostConfig"]["ReadonlyRootfs"]
    assert image["EffectiveCaps"] in (None, [])
    checked = pod.lab.run("podman", "exec", pod.container("weir"), "/usr/local/bin/weir", "check", "/etc/weir/weir.yaml")
    assert "weir.yaml" in checked, checked
    labels = image["Config"]["Labels"]
    assert labels["org.opencontainers.image.revision"] == images.REVISION
