#!/usr/bin/env python3
"""Records the terminal sessions of docs/operations/on-call.md.

Runs the real binary with a configuration, an upstream and load, executes the commands of each session, and writes what
they print into the page. Needs Python 3.11 and a built binary:

    cargo build --release
    python3 docs/on-call/record.py --weir target/release/weir

Ports are chosen by the system; in the page they are the usual ones. A session whose command the binary does not have
keeps its text, and the exit code is then 1.
"""

import argparse
import gzip
import http.client
import http.server
import json
import os
import pathlib
import random
import re
import shutil
import socket
import socketserver
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/operations/on-call.md"
MAX_LINES, MAX_COLUMNS = 60, 140

CONFIG = """\
listeners: 127.0.0.1:8080
upstream: 127.0.0.1:3000
admin: { address: 127.0.0.1:9901 }
client_ip: { trusted_proxies: [127.0.0.1] }
access_log: { path: access.log, format: json }
rules:
  - name: per-ip
    key: client_ip
    limit: 10/s
    burst: 20
  - name: login
    match: { path: /login, method: POST, trailing_slash: ignore }
    key: client_ip
    limit: 5/min
"""

STRICTER = CONFIG.replace("limit: 10/s\n    burst: 20", "limit: 5/s\n    burst: 10")

SHARED = """\
store: { redis: redis://127.0.0.1:6379 }
rules:
  - name: per-ip
    key: client_ip
    limit: 10/s
    burst: 20
    scope: { shared: lease, on_store_loss: split }
"""


class Upstream(http.server.BaseHTTPRequestHandler):
    """A service that takes 0.3 s for /report and 2 ms for everything else."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        time.sleep(0.3 if self.path.startswith("/report") else 0.002)
        self.send_response(200)
        self.send_header("content-length", "3")
        self.end_headers()
        self.wfile.write(b"ok\n")

    do_POST = do_GET

    def log_message(self, *_):
        pass


class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True
    request_queue_size = 256


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class World:
    """The directory, the processes and the ports of a recording."""

    def __init__(self, weir):
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="weir-on-call-"))
        shutil.copy(weir, self.directory / "weir")
        self.upstream = Server(("127.0.0.1", 0), Upstream)
        threading.Thread(target=self.upstream.serve_forever, daemon=True).start()
        # Shown port -> real port. Nothing listens on that of the store.
        self.ports = {8080: free_port(), 3000: self.upstream.server_address[1], 9901: free_port(), 6379: free_port()}
        self.process = None
        self.stopping = threading.Event()
        self.senders = []

    def real(self, text):
        return re.sub(r"127\.0\.0\.1:(\d+)", lambda at: f"127.0.0.1:{self.ports.get(int(at[1]), at[1])}", text)

    def shown(self, text):
        for shown, real in self.ports.items():
            text = text.replace(f"127.0.0.1:{real}", f"127.0.0.1:{shown}")
        return text.replace(f"{self.directory}/", "")

    def write(self, name, text):
        (self.directory / name).write_text(self.real(text))

    def start(self, config):
        self.stop()
        self.write("weir.yaml", config)
        with open(self.directory / "weir.log", "w") as log:
            self.process = subprocess.Popen([self.directory / "weir", "run", "-c", "weir.yaml"], cwd=self.directory, stderr=log)
        self.until(lambda: self.admin("/ready")[0] == 200)

    def stop(self):
        self.stopping.set()
        for sender in self.senders:
            sender.join()
        self.senders, self.stopping = [], threading.Event()
        if self.process:
            self.process.terminate()
            self.process.wait()
            self.process = None

    def close(self):
        self.stop()
        self.upstream.shutdown()
        shutil.rmtree(self.directory)

    @staticmethod
    def until(condition):
        end = time.monotonic() + 20
        while not condition():
            if time.monotonic() > end:
                sys.exit("timed out")
            time.sleep(0.05)

    def admin(self, path, method="GET"):
        """Returns status and text of an admin endpoint; status 0 if nothing responds."""
        request = urllib.request.Request(f"http://127.0.0.1:{self.ports[9901]}{path}", method=method)
        try:
            with urllib.request.urlopen(request, timeout=5) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def limited(self, rule):
        """Returns the number of requests that a rule has rejected."""
        found = re.search(rf'rule="{rule}",outcome="limited"}} (\d+)', self.admin("/metrics")[1])
        return int(found[1]) if found else 0

    def send(self, client, path="/", method="GET", count=1):
        connection = http.client.HTTPConnection("127.0.0.1", self.ports[8080], timeout=10)
        for _ in range(count):
            connection.request(method, path, headers={"host": "api.example.com", "x-forwarded-for": client})
            connection.getresponse().read()
        connection.close()

    def keep_sending(self, client, rate, path="/", method="GET"):
        """Sends about `rate` requests a second until the instance stops."""

        def run(stopping):
            while not stopping.wait(1 / rate):
                try:
                    self.send(client, path, method)
                except OSError:
                    pass

        sender = threading.Thread(target=run, args=(self.stopping,), daemon=True)
        sender.start()
        self.senders.append(sender)

    def run(self, command):
        """Runs a command as written in the page; returns what it prints."""
        environment = {**os.environ, "PATH": f"{self.directory}:{os.environ['PATH']}", "COLUMNS": "110", "NO_COLOR": "1"}
        done = subprocess.run(
            ["bash", "-c", self.real(command)], cwd=self.directory, env=environment, capture_output=True, text=True, timeout=120
        )
        return self.shown(done.stdout + done.stderr)

    def has_command(self, name):
        return subprocess.run([self.directory / "weir", name, "--help"], capture_output=True).returncode == 0

    def has_path(self, path, method="GET"):
        return self.admin(path, method)[0] not in (0, 404)


def traffic(world):
    """Normal clients, and one that sends far too much."""
    for number in range(2, 8):
        world.keep_sending(f"198.51.100.{number}", 3)
    world.keep_sending("203.0.113.7", 60)
    world.keep_sending("203.0.113.9", 2, "/login", "POST")
    world.until(lambda: world.limited("login") > 0)
    time.sleep(4)


def recorded_log(world):
    """An hour of yesterday as JSON lines: 400 clients, of which four send bursts."""
    numbers = random.Random(18)
    begin = time.time() - 86400
    lines = []
    for client in range(400):
        address = f"198.51.{client // 250}.{client % 250 + 1}"
        at = begin + numbers.random() * 600
        while at < begin + 3600:
            burst = numbers.choice([1, 1, 1, 2, 4]) if client % 100 else 60
            for index in range(burst):
                lines.append((at + index * 0.02, address))
            at += numbers.expovariate(1 / (45 if client % 100 else 240))
    lines.sort()
    with gzip.open(world.directory / "yesterday.log.gz", "wt") as log:
        for at, address in lines:
            stamp = f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(at))}.{int(at % 1 * 1000):03}Z"
            entry = {"time": stamp, "client_ip": address, "method": "GET", "path": f"/items/{int(at) % 97}", "status": 200}
            log.write(json.dumps(entry) + "\n")


def who_is_limited(world):
    world.start(CONFIG)
    traffic(world)
    since = "grep 203.0.113.7 access.log | grep '\"response_code\":429' | head -1"
    return ["weir top --admin 127.0.0.1:9901 --once", "curl -s '127.0.0.1:9901/limits/top?rule=per-ip&n=2'", since]


def yesterday(world):
    recorded_log(world)
    world.write("weir.yaml", CONFIG)
    world.write("new.yaml", STRICTER)
    return ["diff weir.yaml new.yaml", "weir replay -c new.yaml --against weir.yaml yesterday.log.gz"]


def customer(world):
    world.start(CONFIG)
    for _ in range(3):
        world.keep_sending("203.0.113.7", 30)
    world.until(lambda: world.limited("per-ip") > 20)
    time.sleep(1)
    return [
        "grep 203.0.113.7 access.log | grep '\"response_code\":429' | tail -1",
        "weir explain -c weir.yaml --admin 127.0.0.1:9901 GET http://api.example.com/ --client 203.0.113.7",
        "curl -s -X POST '127.0.0.1:9901/limits/boost?rule=per-ip&key=client_ip=203.0.113.7&factor=10&for=24h'",
        "curl -s -o /dev/null -w '%{http_code}\\n' -H 'x-forwarded-for: 203.0.113.7' 127.0.0.1:8080/",
        "curl -s 127.0.0.1:9901/limits/overrides",
    ]


def which_limit(world):
    recorded_log(world)
    world.write("candidate.yaml", CONFIG)
    return ["weir replay -c candidate.yaml yesterday.log.gz"]


def store_down(world):
    world.start(CONFIG.split("rules:")[0] + SHARED)
    world.send("198.51.100.2", count=3)
    world.until(lambda: "weir_store_up 0" in world.admin("/metrics")[1])
    time.sleep(1)
    return [
        "curl -s 127.0.0.1:9901/metrics | grep -E '^weir_(store_up|shared_error_bound)|unreachable'",
        "curl -s 127.0.0.1:9901/limits | grep -o '\"\\(store\\|in_force\\|on_store_loss\\)\": *\"[a-z]*\"' | sort | uniq -c",
        "grep -i store weir.log | tail -2",
    ]


def change_in_force(world):
    world.start(CONFIG)
    world.send("198.51.100.2", count=2)
    before = world.admin("/metrics")[1]
    world.write("next.yaml", CONFIG.replace("limit: 5/min", "limit: 8/min"))
    difference = world.run("weir check --against weir.yaml next.yaml")
    (world.directory / "next.yaml").rename(world.directory / "weir.yaml")
    world.until(lambda: "weir_config_generation 2" in world.admin("/metrics")[1] or before == "")
    return [
        ("weir check --against weir.yaml next.yaml && mv next.yaml weir.yaml", difference),
        "curl -s 127.0.0.1:9901/metrics | grep -E '^weir_config_(generation|last_reload_successful|reloads)'",
        "curl -s 127.0.0.1:9901/config_dump | grep -o '8/[a-z]*' | head -1",
        "curl -si -X POST -H 'x-forwarded-for: 198.51.100.2' 127.0.0.1:8080/login | grep -i x-ratelimit-limit",
    ]


def slow(world):
    world.start(CONFIG)
    world.keep_sending("198.51.100.2", 5)
    world.keep_sending("198.51.100.3", 3, "/report/1")
    time.sleep(4)
    return [
        "curl -s 127.0.0.1:9901/metrics | grep -E '^weir_.*request_(duration|delay)_seconds_(sum|count)'",
        "grep '/report' access.log | tail -1",
        "curl -s 127.0.0.1:9901/clusters | grep -E 'rq_(active|total|timeout)|health_flags'",
    ]


def one_client(world):
    world.start(CONFIG.replace("client_ip: { trusted_proxies: [127.0.0.1] }\n", ""))
    for number in range(2, 12):
        world.send(f"198.51.100.{number}", count=4)
    time.sleep(1)
    return [
        "grep -o '\"client_ip\":\"[^\"]*\"' access.log | sort | uniq -c",
        "curl -s 127.0.0.1:9901/metrics | grep -E '^weir_limiter_keys'",
        "grep -i forwarded weir.log",
        "grep -n trusted_proxies weir.yaml || echo 'trusted_proxies is not set'",
    ]


def ban(world):
    world.start(CONFIG)
    world.send("203.0.113.66", count=3)
    return [
        "curl -s -X POST '127.0.0.1:9901/limits/ban?rule=per-ip&key=client_ip=203.0.113.66&for=10m'",
        "curl -si -H 'x-forwarded-for: 203.0.113.66' 127.0.0.1:8080/ | head -8",
        "grep -i audit weir.log | tail -1",
        "curl -s 127.0.0.1:9901/limits/overrides",
    ]


def how_close(world):
    world.start(CONFIG)
    world.keep_sending("198.51.100.2", 8)
    world.keep_sending("198.51.100.3", 2)
    time.sleep(4)
    return [
        "curl -si -H 'x-forwarded-for: 198.51.100.2' 127.0.0.1:8080/ | grep -i x-ratelimit",
        "weir explain -c weir.yaml --admin 127.0.0.1:9901 GET http://api.example.com/ --client 198.51.100.2",
        "curl -s 127.0.0.1:9901/metrics | grep -E '^weir_limiter_(keys|entries|capacity)|^weir_decisions_total.*per-ip.*(allowed|limited)'",
    ]


# Name, preparation, and the commands and paths that the binary must have.
SESSIONS = [
    ("who-is-limited", who_is_limited, ["top"], ["/limits/top"]),
    ("yesterday", yesterday, ["replay"], []),
    ("customer", customer, ["explain"], ["/limits/overrides"]),
    ("which-limit", which_limit, ["replay"], []),
    ("store-down", store_down, [], []),
    ("change-in-force", change_in_force, [], []),
    ("slow", slow, [], []),
    ("one-client", one_client, [], []),
    ("ban", ban, [], ["/limits/overrides"]),
    ("how-close", how_close, ["explain"], []),
]


def wrapped(line):
    """Splits a line that is too wide for the page, as a terminal does."""
    return [line[at : at + MAX_COLUMNS] for at in range(0, max(len(line), 1), MAX_COLUMNS)]


def trimmed(text):
    lines = [part for line in text.rstrip("\n").expandtabs().splitlines() for part in wrapped(line.rstrip())]
    rest = len(lines) - MAX_LINES
    return lines[:MAX_LINES] + ([f"… {rest} more lines"] if rest > 0 else [])


def record(world, prepare):
    lines = []
    for command in prepare(world):
        command, output = command if isinstance(command, tuple) else (command, world.run(command))
        # A fence would end the block.
        lines += [f"$ {command}", *trimmed(output.replace("```", "'''"))]
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weir", type=pathlib.Path, default=ROOT / "target/release/weir", help="the binary (%(default)s)")
    parser.add_argument("--only", help="record only the session of this name")
    options = parser.parse_args()
    page, missing = PAGE.read_text(), []
    world = World(options.weir)
    try:
        for name, prepare, commands, paths in SESSIONS:
            if options.only not in (None, name):
                continue
            (world.directory / "access.log").unlink(missing_ok=True)
            absent = [f"weir {command}" for command in commands if not world.has_command(command)]
            if paths and not absent:
                world.start(CONFIG)
                absent = [path for path in paths if not world.has_path(path)]
            if absent:
                missing.append(f"{name}: the binary lacks {', '.join(absent)}")
                continue
            text = record(world, prepare)
            world.stop()
            block = f"<!-- session: {name} -->\n```text\n{text}\n```\n<!-- end -->"
            pattern = rf"<!-- session: {name} -->\n.*?<!-- end -->"
            page, count = re.subn(pattern, lambda _: block, page, flags=re.DOTALL)
            if count != 1:
                sys.exit(f"{PAGE}: {count} blocks for {name}")
            print(f"recorded {name}")
    finally:
        world.close()
    PAGE.write_text(page)
    for line in missing:
        print(f"not recorded: {line}", file=sys.stderr)
    sys.exit(1 if missing else 0)


if __name__ == "__main__":
    main()
