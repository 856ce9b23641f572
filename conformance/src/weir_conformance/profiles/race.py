"""Requests at the same time."""

from __future__ import annotations

import asyncio
import time

from weir_conformance.context import Context, expect, in_time
from weir_conformance.entrances.http import HttpEntrance
from weir_conformance.limit import Limit
from weir_conformance.reply import Probe
from weir_conformance.requirement import requirement

CONNECTIONS = 100
REQUESTS = 1000


def burst(context: Context, limit: Limit, probe: Probe) -> tuple[int, int, float]:
    """Sends 1000 requests over 100 connections at the same time. Returns how many were admitted and how many got a reply, and the
    time that it took."""
    instance = context.instance(limit)
    if context.target.entrance == "rls":
        return _burst_of_calls(context, limit, probe)
    entrance = HttpEntrance(instance.port, context.target.statuses, is_decision=context.target.entrance == "decision")
    return asyncio.run(_burst(instance.port, entrance.encode(probe), context.target.statuses))


async def _burst(port: int, request: bytes, rejections: frozenset[int]) -> tuple[int, int, float]:
    streams = [await asyncio.open_connection("127.0.0.1", port) for _ in range(CONNECTIONS)]
    began = time.monotonic()

    async def exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> tuple[int, int]:
        admitted = replies = 0
        try:
            for _ in range(REQUESTS // CONNECTIONS):
                writer.write(request)
                head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20)
                status = int(head.split(b" ", 2)[1])
                lower = head.lower()
                if b"transfer-encoding: chunked" in lower:
                    await reader.readuntil(b"0\r\n\r\n")
                elif b"content-length:" in lower:
                    length = int(lower.split(b"content-length:")[1].split(b"\r\n")[0])
                    await reader.readexactly(length)
                replies += 1
                admitted += status not in rejections
                if b"connection: close" in lower:
                    writer.close()
                    reader, writer = await asyncio.open_connection("127.0.0.1", port)
        except (OSError, asyncio.IncompleteReadError, TimeoutError):
            pass
        writer.close()
        return admitted, replies

    results = await asyncio.gather(*(exchange(*stream) for stream in streams))
    return sum(one for one, _ in results), sum(other for _, other in results), time.monotonic() - began


def _burst_of_calls(context: Context, limit: Limit, probe: Probe) -> tuple[int, int, float]:
    from concurrent.futures import ThreadPoolExecutor

    client = context.client(context.instance(limit))
    began = time.monotonic()
    with ThreadPoolExecutor(50) as pool:
        replies = list(pool.map(lambda _: client.send(probe), range(REQUESTS)))
    return sum(reply.admitted for reply in replies), len(replies), time.monotonic() - began


def slow_limit(context: Context) -> Limit:
    """A limit whose units come back too slowly to matter. It is no multiple of the number of connections: requests that are all
    decided before any is charged would then be admitted as often as the limit says."""
    return context.limit(150, 3600) if 3600 in (context.target.periods or (3600,)) else context.limit(150, 60)


@requirement("RACE-1", "Admits N of 1000 requests at the same time", source="CWE-362: check, then act", needs=("key.header",))
def exact_under_concurrency(context: Context) -> None:
    """Of 1000 requests over 100 connections, exactly as many are admitted as the limit says."""
    limit = slow_limit(context)
    count, replies, took = burst(context, limit, Probe(context.new_key()))
    back = int(took / limit.interval) + 1 if took > limit.interval * 0.5 else 0
    in_time(took, 30)
    expect(replies == REQUESTS, f"{replies} of {REQUESTS} requests got a response")
    context.measures["excess_percent"] = max(0.0, 100.0 * (count - limit.count) / limit.count)
    expect(limit.count <= count <= limit.count + back, f"admitted {count}, the limit is {limit.count}")


@requirement("RACE-2", "Keeps keys apart at the same time", source="CWE-362: check, then act", needs=("key.header",))
def keys_apart_under_concurrency(context: Context) -> None:
    """While 1000 requests of one key arrive, another key has its whole limit."""
    limit = slow_limit(context)
    burst(context, limit, Probe(context.new_key()))
    client, key = context.client(context.instance(limit)), context.new_key()
    first = [client.send(Probe(key)) for _ in range(limit.count)]
    count = sum(reply.admitted for reply in first)
    expect(count == limit.count, f"admitted {count} of {limit.count} of another key")
