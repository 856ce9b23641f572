#!/usr/bin/env python3
"""Measures the resident memory per idle connection under TLS, by what the connection has been used for.

    cargo build --profile dist --features jemalloc
    python3 benches/idle_tls.py [--connections 4000] [--weir target/dist/weir]

Uses one worker, the built-in test upstream, and connections from one process of this machine. Each kind of connection
has its own proxy, since a process retains part of the memory that it has used. The result is the growth of resident
memory after 15 idle seconds, divided by the number of connections.
"""

import argparse
import pathlib
import socket
import ssl
import subprocess
import tempfile
import time

import proxy
from protocols import PREFACE, frame

REQUEST = b"GET / HTTP/1.1\r\nhost: app.example\r\n\r\n"
# Preface, empty SETTINGS, and HEADERS of stream 1 that end it: GET, https, /, app.example (RFC 7541 appendix A).
FIELDS = b"\x82\x87\x84\x41\x0bapp.example"
HTTP2 = PREFACE + frame(4, 0, 0, b"") + frame(1, 5, 1, FIELDS)
QUIET = 15


def configuration(directory, port, tls):
    tls = f", tls: {{ certificate: {directory}/app.crt, key: {directory}/app.key, handshakes: 100000 }}" if tls else ""
    return (
        f"listeners: {{ address: 127.0.0.1:{port}, header_timeout: 1h{tls} }}\n"
        "admin: { address: 127.0.0.1:0 }\nworkers: 1\nupstream: echo\nrules: []\n"
    )


def certificate(directory):
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
        + ["-subj", "/CN=app.example", "-addext", "subjectAltName=DNS:app.example"]
        + ["-keyout", f"{directory}/app.key", "-out", f"{directory}/app.crt"],
        check=True,
        capture_output=True,
    )


def context(*protocols):
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.check_hostname, made.verify_mode = False, ssl.CERT_NONE
    made.set_alpn_protocols(list(protocols))
    return made


HTTP1_CONTEXT, HTTP2_CONTEXT = context("http/1.1"), context("h2")


def connect(port):
    for _ in range(200):
        try:
            return socket.create_connection(("127.0.0.1", port))
        except ConnectionRefusedError:
            time.sleep(0.02)
    raise SystemExit("the proxy does not listen")


def asked_by_http1(stream):
    stream.sendall(REQUEST)
    assert stream.recv(4096).startswith(b"HTTP/1.1 200")
    return stream


def plain(port):
    return asked_by_http1(connect(port))


def begun(port):
    hello = ssl.MemoryBIO()
    session = HTTP1_CONTEXT.wrap_bio(ssl.MemoryBIO(), hello, server_hostname="app.example")
    try:
        session.do_handshake()
    except ssl.SSLWantReadError:
        pass
    stream = connect(port)
    stream.sendall(hello.read())
    return stream


def shaken(port):
    return HTTP1_CONTEXT.wrap_socket(connect(port), server_hostname="app.example")


def http1(port):
    return asked_by_http1(shaken(port))


def http2(port):
    return asked_by_http2(HTTP2_CONTEXT.wrap_socket(connect(port), server_hostname="app.example"))


def asked_by_http2(stream):
    stream.sendall(HTTP2)
    read = b""
    # A frame of the response with END_STREAM on stream 1.
    while not any(kind + b"\x00\x00\x00\x01" in read for kind in (b"\x00\x01", b"\x01\x05")):
        more = stream.recv(4096)
        assert more, "closed"
        read += more
    return stream


def plain_http2(port):
    return asked_by_http2(connect(port))


KINDS = {
    "plain, HTTP/1.1, one request": plain,
    "plain, HTTP/2, one request": plain_http2,
    "TLS, handshake begun": begun,
    "TLS, no request yet": shaken,
    "TLS, HTTP/1.1, one request": http1,
    "TLS, HTTP/2, one request": http2,
}


def resident(process):
    """Returns the resident memory in KiB."""
    return proxy.usage(process.pid)[1] * 1024


def measure(arguments, directory, kind):
    port = proxy.free_port()
    file = pathlib.Path(directory, "weir.yaml")
    file.write_text(configuration(directory, port, kind not in (plain, plain_http2)))
    process = subprocess.Popen([arguments.weir, "run", "-c", str(file)], stderr=subprocess.DEVNULL)
    try:
        warm = [kind(port) for _ in range(20)]
        time.sleep(2)
        before = resident(process)
        kept = [kind(port) for _ in range(arguments.connections)]
        time.sleep(QUIET)
        after = resident(process)
        del warm, kept
        return (after - before) / arguments.connections
    finally:
        process.terminate()
        process.wait()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--connections", type=int, default=4000)
    parser.add_argument("--weir", default="target/dist/weir")
    arguments = parser.parse_args()
    print("| connection | KiB each |\n|---|---|")
    for name, kind in KINDS.items():
        with tempfile.TemporaryDirectory() as directory:
            certificate(directory)
            print(f"| {name} | {measure(arguments, directory, kind):.1f} |", flush=True)


if __name__ == "__main__":
    main()
