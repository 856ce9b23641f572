"""The upstream of targets that forward requests. Counts them, and states a cost where a request asks for it."""

from __future__ import annotations

import socket
import threading
from collections import Counter

from weir_conformance.limit import COST_HEADER

ASKED_COST = "x-asked-cost"
"""Request header with the cost that the response is to state."""


class Origin:
    """An HTTP/1.1 server with persistent connections, on a port chosen by the system."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.port: int = self._listener.getsockname()[1]
        self.requests: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._connections: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()
        with self._lock:
            for connection in self._connections:
                connection.close()

    @property
    def total(self) -> int:
        """The number of requests so far."""
        with self._lock:
            return sum(self.requests.values())

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                self._connections.add(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            with connection, connection.makefile("rb") as received:
                while line := received.readline(65536):
                    headers: dict[str, str] = {}
                    while (field := received.readline(65536)) not in (b"\r\n", b"\n", b""):
                        name, _, value = field.decode("latin-1").partition(":")
                        headers[name.strip().lower()] = value.strip()
                    received.read(int(headers.get("content-length", "0")))
                    path = line.decode("latin-1").split(" ")[1] if b" " in line else ""
                    with self._lock:
                        self.requests[path] += 1
                    asked = headers.get(ASKED_COST)
                    cost = f"{COST_HEADER}: {asked}\r\n" if asked is not None else ""
                    connection.sendall(f"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n{cost}\r\nok".encode("latin-1"))
        except (OSError, ValueError):
            pass
        finally:
            with self._lock:
                self._connections.discard(connection)
