#!/usr/bin/env python3
"""Latency of requests that arrive at random times, whether earlier ones have been answered or not (an open loop).

Each proxy runs one worker on processor 0. On processor 1, one program sends the requests and is the upstream
(`open_loop/load.c`), so that nothing else waits for a processor. The rate is a share of what `floor.c` takes, the least
that a proxy can be: it only copies bytes. Latency is counted from when a request was due. All are measured in turns, in
random order; the result has medians over the rounds, and the median and quartiles of the ratio to the floor in one round.

- `weir`: one limit per address.
- `weir, reloads`: each second, a configuration with another limit takes its place.
- `weir, full table`: one limit per key, and each request has another key than the ones before it.
- `weir, store lost`: the limit is shared through Redis, which is killed in the middle of each turn and started again.
"""
import argparse
import contextlib
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import proxy

FIELDS = ("requests", "failed", "rate", "p50", "p99", "p99.9", "p99.99")
WEIR = """\
listeners: {{ address: "127.0.0.1:{port}" }}
workers: 1
upstream: 127.0.0.1:{upstream}
admin: {{ address: 127.0.0.1:0 }}
{more}
rules:
  - {{ name: clients, key: [{key}], limit: {limit}/s, burst: 100000000{scope} }}
"""
VARIANTS = {
    "weir": {},
    "weir, reloads": {},
    "weir, full table": {"key": "{ header: x-key }", "more": "limiter: { max_keys: 10000 }"},
    "weir, store lost": {"scope": ", scope: { shared: lease, on_store_loss: allow }"},
}


class Subject:
    """A proxy under test."""

    def __init__(self, name, directory, upstream, options):
        self.name, self.directory, self.port, self.limit = name, Path(directory), proxy.free_port(), 100_000_000
        self.upstream, self.store, self.redis_port = upstream, None, proxy.free_port()
        if name == "weir, store lost":
            self.start_store()
        self.process = subprocess.Popen(["taskset", "-c", "0", *self.command(options)])
        if name != "floor":
            proxy.wait_until_open(self.port, self.process)

    def command(self, options):
        if self.name not in VARIANTS:
            options.proxies = self.name
            return proxy.commands(options, self.directory, self.upstream)[self.name](self.port, proxy.FAR_ABOVE[self.name])
        self.path = self.directory / f"{self.port}.yaml"
        self.write()
        return [options.weir, "run", "-c", str(self.path), "-l", "off"]

    def write(self):
        values = {"key": "client_ip", "more": "", "scope": ""} | VARIANTS[self.name]
        if self.name == "weir, store lost":
            values["more"] = f"store: {{ redis: 'redis://127.0.0.1:{self.redis_port}' }}"
        text = WEIR.format(port=self.port, upstream=self.upstream, limit=self.limit, **values)
        following = self.path.with_suffix(".next")
        following.write_text(text)
        following.rename(self.path)

    def start_store(self):
        command = ["redis-server", "--port", str(self.redis_port), "--save", "", "--loglevel", "warning"]
        self.store = subprocess.Popen(["taskset", "-c", "0", *command], stdout=subprocess.DEVNULL)
        proxy.wait_until_open(self.redis_port, self.store)

    @contextlib.contextmanager
    def disturbed(self, seconds):
        """What happens to the proxy during a turn."""
        ended = threading.Event()

        def reload():
            while not ended.wait(1):
                self.limit -= 1
                self.write()

        def lose_store():
            if not ended.wait(seconds / 2):
                self.store.kill()
                self.store.wait()

        acts = {"weir, reloads": reload, "weir, store lost": lose_store}
        thread = threading.Thread(target=acts.get(self.name, lambda: None))
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def recover(self, rate, options):
        """Starts the store again, and waits until its limit, which begins used up, has room."""
        if self.store and self.store.poll() is not None:
            self.start_store()
            send(self.directory, self, rate, 3, options, may_reject=True)

    def end(self):
        for process in filter(None, (self.process, self.store)):
            process.terminate()
            process.wait(60)


def send(directory, subject, rate, seconds, options, may_reject=False):
    command = [f"{directory}/load", str(subject.port), str(subject.upstream), str(rate), str(seconds), str(options.connections)]
    done = subprocess.run(["taskset", "-c", "1", *command, str(random.randrange(2**31))], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{subject.name}: {done.stderr}")
    row = dict(zip(FIELDS, map(float, done.stdout.split())))
    if row["failed"] and not may_reject:
        sys.exit(f"{subject.name}: {row['failed']:.0f} requests had another status than 200")
    return row


def report(results, rate):
    print(f"{rate:.0f} requests a second\n")
    print("| proxy | p50 µs | p99 µs | p99.9 µs | p99.99 µs | p99.9 of the floor's (quartiles) |\n|---|---|---|---|---|---|")
    for name, rows in results.items():
        medians = " | ".join(f"{statistics.median(row[field] for row in rows):.0f}" for field in FIELDS[3:])
        ratios = sorted(row["p99.9"] / floor["p99.9"] for row, floor in zip(rows, results["floor"]))
        lower, upper = ratios[len(ratios) // 4], ratios[len(ratios) * 3 // 4]
        print(f"| {name} | {medians} | {statistics.median(ratios):.2f} ({lower:.2f}–{upper:.2f}) |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weir", default="target/dist/weir", help="the binary (default: %(default)s)")
    parser.add_argument("--subjects", default="nginx;" + ";".join(VARIANTS), help="what to measure (default: all)")
    parser.add_argument("--share", type=float, default=0.7, help="rate as a share of what the floor takes (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=7, help="turns of each (default: %(default)s)")
    parser.add_argument("--seconds", type=int, default=4, help="length of a turn (default: %(default)s)")
    parser.add_argument("--connections", type=int, default=64, help="connections (default: %(default)s)")
    options = parser.parse_args()
    for tool in ("cc", "nginx", "redis-server", "taskset"):
        if not shutil.which(tool):
            sys.exit(f"{tool} is not installed")
    with tempfile.TemporaryDirectory(prefix="open-loop-bench-") as directory, contextlib.ExitStack() as ending:
        proxy.build_c("open_loop/load.c", directory, "-lm")
        upstream, subjects = proxy.free_port(), []
        for name in ["floor", *options.subjects.split(";")]:
            subjects.append(Subject(name, directory, upstream, options))
            ending.callback(subjects[-1].end)
        time.sleep(0.5)
        capacity = statistics.median(send(directory, subjects[0], 1_000_000, 0.2, options)["rate"] for _ in range(5))
        rate, results = capacity * options.share, {}
        # The first round warms up, and is not counted.
        for number in range(options.rounds + 1):
            for subject in random.sample(subjects, len(subjects)):
                subject.recover(rate, options)
                with subject.disturbed(options.seconds):
                    row = send(directory, subject, rate, options.seconds, options)
                if number > 0:
                    results.setdefault(subject.name, []).append(row)
        report({subject.name: results[subject.name] for subject in subjects}, rate)


if __name__ == "__main__":
    main()
