#!/usr/bin/env python3
"""Counts the instructions per request of Weir and other proxies with callgrind: those of the worker thread, in user mode.

They do not depend on other load of the machine. Other threads work by the clock (Weir samples itself every second), so a slow
machine would count more of them for each request. The number of requests is fixed, after a warm-up. h2load sends them over 4
connections, with HTTP/2 32 streams each; nginx is the upstream.

- `forwarded`, `rejected`: HTTP/1.1 on both sides; with a limit far above the load, and with one of a request per second.
- `http2`: HTTP/2 without TLS from clients, HTTP/1.1 to the upstream; `http2-both`: HTTP/2 on both sides.
- `http2-rejected`: HTTP/2 without TLS from clients, with a limit of one request per second.
- `grpc`: calls of 128 bytes with trailers-only responses, HTTP/2 on both sides.
- `connection`: a new connection for each request, forwarded over HTTP/1.1.

With --parts, the instructions of Weir are divided by the crate of the function that executes them. Generic functions count
for the crate that defines them, and inlined ones for their caller. With --profile DIRECTORY, the profiles are kept there.

With --check FILE, Weir's are compared with those of a table: more than 3 % above is an error, after two more counts of that
scenario. --bless writes the table. `tests/run instructions` checks the development build, which needs no build of its own: it
executes more instructions than a release, and a change of the code changes both.
"""
import argparse
import csv
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import protocols
import proxy

PARTS = {
    "memcpy": r"^__mem(cpy|move|set|cmp)",
    "allocation": r"malloc|free|^_int_|_rjem|rust_(de|re)?alloc|rdl_|realloc|unlink_chunk|arena_|tcache|jemalloc|extent_|sdallocx",
    "HPACK": r"^<?weir_http::http2::(hpack|head)",
    "HTTP/2": r"^<?weir_http::http2::",
    "headers (http)": r"^<?http::",
    "bytes": r"^<?bytes::",
    "hyper": r"^<?hyper",
    "tokio, mio": r"^<?(tokio|mio)::",
    "Weir": r"^<?weir(_\w+)?::",
    "system": r"^(clock_gettime|__vdso|pthread|epoll|__libc|read|write|recv|send|syscall|__errno)",
}
HTTP1, HTTP2 = ("nginx", "haproxy", "weir"), ("haproxy", "weir")
SCENARIOS = {
    "forwarded": HTTP1,
    "rejected": HTTP1,
    "http2": HTTP2,
    "http2-both": HTTP2,
    "http2-rejected": HTTP2,
    "grpc": HTTP2,
    "connection": HTTP1,
}


def command(scenario, name, options, directory, port, upstreams):
    if scenario.startswith(("http2", "grpc")):
        return protocols.command(options, scenario, name, directory, port, upstreams)
    rate = 1 if scenario == "rejected" else proxy.FAR_ABOVE[name]
    options.proxies = name
    found = proxy.commands(options, directory, upstreams["http1"])[name](port, rate)
    # One process, which callgrind can control.
    return [*found, "-g", "master_process off;"] if name == "nginx" else found


def send(scenario, port, requests, directory):
    address = f"http://127.0.0.1:{port}"
    if scenario == "connection":
        # As many connections as requests, 500 a second. Opened all at once, they would not fit into the caches of the allocator.
        rate = ["-r32", "--rate-period=64ms"]
        load = ["h2load", "--h1", f"-c{requests}", f"-n{requests}", *rate, address]
    elif scenario.startswith(("http2", "grpc")):
        load = ["h2load", "-c4", "-m32", f"-n{requests}", *protocols.call(scenario, directory), address + protocols.path(scenario)]
    else:
        load = ["h2load", "--h1", "-c4", f"-n{requests}", address]
    done = subprocess.run(load, capture_output=True, text=True, check=True)
    completed = int(re.search(r"(\d+) done", done.stdout)[1])
    if completed != requests or ("rejected" not in scenario and f"{requests} 2xx" not in done.stdout):
        sys.exit(f"{scenario}: not all responses were successful\n{done.stdout}")


def control(action, pid):
    subprocess.run(["callgrind_control", action, str(pid)], capture_output=True, check=True, timeout=60)


def parts(text):
    """Returns the instructions of a profile by crate."""
    names, found, function, is_call = {}, {}, "", False
    for line in text.splitlines():
        if line.startswith("fn="):
            number, _, name = line[3:].partition(" ")
            function = names[number] = name or names[number]
        elif line.startswith("cfn="):
            number, _, name = line[4:].partition(" ")
            names[number] = name or names[number]
        elif line.startswith("calls="):
            is_call = True
        elif re.match(r"[+*-]?\d*[+*-]? ?\d* ?\d+$", line) and " " in line:
            # The line after a call has the instructions of the callee.
            if not is_call:
                part = crate(function)
                found[part] = found.get(part, 0) + int(line.split()[-1])
            is_call = False
    return found


def crate(function):
    for part, pattern in PARTS.items():
        if re.search(pattern, function):
            return part
    return "other"


def count(scenario, name, options, directory, upstreams):
    """Returns the instructions per request, and the profile of the worker thread."""
    port = proxy.free_port()
    out = Path(options.profile or directory) / f"{scenario}-{name}"
    tool = ["--tool=callgrind", "--separate-threads=yes", f"--callgrind-out-file={out}"]
    grind = ["valgrind", *tool, "--log-file=/dev/null", *options.callgrind]
    process = subprocess.Popen([*grind, *command(scenario, name, options, directory, port, upstreams)])
    try:
        proxy.wait_until_open(port, process)
        send(scenario, port, options.requests // 4, directory)
        control("-z", process.pid)
        send(scenario, port, options.requests, directory)
        control("-d", process.pid)
    finally:
        process.terminate()
        process.wait(60)
    # Dumps are numbered; the files without a number are written at the end and have what happens after the dump.
    threads = [file.read_text() for file in out.parent.glob(f"{out.name}.1-*")]
    total, worker = max((instructions_of(text), text) for text in threads)
    return total / options.requests, worker


def instructions_of(profile):
    return int(re.search(r"^totals: (\d+)", profile, re.MULTILINE)[1])


TOLERANCE = 1.03


def read_table(file):
    with open(file, newline="") as lines:
        return {row["scenario"]: int(row["instructions"]) for row in csv.DictReader(lines)}


def write_table(file, counts):
    with open(file, "w", newline="") as lines:
        writer = csv.writer(lines, lineterminator="\n")
        writer.writerow(["scenario", "instructions"])
        writer.writerows((scenario, round(counted)) for scenario, counted in counts.items())


def check(options, directory, upstreams):
    """Compares the table's scenarios with the binary. Returns what is above the tolerance."""
    table = read_table(options.check) if not options.bless else dict.fromkeys(options.scenarios.split(","), 0)
    counts, problems = {}, []
    for scenario, known in table.items():
        for _ in range(1 if options.bless else 3):
            counts[scenario], _ = count(scenario, "weir", options, directory, upstreams)
            if counts[scenario] <= known * TOLERANCE:
                break
        change = f"{counts[scenario] / known - 1:+.1%}" if known else "new"
        print(f"| {scenario} | {counts[scenario]:.0f} | {change} |", flush=True)
        if known and counts[scenario] > known * TOLERANCE:
            problems.append(f"{scenario}: {counts[scenario]:.0f} instructions per request, {known} before")
    if options.bless:
        write_table(options.check, counts)
        return []
    return problems


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weir", default="target/dist/weir", help="the binary (default: %(default)s)")
    parser.add_argument("--scenarios", default=",".join(SCENARIOS), help="what to count (%(default)s)")
    parser.add_argument("--proxies", dest="wanted", default="nginx,haproxy,weir", help="proxies to count (%(default)s)")
    parser.add_argument("--requests", type=int, default=10_000, help="requests counted (default: %(default)s)")
    parser.add_argument("--parts", action="store_true", help="divide those of Weir by crate")
    parser.add_argument("--profile", help="directory for the profiles")
    parser.add_argument("--check", help="compare with this table")
    parser.add_argument("--bless", action="store_true", help="write the table of --check")
    options = parser.parse_args()
    options.envoy, options.callgrind = None, []
    for tool in ("nginx", "h2load", "valgrind", *(() if options.check else ("haproxy",))):
        if not shutil.which(tool):
            sys.exit(f"{tool} is not installed")
    if options.check:
        print("| scenario | instructions/request | change |\n|---|---|---|")
        with tempfile.TemporaryDirectory(prefix="instructions-bench-") as directory, protocols.upstream(directory) as upstreams:
            problems = check(options, directory, upstreams)
        sys.exit("\n".join([*problems, f"if this is meant, write {options.check} with --bless"]) if problems else 0)
    print("| scenario | proxy | instructions/request |\n|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="instructions-bench-") as directory:
        with protocols.upstream(directory) as upstreams:
            for scenario in options.scenarios.split(","):
                for name in SCENARIOS[scenario]:
                    if name in options.wanted.split(","):
                        counted, profile = count(scenario, name, options, directory, upstreams)
                        print(f"| {scenario} | {name} | {counted:.0f} |", flush=True)
                        if options.parts and name == "weir":
                            for part, total in sorted(parts(profile).items(), key=lambda item: -item[1]):
                                executed = total / options.requests
                                print(f"| | {part} | {executed:.0f}, {executed / counted:.0%} |")


if __name__ == "__main__":
    main()
