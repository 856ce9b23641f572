"""The proxy under test, as a child process."""

import http.client
import json
import os
import re
import subprocess
import tempfile
import threading
import time

CONFIGURATION = """
listeners:
  - address: 127.0.0.1:0
    name: inbound
    header_timeout: 3s
    idle_timeout: 10s
workers: 1
upstream:
  address: "127.0.0.1:{origin}"
  http2: {http2}
  timeout: 2s
  idle_timeout: 3s
  outliers: false
admin: {{ address: 127.0.0.1:0 }}
rules:
  - {{ name: admin, match: {{ path: /admin/* }}, action: deny }}
  - {{ name: internal, match: {{ host: internal.test }}, action: deny }}
  - {{ name: counted, key: [client_ip], limit: 100000/s }}
"""

# Far above the sum of the bounds of the configuration, and far below what a leak reaches within minutes.
MAX_RESIDENT_MIB = 512
MAX_DESCRIPTORS = 1500


class Proxy:
    """A running Weir that forwards to a port of this machine."""

    def __init__(self, binary, origin, http2=False):
        self.directory = tempfile.TemporaryDirectory()
        file = os.path.join(self.directory.name, "weir.yaml")
        with open(file, "w", encoding="utf-8") as out:
            out.write(CONFIGURATION.format(origin=origin, http2="true" if http2 else "false"))
        self.process = subprocess.Popen(
            [binary, "run", "-c", file, "--log-format", "json"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.log, self.ports = [], {}
        self.reader = threading.Thread(target=self.read_log, daemon=True)
        self.reader.start()
        deadline = time.monotonic() + 20
        while len(self.ports) < 2:
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{binary} does not start:\n" + "\n".join(self.log))
            time.sleep(0.01)
        self.port, self.admin = self.ports["listening"], self.ports["admin listening"]

    def read_log(self):
        """Keeps the last lines of the log, and records the ports."""
        for line in self.process.stderr:
            self.log.append(line.rstrip())
            del self.log[:-200]
            if len(self.ports) < 2 and line.startswith("{"):
                said = json.loads(line)
                if said.get("message") in ("listening", "admin listening"):
                    self.ports[said["message"]] = int(said["address"].rsplit(":", 1)[1])

    def metrics(self):
        """Returns the metrics, with the samples of each name summed up."""
        connection = http.client.HTTPConnection("127.0.0.1", self.admin, timeout=10)
        try:
            connection.request("GET", "/metrics")
            text = connection.getresponse().read().decode()
        finally:
            connection.close()
        sums = {}
        for name, value in re.findall(r"^(\w+)(?:\{.*\})? (\S+)$", text, re.MULTILINE):
            sums[name] = sums.get(name, 0.0) + float(value)
        return sums

    def complaints(self):
        """Returns the problems with the process as a whole. Must be called while no request is in flight."""
        if self.process.poll() is not None:
            return [f"process ended with {self.process.returncode}"]
        deadline = time.monotonic() + 5
        while True:
            metrics = self.metrics()
            stuck = {
                name: value
                for name, value in metrics.items()
                if name in ("weir_requests_in_flight", "weir_upstream_requests_in_flight") and value != 0
            }
            if not stuck or time.monotonic() > deadline:
                break
            time.sleep(0.05)
        complaints = [f"{name} stays at {value:g}" for name, value in stuck.items()]
        if metrics.get("weir_panics_total", 0) > 0:
            complaints.append("a panic")
        if (resident := self.resident_mib()) > MAX_RESIDENT_MIB:
            complaints.append(f"{resident} MiB resident")
        if (descriptors := len(os.listdir(f"/proc/{self.process.pid}/fd"))) > MAX_DESCRIPTORS:
            complaints.append(f"{descriptors} open descriptors")
        return complaints

    def resident_mib(self):
        """Returns the resident memory of the process in MiB."""
        with open(f"/proc/{self.process.pid}/status", encoding="ascii") as status:
            return int(re.search(r"VmRSS:\s+(\d+)", status.read())[1]) // 1024

    def stop(self):
        """Stops the process. Returns the problems with its exit."""
        self.process.terminate()
        try:
            code = self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            code = "no end within 30 s of SIGTERM"
        self.reader.join(5)
        self.directory.cleanup()
        return [] if code == 0 else [f"process ended with {code}"]
