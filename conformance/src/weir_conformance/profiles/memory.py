"""Many keys."""

from __future__ import annotations

import socket
import time

from weir_conformance.context import Context, admitted, expect, send_all
from weir_conformance.entrances.http import HttpEntrance
from weir_conformance.limit import Limit
from weir_conformance.outcome import Noise
from weir_conformance.process import TargetProcess
from weir_conformance.reply import Probe
from weir_conformance.requirement import Severity, requirement

KEYS = 1_000_000
BATCH = 200
SECONDS = 150.0


def flood(context: Context, instance: TargetProcess, keys: int, first: int = 0) -> int:
    """Sends one request of each of many keys, the first with this number, in batches over one connection. Returns how many were
    admitted."""
    if context.target.entrance == "rls":
        client = context.client(instance)
        return sum(client.send(Probe(f"many-{place}")).admitted for place in range(first, first + keys))
    encode = HttpEntrance(instance.port, context.target.statuses, is_decision=context.target.entrance == "decision").encode
    rejections = [f"HTTP/1.1 {status} ".encode() for status in context.target.statuses]
    connection, count, sent = socket.create_connection(("127.0.0.1", instance.port), 30), 0, 0
    try:
        while sent < keys:
            size = min(BATCH, keys - sent)
            places = range(first + sent, first + sent + size)
            connection.sendall(b"".join(encode(Probe(f"many-{place}")) for place in places))
            received, replies = b"", 0
            while replies < size:
                more = connection.recv(1 << 20)
                if not more:
                    break
                received += more
                replies = received.count(b"HTTP/1.1 ")
            # Some servers close a connection after a number of requests.
            count += replies - sum(received.count(rejection) for rejection in rejections)
            sent += replies if replies else 0
            if replies < size:
                connection.close()
                connection = socket.create_connection(("127.0.0.1", instance.port), 30)
            elif not received.endswith(b"\n") and b"\r\n\r\n" not in received[-4096:]:
                time.sleep(0.001)
    finally:
        connection.close()
    return count


def slow_limit(context: Context) -> Limit:
    return context.limit(5, 3600) if not context.target.periods or 3600 in context.target.periods else context.limit(5, 60)


@requirement("MEMORY-1", "A million keys do not free one that is over its limit", source="Envoy issue 34720: dynamic descriptors are evicted", needs=("key.header",))
def not_evicted(context: Context) -> None:
    """While a million other keys arrive, a key that has used its limit gets no new one."""
    limit, keys = slow_limit(context), int(KEYS * context.scale)
    if context.target.entrance == "rls":
        keys //= 20
    instance = context.start(limit)
    try:
        client, key = context.client(instance), context.new_key()
        send_all(client, [Probe(key)] * limit.count)
        began, size = time.monotonic(), max(1, keys // 20)
        done = 0
        while done < keys and time.monotonic() - began < SECONDS:
            flood(context, instance, size, done)
            done += size
        took = time.monotonic() - began
        context.measures.update(keys=float(done), resident_mib=instance.resident_bytes / (1 << 20))
        more = admitted(send_all(context.client(instance), [Probe(key)] * limit.count))
    finally:
        instance.stop()
    back = int(took / limit.interval)
    expect(more <= back, f"admitted {more} more after {done} other keys and {took:.0f} s, of which {back} had come back")


@requirement("MEMORY-2", "New keys are admitted among many", source="a full table must not reject everyone", severity=Severity.SHOULD, needs=("key.header",))
def new_keys_pass(context: Context) -> None:
    """After a hundred thousand other keys, a new key has its whole limit."""
    limit = slow_limit(context)
    instance = context.start(limit)
    try:
        flood(context, instance, int(100_000 * context.scale) if context.target.entrance != "rls" else 5000)
        key = context.new_key()
        count = admitted(send_all(context.client(instance), [Probe(key)] * (limit.count + 1)))
    finally:
        instance.stop()
    expect(count == limit.count, f"admitted {count} of {limit.count + 1} of a new key")


@requirement("MEMORY-3", "Memory is bounded", source="CWE-770: allocation without limits", severity=Severity.SHOULD, needs=("key.header",))
def memory_is_bounded(context: Context) -> None:
    """Twice as many keys do not take twice the memory for ever: a further two hundred thousand keys take less than 1 KiB each."""
    limit = slow_limit(context)
    instance = context.start(limit)
    try:
        keys = int(200_000 * context.scale) if context.target.entrance != "rls" else 5000
        before = instance.resident_bytes
        flood(context, instance, keys)
        grown = instance.resident_bytes - before
    finally:
        instance.stop()
    if before == 0:
        raise Noise("the memory of the target is not known")
    context.measures["bytes_per_key"] = grown / keys
    expect(grown < keys * 1024 + (32 << 20), f"{grown / keys:.0f} bytes for each key")
