"""The example of deploy/envoy, run: Envoy limits requests by the decisions of Weir, as its comments describe."""

import http.server
import json
import pathlib
import subprocess
import tempfile
import threading
import time
import urllib.error
import urllib.request

import pytest
import yaml
from support import DEPLOY, WEIR_BIN
from test_deploy import ENVOY, bootstrap, connection_manager

pytestmark = pytest.mark.skipif(not (ENVOY and WEIR_BIN), reason="needs envoy and WEIR_BIN")


class Hello(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


def wait_for(condition, what):
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        time.sleep(0.05)
    pytest.fail(f"no {what} in time")


def get(url):
    try:
        with urllib.request.urlopen(url, timeout=20) as response:
            return response.status, response.headers
    except urllib.error.HTTPError as error:
        return error.code, error.headers
    except OSError:
        return None, None


@pytest.fixture
def edge():
    """Runs the service, Weir and Envoy, and returns the URL of Envoy's listener. No port is fixed."""
    with tempfile.TemporaryDirectory(prefix="weir-envoy-") as name:
        directory = pathlib.Path(name)
        service = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hello)
        threading.Thread(target=service.serve_forever, daemon=True).start()
        rules = yaml.safe_load((DEPLOY / "envoy" / "weir.yaml").read_text())
        rules["rls"]["address"] = f"unix:{directory}/rls"
        rules["admin"]["address"] = "127.0.0.1:0"
        (directory / "weir.yaml").write_text(yaml.safe_dump(rules))
        weir = subprocess.Popen([WEIR_BIN, "run", "-c", directory / "weir.yaml"], stderr=subprocess.DEVNULL)
        envoy = None
        try:
            wait_for((directory / "rls").exists, "socket of Weir")
            (directory / "envoy.yaml").write_text(yaml.safe_dump(envoy_config(service.server_port, directory / "rls")))
            command = [ENVOY, "-c", directory / "envoy.yaml", "--admin-address-path", directory / "admin"]
            command += ["--base-id-path", directory / "base", "--use-dynamic-base-id", "--concurrency", "1"]
            envoy = subprocess.Popen([*command, "--log-level", "error"])
            wait_for(lambda: (directory / "admin").exists() and (directory / "admin").read_text(), "admin address of Envoy")
            admin = f"http://{(directory / 'admin').read_text()}"
            wait_for(lambda: get(f"{admin}/ready")[0] == 200, "ready Envoy")
            with urllib.request.urlopen(f"{admin}/listeners?format=json", timeout=20) as response:
                socket = json.load(response)["listener_statuses"][0]["local_address"]["socket_address"]
            clusters = f"{admin}/clusters"
            wait_for(lambda: b"weir::" in read(clusters) and b"/failed_active_hc" not in read(clusters), "healthy cluster")
            yield f"http://127.0.0.1:{socket['port_value']}"
        finally:
            for process in (envoy, weir):
                if process:
                    process.terminate()
                    process.wait(timeout=60)
            service.shutdown()


def read(url):
    with urllib.request.urlopen(url, timeout=20) as response:
        return response.read()


def envoy_config(service_port, socket):
    """Returns the configuration of the example with the addresses of this run, and a longer timeout for slow machines."""
    config = bootstrap()
    config["admin"]["address"]["socket_address"]["port_value"] = 0
    resources = config["static_resources"]
    resources["listeners"][0]["address"]["socket_address"]["port_value"] = 0
    connection_manager(config)["http_filters"][0]["typed_config"]["timeout"] = "20s"
    service, weir = resources["clusters"]
    endpoint(service)["socket_address"]["port_value"] = service_port
    weir["type"] = "STATIC"
    endpoint(weir).clear()
    weir["load_assignment"]["endpoints"][0]["lb_endpoints"][0]["endpoint"]["address"] = {"pipe": {"path": str(socket)}}
    return config


def endpoint(cluster):
    return cluster["load_assignment"]["endpoints"][0]["lb_endpoints"][0]["endpoint"]["address"]


def test_requests_above_the_limit_get_429_with_the_headers_of_the_comment(edge):
    responses = [get(f"{edge}/") for _ in range(10)]
    assert [status for status, _ in responses] == [200] * 10
    # Units come back while the requests are sent, one a second.
    responses = [get(f"{edge}/") for _ in range(40)]
    headers = next(headers for status, headers in responses if status == 429)
    assert headers["x-envoy-ratelimited"] == "true"
    assert headers["x-ratelimit-limit"] == "10" and headers["x-ratelimit-remaining"] == "0"


def test_both_limits_of_a_login_apply(edge):
    assert [get(f"{edge}/login")[0] for _ in range(5)] == [200, 200, 200, 429, 429]
    # A rejected login was charged by neither limit, so seven units of the address are left.
    assert [get(f"{edge}/")[0] for _ in range(7)] == [200] * 7
