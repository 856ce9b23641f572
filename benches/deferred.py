#!/usr/bin/env python3
"""Kills an instance that has accepted calls (`respond: 202`), and counts what the provider receives.

Two instances share a store (redis-server). The first one accepts all calls, and is killed with SIGKILL when the provider
has received a third of them. The second one delivers the rest. The result has the calls that were accepted, delivered,
and delivered more than once, and the time from the kill until all are delivered.
"""
import argparse
import asyncio
import collections
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from proxy import free_port, wait_until_open

CONFIG = """listeners: {{ name: hooks, address: "127.0.0.1:{port}" }}
workers: 1
upstream: 127.0.0.1:{provider}
admin: {{ address: "127.0.0.1:{admin}" }}
store: {{ redis: "redis://127.0.0.1:{store}" }}
rules:
  - {{ name: hooks, limit: {limit}/s, respond: 202 }}
"""


class Provider:
    """Responds with 204, and counts the calls by their idempotency key."""

    def __init__(self):
        self.received = collections.Counter()

    async def serve(self, reader, writer):
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
                await reader.readexactly(int(length[1]) if length else 0)
                self.received[re.search(rb"idempotency-key: (\S+)", head, re.IGNORECASE)[1]] += 1
                writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        except (asyncio.IncompleteReadError, OSError):
            writer.close()


def start(options, directory, name, ports):
    path = Path(directory) / f"{name}.yaml"
    path.write_text(CONFIG.format(limit=options.limit, **ports))
    process = subprocess.Popen([options.weir, "run", "-c", str(path), "-l", "error"])
    wait_until_open(ports["port"], process)
    return process


def stored(admin):
    with urllib.request.urlopen(f"http://127.0.0.1:{admin}/deferred", timeout=5) as response:
        return sum(rule["calls"] or 0 for rule in json.load(response)["rules"])


async def run(options, directory):
    provider, ports = Provider(), {"provider": free_port(), "store": free_port()}
    server = await asyncio.start_server(provider.serve, "127.0.0.1", ports["provider"])
    redis = subprocess.Popen(
        ["redis-server", "--port", str(ports["store"]), "--save", "", "--dir", directory], stdout=subprocess.DEVNULL
    )
    wait_until_open(ports["store"], redis)
    running, admins = [], []
    try:
        for name in ("first", "second"):
            admins.append(free_port())
            running.append(start(options, directory, name, {**ports, "port": free_port(), "admin": admins[-1]}))
        first = Path(directory, "first.yaml").read_text()
        address = re.search(r"127\.0\.0\.1:\d+", first)[0]
        body = Path(directory, "body")
        body.write_text("{}")
        load = ["h2load", "--h1", "-c8", f"-n{options.calls}", "-d", str(body), f"http://{address}/hook"]
        sending = await asyncio.create_subprocess_exec(*load, stdout=asyncio.subprocess.PIPE)
        report = (await sending.communicate())[0].decode()
        accepted = int(re.search(r"status codes: (\d+) 2xx", report)[1])
        while len(provider.received) < options.calls // 3:
            await asyncio.sleep(0.01)
        running[0].kill()
        killed, at_kill = time.monotonic(), len(provider.received)
        while len(provider.received) < accepted and time.monotonic() < killed + options.patience:
            await asyncio.sleep(0.1)
        took = time.monotonic() - killed
        # Calls that are delivered twice may arrive later than the last one.
        while await asyncio.to_thread(stored, admins[1]) and time.monotonic() < killed + options.patience:
            await asyncio.sleep(0.2)
    finally:
        for process in (*running, redis):
            process.kill()
            process.wait()
        server.close()
    twice = sum(count - 1 for count in provider.received.values())
    print("| accepted | delivered when killed | delivered | more than once | seconds from then |\n|---|---|---|---|---|")
    print(f"| {accepted} | {at_kill} | {len(provider.received)} | {twice} | {took:.1f} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weir", default="target/dist/weir", help="the binary (default: %(default)s)")
    parser.add_argument("--calls", type=int, default=10_000, help="calls (default: %(default)s)")
    parser.add_argument("--limit", type=int, default=1000, help="calls per second to the provider (default: %(default)s)")
    parser.add_argument("--patience", type=int, default=120, help="seconds after which calls count as lost (default: %(default)s)")
    options = parser.parse_args()
    for tool in ("redis-server", "h2load"):
        if not shutil.which(tool):
            sys.exit(f"{tool} is not installed")
    with tempfile.TemporaryDirectory(prefix="deferred-bench-") as directory:
        asyncio.run(run(options, directory))


if __name__ == "__main__":
    main()
