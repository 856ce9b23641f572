"""Input that is not HTTP, or barely. A server may respond with an error or close the connection. It must not crash, hang, or let
requests pass uncounted."""

from __future__ import annotations

import socket
import time

from weir_conformance.context import Context, align, expect, send_all
from weir_conformance.limit import Limit
from weir_conformance.process import TargetProcess
from weir_conformance.reply import Probe
from weir_conformance.requirement import Severity, requirement
from weir_conformance.target import HTTP

RFC_9112 = "RFC 9112"

MALFORMED: dict[str, bytes] = {
    "no version": b"GET /\r\n\r\n",
    "version 9.9": b"GET / HTTP/9.9\r\nhost: a.test\r\n\r\n",
    "no host": b"GET / HTTP/1.1\r\n\r\n",
    "two hosts": b"GET / HTTP/1.1\r\nhost: a.test\r\nhost: b.test\r\n\r\n",
    "space before colon": b"GET / HTTP/1.1\r\nhost : a.test\r\n\r\n",
    "bare CR": b"GET / HTTP/1.1\r\nhost: a.test\r\nx: a\rb\r\n\r\n",
    "NUL in value": b"GET / HTTP/1.1\r\nhost: a.test\r\nx: a\x00b\r\n\r\n",
    "folded header": b"GET / HTTP/1.1\r\nhost: a.test\r\nx: a\r\n b\r\n\r\n",
    "two lengths": b"POST / HTTP/1.1\r\nhost: a.test\r\ncontent-length: 3\r\ncontent-length: 4\r\n\r\nabcd",
    "length and chunked": b"POST / HTTP/1.1\r\nhost: a.test\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "negative length": b"POST / HTTP/1.1\r\nhost: a.test\r\ncontent-length: -1\r\n\r\n",
    "length with plus": b"POST / HTTP/1.1\r\nhost: a.test\r\ncontent-length: +3\r\n\r\nabc",
    "chunked twice": b"POST / HTTP/1.1\r\nhost: a.test\r\ntransfer-encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
    "unknown coding last": b"POST / HTTP/1.1\r\nhost: a.test\r\ntransfer-encoding: chunked, x\r\n\r\n0\r\n\r\n",
    "chunk size with sign": b"POST / HTTP/1.1\r\nhost: a.test\r\ntransfer-encoding: chunked\r\n\r\n+3\r\nabc\r\n0\r\n\r\n",
    "huge chunk size": b"POST / HTTP/1.1\r\nhost: a.test\r\ntransfer-encoding: chunked\r\n\r\nffffffffffffffffff\r\n",
    "space in target": b"GET /a b HTTP/1.1\r\nhost: a.test\r\n\r\n",
    "control in target": b"GET /\x01 HTTP/1.1\r\nhost: a.test\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64),
    "HTTP/2 preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "zeros": bytes(4096),
    "long line": b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\nhost: a.test\r\n\r\n",
    "many headers": b"GET / HTTP/1.1\r\nhost: a.test\r\n" + b"x: y\r\n" * 20_000 + b"\r\n",
}
"""Requests that RFC 9112 does not allow, or that are larger than any limit."""


def exchange(instance: TargetProcess, sent: bytes, *, until_head: bool = False) -> bytes:
    """Sends bytes, and returns what comes back within two seconds or until the connection ends. With `until_head`, the client keeps its
    side open, and reads the first line only: some servers drop a response whose client has ended its side."""
    received = b""
    try:
        with socket.create_connection(("127.0.0.1", instance.port), 2) as connection:
            connection.settimeout(2)
            connection.sendall(sent)
            if not until_head:
                connection.shutdown(socket.SHUT_WR)
            while not (until_head and b"\r\n" in received) and len(received) < 1 << 20 and (more := connection.recv(65536)):
                received += more
    except OSError:
        pass
    return received


@requirement("HOSTILE-1", "Serves after malformed input", source=RFC_9112, needs=("key.header", "http"))
def survives(context: Context) -> None:
    """After each malformed input the process runs, and responds to a request within a second."""
    instance = context.instance(context.limit(5))
    for name, sent in MALFORMED.items():
        exchange(instance, sent)
        expect(instance.is_running, f"ended after: {name}")
        reply = context.client(instance).send(Probe(context.new_key()))
        expect(reply.received - reply.sent < 1 and reply.status < 500, f"status {reply.status} after: {name}")


MUST_REJECT = ("no host", "two hosts", "space before colon", "two lengths", "negative length", "length with plus", "NUL in value")
"""Malformed requests to which a server must respond with 400, or none at all (RFC 9112 sections 3.2, 5.1, 5.5 and 6.3)."""


@requirement("HOSTILE-2", "Rejects what must be rejected", source="RFC 9112 sections 3.2, 5.1 and 6.3: request smuggling", needs=("key.header", "http"))
def rejects_malformed(context: Context) -> None:
    """A request without a host, with two, with two lengths, or with a space after a header's name gets no successful response."""
    instance = context.instance(context.limit(5))
    for name in MUST_REJECT:
        status = exchange(instance, MALFORMED[name], until_head=True)[:12]
        expect(not status.startswith(b"HTTP/1.1 2"), f"{status.decode('latin-1')} after: {name}")


@requirement("HOSTILE-3", "Pipelined requests are counted", source="RFC 9112 section 9.3.2", needs=("key.header", "http"))
def pipelined(context: Context) -> None:
    """Twenty requests in one packet are admitted no more often than one by one."""
    limit: Limit = context.limit(5)
    instance, key = context.instance(limit), context.new_key()
    request = f"GET / HTTP/1.1\r\nhost: a.test\r\nx-key: {key}\r\n\r\n".encode()
    align(limit.period)
    began = time.monotonic()
    received = exchange(instance, request * 19 + request.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"))
    took = time.monotonic() - began
    passed = received.count(b"HTTP/1.1 2")
    most = limit.count + int(took / limit.interval) + 1
    expect(passed <= most, f"admitted {passed} of 20 pipelined requests, the limit is {limit.count}")


@requirement("HOSTILE-4", "A slow request holds no other", source="Slowloris", needs=("key.header",))
def slow_request(context: Context) -> None:
    """While two hundred connections have sent half of a header, another request is served within a second."""
    instance = context.instance(context.limit(5))
    held = []
    try:
        for _ in range(200):
            connection = socket.create_connection(("127.0.0.1", instance.port), 5)
            connection.sendall(b"GET / HTTP/1.1\r\nhost: a.te" if HTTP in context.target.capabilities else b"PRI * HTTP/2.0")
            held.append(connection)
        reply = context.client(instance).send(Probe(context.new_key()))
        expect(reply.received - reply.sent < 1, f"a request took {reply.received - reply.sent:.1f} s")
    finally:
        for connection in held:
            connection.close()


@requirement("HOSTILE-5", "Strange keys are keys", source="RFC 9110 section 5.5", severity=Severity.SHOULD, needs=("key.header", "http"))
def strange_keys(context: Context) -> None:
    """Very long keys, and keys with bytes beyond ASCII, are counted or rejected. None is unlimited."""
    limit = context.limit(5)
    client = context.client(context.instance(limit))
    for key in ("k" * 6000, "k\xe9\xff", "k%00", "k;v=1", '"k"', "k{}$("):
        align(limit.period)
        replies = send_all(client, [Probe(key)] * (2 * limit.count))
        count = sum(reply.admitted and reply.status < 400 for reply in replies)
        most = limit.count + int((replies[-1].received - replies[0].sent) / limit.interval) + 1
        expect(count <= most, f"admitted {count} of {len(replies)} with the key {key[:12]!r}, the limit is {limit.count}")
