"""An injected pod without Kubernetes: its init containers run in a network namespace, in front of an unchanged application."""

import json
import pathlib
import shutil
import subprocess
import sys

import pytest
import yaml
from support import ROOT, WEIR_BIN

MANIFEST = ROOT / "crates" / "inject" / "tests" / "manifests" / "batch.yaml"


def refusal():
    """Returns why this machine cannot play the pod, or None. Two users and a network are needed."""
    for command in (["unshare", "-n", "true"], ["setpriv", "--reuid", "65532", "--clear-groups", "true"]):
        if not shutil.which(command[0]):
            return f"{command[0]} is missing"
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode:
            return f"{' '.join(command)}: {result.stderr.strip()}"
    return None


def inside(directory):
    """Plays the pod. Its ports are fixed, and nothing else is in its network."""
    import fcntl
    import http.client
    import http.server
    import socket
    import struct
    import threading
    import time

    with socket.socket() as s:
        up = struct.pack("16sh", b"lo", 0x41)
        fcntl.ioctl(s, 0x8914, up)
    objects = list(yaml.safe_load_all((directory / "injected.yaml").read_text()))
    configuration = directory / "weir.yaml"
    configuration.write_text(objects[0]["data"]["weir.yaml"])
    spec = objects[1]["spec"]["template"]["spec"]
    rules, sidecar = spec["initContainers"]
    port = spec["containers"][0]["ports"][0]["containerPort"]

    class Application(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    class Server(http.server.ThreadingHTTPServer):
        address_family = socket.AF_INET6

    threading.Thread(target=Server(("::", port), Application).serve_forever, daemon=True).start()

    def status(host, port, path="/"):
        connection = http.client.HTTPConnection(host, port, timeout=5)
        connection.request("GET", path)
        return connection.getresponse().status

    found = {"before": status("127.0.0.1", port)}
    subprocess.run([WEIR_BIN, *rules["args"]], check=True)
    subprocess.run([WEIR_BIN, *rules["args"]], check=True)
    context = sidecar["securityContext"]
    user = ["setpriv", "--reuid", str(context["runAsUser"]), "--regid", str(context["runAsGroup"]), "--clear-groups"]
    weir = subprocess.Popen([*user, WEIR_BIN, *sidecar["args"], "-c", configuration])
    probe = sidecar["startupProbe"]["httpGet"]
    until = time.monotonic() + 30
    while time.monotonic() < until:
        try:
            if status("127.0.0.1", probe["port"], probe["path"]) == 200:
                break
        except OSError:
            time.sleep(0.05)
    found["ipv4"] = [status("127.0.0.1", port) for _ in range(4)]
    found["ipv6"] = [status("::1", port) for _ in range(4)]
    weir.terminate()
    found["exit"] = weir.wait(30)
    print(json.dumps(found))


@pytest.mark.skipif(refusal() is not None, reason=str(refusal()))
def test_redirected_pod_limits_clients_of_an_unchanged_application(tmp_path):
    injected = subprocess.run(
        [WEIR_BIN, "inject", "--redirect", "--limit", "2/h", MANIFEST], capture_output=True, text=True, check=True
    )
    (tmp_path / "injected.yaml").write_text(injected.stdout)
    # The user of the sidecar reads the configuration here.
    for path in [tmp_path, *tmp_path.parents[:2]]:
        path.chmod(0o755)
    command = ["unshare", "-n", sys.executable, __file__, tmp_path]
    played = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    assert played.returncode == 0, played.stderr
    found = json.loads(played.stdout.splitlines()[-1])
    # Each address is a client of its own.
    assert found == {"before": 200, "ipv4": [200, 200, 429, 429], "ipv6": [200, 200, 429, 429], "exit": 0}


if __name__ == "__main__":
    inside(pathlib.Path(sys.argv[1]))
