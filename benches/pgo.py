#!/usr/bin/env python3
"""Builds Weir with profile-guided optimisation, and prints the path of the binary.

An instrumented build serves typical load: HTTP/1.1, HTTP/2 and gRPC, forwarded and rejected, new connections, access
logs and traces, and `weir replay`. A second build uses the profile. Both have the `dist` profile, with jemalloc, and each
takes as long as such a build. With --profile FILE, only the second build is made.

nginx, h2load and wrk generate the load. llvm-profdata is in the package `llvm-19` of Debian (from version 19 on), and in the
component `llvm-tools` of rustup.
"""
import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import instructions
import log_cost as logs
import protocols
import proxy
import replay
import rls

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "target" / "pgo"
FORWARDING = ("forwarded", "rejected", "http2", "http2-both", "http2-rejected", "grpc", "connection")


def build(settings, flag):
    """Builds with a flag of rustc, and returns the binary."""
    # With a target, the flag does not apply to build scripts and macros.
    host = subprocess.run(["rustc", "--print", "host-tuple"], capture_output=True, text=True, check=True).stdout.strip()
    command = ["cargo", "build", "--profile", settings.cargo_profile, "--features", "jemalloc", "--locked", "--bin", "weir"]
    environment = {**os.environ, "RUSTFLAGS": flag}
    subprocess.run([*command, "--target", host, "--target-dir", TARGET], cwd=ROOT, env=environment, check=True)
    return TARGET / host / settings.cargo_profile / "weir"


def serve(scenario, options, directory, upstreams):
    port = proxy.free_port()
    process = subprocess.Popen(instructions.command(scenario, "weir", options, directory, port, upstreams))
    try:
        proxy.wait_until_open(port, process)
        instructions.send(scenario, port, options.requests, directory)
    finally:
        process.terminate()
        process.wait(60)


def serve_logged(row, options, directory, upstreams):
    weir = logs.Weir(row, options, directory, upstreams["http1"], [])
    try:
        logs.send(weir, options.requests // 4)
    finally:
        weir.stop()


def decide(options, directory):
    process, port = rls.start_weir(Path(directory), options.weir)
    try:
        message = Path(directory, "question")
        message.write_bytes(rls.question())
        rls.load(port, message, options.requests)
    finally:
        process.terminate()
        process.wait(60)


def replay_logs(options, directory):
    config, log = Path(directory, "replay.yaml"), Path(directory, "log")
    config.write_text(replay.SERVICE + replay.RULES["typical"])
    settings = argparse.Namespace(lines=options.requests, clients=options.requests // 10, seed=1)
    for form in replay.FORMATS:
        replay.write_log(log, form, settings)
        replay.run(options.weir, config, log)


def train(options):
    with tempfile.TemporaryDirectory(prefix="pgo-") as directory, protocols.upstream(directory) as upstreams:
        for scenario in FORWARDING:
            # New connections use up ports.
            options.requests = 5_000 if scenario == "connection" else 100_000
            serve(scenario, options, directory, upstreams)
        options.requests = 100_000
        for row in logs.ROWS:
            serve_logged(row, options, directory, upstreams)
        decide(options, directory)
        replay_logs(options, directory)


def record_profile(settings):
    """Builds the instrumented binary, and returns the profile of its load."""
    raw, merged = TARGET / "raw", TARGET / "weir.profdata"
    shutil.rmtree(raw, ignore_errors=True)
    binary = build(settings, f"-Cprofile-generate={raw}")
    train(argparse.Namespace(weir=str(binary), envoy=None))
    merge = shutil.which("llvm-profdata") or shutil.which("llvm-profdata-19")
    subprocess.run([merge, "merge", "-o", merged, raw], check=True)
    return merged


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", type=Path, help="a profile of an earlier build")
    parser.add_argument("--cargo-profile", default="dist", help="the profile of both builds (default: %(default)s)")
    settings = parser.parse_args()
    profile = settings.profile
    for tool in ("nginx", "h2load", "taskset"):
        if not (profile or shutil.which(tool)):
            sys.exit(f"{tool} is not installed")
    profile = profile or record_profile(settings)
    print(build(settings, f"-Cprofile-use={profile.resolve()}"))


if __name__ == "__main__":
    main()
