#!/usr/bin/env python3
"""Counts how often the threads of an idle proxy wake up: voluntary context switches, as the kernel counts them.

Each proxy has two workers, an upstream, one limit per address, and no connections. Threads of one name are added up.
"""
import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import proxy


# Settings of the number of workers.
WORKERS = {"nginx": "worker_processes", "haproxy": "nbthread", "weir": "workers:"}


def switches(pid):
    """Returns the voluntary context switches of a process and its descendants, by the name of the thread."""
    counts = Counter()
    for member in proxy.family(pid):
        for task in Path(f"/proc/{member}/task").iterdir():
            try:
                status = (task / "status").read_text()
            except OSError:
                continue  # The thread has ended.
            name = re.search(r"^Name:\t(.*)", status)[1]
            counts[name] += int(re.search(r"^voluntary_ctxt_switches:\t(\d+)", status, re.MULTILINE)[1])
    return counts


def commands(options, directory, upstream):
    """Returns the commands of the proxies with two workers each."""
    found = {}
    for name, command in proxy.commands(options, directory, upstream).items():
        port = proxy.free_port()
        command = command(port, proxy.FAR_ABOVE[name])
        path = Path(next(word for word in command if word.startswith(directory)))
        text = path.read_text()
        setting = WORKERS[name]
        assert f"{setting} 1\n" in text.replace(";", ""), path
        path.write_text(text.replace(f"{setting} 1", f"{setting} 2"))
        found[name] = port, command
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weir", default="target/dist/weir", help="the binary (default: %(default)s)")
    parser.add_argument("--proxies", default="nginx,haproxy,weir", help="proxies to measure (default: %(default)s)")
    parser.add_argument("--seconds", type=int, default=20, help="length of the measurement (default: %(default)s)")
    options = parser.parse_args()
    options.envoy = None
    for tool in {"nginx", *options.proxies.split(",")} - {"weir"}:
        if not shutil.which(tool):
            sys.exit(f"{tool} is not installed")
    print("| proxy | thread | wake-ups per second |\n|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="wakeups-bench-") as directory:
        upstream = proxy.free_port()
        conf = proxy.render("upstream.conf", directory, port=upstream, body=proxy.BODY)
        running = {"upstream": subprocess.Popen(["nginx", "-c", conf])}
        try:
            for name, (port, command) in commands(options, directory, upstream).items():
                running[name] = subprocess.Popen(command)
                proxy.wait_until_open(port, running[name])
            proxies = {name: process.pid for name, process in running.items() if name != "upstream"}
            # The connection that found the port open is idle first, and then closed.
            time.sleep(5)
            before = {name: switches(pid) for name, pid in proxies.items()}
            time.sleep(options.seconds)
            for name, pid in proxies.items():
                for thread, count in sorted((switches(pid) - before[name]).items()):
                    print(f"| {name} | {thread} | {count / options.seconds:.1f} |")
        finally:
            for process in running.values():
                process.terminate()
                process.wait(60)


if __name__ == "__main__":
    main()
