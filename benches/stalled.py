#!/usr/bin/env python3
"""Measures the resident memory that a proxy holds for each client that does not read its download.

Each client requests 100 MiB and reads nothing. Over HTTP/2, it has the default windows of 64 KiB, or announces the largest
ones, so that only the sockets' buffers stop the proxy. nginx is the upstream, over HTTP/1.1. Each proxy has one worker and
is started anew for each protocol. The result is the growth of resident memory after some seconds, divided by the number of clients. The
kernel's buffers are not included. Memory that a proxy has freed is resident until its allocator returns it: jemalloc does so
within ten seconds.
"""
import argparse
import contextlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time

import protocols
import proxy
from protocols import PREFACE, frame

PATH = b"/%d" % (100 * protocols.MIB)
HTTP1 = b"GET " + PATH + b" HTTP/1.1\r\nhost: app.example\r\n\r\n"
MAX_WINDOW = 2**31 - 1
# GET, http, and literals for the path and the authority (RFC 7541 sections 6.1 and 6.2.2).
FIELDS = b"\x82\x86\x04%c%s\x01\x0bapp.example" % (len(PATH), PATH)
# HEADERS that end stream 1.
HEAD = frame(1, 5, 1, FIELDS)
HTTP2 = PREFACE + frame(4, 0, 0, b"") + HEAD
# SETTINGS with the largest initial window, and WINDOW_UPDATE of the connection.
LARGE_WINDOWS = frame(4, 0, 0, (4).to_bytes(2, "big") + MAX_WINDOW.to_bytes(4, "big")) + frame(
    8, 0, 0, (MAX_WINDOW - 65_535).to_bytes(4, "big")
)
# The HAProxy of the first scenario of `protocols` accepts HTTP/2 only.
ROWS = (
    ("HTTP/1.1", HTTP1, "download-100m", ("nginx", "weir")),
    ("HTTP/2", HTTP2, "http2", ("haproxy", "weir")),
    ("HTTP/2, largest windows", PREFACE + LARGE_WINDOWS + HEAD, "http2", ("haproxy", "weir")),
)


def stall(port, request):
    """Returns the connection of a client that has requested the download and does not read."""
    client = socket.socket()
    client.settimeout(20)
    # A small buffer, so that as much as possible stays in the proxy.
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(("127.0.0.1", port))
    client.sendall(request)
    return client


def growth(process, port, request, options):
    """Returns the KiB of each client."""
    with contextlib.closing(stall(port, request)):
        time.sleep(1)
    before = proxy.usage(process.pid)[1]
    clients = [stall(port, request) for _ in range(options.clients)]
    time.sleep(options.seconds)
    after = proxy.usage(process.pid)[1]
    if any(not client.recv(1) for client in clients):
        sys.exit("a client was disconnected")
    for client in clients:
        client.close()
    return (after - before) * 1024 / options.clients


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weir", default="target/dist/weir", help="the binary (default: %(default)s)")
    parser.add_argument("--clients", type=int, default=200, help="number of clients (default: %(default)s)")
    parser.add_argument("--seconds", type=int, default=20, help="time until memory is read (default: %(default)s)")
    options = parser.parse_args()
    options.envoy = None
    for tool in ("nginx", "haproxy"):
        if not shutil.which(tool):
            sys.exit(f"{tool} is not installed")
    print("| protocol | proxy | KiB per client |\n|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="stalled-bench-") as directory, protocols.upstream(directory) as upstreams:
        for protocol, request, scenario, names in ROWS:
            for name in names:
                port = proxy.free_port()
                process = subprocess.Popen(protocols.command(options, scenario, name, directory, port, upstreams))
                try:
                    proxy.wait_until_open(port, process)
                    print(f"| {protocol} | {name} | {growth(process, port, request, options):.0f} |", flush=True)
                finally:
                    process.terminate()
                    process.wait(60)


if __name__ == "__main__":
    main()
