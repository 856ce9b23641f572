"""Interpretation of an HTTP/2 session by RFC 9113: the requests of the client, and its violations of the protocol."""

import re
from dataclasses import dataclass, field

from .frames import (
    ACK, CONTINUATION, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, MAX_PAYLOAD, PADDED, PING, PREFACE, PRIORITY, PUSH_PROMISE,
    RST_STREAM, SETTINGS, WINDOW_UPDATE, WITH_PRIORITY, split,
)
from .hpack import Decoder, Undecodable
from .reader import CONTROL, MAX_LENGTH, TARGET, TOKEN, Message

HOP = (b"connection", b"proxy-connection", b"keep-alive", b"transfer-encoding", b"upgrade")
AUTHORITY = re.compile(rb"(\[[0-9A-Fa-f:.]+\]|[0-9A-Za-z.\-_]+)(:[0-9]*)?")
OPAQUE = ("frame over the limit", "frame within a header block")
# Initial flow-control window for the client.
WINDOW = 65535


class Violation(Exception):
    """A violation that ends the connection."""


@dataclass
class Stream:
    """A request, as far as it was sent."""

    fields: list
    body: bytes = b""
    trailers: list = field(default_factory=list)
    ended: bool = False
    reset: bool = False
    # `malformed` is the reason why it must not be forwarded, `doubt` the reason why it may be forwarded or rejected.
    malformed: str = ""
    doubt: str = ""

    def length(self):
        """Returns the length in the Content-Length header, or `None`."""
        lengths = [value for name, value in self.fields if name == b"content-length" and value.isdigit()]
        return int(lengths[0][-20:]) if lengths else None

    def is_whole(self):
        """Whether an HTTP/1.1 upstream may take it as complete: it has ended, or its Content-Length is reached."""
        length = self.length()
        return self.ended or length is not None and len(self.body) >= length

    def blame(self, reason):
        """Records an error outside the header section. A request with all bytes of its Content-Length is complete over
        HTTP/1.1 and may have been forwarded already, so then the error is only a doubt.
        """
        if self.length() is not None and len(self.body) >= self.length():
            self.doubt = self.doubt or reason
        else:
            self.malformed = self.malformed or reason

    def message(self):
        """Returns the same request over HTTP/1.1."""
        pseudo = dict(reversed([entry for entry in self.fields if entry[0].startswith(b":")]))
        fields = [entry for entry in self.fields if not entry[0].startswith(b":") and entry[0] not in (b"host", b"cookie")]
        hosts = [pseudo[b":authority"]] if b":authority" in pseudo else [v for n, v in self.fields if n == b"host"][:1]
        cookies = [value for name, value in self.fields if name == b"cookie"]
        fields += [(b"host", host) for host in hosts] + [(b"cookie", b"; ".join(cookies).strip())] * bool(cookies)
        length = self.length()
        body = self.body if length is None else self.body[:length]
        start = (pseudo.get(b":method", b""), pseudo.get(b":path", b""), b"HTTP/1.1")
        message = Message(start, fields, body, self.trailers)
        message.oddities += [self.doubt] if self.doubt else []
        return message


class Session:
    """Frames of a connection, interpreted in order."""

    def __init__(self, data):
        self.streams, self.error, self.decoder, self.last = {}, "", Decoder(), 0
        self.block, self.quiet, self.received = None, False, 0
        # Whether a block could not be decoded, after which the meaning of all frames is unknown.
        self.is_opaque = False
        if not data.startswith(PREFACE):
            self.error = "preface"
            return
        frames = split(data[len(PREFACE) :])
        rest = len(data) - len(PREFACE) - sum(9 + len(payload) for *_, payload in frames)
        if not frames or frames[0][0] != SETTINGS or frames[0][1] & ACK:
            self.error = "no SETTINGS first"
        for frame in frames:
            try:
                self.take(*frame)
            except (Violation, Undecodable) as error:
                self.error = self.error or str(error) or "header block"
                self.block = None
                # A server may locate the end of a malformed block differently.
                self.is_opaque |= isinstance(error, Undecodable) or str(error) in OPAQUE
                if self.is_opaque:
                    break
        if rest or self.block:
            self.error = self.error or "incomplete frame"

    def take(self, kind, flags, stream, payload):
        """Interprets one frame."""
        if len(payload) > MAX_PAYLOAD:
            raise Violation("frame over the limit")
        if self.block and (kind, stream) != (CONTINUATION, self.block[0]):
            raise Violation("frame within a header block")
        if kind in (DATA, HEADERS, PRIORITY, RST_STREAM, CONTINUATION) and stream == 0:
            raise Violation("frame of a stream on none")
        if kind in (SETTINGS, PING, GOAWAY) and stream:
            raise Violation("frame of the connection on a stream")
        if kind == DATA:
            self.data(stream, flags, self.unpadded(flags, payload), len(payload))
        elif kind == HEADERS:
            payload = self.unpadded(flags, payload)
            if flags & WITH_PRIORITY:
                if len(payload) < 5:
                    raise Violation("HEADERS too short")
                self.priority(stream, payload[:5])
                payload = payload[5:]
            self.block = (stream, flags, payload)
            self.end_of_block(flags, continued=False)
        elif kind == CONTINUATION:
            if not self.block:
                raise Violation("CONTINUATION without HEADERS")
            self.block = (*self.block[:2], self.block[2] + payload)
            self.end_of_block(flags, continued=True)
        else:
            self.other(kind, flags, stream, payload)

    def other(self, kind, flags, stream, payload):
        """Interprets frames that are not part of a request."""
        sizes = {RST_STREAM: 4, PING: 8, WINDOW_UPDATE: 4}
        if kind in sizes and len(payload) != sizes[kind]:
            raise Violation("size of a frame")
        if kind == PRIORITY:
            self.priority(stream, payload)
        elif kind == RST_STREAM:
            if stream not in self.streams:
                raise Violation("RST_STREAM of no stream")
            self.streams[stream].reset = True
        elif kind == SETTINGS:
            self.settings(flags, payload)
        elif kind == PUSH_PROMISE:
            raise Violation("PUSH_PROMISE")
        elif kind == GOAWAY:
            # Open streams continue, but a server may end the connection earlier.
            self.error = self.error or "GOAWAY"
        elif kind == WINDOW_UPDATE:
            if int.from_bytes(payload, "big") & 0x7FFFFFFF == 0 or stream and stream not in self.streams:
                raise Violation("WINDOW_UPDATE")
            if int.from_bytes(payload, "big") & 0x7FFFFFFF > 0x7FFF0000 - WINDOW:
                raise Violation("window beyond 31 bits")

    def settings(self, flags, payload):
        """Interprets SETTINGS of the client. Some values may delay the server's responses, which sets `quiet`."""
        if flags & ACK:
            # The server may not have sent its SETTINGS yet, so an acknowledgement may be a violation.
            raise Violation("acknowledged SETTINGS")
        if len(payload) % 6:
            raise Violation("size of SETTINGS")
        for at in range(0, len(payload), 6):
            key, value = int.from_bytes(payload[at : at + 2], "big"), int.from_bytes(payload[at + 2 : at + 6], "big")
            wrong = {2: value > 1, 4: value > 0x7FFFFFFF, 5: not 16384 <= value <= 16777215, 8: value > 1}
            if wrong.get(key):
                raise Violation("value of SETTINGS")
            self.quiet |= key in (1, 4, 6) or key == 3

    def priority(self, stream, payload):
        """Interprets a priority. It is deprecated, but a wrong size or a dependency on itself may still be an error."""
        if len(payload) != 5 or int.from_bytes(payload[:4], "big") & 0x7FFFFFFF == stream:
            if stream in self.streams:
                self.streams[stream].doubt = "PRIORITY"
            self.error = self.error or "PRIORITY"

    @staticmethod
    def unpadded(flags, payload):
        """Returns the payload without its padding."""
        if not flags & PADDED:
            return payload
        if not payload or payload[0] >= len(payload):
            raise Violation("padding")
        return payload[1 : len(payload) - payload[0]]

    def data(self, stream, flags, content, size):
        """Interprets content of a request."""
        if stream not in self.streams:
            raise Violation("DATA of no stream")
        self.received += size
        one = self.streams[stream]
        if one.ended or one.reset:
            one.doubt = "DATA behind its end"
            # The stream is closed for the client: a stream error or a connection error.
            self.error = self.error or "DATA behind an end"
            return
        if self.received > WINDOW:
            raise Violation("window")
        one.body += content
        if flags & END_STREAM:
            self.end(one)

    def end_of_block(self, flags, continued):
        """Interprets a header block once it is complete."""
        if not flags & END_HEADERS:
            return
        (stream, flags, block), self.block = self.block, None
        fields = self.decoder.decode(block)
        one = self.streams.get(stream)
        doubt = "an error before" if self.error else doubtful(fields)
        if continued and any(not name for name, _ in fields):
            # In a block that continues in CONTINUATION, h2 drops a field without a name, and hop-by-hop fields together
            # with it, instead of failing the stream. The forwarded request is compared in any case.
            doubt, fields = "a field without a name", [entry for entry in fields if entry[0] and entry[0] not in HOP]
        if one is None:
            if stream % 2 == 0 or stream <= self.last:
                raise Violation("number of a stream")
            self.last = stream
            one = self.streams[stream] = Stream(fields, doubt=doubt)
            one.malformed = malformed(fields)
            if flags & END_STREAM:
                self.end(one)
        elif one.ended or one.reset:
            one.doubt = "HEADERS behind its end"
            self.error = self.error or "HEADERS behind an end"
        else:
            one.trailers, one.doubt = fields, one.doubt or doubt
            # h2 drops pseudo-header fields in trailers without an error, and nothing of them is forwarded.
            if any(name.startswith(b":") for name, _ in fields):
                one.doubt = one.doubt or "pseudo-header fields in trailers"
            fields = [entry for entry in fields if not entry[0].startswith(b":")]
            # White space around a value is removed when it is forwarded over HTTP/1.1.
            wrong = malformed_fields([(name, value.strip(b" \t")) for name, value in fields])
            if not flags & END_STREAM or wrong:
                one.blame("malformed trailers")
            self.end(one)

    @staticmethod
    def end(one):
        """Marks a request as complete, and checks its length."""
        one.ended = True
        if one.length() not in (None, len(one.body)):
            one.blame("content-length that is not the content's")


def malformed_fields(fields):
    """Returns a violation that no field may have (sections 8.2.1 and 8.2.2), or an empty string."""
    for name, value in fields:
        bare = name[1:] if name.startswith(b":") else name
        if not TOKEN.fullmatch(bare) or name != name.lower():
            return "malformed field name"
        if re.search(rb"[\0\r\n]", value):
            return "line break or null character in a value"
        if value != value.strip(b" \t"):
            return "white space around a value"
        if name in HOP or name == b"te" and value.lower() != b"trailers":
            return f"{name.decode()} over HTTP/2"
    return ""


def doubtful(fields):
    """Returns an oddity that a server may accept or reject, or an empty string."""
    for name, value in fields:
        if CONTROL.search(value) or value != value.strip(b" \t"):
            return "control character or white space in a value"
        if name == b":scheme" and value != value.lower() or name == b":authority" and not AUTHORITY.fullmatch(value):
            return "scheme or authority in an unusual form"
        if name == b"content-length" and len(value) > 18:
            return "long content-length"
        if name == b":path" and not TARGET.fullmatch(value):
            return "path in an unusual form"
    return ""


def malformed(fields):
    """Returns a violation that no request may have (section 8.3), or an empty string."""
    if wrong := malformed_fields(fields):
        return wrong
    names = [name for name, _ in fields]
    pseudo = [name for name in names if name.startswith(b":")]
    if names[: len(pseudo)] != pseudo:
        return "pseudo-header field behind others"
    if len(set(pseudo)) < len(pseudo) or set(pseudo) - {b":method", b":scheme", b":path", b":authority", b":protocol"}:
        return "pseudo-header fields"
    values = dict(fields)
    if b":protocol" in values or values.get(b":method") == b"CONNECT":
        return "CONNECT"
    if not values.get(b":method") or not values.get(b":path") or b":scheme" not in values:
        return "missing pseudo-header field"
    if not TOKEN.fullmatch(values[b":method"]):
        return "method"
    if values[b":scheme"].lower() not in (b"http", b"https"):
        return "scheme"
    if re.search(rb"[\x00-\x20\x7f]", values[b":path"]):
        return "control character in the path"
    if not values[b":path"].startswith(b"/") and (values[b":path"], values[b":method"]) != (b"*", b"OPTIONS"):
        return "an invalid target"
    hosts = {value.lower() for name, value in fields if name in (b"host", b":authority")}
    if len(hosts) > 1:
        return "two hosts"
    lengths = [value for name, value in fields if name == b"content-length"]
    if not all(value.isdigit() for value in lengths):
        return "empty content-length" if b"" in lengths else "content-length that is no number"
    if len({value.lstrip(b"0") for value in lengths}) > 1:
        return "contradicting content-length"
    if any(len(value.lstrip(b"0")) > 19 or int(value) > MAX_LENGTH for value in lengths):
        return "content-length beyond 63 bits"
    return ""
