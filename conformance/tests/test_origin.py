"""The origin receives what is sent to it, and nothing else."""

from __future__ import annotations

import socket
import threading

from weir_conformance.origin import Origin


def test_closed_origin_leaves_no_thread_that_accepts_for_the_next_one() -> None:
    before = threading.active_count()
    first = Origin()
    with socket.create_connection(("127.0.0.1", first.port), 10) as client:
        client.sendall(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
        assert client.recv(100).startswith(b"HTTP/1.1 200 ")
        first.close()
        assert client.recv(100) == b""
    for thread in threading.enumerate()[before:]:
        thread.join(10)
    assert threading.active_count() == before
