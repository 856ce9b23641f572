"""The machine in which containers run: one for a session of tests, with commands, images and pods."""

import json
import os
import pathlib
import subprocess
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
# Inside the lab.
LAB, SOURCE = pathlib.PurePosixPath("/lab"), pathlib.PurePosixPath("/src")
ENVIRONMENT = {
    "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "CONTAINERS_CONF": "/lab/containers.conf",
    "CONTAINERS_STORAGE_CONF": "/lab/storage.conf",
    # Where Buildah and Podman would else ask a registry.
    "CONTAINERS_SHORT_NAME_ALIASING": "off",
}


class Lab:
    """Namespaces that last as long as this object. Paths of commands are those inside; `directory` is /lab there."""

    def __init__(self, directory):
        self.directory = pathlib.Path(directory)
        self.process = subprocess.Popen([HERE / "lab", "hold", directory], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout.readline() == "ready\n", "the lab has not started, its problem is above"
        children = pathlib.Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        self.first_process = int(children.split()[0])

    def close(self):
        self.process.stdin.close()
        self.process.wait(timeout=60)

    def command(self, *arguments):
        """Returns a command of this machine that runs another one in the lab."""
        enter = ["nsenter", f"--target={self.first_process}", "--mount", "--net", "--pid", "--root"]
        return [*enter, "/usr/bin/env", "--chdir=/", "-i", *(f"{name}={value}" for name, value in ENVIRONMENT.items()), *map(str, arguments)]

    def run(self, *arguments, timeout=120):
        """Runs a command in the lab, and returns its output. A failure shows both outputs."""
        result = subprocess.run(self.command(*arguments), capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL)
        assert result.returncode == 0, f"{' '.join(map(str, arguments))}: exit code {result.returncode}\n{result.stdout}{result.stderr}"
        return result.stdout

    def start(self, *arguments):
        """Starts a command in the lab, whose output the caller reads."""
        return subprocess.Popen(self.command(*arguments), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def container(self, name):
        return json.loads(self.run("podman", "inspect", name))[0]

    def address(self, name):
        """Returns the address of a container, or of the first container of a pod, in its network."""
        network = next(iter(self.container(name)["NetworkSettings"]["Networks"].values()))
        return network["IPAddress"]

    # Clients are in the lab, so outside of the pods. Each gets a connection of its own, unless a command sends several requests.

    def curl(self, *arguments):
        return self.run("curl", "--silent", "--max-time", "30", *arguments)

    def status(self, url):
        """Sends a request, and returns the status code of the response; 0 without one."""
        sent = subprocess.run(self.command(*self.status_command(url)), capture_output=True, text=True, timeout=60)
        return int(sent.stdout)

    def status_command(self, url):
        return ("curl", "--silent", "--max-time", "30", "--output", "/dev/null", "--write-out", "%{http_code}", url)

    def until_rejected(self, url, most):
        """Sends requests one after the other, at most so many, until one is rejected. Returns their status codes."""
        # The exit code of curl is that of the rejection.
        command = self.command("curl", "--silent", "--fail", "--fail-early", "--output", "/dev/null",
                               "--write-out", "%{http_code}\\n", f"{url}?[1-{most}]")
        sent = subprocess.run(command, capture_output=True, text=True, timeout=120)
        return [int(code) for code in sent.stdout.split()]


def eventually(condition, what, seconds=30):
    """Waits for a condition, and returns its value."""
    end = time.monotonic() + seconds
    while True:
        found = condition()
        if found:
            return found
        assert time.monotonic() < end, f"{what}: not within {seconds} s"
        time.sleep(0.05)


def binary():
    """Returns the path of Weir's binary, or none."""
    named = os.environ.get("WEIR_BIN")
    return pathlib.Path(named) if named and pathlib.Path(named).exists() else None
