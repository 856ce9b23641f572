"""The upstream of targets that forward requests. Counts them, states a cost where a request asks for it, and notes what another reader
may understand differently."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from collections import Counter
from typing import BinaryIO

from weir_conformance.limit import COST_HEADER

ASKED_COST = "x-asked-cost"
"""Request header with the cost that the response is to state."""

_MAX_LINE = 1 << 20
_NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,16})(?:[ \t]*;[^\r\n\0]*)?\r\n")


def ambiguities(lines: list[bytes]) -> list[bytes]:
    """Returns the lines of a request's head that readers understand differently: where a line or the body ends, and what a name is (RFC
    9112 sections 2.2, 5.1, 5.2, 6.1 and 6.3, RFC 9110 section 8.6)."""
    fields = [line.partition(b":") for line in lines[1:]]
    found = [line for line in lines if not line.endswith(b"\r\n") or re.search(rb"[\r\n\0]", line[:-2])]
    found += [line for line, (name, _, _) in zip(lines[1:], fields, strict=True) if not _NAME.fullmatch(name)]
    found += [lines[0]] if lines[0].count(b" ") != 2 else []
    lengths = [value.strip(b" \t\r\n") for name, _, value in fields if name.lower() == b"content-length"]
    codings = [value for name, _, value in fields if name.lower() == b"transfer-encoding"]
    if len(lengths) + len(codings) > 1 or not all(re.fullmatch(rb"[0-9]+", length) for length in lengths) or not all(map(_is_chunked, codings)):
        found.append(b"content-length: %r, transfer-encoding: %r" % (lengths, codings))
    return found


def _is_chunked(coding: bytes) -> bool:
    """Whether chunks end a list of codings. Empty elements are none (RFC 9110 section 5.6.1.2)."""
    elements = [element.strip(b" \t\r\n").lower() for element in coding.split(b",")]
    return [element for element in elements if element][-1:] == [b"chunked"]


class Origin:
    """An HTTP/1.1 server with persistent connections, on a port chosen by the system."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.port: int = self._listener.getsockname()[1]
        self.requests: Counter[str] = Counter()
        self.ambiguous: list[bytes] = []
        """Lines that another reader may understand differently."""
        self._lock = threading.Lock()
        self._connections: set[socket.socket] = set()
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def close(self) -> None:
        # A thread that still waits in `accept` may go on with the number of the closed socket, which another origin's listener has then.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._accepting.join()
        self._listener.close()
        with self._lock:
            for connection in self._connections:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

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
                while lines := _read_head(received, is_request=True):
                    headers = {name.strip().lower(): value.strip() for name, _, value in (line.decode("latin-1").partition(":") for line in lines[1:])}
                    is_chunked = _is_chunked(headers.get("transfer-encoding", "").encode("latin-1"))
                    # Before the body, which may never be whole.
                    with self._lock:
                        self.ambiguous += ambiguities(lines)
                    found: list[bytes] = []
                    if is_chunked:
                        found = _read_chunks(received)
                    else:
                        received.read(int(headers.get("content-length", "0")))
                    path = lines[0].decode("latin-1").split(" ")[1] if b" " in lines[0] else ""
                    with self._lock:
                        self.requests[path] += 1
                        self.ambiguous += found
                    asked = headers.get(ASKED_COST)
                    cost = f"{COST_HEADER}: {asked}\r\n" if asked is not None else ""
                    connection.sendall(f"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n{cost}\r\nok".encode("latin-1"))
        except (OSError, ValueError, OverflowError, MemoryError):
            pass
        finally:
            with self._lock:
                self._connections.discard(connection)


def _read_head(received: BinaryIO, *, is_request: bool = False) -> list[bytes]:
    """Reads a request's head, or trailers; returns the lines without the empty one, and nothing at the end of the connection. Empty lines
    before a request are none of it (RFC 9112 section 2.2)."""
    lines: list[bytes] = []
    while line := received.readline(_MAX_LINE):
        if line not in (b"\r\n", b"\n"):
            lines.append(line)
        elif lines or not is_request:
            return lines
    return []


def _read_chunks(received: BinaryIO) -> list[bytes]:
    """Reads a chunked body and its trailers; returns lines that readers understand differently. The first one ends the connection."""
    while size := _CHUNK.fullmatch(line := received.readline(_MAX_LINE)):
        if int(size[1], 16) == 0:
            return ambiguities([b"POST / HTTP/1.1\r\n", *trailers]) if (trailers := _read_head(received)) else []
        received.read(int(size[1], 16))
        if (end := received.read(2)) != b"\r\n":
            return [end] if len(end) == 2 else []
    return [line] if line else []
