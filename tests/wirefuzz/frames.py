"""HTTP/2 frames (RFC 9113 section 4): encoding, and interpretation of the frames that a server has sent."""

import struct
from dataclasses import dataclass, field

from .hpack import Decoder, Undecodable

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM, ACK, END_HEADERS, PADDED, WITH_PRIORITY = 0x1, 0x1, 0x4, 0x8, 0x20
# Maximum payload that a peer accepts by default.
MAX_PAYLOAD = 16384


def frame(kind, flags, stream, payload, length=None):
    """Encodes a frame. `length` replaces the true length of the payload."""
    return struct.pack(">I", len(payload) if length is None else length)[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def split(data):
    """Returns the complete frames in `data`, as `(type, flags, stream, payload)`."""
    found, at = [], 0
    while at + 9 <= len(data):
        length = int.from_bytes(data[at : at + 3], "big")
        kind, flags, stream = struct.unpack(">BBI", data[at + 3 : at + 9])
        if at + 9 + length > len(data):
            break
        found.append((kind, flags, stream & 0x7FFFFFFF, data[at + 9 : at + 9 + length]))
        at += 9 + length
    return found


class Invalid(Exception):
    """The server has sent something that must not be sent to a client."""


@dataclass
class Reply:
    """Frames received on one stream."""

    fields: list = field(default_factory=list)
    trailers: list = field(default_factory=list)
    body: bytes = b""
    ended: bool = False
    reset: int | None = None

    @property
    def is_over(self):
        """Whether no more frames can follow."""
        return self.ended or self.reset is not None

    def value(self, name):
        """Returns the value of a header, or `None`."""
        return next((value for other, value in self.fields if other == name), None)


@dataclass
class Replies:
    """Frames received on a connection."""

    streams: dict = field(default_factory=dict)
    goaway: int | None = None
    pings: list = field(default_factory=list)

    @staticmethod
    def read(data):
        """Parses everything that a server has sent. Raises `Invalid` for a violation."""
        replies, decoder, block = Replies(), Decoder(), None
        for index, (kind, flags, stream, payload) in enumerate(split(data)):
            if (index == 0) != (kind == SETTINGS and not flags & ACK) and index == 0:
                raise Invalid("no SETTINGS first")
            if len(payload) > MAX_PAYLOAD:
                raise Invalid("frame over the limit")
            if block is not None and (kind, stream) != (CONTINUATION, block[0]):
                raise Invalid("frame within a header block")
            if kind == HEADERS:
                block = (stream, flags, payload)
            elif kind == CONTINUATION:
                if block is None:
                    raise Invalid("CONTINUATION without HEADERS")
                block = (stream, block[1] | flags & END_HEADERS, block[2] + payload)
            if block is not None:
                if block[1] & END_HEADERS:
                    replies.headers(*block, decoder)
                    block = None
                continue
            replies.other(kind, flags, stream, payload)
        return replies

    def headers(self, stream, flags, block, decoder):
        """Applies a header block."""
        try:
            fields = decoder.decode(block)
        except Undecodable as undecodable:
            raise Invalid(f"header block: {undecodable}") from undecodable
        reply = self.streams.setdefault(stream, Reply())
        if reply.is_over:
            raise Invalid("HEADERS behind the end of a stream")
        for name, _ in fields:
            if name != name.lower() or name in (b"connection", b"transfer-encoding", b"keep-alive", b"upgrade", b"proxy-connection"):
                raise Invalid(f"field {name.decode('latin-1')}")
        status = next((value for name, value in fields if name == b":status"), b"")
        if reply.fields:
            reply.trailers = fields
        elif len(status) != 3 or not status.isdigit():
            raise Invalid("no status")
        elif not status.startswith(b"1"):
            reply.fields = fields
        reply.ended = bool(flags & END_STREAM)

    def other(self, kind, flags, stream, payload):
        """Applies any other frame."""
        if kind == DATA:
            reply = self.streams.get(stream)
            if reply is None or not reply.fields or reply.is_over:
                raise Invalid("DATA where none may be")
            reply.body += payload
            reply.ended = bool(flags & END_STREAM)
        elif kind == RST_STREAM:
            reply = self.streams.setdefault(stream, Reply())
            # A reset may follow a complete response, for the rest of the request.
            reply.reset = int.from_bytes(payload, "big")
        elif kind == GOAWAY:
            self.goaway = int.from_bytes(payload[4:8], "big")
        elif kind == PING and flags & ACK:
            self.pings.append(payload)
        elif kind == PUSH_PROMISE:
            raise Invalid("PUSH_PROMISE")
