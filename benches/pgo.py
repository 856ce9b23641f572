#!/usr/bin/env python3
"""Builds `weir` with profile-guided optimisation: target/pgo/weir.

    python3 benches/pgo.py                 # all steps
    python3 benches/pgo.py profile         # the profile only: target/pgo/weir.profdata
    python3 benches/pgo.py build           # the program only, with that profile

The profile is made by a program with counters, for the platform of this machine. It is under load in everything that
`protocols.py`, `proxy.py`, `log_cost.py`, `rls.py`, `many_rules.py` and `replay.py` measure, and with TLS. A profile
belongs to a version of the source, to the path of the checkout and to a platform: functions with other names or other
code are optimised as without it.

Weir is compiled twice, and so are its larger dependencies (`pgo/rustc`). Generic code belongs to the crate that uses it. Needs wrk, h2load, openssl, and llvm-profdata (`rustup component add llvm-tools`, or
its path in LLVM_PROFDATA).
"""
import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import types
from pathlib import Path

import idle_tls
import log_cost
import many_rules
import replay
import rls
from proxy import free_port, wait_until_open

ROOT = Path(__file__).resolve().parent.parent
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve() / "pgo"
CARGO = ["cargo", "build", "--profile", "dist", "--features", "jemalloc", "--locked", "--bin", "weir"]
WRAPPER = ROOT / "benches/pgo/rustc"
ADMIN = "admin: { address: 127.0.0.1:0 }\nworkers: 1\n"
SERVICE = """\
rules:
  - { name: health, match: { path: /health }, action: allow }
  - { name: rejected, match: { path: /rejected }, key: [client_ip], limit: 1/s }
  - { name: clients, key: [client_ip], limit: 1000000000/s }
  - { name: keys, match: { path: /items/* }, key: [{ header: x-api-key }], limit: 1000000000/min, algorithm: sliding_window }
"""
BROWSER = ["-H", f"user-agent: {log_cost.AGENT}", "-H", "accept: text/html,*/*", "-H", "cookie: session=0123456789abcdef"]
GRPC = ["-H", "content-type: application/grpc", "-H", "te: trailers"]


def build(flag, target):
    """Returns the path of the program. The crates of the wrapper are compiled with `flag`."""
    arguments = ["--target-dir", str(TARGET), *(["--target", target] if target else [])]
    # Cargo does not know that the wrapper reads the environment.
    crates = subprocess.run([WRAPPER, "--crates"], capture_output=True, text=True, check=True).stdout.split()
    clean = ["cargo", "clean", "--profile", "dist", *arguments, *(f"--package={crate}" for crate in crates)]
    subprocess.run(clean, check=True, cwd=ROOT)
    wrapped = {"RUSTC_WRAPPER": str(WRAPPER), "WEIR_RUSTC_FLAG": flag, "CARGO_INCREMENTAL": "0"}
    command = [*CARGO, *arguments, "--message-format", "json-render-diagnostics"]
    report = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT, env={**os.environ, **wrapped})
    found = (json.loads(line).get("executable") for line in report.stdout.splitlines())
    return next(path for path in found if path)


def profdata():
    """Returns the path of llvm-profdata: LLVM_PROFDATA, or that of the toolchain, which reads every profile of its compiler."""
    if named := os.environ.get("LLVM_PROFDATA"):
        return Path(named)
    command = ["rustc", "--print", "target-libdir"]
    libraries = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout.strip()
    tool = Path(libraries).parent / "bin/llvm-profdata"
    return tool if tool.exists() else sys.exit("llvm-profdata is missing: run `rustup component add llvm-tools`")


class Training:
    """Programs under load, one after the other. Each writes its counters when it ends."""

    def __init__(self, weir, directory, seconds):
        self.weir, self.directory, self.seconds = weir, Path(directory), seconds

    def start(self, name, config, port):
        path = self.directory / f"{name}.yaml"
        path.write_text(ADMIN + config)
        process = subprocess.Popen([self.weir, "run", "-c", str(path), "-l", "error"])
        wait_until_open(port, process)
        return process

    def serve(self, name, upstream, extra="", tls=False, rules=SERVICE):
        """Starts a proxy. Returns it and its port."""
        port = free_port()
        certificate = f"{{ certificate: {self.directory}/app.crt, key: {self.directory}/app.key }}"
        tls = f", tls: {certificate}" if tls else ""
        listeners = f'listeners: {{ address: "127.0.0.1:{port}"{tls} }}\n'
        return self.start(name, f"{listeners}upstream: {upstream}\n{extra}{rules}", port), port

    def h2load(self, url, *arguments):
        run(["h2load", "-t1", f"-D{self.seconds}", *arguments, url])

    def http1(self, url, *arguments):
        run(["wrk", "-t1", "-c64", f"-d{self.seconds}s", *arguments, url])

    def proxy(self, upstream, tls):
        """Requests, rejections, connections and bodies, over HTTP/1.1 and HTTP/2 on either side."""
        scheme = "https" if tls else "http"
        kind = f"{scheme}-{'http2' if 'http2' in upstream else 'http1'}"
        process, port = self.serve(kind, upstream, tls=tls)
        url = f"{scheme}://127.0.0.1:{port}"
        for path in ("/", "/items/1234?page=2", "/rejected"):
            self.http1(url + path, *BROWSER)
            self.h2load(url + path, "-c8", "-m32", *BROWSER)
        self.http1(f"{url}/", "-H", "connection: close")
        self.h2load(f"{url}/grpc", "-c8", "-m32", "-d", str(self.directory / "message"), *GRPC)
        for protocol in ("--h1", "-m4"):
            self.h2load(f"{url}/", "-c4", protocol, "-d", str(self.directory / "upload"))
        end(process)

    def features(self, upstream, collector):
        """Access logs, traces, and many rules for one request."""
        for row, (config, header) in log_cost.ROWS.items():
            config = log_cost.fill(config, log=self.directory / "access.log", upstream=collector)
            rules = config.removeprefix("\n") if "rules" in row else ""
            extra = "" if rules else config + "\n"
            name = row.replace(" ", "-").replace("%", "")
            process, port = self.serve(name, upstream, extra=extra, rules=f"{SERVICE}{rules}\n")
            self.http1(f"http://127.0.0.1:{port}/items/1234?page=2", *BROWSER, *(["-H", header] if header else []))
            end(process)

    def rate_limit_service(self):
        directory = self.directory / "rls"
        directory.mkdir()
        process, port = rls.start_weir(directory, self.weir)
        (directory / "call").write_bytes(rls.question())
        self.h2load(f"http://127.0.0.1:{port}{rls.PATH}", "-c8", "-m32", "-d", str(directory / "call"), *GRPC)
        end(process)

    def thousands_of_rules(self):
        """Starts and reloads."""
        config = many_rules.Config(types.SimpleNamespace(rules=2000, workers=1), self.directory)
        process = many_rules.run(self.weir, config)
        config.until_ready(process)
        for version in range(1, 4):
            config.reload(config.text(version))
        self.http1(f"http://127.0.0.1:{config.port}/s7/r1/item", *BROWSER)
        end(process)

    def replays(self):
        config = self.directory / "replay.yaml"
        config.write_text(replay.SERVICE + replay.RULES["three"])
        amount = types.SimpleNamespace(lines=150_000, clients=20_000, seed=1)
        for form in replay.FORMATS:
            log = self.directory / form
            replay.write_log(log, form, amount)
            replay.run(self.weir, config, log)

    def run(self):
        idle_tls.certificate(self.directory)
        (self.directory / "message").write_bytes(b"x" * 128)
        (self.directory / "upload").write_bytes(b"x" * 2**18)
        echo, port = self.serve("echo", "echo", rules="rules: []\n")
        upstream = f"{{ address: 127.0.0.1:{port} }}"
        for tls in (False, True):
            for address in (upstream, upstream.replace(" }", ", http2: true }")):
                self.proxy(address, tls)
        self.features(upstream, port)
        end(echo)
        self.rate_limit_service()
        self.thousands_of_rules()
        self.replays()


def run(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}:\n{done.stdout}{done.stderr}")


def end(process):
    process.terminate()
    if process.wait(120) != 0:
        sys.exit("weir has failed")


def make_profile(profile, target, seconds):
    for tool in ("wrk", "h2load", "openssl"):
        shutil.which(tool) or sys.exit(f"{tool} is not installed")
    merge = profdata()
    counters = TARGET / "counters"
    shutil.rmtree(counters, ignore_errors=True)
    weir = build(f"-Cprofile-generate={counters}", target)
    with tempfile.TemporaryDirectory(prefix="pgo-") as directory:
        Training(weir, directory, seconds).run()
    subprocess.run([merge, "merge", "--output", profile, counters], check=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", nargs="?", choices=("profile", "build"), help="only this step")
    parser.add_argument("--profile", type=Path, default=TARGET / "weir.profdata", help="default: %(default)s")
    parser.add_argument("--target", help="platform, as for cargo")
    parser.add_argument("--seconds", type=int, default=3, help="length of each load (default: %(default)s)")
    options = parser.parse_args()
    if options.step != "build":
        make_profile(options.profile, options.target, options.seconds)
    if options.step != "profile":
        built = build(f"-Cprofile-use={options.profile.resolve()}", options.target)
        shutil.copy2(built, TARGET / "weir")
        print(TARGET / "weir")


if __name__ == "__main__":
    main()
