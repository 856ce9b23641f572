"""Input that is not HTTP, or barely. A server may respond with an error or close the connection. It must not crash, hang, or let
requests pass uncounted."""

from __future__ import annotations

import re
import socket
import time
from concurrent.futures import ThreadPoolExecutor

from weir_conformance.context import Context, align, expect, send_all
from weir_conformance.corpus import corpus
from weir_conformance.limit import KEY_HEADER, Limit
from weir_conformance.process import TargetProcess
from weir_conformance.reply import Probe
from weir_conformance.requirement import Severity, requirement
from weir_conformance.target import HTTP

RFC_9112 = "RFC 9112"

BATCH = 16
"""Number of inputs that are sent at the same time."""

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


def exchange(instance: TargetProcess, sent: bytes, *, until_head: bool = False, ends: bool = True, patience: float = 2) -> bytes:
    """Sends bytes, and returns what comes back until nothing does for `patience` seconds, or the connection ends. With `until_head` it reads
    the first line only. With `ends`, the client ends its side when all is sent; some servers then drop the request."""
    received = b""
    try:
        with socket.create_connection(("127.0.0.1", instance.port), 2) as connection:
            connection.settimeout(patience)
            connection.sendall(sent)
            if ends and not until_head:
                connection.shutdown(socket.SHUT_WR)
            while not (until_head and b"\r\n" in received) and len(received) < 1 << 20 and (more := connection.recv(65536)):
                received += more
    except OSError:
        pass
    return received


def serves(context: Context, instance: TargetProcess) -> bool:
    """Whether a request is responded to within a second."""
    try:
        reply = context.client(instance).send(Probe(context.new_key()))
    except (OSError, ValueError):
        return False
    return reply.received - reply.sent < 1 and reply.status < 500


def survives(context: Context, inputs: dict[str, bytes], *, patience: float = 2) -> None:
    """Fails unless the process runs, and responds to a request within a second, after a few of the inputs at a time."""
    instance = context.instance(context.limit(5))
    with ThreadPoolExecutor(BATCH) as clients:
        for first in range(0, len(inputs), BATCH):
            batch = dict(list(inputs.items())[first : first + BATCH])
            list(clients.map(lambda sent: exchange(instance, sent, patience=patience), batch.values()))
            names = ", ".join(batch)
            # What the last inputs have left to do may take a moment.
            is_served = any(serves(context, instance) for _ in range(3))
            expect(instance.is_running, f"ended after one of: {names}")
            expect(is_served, f"does not respond within a second after one of: {names}")


def with_key(context: Context, sent: bytes, *, everywhere: bool = False) -> bytes:
    """Returns an input with a key of its own behind the first line, or behind every request line. Without one, it could be rejected for
    other reasons than its faults. What is within a body stays as it is, because its length is known."""
    line = b" HTTP/1.1\r\n" if everywhere else b"\r\n"
    return sent.replace(line, line + f"{KEY_HEADER}: {context.new_key()}\r\n".encode(), -1 if everywhere else 1)


def served(context: Context, inputs: dict[str, bytes]) -> list[str]:
    """Returns those of the inputs whose first response is successful, with its status line."""
    instance = context.instance(context.limit(5))
    sent = [with_key(context, one) for one in inputs.values()]
    with ThreadPoolExecutor(BATCH) as clients:
        heads = clients.map(lambda one: exchange(instance, one, until_head=True)[:12].decode("latin-1"), sent)
        return [f"{name} ({head})" for name, head in zip(inputs, heads, strict=True) if re.match(r"HTTP/1\.[01] 2", head)]


def inputs_with(faults: tuple[str, ...]) -> dict[str, bytes]:
    """Returns the inputs that must be rejected for one of these reasons."""
    return {one.name: one.sent for one in corpus() if one.fault in faults}


@requirement("HOSTILE-1", "Serves after malformed input", source=RFC_9112, needs=("key.header", "http"))
def survives_malformed(context: Context) -> None:
    """After malformed inputs the process runs, and responds to a request within a second."""
    survives(context, MALFORMED | {one.name: one.sent for one in corpus() if not one.is_http_2})


MUST_REJECT = ("no host", "two hosts", "space before colon")
"""Malformed requests to which a server must respond with 400, or none at all (RFC 9112 sections 3.2 and 5.1)."""


@requirement("HOSTILE-2", "Rejects what must be rejected", source="RFC 9112 sections 3.2 and 5.1", needs=("key.header", "http"))
def rejects_malformed(context: Context) -> None:
    """A request without a host, with two, or with a space after a header's name gets no successful response."""
    found = served(context, {name: MALFORMED[name] for name in MUST_REJECT} | inputs_with(("HOSTS", "NAME")))
    expect(not found, f"served: {', '.join(found)}")


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


@requirement("HOSTILE-6", "Serves after malformed HTTP/2", source="RFC 9113, RFC 7541", needs=("key.header", "http"))
def survives_http_2(context: Context) -> None:
    """After malformed frames, header blocks that grow, and floods of frames the process runs, and responds to a request within a second.
    A server that does not speak HTTP/2 without TLS gets them as well."""
    survives(context, {one.name: one.sent for one in corpus() if one.is_http_2}, patience=0.3)


@requirement("HOSTILE-7", "Rejects faulty framing", source="RFC 9112 section 6.3: request smuggling", needs=("key.header", "http"))
def rejects_faulty_framing(context: Context) -> None:
    """A request whose length is no number, or another one each time, or that has a coding behind the chunks, gets no successful response:
    nobody knows where it ends."""
    faulty = {name: MALFORMED[name] for name in ("two lengths", "negative length", "length with plus")}
    found = served(context, faulty | inputs_with(("FRAMING",)))
    expect(not found, f"served: {', '.join(found)}")


@requirement(
    "HOSTILE-8", "What is forwarded has one meaning", source="RFC 9112 sections 5.2, 6.1 and 11.2, RFC 9110 section 5.5", needs=("key.header", "http", "forwards")
)
def forwards_one_meaning(context: Context) -> None:
    """Of all hostile inputs, nothing is forwarded whose lines, names or length another reader may understand differently: a request that is
    hidden from the limiter is not counted."""
    instance, before = context.instance(context.limit(5)), len(context.origin.ambiguous)
    sent = [with_key(context, one) for one in MALFORMED.values()]
    sent += [one.sent if one.is_http_2 else with_key(context, one.sent) for one in corpus()]
    with ThreadPoolExecutor(BATCH) as clients:
        list(clients.map(lambda one: exchange(instance, one, ends=False, patience=0.3), sent))
    # What is between the target and the service still counts.
    time.sleep(0.5)
    found = context.origin.ambiguous[before:]
    expect(not found, f"{len(found)} lines, the first ones: {found[:5]!r}")


@requirement(
    "HOSTILE-9", "Nothing follows a chunk that is not valid", source="RFC 9112 sections 2.2 and 7.1", severity=Severity.SHOULD, needs=("key.header", "http")
)
def nothing_follows_faulty_chunks(context: Context) -> None:
    """A server may respond before it has read a body. What stands behind a chunk without a valid size is not taken for another request."""
    instance, inputs = context.instance(context.limit(5)), inputs_with(("CHUNKS",))
    with ThreadPoolExecutor(BATCH) as clients:
        received = clients.map(lambda sent: exchange(instance, with_key(context, sent, everywhere=True), ends=False), inputs.values())
        statuses = [re.findall(rb"HTTP/1\.[01] (\d+)", responses) for responses in received]
    # The body may be rejected after an early response.
    found = [name for name, all_of in zip(inputs, statuses, strict=True) if any(status[:1] == b"2" or status == b"429" for status in all_of[1:])]
    expect(not found, f"another request was served behind: {', '.join(found)}")


@requirement("HOSTILE-10", "Rejects a host that is not valid", source="RFC 9112 section 3.2", needs=("key.header", "http"))
def rejects_invalid_hosts(context: Context) -> None:
    """A request whose host has a path, a name and `@`, a port that is no number, a space, or half of a literal address, gets no successful
    response."""
    found = served(context, inputs_with(("HOST",)))
    expect(not found, f"served: {', '.join(found)}")
