#!/usr/bin/env python3
"""Measures Weir with thousands of varied rules: start, and latency while the configuration is reloaded.

Start: time from the start of the process until its admin port reports that it is ready.

Reload: h2load sends requests at an even rate on four connections for some seconds, without and with reloads in alternation.
The configuration differs in every limit, so each reload replaces all of them. The result has percentiles of latency.

Instructions (--instructions): callgrind counts those of `weir check`, and of a process that starts and ends. They do not
depend on other load of the machine.
"""
import argparse
import http.client
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from proxy import free_port

# Maximum share of time for which a hypervisor may withhold a processor.
MAX_STOLEN = 0.01
HEAD = """listeners: {{ address: "127.0.0.1:{port}" }}
workers: {workers}
upstream: echo
admin: {{ address: "127.0.0.1:{admin}" }}
rules:
"""
# Of each sixteen rules; P is the path.
KINDS = (
    "match: { path: P }, key: [client_ip], limit: N/s",
    "match: { path: 'P/{id}' }, key: [client_ip], limit: N/s, burst: 2000",
    "match: { path: 'P/*' }, key: [{ header: x-api-key }], limit: N/min",
    "match: { path: P, method: POST }, key: [client_ip, path], limits: [N/s, 30000/min]",
    "match: { path: 'P/{user}/items/{item}' }, key: [{ query: user }], limit: N/s, throttle: delay 500ms",
    "match: { host: sS.example.com, path: '/api/*' }, key: [client_ip], limit: N/s, algorithm: sliding_window",
    "match: { header: { x-tenant: tenant-S } }, key: [], limit: N/s",
    "match: { path: P, header: { x-internal: '!present' } }, key: [{ cookie: session }], limit: N/s, throttle: soft 10%",
    "match: { path: '~^P/v[0-9]+$' }, key: [client_ip], limit: N/h, algorithm: fixed_window",
    "match: { path: 'P/*', client_ip: 10.1.0.0/16 }, key: [client_ip], limit: N/s, throttle: shadow",
    "match: { path: P, method: [GET, HEAD] }, key: [{ header: authorization }], limit: N/s, in_flight: 50",
    "match: { path: 'P/{id}/export' }, key: [client_ip], limit: N/h, on_limit: { ban: 10m }",
    "match: { path: 'P/*' }, except: { header: { x-probe: '*' } }, key: [client_ip], limit: N/s, algorithm: token_bucket",
    "match: { path: P }, key: [client_ip], limit: N/s, cost: { header: x-cost }",
    "match: { path: P/login }, key: [client_ip], limit: N/h, algorithm: sliding_log, count: { response_status: 401 }",
    "match: { path: P/health }, action: allow",
)


class Config:
    """A configuration file and its ports."""

    def __init__(self, options, directory):
        self.options, self.port, self.admin = options, free_port(), free_port()
        self.path = Path(directory) / f"{self.port}.yaml"
        self.write(self.text(0))

    def text(self, version):
        """Returns the configuration. Each version has other limits."""
        lines = [HEAD.format(port=self.port, admin=self.admin, workers=self.options.workers)]
        for number in range(self.options.rules):
            service, kind = divmod(number, len(KINDS))
            rule = re.sub(r"\bP\b", f"/s{service}/r{kind}", KINDS[kind])
            rule = re.sub(r"\bN\b", str(100 + (number * 7 + version) % 900), rule)
            rule = re.sub(r"S\b", str(service), rule.replace("POST", "\0")).replace("\0", "POST")
            lines.append(f"  - {{ name: r{number}, {rule} }}\n")
        return "".join(lines)

    def write(self, text):
        following = self.path.with_suffix(".next")
        following.write_text(text)
        following.rename(self.path)

    def reload(self, text):
        """Writes the configuration and waits until it is applied."""
        before = self.generation()
        self.write(text)
        while self.generation() == before:
            time.sleep(0.05)

    def get(self, path):
        connection = http.client.HTTPConnection("127.0.0.1", self.admin, timeout=60)
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read().decode()

    def until_ready(self, process):
        while process.poll() is None:
            try:
                if self.get("/ready")[0] == 200:
                    return
            except OSError:
                time.sleep(0.002)
        sys.exit("weir has ended")

    def generation(self):
        return int(re.search(r'"generation":\s*(\d+)', self.get("/server_info")[1])[1])


def run(binary, config, prefix=()):
    return subprocess.Popen([*prefix, binary, "run", "-c", str(config.path), "-l", "error"])


def start_time(binary, config):
    began = time.monotonic()
    process = run(binary, config)
    config.until_ready(process)
    took = time.monotonic() - began
    process.terminate()
    process.wait(60)
    return took


def latency(config, options, reloads):
    """Returns latencies in microseconds. The requests match an `allow` rule, so all are forwarded."""
    # Generated before, because that takes the processor of the client.
    texts = [config.text(version) for version in range(1, reloads + 1)]
    log = config.path.with_suffix(".log")
    load = ["h2load", "--h1", "-c4", f"--rps={options.rate}", f"-D{options.seconds}", f"--log-file={log}"]
    client = subprocess.Popen([*load, f"http://127.0.0.1:{config.port}/s1/r15/health"], stdout=subprocess.DEVNULL)
    try:
        for text in texts:
            config.reload(text)
        client.wait(600)
    finally:
        client.kill()
    # Each line has the start of a request, its status and its time in microseconds.
    lines = [line.split() for line in log.read_text().splitlines()]
    log.unlink()
    if any(status != "200" for _, status, _ in lines):
        sys.exit("not all responses were successful")
    return [int(time) for *_, time in lines]


def stolen():
    """Returns the seconds for which a hypervisor has withheld processors from this machine."""
    return int(Path("/proc/stat").read_text().split()[8]) / os.sysconf("SC_CLK_TCK")


def undisturbed_latency(config, options, reloads):
    """As `latency`. A turn in which processors were withheld is repeated, because all long times would be due to that."""
    for _ in range(options.attempts):
        before = stolen()
        times = latency(config, options, reloads)
        if stolen() - before <= MAX_STOLEN * options.seconds:
            return times
    sys.exit(f"processors were withheld in each of {options.attempts} attempts")


def compare_times(options, directory):
    print("| binary | start (median) | latency p50, p99, p99.9 | during reloads |\n|---|---|---|---|")
    for binary in options.weir:
        config = Config(options, directory)
        started = statistics.median(start_time(binary, config) for _ in range(options.starts))
        process = run(binary, config)
        try:
            config.until_ready(process)
            # In alternation, because the speed of a machine varies.
            columns = [[], []]
            for _ in range(options.turns):
                columns[0] += undisturbed_latency(config, options, 0)
                columns[1] += undisturbed_latency(config, options, options.reloads)
        finally:
            process.terminate()
            process.wait(60)
        parts = [statistics.quantiles(times, n=1000) for times in columns]
        texts = [", ".join(f"{part[at]:.0f} µs" for at in (499, 989, 998)) for part in parts]
        print(f"| {binary} | {started * 1e3:.0f} ms | {' | '.join(texts)} |", flush=True)


def counted(out):
    return int(re.search(r"^(?:summary|totals): (\d+)", Path(out).read_text(), re.MULTILINE)[1])


def count_instructions(options, directory):
    print("| binary | `weir check` | start and end |\n|---|---|---|")
    for binary in options.weir:
        config = Config(options, directory)
        out = Path(directory) / "callgrind.out"
        grind = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}", "--log-file=/dev/null"]
        subprocess.run([*grind, binary, "check", str(config.path)], stdout=subprocess.DEVNULL, check=True)
        check = counted(out)
        process = run(binary, config, grind)
        config.until_ready(process)
        process.terminate()
        process.wait(600)
        print(f"| {binary} | {check / 1e6:.0f} million | {counted(out) / 1e6:.0f} million |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weir", action="append", help="a binary; may be given several times (default: target/dist/weir)")
    parser.add_argument("--rules", type=int, default=8000, help="number of rules (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=1, help="number of workers (default: %(default)s)")
    parser.add_argument("--starts", type=int, default=5, help="number of starts (default: %(default)s)")
    parser.add_argument("--seconds", type=int, default=5, help="length of each turn of latency (default: %(default)s)")
    parser.add_argument("--turns", type=int, default=5, help="turns without and with reloads (default: %(default)s)")
    parser.add_argument("--attempts", type=int, default=20, help="attempts of a turn (default: %(default)s)")
    parser.add_argument("--rate", type=int, default=1000, help="requests a second on each connection (default: %(default)s)")
    parser.add_argument("--reloads", type=int, default=3, help="reloads of a turn (default: %(default)s)")
    parser.add_argument("--instructions", action="store_true", help="count instructions with callgrind")
    options = parser.parse_args()
    options.weir = options.weir or ["target/dist/weir"]
    tool = "valgrind" if options.instructions else "h2load"
    if not shutil.which(tool):
        sys.exit(f"{tool} is not installed")
    with tempfile.TemporaryDirectory(prefix="many-rules-bench-") as directory:
        (count_instructions if options.instructions else compare_times)(options, directory)


if __name__ == "__main__":
    main()
