#!/usr/bin/env python3
"""Measures Envoy's rate limit service: CPU time per decision, compared with a bare service for the same messages.

Both run on processor 0 with one thread. h2load sends calls from processor 1, over 8 connections with 32 streams each,
always with the same request: one descriptor with a client's address. The bare service sends a fixed response, with the
same library, and decides nothing. The services are measured in turn, round after round; the result is the ratio within
one run.

Build first: `cargo build --profile dist --features jemalloc` and `cargo bench --bench rls --no-run`.
"""
import argparse
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from proxy import free_port, usage, wait_until_open

ROOT = Path(__file__).resolve().parent.parent
PATH = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
RULES = """domain: edge
descriptors:
  - key: remote_address
    rate_limit: { unit: second, requests_per_unit: 1000000000 }
"""


def field(number, value):
    """Encodes a protobuf field of bytes, at most 127 of them."""
    value = value.encode() if isinstance(value, str) else value
    return bytes([number << 3 | 2, len(value)]) + value


def question():
    entry = field(1, "remote_address") + field(2, "192.0.2.1")
    message = field(1, "edge") + field(2, field(1, entry))
    return b"\0" + len(message).to_bytes(4, "big") + message


def start_weir(directory, weir):
    grpc = free_port()
    (directory / "rules").mkdir()
    (directory / "rules" / "edge.yaml").write_text(RULES)
    config = directory / "weir.yaml"
    config.write_text(
        f"admin: {{ address: 127.0.0.1:0 }}\nworkers: 1\nrls:\n  address: 127.0.0.1:{grpc}\n"
        "  config: { directory: rules }\n"
    )
    command = ["taskset", "-c", "0", weir, "run", "-c", str(config)]
    process = subprocess.Popen([*command, "-l", "error"])
    wait_until_open(grpc, process)
    return process, grpc


def start_echo():
    found = ROOT.glob("target/release/deps/rls-*")
    built = [path for path in found if path.suffix == "" and path.stat().st_mode & 0o100]
    if not built:
        sys.exit("build the bare service first: cargo bench --bench rls --no-run")
    newest = max(built, key=lambda path: path.stat().st_mtime)
    process = subprocess.Popen(["taskset", "-c", "0", str(newest), "echo"], stdout=subprocess.PIPE, text=True)
    return process, int(process.stdout.readline())


def load(port, message, calls):
    command = ["taskset", "-c", "1", "h2load", "-t1", "-c8", "-m32", f"-n{calls}", "-d", str(message)]
    headers = ["-H", "content-type: application/grpc", "-H", "te: trailers"]
    done = subprocess.run(
        [*command, *headers, f"http://127.0.0.1:{port}{PATH}"], capture_output=True, text=True, check=True
    )
    passed = int(re.search(r"(\d+) succeeded", done.stdout)[1])
    if passed != calls:
        sys.exit(done.stdout)
    return float(re.search(r"([\d.]+) req/s", done.stdout)[1])


def measure(process, port, message, calls):
    load(port, message, calls // 10)
    before, _ = usage(process.pid)
    rate = load(port, message, calls)
    after, resident = usage(process.pid)
    return (after - before) / calls * 1e6, rate, resident


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weir", default="target/dist/weir", help="the binary (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", type=int, default=200_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        message = directory / "question"
        message.write_bytes(question())
        services = {"weir": start_weir(directory, options.weir), "echo": start_echo()}
        time.sleep(0.2)
        found = {name: [] for name in services}
        try:
            for _ in range(options.rounds):
                for name, (process, port) in services.items():
                    found[name].append(measure(process, port, message, options.calls))
        finally:
            for process, _ in services.values():
                process.kill()
                process.wait()
    print(f"{'':6} {'µs a call':>10} {'calls/s':>10} {'MiB':>6}")
    for name, rounds in found.items():
        cpu, rate, resident = (statistics.median(column) for column in zip(*rounds))
        print(f"{name:6} {cpu:10.2f} {rate:10.0f} {resident:6.1f}")
    ratios = [ours[0] / theirs[0] for ours, theirs in zip(found["weir"], found["echo"])]
    print(f"weir / echo: {statistics.median(ratios):.2f} (wanted: at most 1.25)")


if __name__ == "__main__":
    main()
