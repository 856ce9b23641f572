"""Stands for hashicorp/http-echo: responds with a text to every request, after two seconds below /slow."""

import argparse
import http.server
import signal
import sys
import time

parser = argparse.ArgumentParser(prefix_chars="-")
parser.add_argument("-listen", required=True)
parser.add_argument("-text", required=True)
options = parser.parse_args()
host, _, port = options.listen.rpartition(":")


class Echo(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # One packet for a response: a second one would wait for the acknowledgement of the first.
    wbufsize = -1
    disable_nagle_algorithm = True

    def do_GET(self):
        if self.path.startswith("/slow"):
            time.sleep(2)
        body = options.text.encode() + b"\n"
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


# The first process of a container has no default action for SIGTERM.
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
http.server.ThreadingHTTPServer((host, int(port)), Echo).serve_forever()
