#!/usr/bin/env python3
"""Measures what the access log, traces and further rules add to a forwarded request: CPU time, or instructions with
--instructions.

CPU time: one Weir for each row runs with one worker on processor 0. The load generator (wrk), the upstream and the
collector (both nginx) share processor 1. All are measured in short turns, in random order, round after round. The
result is the CPU time of all threads per request, divided by that of the row without log and traces in the same round:
its median and quartiles.

Instructions: callgrind counts those of all threads in user mode, for a fixed number of requests after a warm-up. Other
load of the machine adds only what threads execute by the clock meanwhile.
"""
import argparse
import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from proxy import BODY, free_port, scheduled, wait_until_open

AGENT = "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/142.0.0.0 Safari/537.36"
PARENT = "traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
CUSTOM = "%START_TIME% %REQ(:METHOD)% %REQ(:PATH)% %RESPONSE_CODE% %BYTES_SENT% %DURATION% %REQ(USER-AGENT)% %REQ(X-TENANT)% %WEIR_RULE%"


def further_rules(count):
    """Returns the rules from the second on, of `count` that all apply."""
    return "\n".join(f"  - {{ name: rule-{number}, key: [client_ip], limit: {10**9 - number}/s }}" for number in range(2, count + 1))


# Name of the row, its configuration, and a header of its requests.
ROWS = {
    "none": ("", None),
    "text": ("access_log: { path: {log}, format: envoy }", None),
    "json": ("access_log: { path: {log}, format: json }", None),
    "custom": ('access_log: { path: {log}, format: "%s" }' % CUSTOM, None),
    "traces 1 %": ('tracing: { otlp: "http://127.0.0.1:{upstream}", sample: 1% }', None),
    "traces 100 %": ('tracing: { otlp: "http://127.0.0.1:{upstream}" }', None),
    "traces, sampled parent": ('tracing: { otlp: "http://127.0.0.1:{upstream}", sample: 0% }', PARENT),
    "json, traces 100 %": (
        'access_log: { path: {log}, format: json }\ntracing: { otlp: "http://127.0.0.1:{upstream}" }',
        None,
    ),
    "classes": (
        """classes:
  - { name: checkout, match: { path: "/checkout/*" }, share: 50, key: [{ header: x-user }] }
  - { name: browse, share: 30 }
  - { name: crawlers, match: { header: { user-agent: "~bot" } }, share: 10, sheddable: true }""",
        None,
    ),
    "20 rules": (further_rules(20), None),
    "50 rules": (further_rules(50), None),
}
UPSTREAM = """daemon off;
worker_processes 1;
pid {dir}/upstream.pid;
error_log stderr crit;
events { worker_connections 4096; }
http {
  access_log off;
  keepalive_requests 1000000000;
  client_max_body_size 0;
  client_body_buffer_size 2m;
  server {
    listen 127.0.0.1:{port} backlog=4096;
    location / { default_type text/plain; return 200 "{body}"; }
    location /v1/traces { return 200; }
  }
}
"""
WEIR = """listeners: { address: "127.0.0.1:{port}" }
workers: 1
upstream: 127.0.0.1:{upstream}
admin: { address: 127.0.0.1:0 }
rules:
  - { name: clients, key: [client_ip], limit: 1000000000/s }
"""


def fill(text, **values):
    for key, value in values.items():
        text = text.replace("{%s}" % key, str(value))
    return text


class Weir:
    """A running instance for one row."""

    def __init__(self, row, options, directory, upstream, prefix):
        self.config, self.header = ROWS[row]
        self.port = free_port()
        self.log = Path(directory) / f"{self.port}.log"
        self.callgrind = Path(directory) / f"{self.port}.callgrind"
        path = Path(directory) / f"{self.port}.yaml"
        path.write_text(fill(WEIR + self.config + "\n", port=self.port, upstream=upstream, log=self.log))
        prefix = [fill(part, out=self.callgrind) for part in prefix]
        self.process = subprocess.Popen([*prefix, options.weir, "run", "-c", str(path), "-l", "error"])
        wait_until_open(self.port, self.process)

    def headers(self, separator):
        headers = [f"user-agent:{separator}{AGENT}"] + ([self.header] if self.header else [])
        return [part for header in headers for part in ("-H", header)]

    def stop(self):
        self.process.terminate()
        self.process.wait(60)


def url(weir):
    return f"http://127.0.0.1:{weir.port}/items/1234?page=2"


def cpu_time(weir, options):
    """Returns the CPU microseconds per request of one turn."""
    before = scheduled(weir.process.pid)
    load = ["taskset", "-c", "1", "wrk", "-t1", f"-c{options.connections}", f"-d{options.seconds}s"]
    done = subprocess.run([*load, *weir.headers(" "), url(weir)], capture_output=True, text=True, check=True)
    after = scheduled(weir.process.pid)
    if weir.log.exists():
        os.truncate(weir.log, 0)
    return (after - before) / int(re.search(r"(\d+) requests in", done.stdout)[1]) * 1e6


def compare_cpu_time(options, directory, upstream):
    running = {}
    results = {row: [] for row in options.rows}
    try:
        for row in options.rows:
            running[row] = Weir(row, options, directory, upstream, ["taskset", "-c", "0"])
        # The first round warms up, and is not counted.
        for number in range(options.rounds + 1):
            for row in random.sample(options.rows, len(options.rows)):
                measured = cpu_time(running[row], options)
                if number > 0:
                    results[row].append(measured)
    finally:
        for weir in running.values():
            weir.stop()
    print("| row | CPU µs/request | added (quartiles) |\n|---|---|---|")
    for row, times in results.items():
        shares = sorted(mine / none - 1 for mine, none in zip(times, results["none"]))
        lower, upper = shares[len(shares) // 4], shares[len(shares) * 3 // 4]
        print(f"| {row} | {statistics.median(times):.2f} | {statistics.median(shares):+.0%} ({lower:+.0%} to {upper:+.0%}) |")


def instructions(row, options, directory, upstream):
    """Returns the instructions per request."""
    grind = ["valgrind", "--tool=callgrind", "--callgrind-out-file={out}", "--log-file=/dev/null"]
    weir = Weir(row, options, directory, upstream, grind)
    try:
        send(weir, options.requests // 4)
        control(weir, "-z")
        send(weir, options.requests)
        control(weir, "-d")
    finally:
        weir.stop()
    # Dumps are numbered; the last file is written at the end and has what happens after the dump.
    text = Path(f"{weir.callgrind}.1").read_text()
    return int(re.search(r"^(?:summary|totals): (\d+)", text, re.MULTILINE)[1]) / options.requests


def send(weir, requests):
    load = ["h2load", "--h1", "-c4", f"-n{requests}", *weir.headers(" "), url(weir)]
    done = subprocess.run(load, capture_output=True, text=True, check=True)
    if f"{requests} succeeded" not in done.stdout:
        sys.exit(done.stdout)


def control(weir, action):
    subprocess.run(["callgrind_control", action, str(weir.process.pid)], capture_output=True, check=True)


def compare_instructions(options, directory, upstream):
    print("| row | instructions/request | added |\n|---|---|---|")
    none = None
    for row in options.rows:
        counted = instructions(row, options, directory, upstream)
        none = counted if none is None else none
        print(f"| {row} | {counted:.0f} | {counted - none:+.0f} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weir", default="target/dist/weir", help="the binary (default: %(default)s)")
    parser.add_argument("--instructions", action="store_true", help="count instructions with callgrind")
    parser.add_argument("--requests", type=int, default=20_000, help="requests counted (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=20, help="turns of each (default: %(default)s)")
    parser.add_argument("--seconds", type=int, default=1, help="length of a turn (default: %(default)s)")
    parser.add_argument("--connections", type=int, default=64, help="clients of a turn (default: %(default)s)")
    parser.add_argument("--rows", type=lambda text: text.split(";"), default=list(ROWS), help="rows, separated by `;`")
    options = parser.parse_args()
    options.rows = ["none"] + [row for row in options.rows if row != "none"]
    tools = ("nginx", "valgrind", "h2load") if options.instructions else ("nginx", "wrk", "taskset")
    for tool in tools:
        if not shutil.which(tool):
            sys.exit(f"{tool} is not installed")
    with tempfile.TemporaryDirectory(prefix="logging-bench-") as directory:
        port = free_port()
        conf = Path(directory) / "upstream.conf"
        conf.write_text(fill(UPSTREAM, dir=directory, port=port, body=BODY))
        service = subprocess.Popen(["taskset", "-c", "1", "nginx", "-c", str(conf)])
        try:
            wait_until_open(port, service)
            (compare_instructions if options.instructions else compare_cpu_time)(options, directory, port)
        finally:
            service.terminate()
            service.wait(30)


if __name__ == "__main__":
    main()
