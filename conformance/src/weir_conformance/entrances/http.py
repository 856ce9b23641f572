"""The entrance of reverse proxies and servers, and of decision endpoints: HTTP/1.1."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterable

from weir_conformance.reply import Probe, Reply

TIMEOUT = 10.0


class HttpEntrance:
    """A client with one persistent connection for each address from which it connects."""

    def __init__(self, port: int, rejections: frozenset[int], *, is_decision: bool = False) -> None:
        self._port, self._rejections, self._is_decision = port, rejections, is_decision
        self._connections: dict[str, socket.socket] = {}

    def send(self, probe: Probe) -> Reply:
        for attempt in range(2):
            connection = self._connection(probe.source)
            sent = time.monotonic()
            try:
                connection.sendall(self.encode(probe))
                status, headers, body = read_response(connection)
            except (OSError, ValueError):
                # A server may close an idle connection at any time.
                self._drop(probe.source)
                if attempt:
                    raise
                continue
            received = time.monotonic()
            if headers.get("connection", "").lower() == "close":
                self._drop(probe.source)
            # Any other error is a rejection, too, if not the one that was to be expected.
            admitted = 200 <= status < 300 if self._is_decision else status < 400 and status not in self._rejections
            return Reply(status, admitted, sent, received, headers, body)
        raise AssertionError("unreachable")

    def encode(self, probe: Probe) -> bytes:
        """Returns a request as bytes."""
        lines = probe.header_lines()
        path = probe.path
        if self._is_decision:
            # What Traefik's `forwardAuth` sends.
            lines += [("x-forwarded-method", "GET"), ("x-forwarded-proto", "http"), ("x-forwarded-host", "a.test")]
            lines += [("x-forwarded-uri", probe.path)]
            if all(name != "x-forwarded-for" for name, _ in lines):
                lines.append(("x-forwarded-for", probe.source))
            path = "/"
        fields = "".join(f"{name}: {value}\r\n" for name, value in lines)
        return f"GET {path} HTTP/1.1\r\nhost: a.test\r\n{fields}\r\n".encode("latin-1")

    def close(self) -> None:
        for source in list(self._connections):
            self._drop(source)

    def _connection(self, source: str) -> socket.socket:
        known = self._connections.get(source)
        if known is not None:
            return known
        connection = socket.create_connection(("127.0.0.1", self._port), TIMEOUT, (source, 0))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return self._connections.setdefault(source, connection)

    def _drop(self, source: str) -> None:
        if (connection := self._connections.pop(source, None)) is not None:
            connection.close()


def read_response(connection: socket.socket) -> tuple[int, dict[str, str], bytes]:
    """Reads one response: its status, its headers and its body."""
    received = b""
    while b"\r\n\r\n" not in received:
        more = connection.recv(65536)
        if not more:
            raise ConnectionError("closed before the end of the response's headers")
        received += more
    head, _, body = received.partition(b"\r\n\r\n")
    lines = head.decode("latin-1").split("\r\n")
    status = int(lines[0].split(" ")[1])
    if 100 <= status < 200:
        raise ValueError(f"an interim response, {status}")
    headers = join_headers(line.partition(":")[::2] for line in lines[1:])
    return status, headers, _read_body(connection, headers, body, status)


def join_headers(lines: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Returns header lines by name in lower case, lines of one name joined."""
    headers: dict[str, str] = {}
    for name, value in lines:
        name, value = name.strip().lower(), value.strip()
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers


def _read_body(connection: socket.socket, headers: dict[str, str], body: bytes, status: int) -> bytes:
    def more() -> bytes:
        received = connection.recv(65536)
        if not received:
            raise ConnectionError("closed within the response's body")
        return received

    if status in (204, 304):
        return b""
    if "chunked" in headers.get("transfer-encoding", "").lower():
        content = b""
        while True:
            while b"\r\n" not in body:
                body += more()
            size_text, _, body = body.partition(b"\r\n")
            size = int(size_text.split(b";")[0], 16)
            while len(body) < size + 2:
                body += more()
            content, body = content + body[:size], body[size + 2 :]
            if size == 0:
                return content
    length = int(headers.get("content-length", "0"))
    while len(body) < length:
        body += more()
    return body
