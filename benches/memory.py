#!/usr/bin/env python3
"""Memory of a process that clients try to fill, and what is left when they have gone.

    benches/memory.py wave     --weir target/release/weir    # a wave of waiting requests with large heads; then recovery
    benches/memory.py heads    --weir target/release/weir    # heads of responses that HTTP/2 clients do not read
    benches/memory.py waiting  --weir target/release/weir    # requests that wait for room in limits of many keys

Prints the peak and the final resident memory, and what clients and probes saw. Standard library only."""

import argparse
import json
import os
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

from proxy import free_port

MIB = 1 << 20


class Weir:
    """A running process."""

    def __init__(self, binary, rules, upstream="echo", extra="", http2="false"):
        self.port, self.admin = free_port(), free_port()
        self.directory = tempfile.TemporaryDirectory()
        path = os.path.join(self.directory.name, "weir.yaml")
        with open(path, "w", encoding="utf-8") as file:
            file.write(
                f"listeners: {{ address: 127.0.0.1:{self.port} }}\nupstream: {{ address: '{upstream}', timeout: 60s, http2: {http2} }}\n"
                f"admin: {{ address: 127.0.0.1:{self.admin} }}\n{extra}\nrules: {rules}\n"
            )
        self.process = subprocess.Popen([binary, "run", "-c", path], stderr=subprocess.DEVNULL)
        self.peak = 0
        self.sampling = True
        deadline = time.monotonic() + 20
        while self.status("/ready") != 200:
            if time.monotonic() > deadline:
                raise SystemExit("weir does not start")
            time.sleep(0.05)
        self.start = self.resident()
        threading.Thread(target=self.sample, daemon=True).start()

    def resident(self):
        try:
            with open(f"/proc/{self.process.pid}/statm", encoding="ascii") as file:
                return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / MIB
        except OSError:
            return 0.0

    def sample(self):
        while self.sampling:
            self.peak = max(self.peak, self.resident())
            time.sleep(0.005)

    def get(self, path, port=None, timeout=10):
        request = urllib.request.Request(f"http://127.0.0.1:{port or self.admin}{path}")
        try:
            with urllib.request.urlopen(request, timeout=timeout) as response:
                return response.status, response.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()
        except OSError:
            return 0, b""

    def status(self, path, port=None):
        return self.get(path, port)[0]

    def metric(self, name):
        text = self.get("/metrics")[1].decode()
        return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(name))

    def stop(self):
        self.sampling = False
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.directory.cleanup()


def wait_for(what, seconds):
    """Returns the time until `what()` is true, or None."""
    start = time.monotonic()
    while time.monotonic() - start < seconds:
        if what():
            return time.monotonic() - start
        time.sleep(0.1)
    return None


def connect(port):
    client = socket.create_connection(("127.0.0.1", port))
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return client


def frame(kind, flags, stream, payload):
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def literal(name, value):
    """A field without indexing or compression."""
    out = b"\x00"
    for text in (name, value):
        length = len(text)
        if length < 127:
            out += bytes([length])
        else:
            out += b"\x7f"
            length -= 127
            while length >= 128:
                out += bytes([length & 127 | 128])
                length >>= 7
            out += bytes([length])
        out += text
    return out


def request_block(path, headers=()):
    fields = [(b":method", b"GET"), (b":scheme", b"http"), (b":path", path), (b":authority", b"a.test"), *headers]
    return b"".join(literal(name, value) for name, value in fields)


def header_section(stream, block):
    """HEADERS that end the stream, and CONTINUATION for what does not fit."""
    parts = [block[at : at + 16384] for at in range(0, len(block), 16384)]
    kinds = [(1, 1)] + [(9, 0)] * (len(parts) - 1)
    ends = [0] * (len(parts) - 1) + [4]
    return b"".join(frame(kind, flags | end, stream, part) for (kind, flags), end, part in zip(kinds, ends, parts))


def http2(port):
    client = connect(port)
    client.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, b""))
    return client


def wave(args):
    """Waiting requests with large heads on HTTP/2 connections, which then leave."""
    rules = "[{ name: queue, key: [{ header: x-key }], limit: 1/s, throttle: { wait: { max: 10m, queue: 1000 } } }]"
    weir = Weir(args.weir, rules, extra=f"overload: {{ memory: {args.memory} }}")
    clients = []
    try:
        for number in range(args.connections):
            client = http2(weir.port)
            clients.append(client)
            try:
                for stream in range(args.streams):
                    headers = [(b"x-key", b"k%d" % (number % 40)), (b"x-filler", b"f" * args.head)]
                    client.sendall(header_section(2 * stream + 1, request_block(b"/", headers)))
            except OSError:
                pass
        time.sleep(1)
        during = weir.status("/", weir.port), weir.status("/ready")
        for client in clients:
            client.close()
        back = wait_for(lambda: weir.status("/", weir.port) == 200, args.recovery)
        ready = weir.status("/ready")
        time.sleep(1)
        return {
            "start_mib": round(weir.start), "peak_mib": round(weir.peak), "after_mib": round(weir.resident()),
            "during": {"request": during[0], "ready": during[1]},
            "recovered_after_s": None if back is None else round(back, 1),
            "then": {"request": weir.status("/", weir.port), "ready": ready},
        }
    finally:
        weir.stop()


def serve(response):
    """An HTTP/1.1 upstream that sends `response` to whatever it receives. Returns its port."""
    server = socket.create_server(("127.0.0.1", 0), backlog=4096)

    def respond(peer):
        with peer:
            try:
                while peer.recv(65536):
                    peer.sendall(response)
            except OSError:
                pass

    def accept():
        while True:
            peer, _ = server.accept()
            threading.Thread(target=respond, args=(peer,), daemon=True).start()

    threading.stack_size(256 * 1024)
    threading.Thread(target=accept, daemon=True).start()
    return server.getsockname()[1]


def serve_large_heads(size):
    """An upstream whose responses have heads of `size` bytes."""
    fields = b"".join(b"x-filler-%d: %s\r\n" % (at, b"f" * 4000) for at in range(size // 4000))
    return serve(b"HTTP/1.1 200 OK\r\n" + fields + b"content-length: 0\r\n\r\n")


def open_streams(client, block, streams):
    """Sends as many requests, and returns their bytes. The server may have closed the connection."""
    data = b"".join(frame(1, 5, 2 * at + 1, block) for at in range(streams))
    try:
        client.sendall(data)
    except OSError:
        pass
    return len(data)


def heads(args):
    """Clients that never read send requests whose responses have large heads."""
    upstream = serve_large_heads(args.head)
    overload = f"overload: {{ memory: {args.memory} }}" if args.memory else ""
    weir = Weir(args.weir, "[]", upstream=f"127.0.0.1:{upstream}", extra=overload)
    clients, sent = [], 0
    try:
        for _ in range(args.connections):
            client = http2(weir.port)
            clients.append(client)
            block = request_block(b"/")
            sent += open_streams(client, block, args.streams)
        wait_for(lambda: weir.process.poll() is not None, args.seconds)
        held = weir.resident()
        probe = wait_for(lambda: weir.status("/ready") == 200, 5)
        for client in clients:
            client.close()
        time.sleep(3)
        return {
            "sent_kb": sent // 1000, "start_mib": round(weir.start), "peak_mib": round(weir.peak),
            "held_mib": round(held), "after_mib": round(weir.resident()),
            "alive": weir.process.poll() is None, "ready": probe is not None,
        }
    finally:
        weir.stop()


def waiting(args):
    """Requests of many keys that all wait for room in their limit."""
    rules = "[{ name: queue, key: [{ header: x-key }], limit: 1/s, throttle: { wait: { max: 10m, queue: 1000 } } }]"
    overload = f"overload: {{ memory: {args.memory} }}" if args.memory else ""
    weir = Weir(args.weir, rules, extra=overload)
    clients, sent = [], 0
    try:
        for number in range(args.requests // args.streams):
            client = http2(weir.port)
            clients.append(client)
            headers = [(b"x-key", b"%d" % (number // 7))] + [(b"x-filler", b"f" * args.head)] * (args.head > 0)
            block = request_block(b"/", headers)
            sent += open_streams(client, block, args.streams)
        time.sleep(args.seconds)
        result = {
            "sent_kb": sent // 1000, "start_mib": round(weir.start), "peak_mib": round(weir.peak),
            "waiting": weir.metric("weir_wait_queue_requests"), "alive": weir.process.poll() is None,
        }
        for client in clients:
            client.close()
        time.sleep(3)
        return {**result, "after_mib": round(weir.resident())}
    finally:
        weir.stop()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("load", choices=["wave", "heads", "waiting"])
    parser.add_argument("--weir", default="target/release/weir")
    parser.add_argument("--memory", default=None, help="overload.memory")
    parser.add_argument("--connections", type=int, default=20)
    parser.add_argument("--streams", type=int, default=120)
    parser.add_argument("--head", type=int, default=None, help="bytes of a head")
    parser.add_argument("--requests", type=int, default=48_000)
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--recovery", type=float, default=30, help="seconds to wait for recovery")
    args = parser.parse_args()
    if args.head is None:
        args.head = {"wave": 40_000, "heads": 100_000, "waiting": 0}[args.load]
    if args.load == "wave":
        args.memory = args.memory or "60MiB"
    result = {"wave": wave, "heads": heads, "waiting": waiting}[args.load](args)
    print(json.dumps({"load": args.load, "weir": args.weir, **result}))


if __name__ == "__main__":
    sys.exit(main())
