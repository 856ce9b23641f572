#!/usr/bin/env python3
"""Measures sidecars that share one limit through Redis, under load of wrk: usage of the limit, and whether it is kept.

    benches/sidecars.py [--weir target/dist/weir] [--sidecars 8] [--limits 100,10000] [--seconds 15] [--only SCENE]

Each sidecar is a process with one worker. All forward to one upstream, whose request count is the number of admissions.
It is sampled every 20 ms, so the admissions in windows of 100 ms, 1 s and 10 s are known to within 20 ms at both ends:
a window exceeds the limit if it has more than `limit * (window + 40 ms) + burst`.

wrk sends as fast as it can to all sidecars, to every third one, or to another third each second. In the other scenes a
third of the sidecars is killed with SIGKILL or has a clock that is half a second ahead (`faketime`, Debian), or the
store is killed for ten seconds. Needs `wrk` and `redis-server`, and `cargo build --profile dist --features jemalloc` first.
"""

import argparse
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

import proxy

SCENES = ["even", "third", "shifting", "killed", "clocks", "store_killed"]
EVENT_AT = 6
ADMITTED = re.compile(r'^weir_requests_total\{[^}]*\} (\d+)', re.M)
CALLS = re.compile(r"cmdstat_(?:evalsha|eval):calls=(\d+)")
CPU = re.compile(r"used_cpu_(?:sys|user):([\d.]+)")


class Fleet:
    """Redis, an upstream, and sidecars in front of it."""

    def __init__(self, options, directory, limit, scene):
        self.options, self.directory, self.limit = options, Path(directory), limit
        self.processes = []
        self.redis_port = proxy.free_port()
        self.start_redis()
        self.upstream, self.upstream_admin = proxy.free_port(), proxy.free_port()
        self.weir("upstream", f"listeners: 127.0.0.1:{self.upstream}\nadmin: {{ address: 127.0.0.1:{self.upstream_admin} }}\nworkers: 1\nupstream: echo\nrules: []\n")
        self.ports, self.sidecars = [], []
        for number in range(options.sidecars):
            port = proxy.free_port()
            is_ahead = scene == "clocks" and number % 3 == 0
            self.ports.append(port)
            self.sidecars.append(self.weir(
                f"sidecar-{number}",
                f"listeners: 127.0.0.1:{port}\nadmin: {{ address: 127.0.0.1:{proxy.free_port()} }}\nworkers: 1\nupstream: 127.0.0.1:{self.upstream}\n"
                f"store: {{ redis: 'redis://127.0.0.1:{self.redis_port}' }}\n"
                f"rules: [{{ name: all, key: [], limit: {limit}/s, scope: {{ shared: lease, wait: 5ms }} }}]\n",
                ["faketime", "-f", "+0.5s"] if is_ahead else []))
        for port, process in zip([self.upstream, *self.ports], self.processes[1:]):
            proxy.wait_until_open(port, process)

    def start_redis(self):
        command = ["redis-server", "--port", str(self.redis_port), "--bind", "127.0.0.1", "--save", "", "--dir", str(self.directory)]
        self.redis = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        self.processes.append(self.redis)

    def weir(self, name, config, before=()):
        path = self.directory / f"{name}.yaml"
        path.write_text(config)
        process = subprocess.Popen([*before, self.options.weir, "run", "-c", path], stderr=subprocess.DEVNULL)
        self.processes.append(process)
        return process

    def admitted(self):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.upstream_admin}/metrics", timeout=5) as response:
            return sum(int(count) for count in ADMITTED.findall(response.read().decode()))

    def info(self, pattern, section):
        output = subprocess.run(["redis-cli", "-p", str(self.redis_port), "info", section], capture_output=True, text=True).stdout
        return sum(float(number) for number in pattern.findall(output))

    def stop(self):
        for process in self.processes:
            process.kill()
            process.wait()


def load(fleet, scene, seconds):
    """Starts wrk for each sidecar with load. In the scene `shifting`, that is another third of them each second."""
    def one(port):
        command = ["wrk", "-t1", f"-c{fleet.options.connections}", f"-d{seconds}", f"http://127.0.0.1:{port}/"]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL)
    if scene != "shifting":
        ports = fleet.ports[::3] if scene == "third" else fleet.ports
        return [one(port) for port in ports]
    # Paused and resumed, because a wrk that starts anew each second sends nothing meanwhile.
    clients = [one(port) for port in fleet.ports]
    def shift():
        started = time.monotonic()
        for second in range(seconds):
            for number, process in enumerate(clients):
                process.send_signal(signal.SIGCONT if number % 3 == second % 3 else signal.SIGSTOP)
            time.sleep(max(0, started + second + 1 - time.monotonic()))
        for process in clients:
            process.kill()
            process.wait()
    thread = threading.Thread(target=shift)
    thread.start()
    return [thread]


def act(fleet, scene, second):
    if scene == "killed" and second == EVENT_AT:
        for sidecar in fleet.sidecars[::3]:
            sidecar.send_signal(signal.SIGKILL)
    elif scene == "store_killed" and second == EVENT_AT:
        fleet.redis.kill()
        fleet.redis.wait()
    elif scene == "store_killed" and second == EVENT_AT + 10:
        fleet.start_redis()


def watch(fleet, scene, seconds):
    """Samples the number of admissions until `seconds` have passed; returns pairs of time and count."""
    samples, started, last = [], time.monotonic(), -1
    while (at := time.monotonic() - started) < seconds:
        if int(at) != last:
            last = int(at)
            act(fleet, scene, last)
        count = fleet.admitted()
        samples.append((time.monotonic() - started, count))
        time.sleep(0.02)
    return samples


def violations(samples, limit, window):
    over, first = 0, 0
    for at, count in samples:
        while at - samples[first][0] > window + 0.04:
            first += 1
        spans = at - samples[first][0]
        over += count - samples[first][1] > limit * (spans + 0.04) + limit
    return over


def run(options, limit, scene):
    seconds = options.seconds + (10 if scene == "store_killed" else 0)
    with tempfile.TemporaryDirectory() as directory:
        fleet = Fleet(options, directory, limit, scene)
        try:
            time.sleep(3)
            clients = load(fleet, scene, seconds)
            time.sleep(2)
            calls, busy = fleet.info(CALLS, "commandstats"), fleet.info(CPU, "cpu")
            samples = watch(fleet, scene, seconds - 3)
            span, admitted = samples[-1][0] - samples[0][0], samples[-1][1] - samples[0][1]
            calls, busy = fleet.info(CALLS, "commandstats") - calls, fleet.info(CPU, "cpu") - busy
            counts = [violations(samples, limit, window) for window in (0.1, 1, 10)]
            per_second = [at_second(samples, second + 1) - at_second(samples, second) for second in range(int(span))]
            used = f"{admitted / span / limit:.3f}"
            print(f"{scene},{limit},{used},{counts[0]},{counts[1]},{counts[2]},{calls / admitted:.5f},{busy / span:.3f},"
                  + " ".join(map(str, per_second)), flush=True)
            for client in clients:
                client.join() if isinstance(client, threading.Thread) else client.wait()
        finally:
            fleet.stop()


def at_second(samples, second):
    return min(samples, key=lambda sample: abs(sample[0] - second))[1]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weir", default="target/dist/weir")
    parser.add_argument("--sidecars", type=int, default=8)
    parser.add_argument("--connections", type=int, default=32, help="of each wrk; with few, all may wait for the store at once")
    parser.add_argument("--limits", default="100,10000")
    parser.add_argument("--seconds", type=int, default=15)
    parser.add_argument("--only")
    options = parser.parse_args()
    for program in ["redis-server", "redis-cli", "wrk"]:
        if not shutil.which(program):
            raise SystemExit(f"{program} is missing")
    print("scene,limit,used,over_100ms,over_1s,over_10s,calls_per_admitted,redis_cpu,admitted_each_second")
    for limit in map(int, options.limits.split(",")):
        for scene in SCENES:
            if options.only in (None, scene):
                run(options, limit, scene)


if __name__ == "__main__":
    main()
