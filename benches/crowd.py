#!/usr/bin/env python3
"""Measures requests of active clients while many idle or slow connections are open.

    benches/crowd.py idle [--weir target/dist/weir] [--connections 10000] [--rate 1000] [--seconds 10]
    benches/crowd.py slowloris [--connections 1000]
    benches/crowd.py bodies [--connections 1000]

Starts Weir with its built-in test upstream, opens the connections, and sends requests at a constant rate on 50 others,
whether or not earlier requests have responses (an open loop). Prints the latencies and, for `idle`, the memory per idle
connection. Needs file descriptors for both ends: `ulimit -n` of twice the number of connections.
"""

import argparse
import asyncio
import resource
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import proxy

REQUEST = b"GET / HTTP/1.1\r\nhost: a.test\r\n\r\n"
SLOW_HEAD = b"GET / HTTP/1.1\r\nhost: a.test\r\nx-slow: "
SLOW_BODY = b"POST / HTTP/1.1\r\nhost: a.test\r\ncontent-length: 1000000\r\n\r\n"
PORT = proxy.free_port()


def start(binary, directory):
    config = Path(directory, "weir.yaml")
    config.write_text(
        f"listeners: [{{ address: 127.0.0.1:{PORT}, header_timeout: 5s }}]\n"
        f"admin: {{ address: 127.0.0.1:0 }}\nupstream: {{ address: echo, idle_timeout: 5s }}\n"
        f"workers: 1\noverload: {{ connections: 15000 }}\nrules: [{{ name: all, key: client_ip, limit: 1000000/s }}]\n"
    )
    return subprocess.Popen([binary, "run", "-c", config], stderr=subprocess.DEVNULL)


def resident(pid):
    """Returns the resident memory in KiB."""
    return round(proxy.usage(pid)[1] * 1024)


async def answer(reader):
    head = await reader.readuntil(b"\r\n\r\n")
    length = next((int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")), 0)
    await reader.readexactly(length)
    return int(head.split()[1])


async def connect():
    for _ in range(100):
        try:
            return await asyncio.open_connection("127.0.0.1", PORT)
        except OSError:
            await asyncio.sleep(0.05)
    raise SystemExit("cannot connect")


async def serve(rate, seconds):
    """Returns the latencies in milliseconds, each from the time at which the request was due, and the number of
    failures.
    """
    free = asyncio.Queue()
    for _ in range(50):
        free.put_nowait(await connect())
    took, failed = [], 0

    async def one(due):
        nonlocal failed
        reader, writer = await free.get()
        writer.write(REQUEST)
        try:
            failed += await answer(reader) != 200
        except (OSError, asyncio.IncompleteReadError):
            failed += 1
        took.append((time.perf_counter() - due) * 1000)
        free.put_nowait((reader, writer))

    begin, tasks = time.perf_counter(), []
    for number in range(rate * seconds):
        due = begin + number / rate
        await asyncio.sleep(max(0, due - time.perf_counter()))
        tasks.append(asyncio.create_task(one(due)))
    await asyncio.gather(*tasks)
    return took, failed


def report(what, took, failed):
    took = sorted(took)
    at = lambda share: took[min(len(took) - 1, int(len(took) * share))]
    print(f"{what}: {len(took)} requests, {failed} failed, p50 {statistics.median(took):.2f} ms, "
          f"p99 {at(0.99):.2f} ms, most {took[-1]:.2f} ms")


async def crowd(count, say):
    made = []
    for _ in range(count):
        reader, writer = await connect()
        writer.write(say)
        made.append((reader, writer))
    return made


async def trickle(made, piece):
    while True:
        for _, writer in made:
            writer.write(piece)
        await asyncio.sleep(0.5)


async def main(arguments, pid):
    took, failed = await serve(arguments.rate, 2)
    report("alone", took, failed)
    before = resident(pid)
    if arguments.what == "idle":
        fresh = await crowd(arguments.connections, b"")
        await asyncio.sleep(1)
        print(f"fresh: {(resident(pid) - before) / arguments.connections:.1f} KiB a connection")
        for _, writer in fresh:
            writer.write(REQUEST)
        for reader, _ in fresh:
            assert await answer(reader) == 200
        await asyncio.sleep(1)
        print(f"idle after a request: {(resident(pid) - before) / arguments.connections:.1f} KiB a connection")
        took, failed = await serve(arguments.rate, arguments.seconds)
        report(f"beside {arguments.connections} idle", took, failed)
        for _, writer in fresh:
            writer.close()
        await asyncio.sleep(12)
        print(f"resident before {before} KiB, after they have gone {resident(pid)} KiB")
        return
    say, piece = (SLOW_HEAD, b"x") if arguments.what == "slowloris" else (SLOW_BODY, b"x")
    made = await crowd(arguments.connections, say)
    trickling = asyncio.create_task(trickle(made, piece)) if arguments.what == "slowloris" else None
    took, failed = await serve(arguments.rate, arguments.seconds)
    report(f"beside {arguments.connections} slow", took, failed)
    if trickling:
        trickling.cancel()
    statuses = {}
    for reader, _ in made:
        try:
            status = await asyncio.wait_for(answer(reader), 20)
        except (OSError, asyncio.IncompleteReadError):
            status = "closed"
        except asyncio.TimeoutError:
            status = "still open"
        statuses[status] = statuses.get(status, 0) + 1
    print(f"the slow ones: {statuses}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["idle", "slowloris", "bodies"])
    parser.add_argument("--weir", default="target/dist/weir")
    parser.add_argument("--connections", type=int)
    parser.add_argument("--rate", type=int, default=1000)
    parser.add_argument("--seconds", type=int, default=10)
    given = parser.parse_args()
    given.connections = given.connections or (10_000 if given.what == "idle" else 1000)
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with tempfile.TemporaryDirectory(prefix="crowd-bench-") as directory:
        weir = start(given.weir, directory)
        try:
            asyncio.run(main(given, weir.pid))
        finally:
            weir.terminate()
            weir.wait()
