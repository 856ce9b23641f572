"""An HTTP server that admits requests by the library limits. Usage: server.py SETTINGS"""

import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from math import ceil
from pathlib import Path

from limits import RateLimitItemPerSecond
from limits.storage import storage_from_string
from limits.strategies import STRATEGIES
from redis.backoff import NoBackoff
from redis.retry import Retry

settings = json.loads(Path(sys.argv[1]).read_text())
memory = storage_from_string("memory://")
# Several limits are tested and charged as one step. A single one needs no lock, because `hit` does both.
lock = threading.Lock()


class Rule:
    """One limit. While Redis does not respond, a part of it applies in memory, as with Flask-Limiter's `in_memory_fallback`."""

    def __init__(self, place, limit):
        self.key = limit["key"]
        # The namespace keeps limits with the same numbers apart.
        namespace, part = f"limit-{place}", ceil(limit["count"] / settings["instances"])
        self.item = RateLimitItemPerSecond(limit["count"], limit["period"], namespace)
        self.part = RateLimitItemPerSecond(part, limit["period"], namespace)
        strategy = STRATEGIES[limit["algorithm"] or "moving-window"]
        self.strategy = self.fallback = strategy(memory)
        if limit["shared"]:
            uri = f"redis://127.0.0.1:{settings['redis_port']}"
            self.strategy = strategy(storage_from_string(uri, socket_timeout=0.25, retry=Retry(NoBackoff(), 0)))
        self.away_until = 0.0

    def ask(self, method, key):
        if time.monotonic() >= self.away_until:
            try:
                return getattr(self.strategy, method)(self.item, key)
            except self.strategy.storage.base_exceptions:
                self.away_until = time.monotonic() + 1
        return getattr(self.fallback, method)(self.part, key)


rules = [Rule(place, limit) for place, limit in enumerate(settings["limits"])]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1  # One packet for a response.

    def do_GET(self):
        self.rfile.read(max(0, int(self.headers.get("content-length", 0))))
        header = self.headers.get(settings["key_header"])
        keys = {"header": header and header.strip(), "address": self.client_address[0], "all": "all"}
        applying = [(rule, keys[rule.key]) for rule in rules if keys[rule.key] is not None]
        if len(applying) > 1:
            with lock:
                over = next(((rule, key) for rule, key in applying if not rule.ask("test", key)), None)
                for rule, key in applying if over is None else []:
                    rule.ask("hit", key)
        else:
            over = next(((rule, key) for rule, key in applying if not rule.ask("hit", key)), None)
        self.send_response(429 if over else 200)
        for rule, key in [over] if over else applying[:1]:
            stats = rule.ask("get_window_stats", key)
            reset = max(0, ceil(stats.reset_time - time.time()))
            self.send_header("x-ratelimit-limit", str(rule.item.amount))
            self.send_header("x-ratelimit-remaining", str(stats.remaining))
            self.send_header("x-ratelimit-reset", str(reset))
            if over:
                self.send_header("retry-after", str(reset))
        body = b"too many requests" if over else b"ok"
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


ThreadingHTTPServer.request_queue_size = 4096
ThreadingHTTPServer(("127.0.0.1", settings["port"]), Handler).serve_forever()
