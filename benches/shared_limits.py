#!/usr/bin/env python3
"""Shared limits through a real Redis: distant stores, the end of a quota, and deferred calls on several instances.

Scenes:
  distant   50 keys at 2 % of their limit each, with the default `wait`: rejections by a store that is some milliseconds
            away, or that stalls once a second. A proxy between Weir and Redis delays the replies.
  compose   the configuration of deploy/compose, started afresh 20 times: eight requests at once after the start.
  quota     instances that share a quota: admitted within a second of a burst of requests, and until nothing is left.
  deferred  calls accepted at once (`respond: 202`) and delivered at the rate of a shared limit.

Each line states the scene, its parameters and the result. Nothing leaves the loopback interface.
"""
import argparse
import asyncio
import collections
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from proxy import free_port, wait_until_open

DELIVERY_SECONDS = 60


class DelayedStore:
    """Forwards connections to Redis, and delays replies by `delay` seconds. Once a second it stalls for `stall`."""

    def __init__(self, store, delay=0.0, stall=0.0):
        self.store, self.delay, self.stall, self.port = store, delay, stall, free_port()

    async def __aenter__(self):
        self.server = await asyncio.start_server(self.serve, "127.0.0.1", self.port)
        return self

    async def __aexit__(self, *_):
        self.server.close()

    def due(self):
        now = time.monotonic()
        into = now % 1.0
        stalled = self.stall - into if into < self.stall else 0.0
        return now + max(self.delay, stalled)

    async def serve(self, reader, writer):
        redis_reader, redis_writer = await asyncio.open_connection("127.0.0.1", self.store)
        await asyncio.gather(self.forward(reader, redis_writer, False), self.forward(redis_reader, writer, True))

    async def forward(self, reader, writer, delays):
        queue = asyncio.Queue()
        task = asyncio.create_task(self.deliver(queue, writer))
        try:
            while data := await reader.read(65536):
                queue.put_nowait((self.due() if delays else 0.0, data))
        except OSError:
            pass
        queue.put_nowait((0.0, None))
        await task

    async def deliver(self, queue, writer):
        while True:
            due, data = await queue.get()
            if data is None:
                break
            if (rest := due - time.monotonic()) > 0:
                await asyncio.sleep(rest)
            try:
                writer.write(data)
            except OSError:
                break
        writer.close()


class Fleet:
    """Instances of Weir that share one Redis."""

    def __init__(self, options, directory, name):
        self.options, self.directory, self.name = options, Path(directory), name
        self.processes, self.ports, self.store = [], [], free_port()

    def __enter__(self):
        redis = ["redis-server", "--port", str(self.store), "--save", "", "--dir", str(self.directory)]
        self.redis = subprocess.Popen(redis, stdout=subprocess.DEVNULL)
        wait_until_open(self.store, self.redis)
        return self

    def start(self, rules, upstream="echo", store=None, log="error"):
        port, admin = free_port(), free_port()
        path = self.directory / f"{self.name}-{port}.yaml"
        path.write_text(
            f'listeners: {{ name: bench, address: "127.0.0.1:{port}" }}\nworkers: 1\nupstream: {upstream}\n'
            f'admin: {{ address: "127.0.0.1:{admin}" }}\nstore: {{ redis: "redis://127.0.0.1:{store or self.store}" }}\n'
            f"rules:\n  - {rules}\n"
        )
        process = subprocess.Popen([self.options.weir, "run", "-c", str(path), "-l", log], stdout=subprocess.DEVNULL)
        wait_until_open(port, process)
        self.processes.append(process)
        self.ports.append((port, admin))
        return port

    async def ready(self, instances):
        """Waits until all instances know that they are as many."""
        for _, admin in self.ports:
            while True:
                text = (await fetch(admin, "/metrics"))[2].decode()
                if "weir_store_up 1" in text and f"weir_store_instances {instances}" in text:
                    break
                await asyncio.sleep(0.1)

    def __exit__(self, *_):
        for process in [*self.processes, self.redis]:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.wait()


class Connection:
    """One HTTP/1.1 connection."""

    def __init__(self, port):
        self.port, self.writer = port, None

    async def get(self, target, *headers, method="GET"):
        if self.writer is None:
            self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)
        lines = [f"{method} {target} HTTP/1.1", "host: a", *headers, "content-length: 0", "", ""]
        self.writer.write("\r\n".join(lines).encode())
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
        body = await self.reader.readexactly(int(length[1])) if length else b""
        return int(head[9:12]), head, body

    def close(self):
        if self.writer:
            self.writer.close()


async def fetch(port, target):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {target} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n".encode())
    reply = await reader.read()
    writer.close()
    head, _, body = reply.partition(b"\r\n\r\n")
    return int(head[9:12]), head, body


async def distant(options, directory):
    cases = [("at once", 0, 0), ("2 ms", 0.002, 0), ("8 ms", 0.008, 0), ("30 ms", 0.03, 0), ("stalls 30 ms/s", 0, 0.03)]
    for name, delay, stall in cases:
        with Fleet(options, directory, "distant") as fleet:
            async with DelayedStore(fleet.store, delay, stall) as link:
                rule = "{ name: keyed, key: [{ header: x-key }], limit: 100/s, scope: shared }"
                port = fleet.start(rule, store=link.port)
                await fleet.ready(1)
                end = time.monotonic() + options.seconds

                async def client(number):
                    connection, results = Connection(port), collections.Counter()
                    await asyncio.sleep(number / 100)
                    next_at = time.monotonic()
                    while time.monotonic() < end:
                        results[(await connection.get("/", f"x-key: {number}"))[0]] += 1
                        next_at += 0.5
                        await asyncio.sleep(max(0, next_at - time.monotonic()))
                    connection.close()
                    return results

                total = sum(await asyncio.gather(*map(client, range(50))), collections.Counter())
                late = (await fetch(fleet.ports[0][1], "/metrics"))[2].decode()
                late = [line for line in late.splitlines() if line.startswith("weir_store_unanswered_total")]
                print(f"distant, store {name}: {total[429]} of {total.total()} rejected {late}", flush=True)


async def compose(options, directory):
    rule = "{ name: per-ip, key: [client_ip], limit: 5/10s, burst: 5, scope: shared }"
    expected, right = [200] * 5 + [429] * 3, 0
    seen = collections.Counter()
    for _ in range(options.starts):
        with Fleet(options, directory, "compose") as fleet:
            port = fleet.start(rule)
            statuses = [(await fetch(port, "/"))[0] for _ in range(8)]
            right += statuses == expected
            seen["".join("+" if status == 200 else "-" for status in statuses)] += 1
    print(f"compose: {right} of {options.starts} starts as documented; {dict(seen)}", flush=True)


async def quota(options, directory):
    limits = [("1000/d", "fixed_window"), ("100/h", "fixed_window"), ("100/h", "gcra"), ("1000/d", "gcra"),
              ("100/h", "token_bucket"), ("100/h", "sliding_log"), ("100/h", "sliding_window"),
              ("100/h", "refill")]
    for instances in options.instances:
        for limit, algorithm in limits:
            if options.only and options.only not in f"{limit} {algorithm}":
                continue
            await one_quota(options, directory, instances, limit, algorithm)


async def one_quota(options, directory, instances, limit, algorithm):
    count = int(limit.split("/")[0])
    with Fleet(options, directory, "quota") as fleet:
        how = f"limit: {limit}, algorithm: {algorithm}"
        if algorithm == "refill":
            how = "token_bucket: { refill: 100, every: 1h }, burst: 100"
        rule = f"{{ name: quota, key: [{{ header: x-key }}], {how}, scope: shared }}"
        ports = [fleet.start(rule) for _ in range(instances)]
        await fleet.ready(instances)
        clients = [Connection(port) for port in ports]
        admitted, longest = 0, 0
        begin = time.monotonic()
        # As fast as possible, round robin, as often as there are units; then for the rest of a second.
        turn, at_once = 0, 0
        while turn < count or time.monotonic() < begin + 1.0:
            status, head, _ = await clients[turn % instances].get("/", "x-key: a")
            admitted += status == 200
            if status != 200:
                longest = max(longest, int(re.search(rb"retry-after: (\d+)", head)[1]))
            turn += 1
            if turn == count:
                at_once, took = admitted, time.monotonic() - begin
            if turn >= count:
                await asyncio.sleep(0.002)
        in_second = admitted
        # Each instance is asked again, one after the other.
        after = []
        for client in clients:
            got, end = 0, time.monotonic() + 1.0
            while time.monotonic() < end:
                got += (await client.get("/", "x-key: a"))[0] == 200
                await asyncio.sleep(0.01)
            after.append(got)
        total = admitted + sum(after)
        calls = 0
        for _, admin in fleet.ports:
            text = (await fetch(admin, "/metrics"))[2].decode()
            calls += sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith("weir_store_calls_total"))
        print(f"quota {limit} {algorithm}, {instances} instances: {at_once} of {count} at once ({took:.2f} s), "
              f"{in_second} within a second, then {after}, {total} in all; longest retry-after {longest} s; "
              f"{calls:.0f} calls", flush=True)


async def deferred(options, directory):
    for instances, kills in [(1, False), (3, False), (8, False), (3, True)]:
        if options.only and options.only != f"{instances}{'k' if kills else ''}":
            continue
        await one_deferred(options, directory, instances, kills)


async def one_deferred(options, directory, instances, kills):
    received, limit = {}, options.limit

    async def provide(reader, writer):
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
                await reader.readexactly(int(length[1]) if length else 0)
                key = re.search(rb"idempotency-key: (\S+)", head, re.IGNORECASE)[1]
                received.setdefault(key, time.monotonic())
                writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        except (asyncio.IncompleteReadError, OSError):
            writer.close()

    provider = free_port()
    server = await asyncio.start_server(provide, "127.0.0.1", provider)
    with Fleet(options, directory, "deferred") as fleet:
        rule = f"{{ name: hooks, limit: {limit}/s, scope: shared, respond: 202 }}"
        link = await DelayedStore(fleet.store, options.delay / 1000).__aenter__()
        ports = [fleet.start(rule, upstream=f"127.0.0.1:{provider}", store=link.port) for _ in range(instances)]
        await fleet.ready(instances)
        begin = time.monotonic()

        async def client(port):
            connection = Connection(port)
            return [(await connection.get("/hook", method="POST"))[0] for _ in range(options.calls // instances)]

        accepting = ports[:1] * instances if options.via_one else ports
        statuses = collections.Counter(sum(await asyncio.gather(*map(client, accepting)), []))
        took, calls = time.monotonic() - begin, statuses[202]
        killed_at = None
        while len(received) < calls and time.monotonic() < begin + DELIVERY_SECONDS:
            if kills and killed_at is None and len(received) > calls / 3:
                killed_at = time.monotonic() - begin
                fleet.processes[0].send_signal(signal.SIGKILL)
            await asyncio.sleep(0.05)
        seconds = collections.Counter(int(at - begin) for at in received.values())
        last = max(received.values()) - begin
        print(f"deferred, {instances} instances, {limit}/s{f', one killed at {killed_at:.1f} s' if killed_at else ''}: "
              f"{calls} accepted in {took:.1f} s, {len(received)} delivered in {last:.1f} s, each second: "
              f"{[seconds[second] for second in range(int(last) + 1)]}", flush=True)
    server.close()


SCENES = {"distant": distant, "compose": compose, "quota": quota, "deferred": deferred}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenes", nargs="*", choices=[*SCENES, []], help="scenes to run; all by default")
    parser.add_argument("--weir", default="target/release/weir")
    parser.add_argument("--seconds", type=float, default=10, help="of each case of `distant`")
    parser.add_argument("--starts", type=int, default=20, help="of `compose`")
    parser.add_argument("--instances", type=lambda text: [int(word) for word in text.split(",")], default=[3])
    parser.add_argument("--calls", type=int, default=1200, help="of `deferred`")
    parser.add_argument("--limit", type=int, default=100, help="of `deferred`, a second")
    parser.add_argument("--delay", type=float, default=0, help="milliseconds to the store of `deferred`")
    parser.add_argument("--via-one", action="store_true", help="one instance accepts all calls of `deferred`")
    parser.add_argument("--only", help="limits of `quota` that contain this text; a case of `deferred`: 1, 3, 8, 3k")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        for scene in options.scenes or SCENES:
            asyncio.run(SCENES[scene](options, directory))


if __name__ == "__main__":
    main()
