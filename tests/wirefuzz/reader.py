"""Strict parser of HTTP/1.1 messages (RFC 9112): the reference with which Weir is compared.

Input that violates the grammar raises `Broken`. Deviations that a recipient may tolerate, and can interpret in only one
way, are parsed that way and recorded as oddities: Weir may forward or reject such a message, but its own output must
have no oddities.
"""

import re
from dataclasses import dataclass, field

TOKEN = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
TARGET = re.compile(rb"[!$%&'()*+,\-./0-9:;=?@A-Z\[\]_a-z~]+")
CONTROL = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
BLANK = b" \t"
CHUNK_SIZE = re.compile(rb"(?=[0-9A-Fa-f])0*([0-9A-Fa-f]{0,16})([ \t]*)(;.*)?", re.DOTALL)
CHUNK_EXTENSIONS = re.compile(
    rb"(;[!#$%&'*+\-.^_`|~0-9A-Za-z]+(=([!#$%&'*+\-.^_`|~0-9A-Za-z]+|\"[\t !#-\[\]-~\x80-\xff]*\"))?)*"
)
# Larger lengths are negative for recipients that use signed integers.
MAX_LENGTH = 2**63 - 1
# Longer chunk lines may be rejected.
MAX_CHUNK_LINE = 1000


class Broken(Exception):
    """The bytes are not a valid message. `message` contains its header section if that could be parsed."""

    def __init__(self, reason, message=None):
        super().__init__(reason)
        self.reason, self.message = reason, message


class Incomplete(Exception):
    """The message is incomplete. `message` contains its header section if that is complete."""

    def __init__(self, message=None):
        super().__init__("incomplete")
        self.message = message


@dataclass
class Message:
    """A request or a response."""

    start: tuple
    fields: list = field(default_factory=list)
    body: bytes = b""
    trailers: list = field(default_factory=list)
    oddities: list = field(default_factory=list)
    framing: str = "none"
    keeps: bool = True
    begin: int = 0
    head_end: int = 0
    end: int = 0

    def values(self, name):
        """Returns all values of the header `name`, in order."""
        return [value for other, value in self.fields if other.lower() == name]

    def tokens(self, name):
        """Returns the members of a comma-separated header, in lower case."""
        members = b",".join(self.values(name)).split(b",")
        return [member.strip(BLANK).lower() for member in members if member.strip(BLANK)]

    @property
    def status(self):
        """Returns the status code of a response."""
        return int(self.start[1])


def read_request(data, at=0):
    """Parses the request that begins at `at`."""
    at, oddities = skip_empty_lines(data, at)
    line, after = read_line(data, at, oddities)
    message = Message(tuple(line.split(b" ")), oddities=oddities, begin=at)
    if len(message.start) != 3 or not TOKEN.fullmatch(message.start[0]) or not message.start[1]:
        raise Broken("request line")
    if not re.fullmatch(rb"HTTP/1\.[01]", message.start[2]):
        raise Broken("version")
    if CONTROL.search(message.start[1]) or b"\t" in message.start[1]:
        raise Broken("control character in the target")
    if not TARGET.fullmatch(message.start[1]):
        oddities.append("character in the target")
    read_fields(data, after, message.fields, message)
    message.keeps = persists(message, message.start[2])
    codings, lengths = message.values(b"transfer-encoding"), message.values(b"content-length")
    if codings:
        if message.start[2] == b"HTTP/1.0":
            raise Broken("transfer-encoding in HTTP/1.0", message)
        check_codings(codings, message)
        if lengths:
            oddities.append("content-length beside transfer-encoding")
            message.keeps = False
        read_chunked(data, message)
    elif lengths:
        message.framing = "length"
        read_octets(data, content_length(lengths, message), message)
    else:
        message.end = message.head_end
    return message


def read_response(data, at, method, ended, request_version=b"HTTP/1.1"):
    """Parses the response to `method` that begins at `at`. `ended` means that no more bytes follow."""
    at, oddities = skip_empty_lines(data, at)
    line, after = read_line(data, at, oddities)
    match = re.fullmatch(rb"(HTTP/1\.[01]) ([1-9]\d\d)(?: ([\t -~\x80-\xff]*))?", line)
    if not match:
        raise Broken("status line")
    if match[3] is None:
        oddities.append("no space behind the status")
    message = Message(match.groups(), oddities=oddities, begin=at)
    if message.status > 599:
        oddities.append("status above 599")
    read_fields(data, after, message.fields, message, blank_before_colon=True)
    message.keeps = persists(message, message.start[0]) and request_version == b"HTTP/1.1"
    codings, lengths = message.values(b"transfer-encoding"), message.values(b"content-length")
    if codings:
        check_codings(codings, message)
        if lengths or message.start[0] == b"HTTP/1.0":
            oddities.append("content-length beside transfer-encoding" if lengths else "coding in HTTP/1.0")
            message.keeps = False
    has_content = message.status >= 200 and message.status not in (204, 304) and method != b"HEAD"
    octets = None
    if lengths and not codings:
        try:
            octets = content_length(lengths, message)
        except Broken as broken:
            if has_content:
                raise
            oddities.append(broken.reason)
    if not has_content:
        if (codings or lengths) and (message.status < 200 or message.status == 204):
            oddities.append("framing of a response without content")
        message.end = message.head_end
    elif codings:
        read_chunked(data, message)
    elif octets is not None:
        message.framing = "length"
        read_octets(data, octets, message)
    else:
        message.framing, message.keeps = "close", False
        message.body, message.end = data[message.head_end :], len(data)
        if not ended:
            raise Incomplete(message)
    return message


def skip_empty_lines(data, at):
    """Skips empty lines, which a recipient may ignore. Returns the start of the message, and the oddities."""
    oddities = []
    while data[at : at + 2] == b"\r\n" or data[at : at + 1] == b"\n":
        at += 2 if data[at : at + 1] == b"\r" else 1
        oddities.append("empty line before a message")
    return at, oddities


def read_line(data, at, oddities, message=None):
    """Returns the line at `at` without its line break, and the position of the next one."""
    end = data.find(b"\n", at)
    if end < 0:
        raise Incomplete(message)
    line = data[at:end]
    if line.endswith(b"\r"):
        line = line[:-1]
    else:
        oddities.append("line that ends in LF alone")
    if b"\r" in line:
        raise Broken("CR within a line", message)
    return line, end + 1


def read_fields(data, at, fields, message, trailers=False, blank_before_colon=False):
    """Parses field lines up to the empty line. A proxy removes white space before the colon from responses (RFC 9112 section 5.1)."""
    known = message if trailers else None
    while True:
        line, at = read_line(data, at, message.oddities, known)
        if not line:
            break
        name, colon, value = line.partition(b":")
        if blank_before_colon and name.rstrip(BLANK) != name:
            message.oddities.append("white space before a colon")
            name = name.rstrip(BLANK)
        if not colon or not TOKEN.fullmatch(name):
            raise Broken("folded line" if line[:1] in (b" ", b"\t") else "field name", known)
        if CONTROL.search(value):
            raise Broken("control character in a value", known)
        fields.append((name, value.strip(BLANK)))
    if trailers:
        message.end = at
    else:
        message.head_end = at


def persists(message, version):
    """Whether the sender keeps the connection open (RFC 9112 section 9.3)."""
    options = message.tokens(b"connection")
    return b"close" not in options and (version == b"HTTP/1.1" or b"keep-alive" in options)


def check_codings(values, message):
    """Checks that the last coding is `chunked`. Other codings before it are an oddity."""
    elements = [coding.strip(BLANK).lower() for coding in b",".join(values).split(b",")]
    # RFC 9110 section 5.6.1.2.
    codings = [coding for coding in elements if coding]
    if len(codings) < len(elements):
        message.oddities.append("empty elements of transfer-encoding")
    if not codings or codings[-1] != b"chunked":
        raise Broken("transfer-encoding that is not chunked", message)
    if codings != [b"chunked"]:
        message.oddities.append("several transfer codings")


def content_length(values, message):
    """Returns the length on which all values agree."""
    numbers = [number.strip(BLANK) for number in b",".join(values).split(b",")]
    if not all(re.fullmatch(rb"[0-9]+", number) for number in numbers):
        raise Broken("content-length that is no number" if any(numbers) else "empty content-length", message)
    if len(numbers) > 1:
        message.oddities.append("repeated content-length")
    if any(number != b"0" and number.startswith(b"0") for number in numbers):
        message.oddities.append("content-length with leading zeros")
    if len({number.lstrip(b"0") for number in numbers}) > 1:
        raise Broken("contradicting content-length", message)
    if len(numbers[0].lstrip(b"0")) > 19 or int(numbers[0]) > MAX_LENGTH:
        raise Broken("content-length beyond 63 bits", message)
    return int(numbers[0])


def read_octets(data, octets, message):
    """Reads a body of a known length."""
    message.end = message.head_end + octets
    message.body = data[message.head_end : message.end]
    if len(message.body) < octets:
        raise Incomplete(message)


def read_chunked(data, message):
    """Parses a chunked body and its trailers (RFC 9112 section 7.1)."""
    message.framing = "chunked"
    at, body = message.head_end, []
    while True:
        end = data.find(b"\n", at)
        if end < 0:
            if b"\r" in data[at:-1]:
                raise Broken("CR within a chunk size", message)
            raise Incomplete(message)
        line = CHUNK_SIZE.fullmatch(data[at : end - 1])
        if data[end - 1 : end] != b"\r" or not line or b"\r" in line[0]:
            raise Broken("chunk size", message)
        if line[2] or len(line[0]) > MAX_CHUNK_LINE or not CHUNK_EXTENSIONS.fullmatch(line[3] or b""):
            message.oddities.append("chunk extension")
        at, size = end + 1, int(line[1] or b"0", 16)
        if size == 0:
            break
        body.append(data[at : at + size])
        message.body = b"".join(body)
        at += size
        if at + 2 > len(data):
            if data[at : at + 1] not in (b"", b"\r"):
                raise Broken("end of a chunk", message)
            raise Incomplete(message)
        if data[at : at + 2] != b"\r\n":
            raise Broken("end of a chunk", message)
        at += 2
    read_fields(data, at, message.trailers, message, trailers=True)
