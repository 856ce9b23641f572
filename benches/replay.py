#!/usr/bin/env python3
"""Measures `weir replay`: lines per second of processor time, by format of the log.

    benches/replay.py [--weir target/dist/weir] [--against OTHER] [--lines 3000000] [--clients 300000] [--rounds 5]

Generates a log of a day in each format. A quarter of the clients sends half of the requests. The rules are a limit per
client, one for logins, and one for searches by all clients; with `--rules three`, most requests are under two limits by
client. The programs run in alternation. Time is that of the whole process, user and system.
"""

import argparse
import gzip
import heapq
import os
import random
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

FORMATS = ["combined", "envoy", "weir-json", "json"]
SERVICE = "listeners: 127.0.0.1:0\nupstream: echo\nrules:\n"
COMMON = """  - { name: per-ip, key: client_ip, limit: 100/min }
  - { name: login, match: { path: /login, method: POST }, key: client_ip, limit: 5/min }
"""
RULES = {
    "typical": COMMON + "  - { name: search, match: { path: /search }, key: [], limit: 50/s }\n",
    "three": COMMON + "  - { name: api, match: { path: /api/* }, key: client_ip, limit: 20/s }\n",
}
AGENT = "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/{}.0.0.0 Safari/537.36"
AGENTS = [AGENT.format(version) for version in range(120, 160)] + ["curl/8.5.0", "Go-http-client/2.0"]
PAGES = ["/", "/index.html", "/assets/app.js", "/search?q=shoes&page=2", "/api/v1/cart", "/login", "/static/main.css?v=%2F3"]
PATHS = [f"/api/v1/products/{number}" for number in range(2000)] + PAGES * 60
METHODS = ["GET"] * 8 + ["POST", "PUT"]
STATUSES = [200] * 16 + [304, 404, 401, 500]


def requests(lines, clients, choices):
    """Yields the requests of a day in order of arrival."""
    number = choices.randrange
    addresses = [f"{number(1, 224)}.{number(256)}.{number(256)}.{number(1, 255)}" for _ in range(clients)]
    at = 1795305600.0
    for index in range(lines):
        at += 86400 / lines * 2 * choices.random()
        yield at, index, {
            "client": addresses[int(choices.random() ** 2 * clients)],
            "method": choices.choice(METHODS),
            "path": choices.choice(PATHS),
            "status": choices.choice(STATUSES),
            "sent": number(50000),
            "millis": int(choices.random() * choices.random() * 300),
            "agent": choices.choice(AGENTS),
            "id": f"{index:08x}-aaaa-4bbb-8ccc-{index * 7919:012x}",
            "iso": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at)) + f".{int(at % 1 * 1000):03}Z",
            "common": time.strftime("%d/%b/%Y:%H:%M:%S +0000", time.gmtime(at)),
        }


LINES = {
    "combined": '{client} - - [{common}] "{method} {path} HTTP/1.1" {status} {sent} "https://www.example.com/" "{agent}"\n',
    "envoy": '[{iso}] "{method} {path} HTTP/1.1" {status} - 0 {sent} {millis} {millis} "{client}" "{agent}" "{id}" "www.example.com"'
    ' "10.0.0.7:8080"\n',
    "weir-json": '{{"start_time":"{iso}","client_ip":"{client}","method":"{method}","authority":"www.example.com","path":"{path}",'
    '"protocol":"HTTP/1.1","response_code":{status},"response_flags":"-","bytes_received":0,"bytes_sent":{sent},"duration":{millis},'
    '"request_id":"{id}","rule":null,"outcome":null,"key":null,"user_agent":"{agent}"}}\n',
    "json": '{{"time_local":"{common}","remote_addr":"{client}","request":"{method} {path} HTTP/1.1","status":"{status}",'
    '"body_bytes_sent":"{sent}","request_time":"0.{millis:03}","http_referer":"https://www.example.com/","http_user_agent":"{agent}"}}\n',
}


def write_log(file, form, arguments):
    """Writes a log in the order in which its requests end, if it has durations."""
    pending, choices = [], random.Random(arguments.seed)
    with file.open("w") as log:
        for at, index, values in requests(arguments.lines, arguments.clients, choices):
            duration = 0 if form == "combined" else values["millis"] / 1000
            heapq.heappush(pending, (at + duration, index, LINES[form].format_map(values)))
            while pending and pending[0][0] <= at:
                log.write(heapq.heappop(pending)[2])
        log.writelines(line for _, _, line in sorted(pending))


def run(program, config, log):
    """Returns the user and the system time of a replay in seconds, and its memory in MiB."""
    process = subprocess.Popen([program, "replay", "-c", config, log], stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    if status != 0:
        raise SystemExit(f"{program} failed")
    return used.ru_utime, used.ru_stime, used.ru_maxrss / 1024


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weir", default="target/dist/weir")
    parser.add_argument("--against", help="another binary, which is measured in alternation")
    parser.add_argument("--lines", type=int, default=3_000_000)
    parser.add_argument("--clients", type=int, default=300_000)
    parser.add_argument("--formats", default=",".join(FORMATS))
    parser.add_argument("--rules", choices=RULES, default="typical")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--gzip", action="store_true", help="also measures each log compressed with gzip")
    arguments = parser.parse_args()
    programs = [arguments.weir] + [arguments.against] * bool(arguments.against)
    with tempfile.TemporaryDirectory() as directory:
        config = Path(directory, "weir.yaml")
        config.write_text(SERVICE + RULES[arguments.rules])
        for form in arguments.formats.split(","):
            logs = [Path(directory, form)]
            write_log(logs[0], form, arguments)
            if arguments.gzip:
                logs.append(Path(directory, f"{form}.gz"))
                logs[1].write_bytes(gzip.compress(logs[0].read_bytes(), 6))
            for log in logs:
                rounds = [[run(program, config, log) for program in programs] for _ in range(arguments.rounds)]
                for program, used in zip(programs, zip(*rounds)):
                    user, system, memory = (statistics.median(value) for value in zip(*used))
                    rate = arguments.lines / (user + system) / 1e6
                    nanos = [1e9 * seconds / arguments.lines for seconds in (user, system)]
                    print(f"{log.name:14} {program:40} {nanos[0]:5.0f} ns user, {nanos[1]:4.0f} ns system per line: "
                          f"{rate:.2f} million lines per second, {memory:.0f} MiB", flush=True)
                log.unlink()


if __name__ == "__main__":
    main()
