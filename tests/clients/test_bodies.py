"""Clients of services whose bodies rules read, with the configurations of config/: MCP, GraphQL, logins.

The services and the proxy are on loopback, on ports of the system's choice.
"""

import asyncio
import http.server
import json
import pathlib
import threading
import time

import gql
import httpx
import mcp
import pytest
import requests
import uvicorn
from gql.transport import exceptions
from gql.transport.httpx import HTTPXTransport
from graphql import get_introspection_query
from mcp.server.mcpserver import MCPServer
from weir_process import DEADLINE, Weir

CONFIG = pathlib.Path(__file__).parents[2] / "config"


class Service(http.server.BaseHTTPRequestHandler):
    """Responds to GraphQL with data, and to logins as the password says."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"])).decode()
        if self.path == "/login":
            status, reply = (200 if "right" in body else 401), {}
        else:
            status, reply = 200, {"data": {"users": [{"name": "ann"}]}}
        reply = json.dumps(reply).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(reply)))
        self.end_headers()
        self.wfile.write(reply)

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def service():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Service)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_address[1]
    server.shutdown()


@pytest.fixture(scope="module")
def tools():
    """The port of an MCP server with three tools."""
    server = MCPServer("tools")
    for name in ["search", "add", "admin_reset"]:
        server.add_tool(lambda text: text.upper(), name=name, description="A tool.")
    app = server.streamable_http_app()
    web = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="warning"))
    thread = threading.Thread(target=web.run, daemon=True)
    thread.start()
    deadline = time.monotonic() + DEADLINE
    while not web.started:
        assert thread.is_alive() and time.monotonic() < deadline
        time.sleep(0.01)
    yield web.servers[0].sockets[0].getsockname()[1]
    web.should_exit = True
    thread.join(DEADLINE)


@pytest.fixture
def proxy(tmp_path):
    """Starts Weir with a configuration of config/ in front of a port, and returns its URL."""
    started = []

    def start(name, port):
        text = (CONFIG / name).read_text()
        for given, replacement in [("127.0.0.1:8080", "127.0.0.1:0"), ("127.0.0.1:3000", f"127.0.0.1:{port}")]:
            lines = [line if line.startswith("#") else line.replace(given, replacement) for line in text.splitlines()]
            text = "\n".join(lines)
        weir = Weir(tmp_path / name, text + "\nworkers: 1")
        started.append(weir)
        return "http://" + weir.address

    yield start
    for weir in started:
        assert weir.stop() == 0


def test_mcp_client_calls_tools_within_their_limits(proxy, tools):
    url = proxy("mcp.yaml", tools) + "/mcp"

    async def call(client, tool):
        result = await client.call_tool(tool, {"text": "abc"})
        return result.content[0].text

    async def session():
        async with mcp.Client(url) as client:
            assert {tool.name for tool in (await client.list_tools()).tools} == {"search", "add", "admin_reset"}
            for _ in range(5):
                assert await call(client, "search") == "ABC"
            with pytest.raises(Exception):
                await call(client, "search")
        async with mcp.Client(url) as client:
            assert await call(client, "add") == "ABC", "another tool"
            with pytest.raises(Exception):
                await call(client, "admin_reset")

    asyncio.run(asyncio.wait_for(session(), DEADLINE))
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "admin_reset"}}
    assert requests.post(url, json=message, timeout=DEADLINE).status_code == 403


def test_graphql_client_is_charged_for_fields(proxy, service):
    url = proxy("graphql.yaml", service) + "/graphql"
    query = "query Users($n: Int!) { users(first: $n) { ...Fields } } fragment Fields on User { name }"

    def users(key, count):
        transport = HTTPXTransport(url=url, headers={"x-api-key": key}, timeout=DEADLINE)
        with gql.Client(transport=transport) as client:
            request = gql.gql(query)
            request.variable_values = {"n": count}
            return client.execute(request)

    # Nine points are left, however fast the next calls come.
    assert users("me", 4990) == {"users": [{"name": "ann"}]}
    with pytest.raises(exceptions.TransportQueryError, match="too many points"):
        users("me", 4999)
    assert users("me", 3) and users("you", 4999)
    by_url = requests.get(url, params={"query": "{ a b c }"}, headers={"x-api-key": "they"}, timeout=DEADLINE)
    assert by_url.headers["x-ratelimit-remaining"] == "4997"
    transport = HTTPXTransport(url=url, headers={"x-api-key": "tool"}, timeout=DEADLINE)
    with gql.Client(transport=transport) as client:
        assert client.execute(gql.gql(get_introspection_query())), "as deep as `depth` allows"


@pytest.mark.parametrize(
    "login",
    [
        lambda url, user, word: requests.post(url, data={"username": user, "password": word}, timeout=DEADLINE),
        lambda url, user, word: requests.post(url, json={"username": user, "password": word}, timeout=DEADLINE),
        lambda url, user, word: httpx.post(url, data={"username": user, "password": word}, timeout=DEADLINE),
        lambda url, user, word: httpx.post(url, json={"username": user, "password": word}, timeout=DEADLINE),
    ],
    ids=["requests-form", "requests-json", "httpx-form", "httpx-json"],
)
def test_failed_logins_of_an_account_are_limited(proxy, service, login):
    url = proxy("login.yaml", service) + "/login"
    assert {login(url, "ann", "right").status_code for _ in range(20)} == {200}
    assert [login(url, "ann", "wrong").status_code for _ in range(6)] == [401] * 5 + [429]
    assert login(url, "ann", "right").status_code == 429, "the account, whatever the password is"
    assert login(url, "bob", "right").status_code == 200
