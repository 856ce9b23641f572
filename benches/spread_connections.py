#!/usr/bin/env python3
"""Measures how connections are spread over the workers.

Few connections: opens 2, 4, 8 and 16 long-lived connections, again and again, and finds the share of the busiest worker.
The kernel tells which sockets the event loop of each worker contains (`/proc/PID/fdinfo`), so the result does not depend
on other load of the machine.

Short connections (--short): clients open a connection for each request, as fast as they can. The result is the number of
context switches of the workers per connection, and their instructions, which callgrind counts in user mode.
"""
import argparse
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from proxy import free_port, wait_until_open

CONFIG = """listeners: { address: "127.0.0.1:%d" }
workers: %d
upstream: echo
admin: { address: 127.0.0.1:0 }
rules: []
"""
REQUEST = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n"
ESTABLISHED = "01"
# A worker hands over at most 64 connections a second; a turn of 16 connections takes a few.
TURNS_PER_SECOND = 8


class Weir:
    """A running instance."""

    def __init__(self, binary, workers, directory, prefix=()):
        self.port = free_port()
        path = Path(directory) / f"{self.port}.yaml"
        path.write_text(CONFIG % (self.port, workers))
        self.process = subprocess.Popen([*prefix, binary, "run", "-c", str(path), "-l", "error"])
        self.proc = Path(f"/proc/{self.process.pid}")
        wait_until_open(self.port, self.process)

    def connections(self):
        """Returns the number of connections of each worker."""
        sockets = {}
        for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
            _, local, _, state, *_ = fields = line.split()
            if int(local.split(":")[1], 16) == self.port:
                sockets[f"socket:[{fields[9]}]"] = state == ESTABLISHED
        loops = set()
        for entry in (self.proc / "fd").iterdir():
            if self.link(entry) == "anon_inode:[eventpoll]":
                info = (self.proc / "fdinfo" / entry.name).read_text()
                loops.add(frozenset(re.findall(r"^tfd:\s*(\d+)", info, re.MULTILINE)))
        found = [[sockets.get(self.link(self.proc / "fd" / target)) for target in loop] for loop in loops]
        return [loop.count(True) for loop in found if False in loop]

    @staticmethod
    def link(path):
        try:
            return str(path.readlink())
        except OSError:
            return ""

    def until_open(self, count):
        while sum(found := self.connections()) != count:
            time.sleep(0.001)
        return found

    def request(self, stream, close=False):
        stream.sendall(REQUEST.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n") if close else REQUEST)
        received = stream.recv(4096)
        if not received.startswith(b"HTTP/1.1 200"):
            sys.exit(f"unexpected response: {received}")
        while close and stream.recv(4096):
            pass

    def connect(self):
        return socket.create_connection(("127.0.0.1", self.port))

    def switches(self):
        """Returns the context switches of the workers so far."""
        total = 0
        for task in (self.proc / "task").iterdir():
            if (task / "comm").read_text().startswith("worker-"):
                status = (task / "status").read_text()
                total += sum(map(int, re.findall(r"ctxt_switches:\s*(\d+)", status)))
        return total

    def stop(self):
        self.process.terminate()
        self.process.wait(60)


def shares(binary, workers, count, options, directory):
    """Returns the share of the busiest worker in each turn."""
    weir = Weir(binary, workers, directory)
    found = []
    try:
        for _ in range(options.turns):
            began = time.monotonic()
            streams = [weir.connect() for _ in range(count)]
            for stream in streams:
                weir.request(stream)
            found.append(max(weir.until_open(count)) / count)
            for stream in streams:
                stream.close()
            weir.until_open(0)
            time.sleep(max(0, 1 / TURNS_PER_SECOND - (time.monotonic() - began)))
    finally:
        weir.stop()
    return sorted(found)


def few(options, directory):
    print("| binary | workers | connections | busiest worker: median | mean | 90 % of turns | worst |\n|---|---|---|---|---|---|---|")
    for workers in options.workers:
        for count in options.connections:
            for binary in options.weir:
                found = shares(binary, workers, count, options, directory)
                columns = (statistics.median(found), statistics.mean(found), found[len(found) * 9 // 10], found[-1])
                print(f"| {binary} | {workers} | {count} | {' | '.join(f'{share:.0%}' for share in columns)} |", flush=True)


def open_short(weir, options):
    """Opens connections with one request each, from several clients at once."""

    def run(count):
        for _ in range(count):
            with weir.connect() as stream:
                weir.request(stream, close=True)

    each = options.short // options.clients
    clients = [threading.Thread(target=run, args=(each,)) for _ in range(options.clients)]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    return each * options.clients


def control(weir, action):
    subprocess.run(["callgrind_control", action, str(weir.process.pid)], capture_output=True, check=True)


def short(options, directory):
    print("| binary | workers | context switches per connection | instructions per connection |\n|---|---|---|---|")
    for workers in options.workers:
        for binary in options.weir:
            weir = Weir(binary, workers, directory)
            try:
                open_short(weir, options)
                before = weir.switches()
                opened = open_short(weir, options)
                switches = (weir.switches() - before) / opened
            finally:
                weir.stop()
            out = Path(directory) / f"{weir.port}.callgrind"
            grind = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}", "--log-file=/dev/null"]
            weir = Weir(binary, workers, directory, grind)
            try:
                open_short(weir, options)
                control(weir, "-z")
                opened = open_short(weir, options)
                control(weir, "-d")
            finally:
                weir.stop()
            text = Path(f"{out}.1").read_text()
            counted = int(re.search(r"^(?:summary|totals): (\d+)", text, re.MULTILINE)[1]) / opened
            print(f"| {binary} | {workers} | {switches:.2f} | {counted:.0f} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weir", action="append", help="a binary; may be given several times (default: target/dist/weir)")
    parser.add_argument("--workers", type=lambda text: [int(part) for part in text.split(",")], default=[2, 4])
    parser.add_argument("--connections", type=lambda text: [int(part) for part in text.split(",")], default=[2, 4, 8, 16])
    parser.add_argument("--turns", type=int, default=200, help="repetitions (default: %(default)s)")
    parser.add_argument("--short", type=int, metavar="N", help="measure N connections of one request each instead")
    parser.add_argument("--clients", type=int, default=8, help="clients that open short connections (default: %(default)s)")
    options = parser.parse_args()
    options.weir = options.weir or ["target/dist/weir"]
    if options.short and not shutil.which("valgrind"):
        sys.exit("valgrind is not installed")
    with tempfile.TemporaryDirectory(prefix="spread-bench-") as directory:
        (short if options.short else few)(options, directory)


if __name__ == "__main__":
    main()
