"""Client programs and libraries through the forward proxy, each with its own proxy settings.

The origins and the proxy are on loopback, on ports of the system's choice.
"""

import http.server
import json
import os
import pathlib
import shutil
import ssl
import subprocess
import threading
from concurrent import futures

import grpc
import pytest
import requests
from weir_process import DEADLINE, Weir

HERE = pathlib.Path(__file__).parent


class Handler(http.server.BaseHTTPRequestHandler):
    """Responds with what it has received."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        length = int(self.headers.get("content-length", 0))
        seen = {
            "line": self.requestline,
            "headers": {name.lower(): value for name, value in self.headers.items()},
            "body": self.rfile.read(length).decode(),
        }
        body = json.dumps(seen).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """A self-signed certificate for localhost, and its key."""
    directory = tmp_path_factory.mktemp("tls")
    pair = directory / "origin.crt", directory / "origin.key"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
        + ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
        + ["-out", pair[0], "-keyout", pair[1]],
        check=True,
        capture_output=True,
    )
    return pair


def serve(certificate=None):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    if certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


class Peers:
    """The origins, and the proxy in front of them."""

    def __init__(self, certificate, directory):
        self.plain = serve()
        self.secure = serve(certificate)
        self.grpc = grpc.server(futures.ThreadPoolExecutor(2))
        echo = grpc.unary_unary_rpc_method_handler(lambda request, context: request)
        self.grpc.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("test.Echo", {"Say": echo})])
        self.grpc_port = self.grpc.add_insecure_port("127.0.0.1:0")
        self.grpc.start()
        ports = [self.port(self.plain), self.port(self.secure), self.grpc_port]
        self.weir = Weir(
            directory / "weir.yaml",
            f"""
listeners:
  - name: egress
    address: 127.0.0.1:0
    forward_proxy: {{ connect_ports: {ports}, tls: {{ ca: {certificate[0]} }} }}
workers: 1
rules:
  - {{ name: tunnels, match: {{ method: CONNECT }}, key: [host], limit: 1000/d }}
  - {{ name: by-host, key: [host], limit: 1000/d }}
""",
        )
        self.proxy = "http://" + self.weir.address

    @staticmethod
    def port(server):
        return server.server_address[1]

    def http(self, path="/path?query"):
        return f"http://localhost:{self.port(self.plain)}{path}"

    def https(self, path="/path?query"):
        return f"https://localhost:{self.port(self.secure)}{path}"

    def admitted(self, rule):
        """Requests that a rule has admitted so far."""
        return self.weir.metric("weir_decisions_total", rule=rule, outcome="allowed")

    def close(self):
        code = self.weir.stop()
        self.grpc.stop(None)
        return code


@pytest.fixture(scope="module")
def peers(certificate, tmp_path_factory):
    peers = Peers(certificate, tmp_path_factory.mktemp("weir"))
    yield peers
    assert peers.close() == 0


def proxied(seen, peers):
    """Asserts that an origin got a request from the proxy and not from the client."""
    assert seen["line"] == "GET /path?query HTTP/1.1"
    assert seen["headers"]["host"] == f"localhost:{peers.port(peers.plain)}"
    assert "weir-" in seen["headers"]["via"]
    assert not any(name.startswith(("x-forwarded", "x-envoy", "proxy-")) for name in seen["headers"])


def curl(*arguments):
    result = subprocess.run(
        ["curl", "--silent", "--show-error", "--max-time", str(DEADLINE), *arguments], capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def node(script, peers, certificate, **variables):
    environment = {
        **os.environ,
        "NODE_EXTRA_CA_CERTS": str(certificate[0]),
        "PROXY": peers.proxy,
        "HTTP": peers.http(),
        "HTTPS": peers.https(),
        **variables,
    }
    result = subprocess.run(
        ["node", "--input-type=module", "--eval", script],
        cwd=HERE,
        env=environment,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_curl_sends_an_absolute_target(peers):
    proxied(curl("--proxy", peers.proxy, peers.http()), peers)


def test_curl_keeps_the_connection_to_the_proxy(peers):
    command = ["curl", "--silent", "--proxy", peers.proxy, "--write-out", "%{num_connects}\n", "--output", "/dev/null"]
    again = ["--next", *command[1:]]
    result = subprocess.run([*command, peers.http(), *again, peers.http()], capture_output=True, text=True)
    assert result.stdout.split() == ["1", "0"]


def test_curl_tunnels_on_request(peers):
    before = peers.admitted("tunnels")
    seen = curl("--proxytunnel", "--proxy", peers.proxy, peers.http())
    assert seen["line"] == "GET /path?query HTTP/1.1" and "via" not in seen["headers"]
    assert peers.admitted("tunnels") == before + 1


def test_curl_tunnels_https(peers, certificate):
    before = peers.admitted("tunnels")
    seen = curl("--proxy", peers.proxy, "--cacert", str(certificate[0]), peers.https())
    assert seen["line"] == "GET /path?query HTTP/1.1" and "via" not in seen["headers"]
    assert peers.admitted("tunnels") == before + 1


def test_curl_sends_credentials_to_the_proxy_only(peers):
    proxied(curl("--proxy", peers.proxy, "--proxy-user", "user:password", peers.http()), peers)


def test_requests_uses_proxy_variables(peers, certificate, monkeypatch):
    for name in ["http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"]:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HTTP_PROXY", peers.proxy)
    monkeypatch.setenv("HTTPS_PROXY", peers.proxy)
    before = peers.admitted("tunnels")
    with requests.Session() as session:
        for _ in range(3):
            proxied(session.get(peers.http(), timeout=DEADLINE).json(), peers)
        for _ in range(3):
            response = session.post(peers.https(), data="x" * 100_000, verify=str(certificate[0]), timeout=DEADLINE)
            assert len(response.json()["body"]) == 100_000
    assert peers.admitted("tunnels") == before + 1, "one tunnel carries all three requests"


def test_requests_reports_a_rejected_tunnel(peers):
    with pytest.raises(requests.exceptions.ProxyError, match="403"):
        requests.get("https://localhost:1/", proxies={"https": peers.proxy}, timeout=DEADLINE)


def test_node_sends_an_absolute_target(peers, certificate):
    script = """
        import http from 'node:http';
        const proxy = new URL(process.env.PROXY);
        const options = { host: proxy.hostname, port: proxy.port, path: process.env.HTTP, headers: { host: new URL(process.env.HTTP).host } };
        http.get(options, response => response.pipe(process.stdout));
    """
    proxied(node(script, peers, certificate), peers)


@pytest.mark.skipif(not (HERE / "node_modules" / "undici").is_dir(), reason="needs npm ci in tests/clients")
def test_fetch_of_node_uses_a_proxy_agent(peers, certificate):
    before = peers.admitted("tunnels")
    script = """
        import { ProxyAgent, fetch } from 'undici';
        const dispatcher = new ProxyAgent(process.env.PROXY);
        const read = async url => (await fetch(url, { dispatcher })).json();
        const seen = [await read(process.env.HTTPS), await read(process.env.HTTPS), await read(process.env.HTTP)];
        console.log(JSON.stringify(seen));
        await dispatcher.close();
    """
    seen = node(script, peers, certificate)
    assert [one["line"] for one in seen] == ["GET /path?query HTTP/1.1"] * 3
    # undici uses CONNECT for `http` as well, and may open a tunnel before the previous one is free.
    assert before + 2 <= peers.admitted("tunnels") <= before + 3


@pytest.mark.parametrize("by_option", [True, False])
def test_grpc_tunnels_calls(peers, monkeypatch, by_option):
    before = peers.admitted("tunnels")
    options = [("grpc.http_proxy", peers.proxy)] if by_option else []
    if not by_option:
        monkeypatch.setenv("grpc_proxy", peers.proxy)
        monkeypatch.setenv("no_grpc_proxy", "")
    with grpc.insecure_channel(f"localhost:{peers.grpc_port}", options) as channel:
        say = channel.unary_unary("/test.Echo/Say")
        for size in [1, 100_000]:
            assert say(b"x" * size, timeout=DEADLINE) == b"x" * size
    assert peers.admitted("tunnels") == before + 1


def test_rules_count_hosts_of_all_clients(peers):
    assert peers.admitted("by-host") > 0
    assert shutil.which("curl") and peers.weir.process.poll() is None
