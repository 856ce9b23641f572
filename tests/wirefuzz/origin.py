"""Upstream: parses what Weir sends as strictly as RFC 9112 demands, and responds as defined by the case of the request.

Each case is played from a loopback address of its own, which Weir writes into X-Forwarded-For. So a request is
attributed to its case even if its bytes were changed, and a request that no case has sent is detected.
"""

import asyncio
import contextlib
import socket
import struct
from dataclasses import dataclass

from .case import Finding, shown
from .reader import Broken, Incomplete, Message, read_request

# Oddity that is not reported: clients send bytes beyond ASCII and the like, and both sides read the same.
PASSED_ON = "character in the target"
RESET = struct.pack("ii", 1, 0)


@dataclass
class Record:
    """A request that the upstream has received."""

    serial: int
    message: Message
    raw: bytes
    complete: bool = True


class Origin:
    """Listening socket, and the connections from Weir."""

    def __init__(self, find, report):
        """`find(address)` returns the case that is played from the address. `report(finding)` receives findings of no
        case.
        """
        self.find, self.report = find, report
        self.server, self.serial, self.connections = None, 0, set()

    async def start(self):
        """Starts to listen, and returns the port."""
        loop = asyncio.get_running_loop()
        self.server = await loop.create_server(lambda: Connection(self), "127.0.0.1", 0, backlog=1024)
        return self.server.sockets[0].getsockname()[1]

    def stop(self):
        """Aborts all connections."""
        self.server.close()
        for connection in list(self.connections):
            connection.transport.abort()

    def next_serial(self):
        """Returns a number that is unique among all requests."""
        self.serial += 1
        return self.serial


class Connection(asyncio.Protocol):
    """One connection from Weir."""

    def __init__(self, origin):
        self.origin, self.transport, self.buffer = origin, None, b""
        # `early` is the request with an early response, `sending` the task that sends a response.
        self.early, self.sending, self.closed = None, None, False

    def connection_made(self, transport):
        self.transport = transport
        self.origin.connections.add(self)

    def connection_lost(self, exc):
        self.origin.connections.discard(self)
        self.closed = True

    def eof_received(self):
        self.note_incomplete()
        # A response in progress is sent to its end.
        return self.sending is not None

    def data_received(self, data):
        self.buffer += data
        self.read()

    def read(self):
        """Parses requests as long as there are complete ones."""
        while self.buffer and self.sending is None:
            try:
                message = read_request(self.buffer)
            except Incomplete as incomplete:
                self.begin_early(incomplete.message)
                return
            except Broken as broken:
                self.refuse(broken.reason, broken.message)
                return
            raw, self.buffer = self.buffer[: message.end], self.buffer[message.end :]
            early, self.early = self.early, None
            record = early or self.record(message, raw)
            if record is None:
                return
            record.message, record.raw, record.complete = message, raw, True
            for oddity in message.oddities:
                if oddity != PASSED_ON:
                    self.note(record, f"upstream sees {oddity}")
            # After an early response the next request may follow immediately.
            if self.buffer and early is None:
                self.note(record, "upstream sees bytes behind a request")
            if early is None:
                self.respond(record)

    def begin_early(self, message):
        """Responds to a request before its body is complete, if its case requires that."""
        if message is None or self.early is not None:
            return
        case = self.origin.find(sender(message))
        if case is not None and case.responds_early(message):
            self.early = self.record(message, self.buffer)
            self.early.complete = False
            self.respond(self.early)

    def record(self, message, raw):
        """Records a request for the case that it belongs to."""
        case = self.origin.find(sender(message))
        if case is None:
            self.refuse("a request of no client")
            return None
        record = Record(self.origin.next_serial(), message, raw)
        case.records.append(record)
        return record

    def note(self, record, kind):
        """Reports a finding about a request."""
        self.origin.find(sender(record.message)).findings.append(Finding(kind, shown(record.raw + self.buffer)))

    def note_incomplete(self):
        """Records an incomplete request at the end of the connection."""
        try:
            read_request(self.buffer)
        except Incomplete as incomplete:
            if incomplete.message is not None and self.early is None:
                record = self.record(incomplete.message, self.buffer)
                if record is not None:
                    record.complete = False
        except Broken:
            pass

    def refuse(self, reason, message=None):
        """Reports malformed bytes, and aborts the connection."""
        case = self.origin.find(sender(message)) if message else None
        report = case.findings.append if case else self.origin.report
        report(Finding(f"upstream sees {reason}", shown(self.buffer)))
        self.transport.abort()
        self.buffer = b""

    def respond(self, record):
        """Sends the response that the case defines for this request."""
        case = self.origin.find(sender(record.message))
        steps = merged(case.response(record))
        if all(tag != "pause" for tag, _ in steps):
            for step in steps:
                self.step(*step)
            return
        self.sending = asyncio.ensure_future(self.send(steps))

    async def send(self, steps):
        """Sends a response with pauses."""
        for tag, data in steps:
            if tag == "pause":
                await asyncio.sleep(0.002)
            else:
                self.step(tag, data)
        self.sending = None
        self.read()

    def step(self, tag, data):
        """Performs one step of a response."""
        if self.closed:
            return
        if tag == "reset":
            self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            self.transport.abort()
            self.closed = True
        elif tag == "close":
            self.transport.close()
            self.closed = True
        elif tag == "half":
            # The peer may have closed the connection.
            with contextlib.suppress(OSError):
                self.transport.write_eof()
            self.closed = True
        else:
            self.transport.write(data)


def merged(steps):
    """Merges adjacent data, so that a response takes as few writes as possible."""
    whole = []
    for tag, data in steps:
        if tag in ("pause", "close", "half", "reset"):
            whole.append((tag, data))
        elif whole and whole[-1][0] == "data":
            whole[-1] = ("data", whole[-1][1] + data)
        else:
            whole.append(("data", data))
    return whole


def sender(message):
    """Returns the client address that Weir forwards for a request."""
    values = message.values(b"x-forwarded-for")
    return values[-1].rsplit(b",", 1)[-1].strip() if values else b""
