#!/usr/bin/env python3
"""Critical requests beside a flood of sheddable ones, in front of a service with a knee in its latency.

    benches/shedding.py --weir target/release/weir --envoy PATH --svg docs/pictures/shedding.svg

The service has a number of workers, and an unbounded queue in front of them. Clients send at random times, whatever the
responses are (open loop). Prints for each proxy: goodput of the critical requests, use of the service, and the 99th
percentile of critical latencies, relative to that without the flood. Standard library only."""

import argparse
import asyncio
import collections
import contextlib
import json
import pathlib
import random
import socket
import subprocess
import sys
import tempfile
import time

from proxy import free_port

WORKERS = 20
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"

WEIR = """
listeners: 127.0.0.1:{port}
upstream: 127.0.0.1:{service}
workers: 1
classes:
  - {{ name: checkout, match: {{ path: /checkout }}, share: 50 }}
  - {{ name: crawlers, match: {{ header: {{ user-agent: "~bot" }} }}, share: 10, sheddable: true }}
rules: []
"""
NGINX = """
worker_processes 1; daemon off; pid {directory}/nginx.pid; error_log {directory}/error.log crit;
events {{ worker_connections 8192; }}
http {{
  access_log off; client_body_temp_path {directory}/a; proxy_temp_path {directory}/b; fastcgi_temp_path {directory}/c;
  uwsgi_temp_path {directory}/d; scgi_temp_path {directory}/e;
  limit_conn_zone $server_port zone=all:1m; limit_conn_log_level info;
  upstream service {{ server 127.0.0.1:{service}; keepalive 64; }}
  server {{ listen 127.0.0.1:{port}; keepalive_requests 1000000; limit_conn all {limit};
    location / {{ proxy_pass http://service; proxy_http_version 1.1; proxy_set_header Connection ""; }} }}
}}
"""


def envoy_config(port, service):
    def typed(name, kind, **fields):
        return {"name": name, "typed_config": {"@type": f"type.googleapis.com/envoy.extensions.filters.{kind}", **fields}}
    adaptive = typed("envoy.filters.http.adaptive_concurrency", "http.adaptive_concurrency.v3.AdaptiveConcurrency", **{
        "gradient_controller_config": {
            "sample_aggregate_percentile": {"value": 90},
            "concurrency_limit_params": {"concurrency_update_interval": "0.1s"},
            "min_rtt_calc_params": {"interval": "30s", "request_count": 50, "jitter": {"value": 10}}},
        "enabled": {"default_value": True, "runtime_key": "a"}})
    manager = typed("envoy.filters.network.http_connection_manager",
                    "network.http_connection_manager.v3.HttpConnectionManager",
                    stat_prefix="a", http_filters=[adaptive, typed("envoy.filters.http.router", "http.router.v3.Router")],
                    route_config={"virtual_hosts": [{"name": "a", "domains": ["*"], "routes": [
                        {"match": {"prefix": "/"}, "route": {"cluster": "service"}}]}]})
    address = lambda at: {"socket_address": {"address": "127.0.0.1", "port_value": at}}
    breaker = {"thresholds": [{"max_connections": 8192, "max_pending_requests": 8192, "max_requests": 8192}]}
    return json.dumps({"static_resources": {
        "listeners": [{"name": "a", "address": address(port), "filter_chains": [{"filters": [manager]}]}],
        "clusters": [{"name": "service", "connect_timeout": "1s", "circuit_breakers": breaker, "load_assignment": {
            "cluster_name": "service", "endpoints": [{"lb_endpoints": [{"endpoint": {"address": address(service)}}]}]}}]}})


class Service(asyncio.Protocol):
    """`/workers/N` changes the number of workers; `/busy` responds with the seconds for which workers were busy."""

    free, queue, busy, time = WORKERS, collections.deque(), 0.0, 0.0

    def connection_made(self, transport):
        self.transport, self.text = transport, b""

    def data_received(self, data):
        self.text += data
        while b"\r\n\r\n" in self.text:
            head, _, self.text = self.text.partition(b"\r\n\r\n")
            path = head.split(b" ", 2)[1]
            if path.startswith(b"/workers/"):
                Service.free += int(path[9:])
                Service.work()
            if path.startswith((b"/workers/", b"/busy")):
                body = b"%f" % Service.busy
                self.transport.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))
                continue
            Service.queue.append(self)
            Service.work()

    @classmethod
    def work(cls):
        while cls.free > 0 and cls.queue:
            cls.free -= 1
            took = cls.time * random.uniform(0.9, 1.1)
            asyncio.get_running_loop().call_later(took, cls.done, cls.queue.popleft(), took)

    @classmethod
    def done(cls, connection, took):
        cls.busy, cls.free = cls.busy + took, cls.free + 1
        if not connection.transport.is_closing():
            connection.transport.write(OK)
        cls.work()


class Connection(asyncio.Protocol):
    """One request at a time."""

    def __init__(self, idle):
        self.idle, self.text, self.ended = idle, b"", None

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.text += data
        head, separator, body = self.text.partition(b"\r\n\r\n")
        if not separator:
            return
        fields = head.lower()
        length = int(fields.split(b"content-length:")[1].split(b"\r\n")[0]) if b"content-length:" in fields else 0
        if len(body) >= length and self.ended:
            ended, self.ended, self.text = self.ended, None, b""
            if b"connection: close" not in fields:
                self.idle.append(self)
            ended(int(head.split(b" ", 2)[1]))

    def connection_lost(self, error):
        if self in self.idle:
            self.idle.remove(self)
        if self.ended:
            ended, self.ended = self.ended, None
            ended(0)


class Load:
    """Requests at random times."""

    def __init__(self, port, rate, request):
        self.port, self.rate, self.request = port, rate, request
        self.idle, self.results = [], []

    async def run(self, seconds):
        start = due = time.monotonic()
        tasks = set()
        while due < start + seconds:
            now = time.monotonic()
            while due <= now:
                task = asyncio.ensure_future(self.send(due))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
                due += random.expovariate(self.rate)
            await asyncio.sleep(max(0.001, due - time.monotonic()))
        await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 30)

    async def send(self, due):
        ended = asyncio.get_running_loop().create_future()
        done = lambda status: ended.done() or ended.set_result(status)
        try:
            connection = self.idle.pop() if self.idle else (await asyncio.get_running_loop().create_connection(
                lambda: Connection(self.idle), "127.0.0.1", self.port))[1]
            connection.ended = done
            connection.transport.write(self.request)
            status = await asyncio.wait_for(ended, 20)
        except (OSError, asyncio.TimeoutError):
            status = 0
        self.results.append((due, status, time.monotonic() - due))


def percentile(values, share):
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)] if ordered else float("nan")


def fetch(port, path):
    with socket.create_connection(("127.0.0.1", port), 5) as client:
        client.sendall(f"GET {path} HTTP/1.1\r\nhost: a\r\n\r\n".encode())
        return float(client.recv(4096).rpartition(b"\r\n\r\n")[2])


async def phase(port, service, seconds, critical, sheddable):
    loads = [Load(port, critical, b"GET /checkout HTTP/1.1\r\nhost: a\r\nuser-agent: shop\r\n\r\n")]
    if sheddable:
        loads.append(Load(port, sheddable, b"GET /pages HTTP/1.1\r\nhost: a\r\nuser-agent: searchbot\r\n\r\n"))
    busy, start = fetch(service, "/busy"), time.monotonic()
    await asyncio.gather(*(load.run(seconds) for load in loads))
    use = (fetch(service, "/busy") - busy) / (time.monotonic() - start)
    return [load.results for load in loads], use


def summary(results, use, workers):
    critical = [took for _, status, took in results[0] if status == 200]
    served = [1 for _, status, _ in results[1] if status == 200] if len(results) > 1 else []
    return {
        "goodput": len(critical) / max(len(results[0]), 1), "use": use / workers,
        "p50": percentile(critical, 0.5), "p99": percentile(critical, 0.99), "sheddable_served": len(served),
        "latencies": critical,
    }


def wait_for(port):
    for _ in range(200):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.05)
    sys.exit(f"nothing listens on port {port}")


@contextlib.contextmanager
def process(command):
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield child
    finally:
        child.terminate()
        child.wait(20)


def command_of(name, args, port, service, directory):
    if name == "weir":
        file = directory / "weir.yaml"
        file.write_text(WEIR.format(port=port, service=service))
        return [args.weir, "run", "-c", str(file)]
    if name == "nginx":
        file = directory / "nginx.conf"
        file.write_text(NGINX.format(port=port, service=service, directory=directory, limit=WORKERS + 2))
        return ["nginx", "-p", str(directory), "-c", str(file)]
    file = directory / "envoy.json"
    file.write_text(envoy_config(port, service))
    return [args.envoy, "-c", str(file), "--concurrency", "1", "--use-dynamic-base-id", "-l", "off"]


def measure(name, args):
    capacity = WORKERS / args.service_time
    critical, flood = 0.4 * capacity, args.flood * capacity
    port, service = free_port(), free_port()
    serving = [sys.executable, __file__, "--serve", str(service), "--service-time", str(args.service_time)]
    with tempfile.TemporaryDirectory() as text, process(serving):
        wait_for(service)
        with process(command_of(name, args, port, service, pathlib.Path(text))):
            wait_for(port)
            run = lambda seconds, sheddable: asyncio.run(phase(port, service, seconds, critical, sheddable))
            # The limits are learned meanwhile.
            run(args.seconds / 2, 0)
            unloaded = summary(*run(args.seconds, 0), WORKERS)
            run(args.seconds / 2, flood)
            rows = [("flood", WORKERS, summary(*run(args.seconds, flood), WORKERS))]
            fetch(service, f"/workers/-{WORKERS // 2}")
            run(args.seconds / 2, flood)
            rows.append(("half the workers", WORKERS // 2, summary(*run(args.seconds, flood), WORKERS // 2)))
            fetch(service, f"/workers/{WORKERS // 2}")
            run(args.seconds / 2, flood)
            rows.append(("all workers again", WORKERS, summary(*run(args.seconds, flood), WORKERS)))
    for phase_name, _, row in rows:
        print(f"| {name} | {phase_name} | {100 * row['goodput']:.1f} % | {100 * row['use']:.1f} % | "
              f"{row['p99'] / unloaded['p99']:.2f} | {row['p50'] / unloaded['p50']:.2f} | {row['sheddable_served']} |", flush=True)
    return unloaded, rows


def draw(measured, service_time, file):
    """Draws the distribution of critical latencies of each proxy, in the first phase."""
    width, height, left, longest = 640, 300, 50, 4 * service_time
    colours = {"weir": "#2a6f97", "envoy": "#b5651d", "nginx": "#5b8c5a"}
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
             f'<title>Critical requests beside a flood: share that has a response within a time</title>']
    x = lambda seconds: left + (width - left - 20) * min(seconds / longest, 1)
    y = lambda share: height - 40 - (height - 70) * share
    for share in (0, 0.25, 0.5, 0.75, 1):
        lines.append(f'<path d="M{left} {y(share):.1f}H{width - 20}" stroke="#ddd"/><text x="8" y="{y(share) + 4:.1f}">{share:.0%}</text>')
    for step in range(5):
        at = step * longest / 4
        lines.append(f'<text x="{x(at):.1f}" y="{height - 20}" text-anchor="middle">{1000 * at:.0f} ms</text>')
    for position, (name, (_, rows)) in enumerate(measured.items()):
        row = rows[0][2]
        latencies = sorted(row["latencies"])
        points = [f"{x(took):.1f},{y(row['goodput'] * (index + 1) / len(latencies)):.1f}"
                  for index, took in enumerate(latencies) if index % max(len(latencies) // 200, 1) == 0]
        lines.append(f'<polyline points="{" ".join(points)}" fill="none" stroke="{colours[name]}" stroke-width="2"/>'
                     f'<text x="{width - 150}" y="{120 + 18 * position}" fill="{colours[name]}">{name}</text>')
    pathlib.Path(file).write_text("\n".join(lines) + "\n</svg>\n")


async def serve(port, service_time):
    Service.time = service_time
    server = await asyncio.get_running_loop().create_server(Service, "127.0.0.1", port, backlog=4096)
    await server.serve_forever()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--weir", default="target/release/weir")
    parser.add_argument("--envoy", help="Envoy is left out without it")
    parser.add_argument("--proxies", default="weir,envoy,nginx")
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--service-time", type=float, default=0.05, help="seconds for which a request has a worker; the rates follow from it")
    parser.add_argument("--flood", type=float, default=12, help="sheddable requests, as a multiple of the capacity")
    parser.add_argument("--svg")
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        asyncio.run(serve(args.serve, args.service_time))
        return
    print("| proxy | service | critical goodput | use | p99 of unloaded | p50 of unloaded | sheddable served |\n|---|---|---|---|---|---|---|")
    names = [name for name in args.proxies.split(",") if name != "envoy" or args.envoy]
    measured = {name: measure(name, args) for name in names}
    if args.svg:
        draw(measured, args.service_time, args.svg)


if __name__ == "__main__":
    main()
