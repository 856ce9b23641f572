"""The upstream: reads what Weir sends as strictly as RFC 9112 allows, and responds as the case in question says.

Each case is played from a loopback address of its own, which Weir writes into X-Forwarded-For. So a request belongs to a
case whatever the case's bytes have become, and one that no case has sent is noticed.
"""

import asyncio
import contextlib
import socket
import struct
from dataclasses import dataclass

from .case import Finding, shown
from .reader import Broken, Incomplete, Message, read_request

# Octets beyond ASCII and the like: clients send them, and both sides read the same.
PASSED_ON = "character in the target"
RESET = struct.pack("ii", 1, 0)


@dataclass
class Record:
    """A request as the upstream has seen it."""

    serial: int
    message: Message
    raw: bytes
    complete: bool = True


class Origin:
    """Listens, and keeps the connections that Weir has opened."""

    def __init__(self, find, report):
        """`find(address)` is the case that is being played from there; `report(finding)` takes what is nobody's."""
        self.find, self.report = find, report
        self.server, self.serial, self.connections = None, 0, set()

    async def start(self):
        """Listens; the port."""
        loop = asyncio.get_running_loop()
        self.server = await loop.create_server(lambda: Connection(self), "127.0.0.1", 0, backlog=1024)
        return self.server.sockets[0].getsockname()[1]

    def stop(self):
        """Ends all connections."""
        self.server.close()
        for connection in list(self.connections):
            connection.transport.abort()

    def next_serial(self):
        """A number that no other request has."""
        self.serial += 1
        return self.serial


class Connection(asyncio.Protocol):
    """One connection from Weir."""

    def __init__(self, origin):
        self.origin, self.transport, self.buffer = origin, None, b""
        # The early response that is being sent or has been, and the response that is being sent.
        self.early, self.sending, self.closed = None, None, False

    def connection_made(self, transport):
        self.transport = transport
        self.origin.connections.add(self)

    def connection_lost(self, exc):
        self.origin.connections.discard(self)
        self.closed = True

    def eof_received(self):
        self.note_incomplete()
        # What is being sent is sent to its end.
        return self.sending is not None

    def data_received(self, data):
        self.buffer += data
        self.read()

    def read(self):
        """Reads requests for as long as there are whole ones."""
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
            # Behind a response that came early the next request may follow at once.
            if self.buffer and early is None:
                self.note(record, "upstream sees bytes behind a request")
            if early is None:
                self.respond(record)

    def begin_early(self, message):
        """Responds to a request whose body is still to come, if its case wants that."""
        if message is None or self.early is not None:
            return
        case = self.origin.find(sender(message))
        if case is not None and case.responds_early(message):
            self.early = self.record(message, self.buffer)
            self.early.complete = False
            self.respond(self.early)

    def record(self, message, raw):
        """Notes a request with the case that it belongs to."""
        case = self.origin.find(sender(message))
        if case is None:
            self.refuse("a request of no client")
            return None
        record = Record(self.origin.next_serial(), message, raw)
        case.records.append(record)
        return record

    def note(self, record, kind):
        """Reports something about a request."""
        self.origin.find(sender(record.message)).findings.append(Finding(kind, shown(record.raw + self.buffer)))

    def note_incomplete(self):
        """The connection ends: what is left is the beginning of a request."""
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
        """Reports bytes that are no request, and closes."""
        case = self.origin.find(sender(message)) if message else None
        report = case.findings.append if case else self.origin.report
        report(Finding(f"upstream sees {reason}", shown(self.buffer)))
        self.transport.abort()
        self.buffer = b""

    def respond(self, record):
        """Sends what the case has for this request."""
        case = self.origin.find(sender(record.message))
        steps = merged(case.response(record))
        if all(tag != "pause" for tag, _ in steps):
            for step in steps:
                self.step(*step)
            return
        self.sending = asyncio.ensure_future(self.send(steps))

    async def send(self, steps):
        """Sends with pauses between."""
        for tag, data in steps:
            if tag == "pause":
                await asyncio.sleep(0.002)
            else:
                self.step(tag, data)
        self.sending = None
        self.read()

    def step(self, tag, data):
        """One step of a response."""
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
            # Its other end may be gone by now.
            with contextlib.suppress(OSError):
                self.transport.write_eof()
            self.closed = True
        else:
            self.transport.write(data)


def merged(steps):
    """The same steps with as few writes as possible."""
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
    """The address that Weir says a request is from."""
    values = message.values(b"x-forwarded-for")
    return values[-1].rsplit(b",", 1)[-1].strip() if values else b""
