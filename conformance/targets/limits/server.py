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

settings = json.loads(Path(sys.argv[1]).read_text())
memory = storage_from_string("memory://")
shared = storage_from_string(f"redis://127.0.0.1:{settings['redis_port']}") if settings["redis_port"] else memory
# Several limits are tested and charged as one step. A single one needs no lock, because `hit` does both.
lock = threading.Lock()
rules = []
for place, limit in enumerate(settings["limits"]):
    strategy = STRATEGIES[limit["algorithm"] or "moving-window"](shared if limit["shared"] else memory)
    # The period is the unit, and the namespace keeps limits with the same numbers apart.
    item = RateLimitItemPerSecond(limit["count"], limit["period"], namespace=f"limit-{place}")
    rules.append((limit, strategy, item))


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1  # One packet for a response.

    def do_GET(self):
        self.rfile.read(int(self.headers.get("content-length", 0)))
        key = self.headers.get(settings["key_header"])
        keys = {"header": key, "address": self.client_address[0], "all": "all"}
        applying = [
            (strategy, item, keys[limit["key"]])
            for limit, strategy, item in rules
            if limit["path"] in ("", self.path.split("?")[0]) and keys[limit["key"]] is not None
        ]
        if len(applying) > 1:
            with lock:
                over = next((one for one in applying if not one[0].test(*one[1:])), None)
                if over is None:
                    for strategy, item, key in applying:
                        strategy.hit(item, key)
        else:
            over = next((one for one in applying if not one[0].hit(*one[1:])), None)
        self.send_response(429 if over else 200)
        for strategy, item, key in [over] if over else applying[:1]:
            stats = strategy.get_window_stats(item, key)
            reset = max(0, ceil(stats.reset_time - time.time()))
            self.send_header("x-ratelimit-limit", str(item.amount))
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
