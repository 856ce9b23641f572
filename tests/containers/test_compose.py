"""deploy/compose with three instances, as its first lines describe it: a limit that they share, a changed file, and the end.

Podman publishes no range of ports, and its Compose does not scale by an option. So requests go to the address of each instance, and
their number is in the copy of the file."""

import shutil
import time

import pytest
import yaml
from lab import LAB, ROOT, eventually


class Project:
    """The running example, of a copy, because tests change the configuration."""

    def __init__(self, lab):
        self.lab = lab
        self.directory = lab.directory / "run" / "compose"
        shutil.rmtree(self.directory, ignore_errors=True)
        shutil.copytree(ROOT / "deploy" / "compose", self.directory)
        file = self.directory / "compose.yaml"
        project = yaml.safe_load(file.read_text())
        del project["services"]["weir"]["ports"]
        project["services"]["weir"]["deploy"] = {"replicas": 3}
        file.write_text(yaml.safe_dump(project))

    def compose(self, *arguments):
        return self.lab.run("sh", "-c", f"cd {LAB / 'run' / 'compose'} && podman-compose {' '.join(arguments)} 2>&1", timeout=180)

    def instances(self):
        """Returns the names of Weir's containers."""
        names = self.lab.run("podman", "ps", "--all", "--filter=label=com.docker.compose.service=weir", "--format={{.Names}}")
        return sorted(names.split())

    def status(self, instance):
        """Sends a request to an instance, and returns the status code; 0 without a response."""
        return self.lab.status(f"http://{self.lab.address(instance)}:8080/")

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
        started.compose("up", "--detach")
        yield started
    finally:
        for name in started.instances():
            print(lab.run("sh", "-c", f"podman logs {name} 2>&1"))
        started.compose("down", "--volumes")


def test_example_shares_its_limit_and_follows_its_file(project):
    instances = project.instances()
    assert len(instances) == 3
    for instance in instances:
        eventually(lambda: project.status(instance) in (200, 429), f"{instance} has an upstream", 60)
    eventually(lambda: project.status(instances[0]) == 200, "there are units again")
    # Five requests in ten seconds, whatever the instance. Three instances that count separately would admit fifteen at once.
    began = time.monotonic()
    statuses = [project.status(instance) for instance in instances * 6]
    refilled = (time.monotonic() - began) / 2 + 1
    assert statuses.count(200) <= 5 + refilled and set(statuses) <= {200, 429}, statuses
    project.change({"limit": "2/h", "burst": 2})
    eventually(lambda: [project.status(instance) for instance in instances * 2] == [429] * 6, "the changed limit is applied by all")
    project.compose("stop")
    assert [project.lab.container(instance)["State"]["ExitCode"] for instance in instances] == [0] * 3
