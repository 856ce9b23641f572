"""deploy/compose, as its first lines describe it: a shared limit, further instances, a changed file, and the end."""

import shutil
import subprocess

import pytest
import yaml
from lab import LAB, ROOT, eventually

URL = "http://127.0.0.1:{}/"
WORD = "podman-compose"


class Project:
    """The running example. Its published ports are on the loopback interface of the lab."""

    def __init__(self, lab):
        self.lab = lab
        # A copy, because a test changes the configuration.
        self.directory = lab.directory / "run" / "compose"
        shutil.copytree(ROOT / "deploy" / "compose", self.directory)
        self.compose("up", "--detach")

    def compose(self, *arguments, timeout=180):
        return self.lab.run("sh", "-c", f"cd {LAB / 'run' / 'compose'} && {WORD} {' '.join(arguments)} 2>&1", timeout=timeout)

    def status(self, port):
        command = self.lab.command("curl", "--silent", "--max-time", "20", "--output", "/dev/null", "--write-out", "%{http_code}", URL.format(port))
        return int(subprocess.run(command, capture_output=True, text=True, timeout=60).stdout)

    def change(self, limit):
        file = self.directory / "config" / "weir.yaml"
        config = yaml.safe_load(file.read_text())
        config["rules"][0] |= limit
        written = file.with_suffix(".new")
        written.write_text(yaml.safe_dump(config))
        written.rename(file)


@pytest.fixture
def project(lab):
    started = Project(lab)
    try:
        yield started
    finally:
        started.compose("down", "--volumes")


def test_example_limits_reloads_and_shares(project):
    eventually(lambda: project.status(8080) == 200, "a request passes", 60)
    # Five requests in ten seconds, from all clients of the bridge together.
    statuses = [project.status(8080) for _ in range(8)]
    assert 429 in statuses and set(statuses) <= {200, 429}, statuses
    project.change({"limit": "2/h", "burst": 2})
    eventually(lambda: [project.status(8080) for _ in range(3)] == [429] * 3, "the changed limit is applied")
    project.compose("up", "--detach", "--scale", "weir=3")
    eventually(lambda: project.status(8082) != 0, "the third instance responds", 60)
    # What the first instance has admitted is used up for all.
    assert [project.status(port) for port in (8080, 8081, 8082)] == [429] * 3
    project.compose("stop")
    states = project.lab.run("podman", "ps", "--all", "--filter=label=com.docker.compose.service=weir", "--format={{.ExitCode}}")
    assert set(states.split()) == {"0"}, states
