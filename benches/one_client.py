#!/usr/bin/env python3
"""What one hostile HTTP/2 client takes from the others.

    benches/one_client.py hpack  --weir target/release/weir   # references to a malformed name in the dynamic table
    benches/one_client.py unread --weir target/release/weir   # responses of an HTTP/2 upstream that it does not read

Prints processor time, resident memory and what another client sees meanwhile. Standard library only."""

import argparse
import contextlib
import http.client
import json
import socket
import threading
import time

import proxy
from memory import MIB, Weir, header_section, http2, open_streams, request_block, serve

# A literal that enters the dynamic table (RFC 7541 section 6.2.1): a name of 4000 bytes, the last of which is not valid, and no value.
MALFORMED_NAME = b"\x40\x7f\xa1\x1e" + b"a" * 3999 + b"A" + b"\x00"
# A literal with the name of the first dynamic entry (section 6.2.2), and no value.
REFERENCE = b"\x0f\x2f\x00"


def send_blocks(port, block, stop, counts):
    """Sends header sections, each on a stream of its own, and connects again whenever the server closes."""
    while not stop.is_set():
        with contextlib.suppress(OSError), http2(port) as client:
            counts["connections"] += 1
            # Responses are discarded, so that the server can go on.
            reader = threading.Thread(target=discard, args=(client,), daemon=True)
            reader.start()
            for stream in range(1, 1 << 20, 2):
                if stop.is_set():
                    return
                client.sendall(header_section(stream, block))
                counts["blocks"] += 1


def discard(client):
    with contextlib.suppress(OSError):
        while client.recv(65536):
            pass


def probe(port, stop, latencies):
    """Requests of another client, one after the other, each on a new connection."""
    while not stop.is_set():
        started = time.monotonic()
        other = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        with contextlib.suppress(OSError):
            other.request("GET", "/")
            other.getresponse().read()
        other.close()
        latencies.append(time.monotonic() - started)
        time.sleep(0.02)


def hpack(args):
    block = request_block(b"/") + MALFORMED_NAME + REFERENCE * args.references
    weir = Weir(args.weir, "[]")
    stop, counts, latencies = threading.Event(), {"blocks": 0, "connections": 0}, []
    try:
        threads = [threading.Thread(target=send_blocks, args=(weir.port, block, stop, counts)) for _ in range(args.connections)]
        threads.append(threading.Thread(target=probe, args=(weir.port, stop, latencies)))
        before, started = proxy.usage(weir.process.pid)[0], time.monotonic()
        for thread in threads:
            thread.start()
        time.sleep(args.seconds)
        stop.set()
        for thread in threads:
            thread.join(60)
        cpu, seconds = proxy.usage(weir.process.pid)[0] - before, time.monotonic() - started
        latencies.sort()
        return {
            "block_kb": len(block) // 1000, **counts, "mb_per_s": round(counts["blocks"] * len(block) / seconds / 1e6, 1),
            "cpu_ms_per_block": round(1000 * cpu / max(counts["blocks"], 1), 3),
            "others_median_ms": round(1000 * latencies[len(latencies) // 2], 1), "others_max_ms": round(1000 * latencies[-1], 1),
        }
    finally:
        weir.stop()


def read_for(port, seconds):
    """Returns the bytes that another client can read."""
    total, deadline = 0, time.monotonic() + seconds
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)) as other:
        other.settimeout(0.2)
        other.sendall(b"GET / HTTP/1.1\r\nhost: a.test\r\n\r\n")
        while time.monotonic() < deadline:
            with contextlib.suppress(TimeoutError):
                data = other.recv(1 << 18)
                total += len(data)
                if not data:
                    break
    return total


def unread(args):
    # The HTTP/2 upstream is another process of the same build.
    response = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % args.body + b"x" * args.body
    upstream = Weir(args.weir, "[]", upstream=f"127.0.0.1:{serve(response)}")
    # With one worker, all requests share one connection to the upstream.
    weir = Weir(args.weir, "[]", upstream=f"127.0.0.1:{upstream.port}", http2="true", extra="workers: 1")
    try:
        alone = read_for(weir.port, args.seconds)
        client = http2(weir.port)
        sent = open_streams(client, request_block(b"/"), args.streams)
        time.sleep(2)
        beside = read_for(weir.port, args.seconds)
        result = {
            "streams": args.streams, "sent_bytes": sent, "alone_mb": round(alone / 1e6), "beside_mb": round(beside / 1e6, 3),
            "start_mib": round(weir.start), "peak_mib": round(weir.peak),
        }
        client.close()
        return result
    finally:
        weir.stop()
        upstream.stop()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("load", choices=["hpack", "unread"])
    parser.add_argument("--weir", default="target/release/weir")
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--connections", type=int, default=4, help="of the hostile client (hpack)")
    parser.add_argument("--references", type=int, default=24_000, help="in each header section (hpack)")
    parser.add_argument("--streams", type=int, default=80, help="that are not read (unread)")
    parser.add_argument("--body", type=int, default=64 * MIB, help="bytes of a response (unread)")
    args = parser.parse_args()
    result = {"hpack": hpack, "unread": unread}[args.load](args)
    print(json.dumps({"load": args.load, "weir": args.weir, **result}))


if __name__ == "__main__":
    main()
