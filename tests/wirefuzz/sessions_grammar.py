"""Generates HTTP/2 sessions as frames with tagged pieces, and mutates them by frame, by field and by byte."""

from .frames import (
    ACK, CONTINUATION, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, PADDED, PING, PRIORITY, PUSH_PROMISE, RST_STREAM, SETTINGS,
    WINDOW_UPDATE, WITH_PRIORITY,
)
from .grammar import BYTES, NASTY, SMUGGLED
from .hpack import indexed, integer, literal

FIELDS = [
    (b"accept", b"*/*"), (b"cookie", b"a=b"), (b"cookie", b"c=d"), (b"te", b"trailers"), (b"x-one", b"1"), (b"x-empty", b""),
    (b"x-text", b"\xe4"), (b"x-forwarded-for", b"203.0.113.7"), (b"x-envoy-max-retries", b"3"), (b"x_forwarded_for", b"203.0.113.7"),
    (b"trailer", b"x-sum"), (b"x-weir-over-limit", b"1"), (b"proxy-authorization", b"Basic eDp5"), (b"expect", b"100-continue"),
    (b"http2-settings", b"AAMAAABk"), (b"priority", b"u=1"), (b"content-length", b"0"),
]
NASTY_NAMES = [
    b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade", b"X-Upper", b"", b":", b"x y", b"x\0", b"x\r\ny",
    b"content_length", b"Content-Length", b"host", b"te", b"x:y", b":path", b":method", b":authority", b":scheme", b":status", b":protocol",
    b":x", b"expect", b"content-length ", b" host", b"x\x7f", b"x\xff", b"cookie", b"trailer",
]
NASTY_VALUES = [
    b"", b" ", b"a ", b" a", b"a\r\nx-in: 1", b"a\nb", b"a\rb", b"a\0b", b"a\x01b", b"\x7f", b"close", b"chunked", b"trailers, gzip", b"websocket",
    b"100-continue", b"x" * 9000, b"a\r\n\r\n" + SMUGGLED, b"\xff", b"s.test", b"internal.test", b"/admin/x",
]
NASTY_PATHS = [
    b"", b"*", b"a", b"//", b"/a b", b"/\r\nx", b"/#tok", b"http://s.test/tok", b"/\0", b"/\xe4", b"/admin/x", b"/x/../admin/x",
    b"/a HTTP/1.1\r\nhost: s.test\r\n\r\nGET /smuggled", b"?q", b"/\x7f", b"/" + b"a" * 9000, b"/%00",
]
NASTY_METHODS = [b"", b"CONNECT", b"TRACE", b"GET ", b"GET /smuggled HTTP/1.1\r\n", b"get", b"G\0", b"PRI", b"A" * 70]
NASTY_SCHEMES = [b"", b"ftp", b"http\r\n", b"HTTPS", b"http://s.test", b"h ttp"]


def session(random):
    """Generates SETTINGS and one to four requests with interleaved frames, most of them mutated."""
    values = random.choice((b"", b"", b"", b"\0\2\0\0\0\0", b"\0\4\0\1\0\0", b"\0\1\0\0\0\0", b"\0\5\0\0\x80\0", b"\x12\x34\0\0\0\1"))
    frames = [made(SETTINGS, 0, 0, ("settings", values))]
    requests = [request(random, 2 * number + 1) for number in range(random.choice((1, 1, 2, 3, 4)))]
    while requests:
        # Streams are opened in order, and interleaved from then on.
        one = requests[0] if random.random() < 0.7 or requests[-1][0][0]["type"] == HEADERS else random.choice(requests)
        frames += one.pop(0)
        requests = [one for one in requests if one]
        if random.random() < 0.1:
            frames.append(harmless(random))
    for _ in range(random.choice((0, 1, 1, 1, 2, 2, 3, 5))):
        frames = mutate(random, frames)
    return frames


def made(kind, flags, stream, *pieces):
    """Returns a frame."""
    return {"type": kind, "flags": flags, "stream": stream, "payload": list(pieces), "length": None}


def encoded(random, name, value):
    """Returns a field in a random representation, as a piece."""
    flags = random.choice((0, 0, 0, 0, 0x40, 0x10))
    return (name.decode("latin-1") if name.startswith(b":") else "field", literal(name, value, flags))


def request(random, stream):
    """Generates a valid request as groups of frames that stay together."""
    body = random.choice((b"", b"", b"x", b"hello", SMUGGLED, b"0\r\n\r\n" + SMUGGLED, b"b" * random.choice((1000, 9000))))
    method = random.choice((b"POST", b"PUT", b"DELETE")) if body else random.choice((b"GET", b"GET", b"HEAD", b"OPTIONS", b"POST"))
    pseudo = [
        (":method", indexed(2)) if method == b"GET" else encoded(random, b":method", method),
        (":scheme", indexed(6)),
        encoded(random, b":path", random.choice((b"/", b"/a?b=c", b"/%61/../b;c", b"//x", b"/admin/x")) + b"tok"),
        encoded(random, b":authority", random.choice((b"s.test", b"s.test", b"S.test:80", b"[::1]:8080", b"internal.test"))),
    ]
    random.shuffle(pseudo)
    fields = [encoded(random, *random.choice(FIELDS[:-1])) for _ in range(random.choice((0, 0, 1, 2, 4)))]
    if body and random.random() < 0.6 or random.random() < 0.05:
        fields.append(("length", literal(b"content-length", b"%d" % len(body))))
    random.shuffle(fields)
    has_trailers = random.random() < 0.15
    ends = END_STREAM if not body and not has_trailers else 0
    groups = [headers(random, stream, ends, pseudo + fields)]
    while body:
        size = random.choice((1, 5, 1000, len(body)))
        part, body = body[:size], body[size:]
        groups.append([data(random, stream, END_STREAM if not body and not has_trailers else 0, part)])
    if has_trailers:
        groups.append(headers(random, stream, END_STREAM, [encoded(random, b"x-sum", b"1"), encoded(random, b"x-one", b"2")]))
    return groups


def headers(random, stream, flags, fields):
    """Returns HEADERS, with random padding, priority or CONTINUATION."""
    if random.random() < 0.15:
        at = random.randrange(len(fields) + 1)
        return [made(HEADERS, flags, stream, *fields[:at]), made(CONTINUATION, END_HEADERS, stream, *fields[at:])]
    before, after = [], []
    if random.random() < 0.1:
        flags |= PADDED
        before, after = [("padding", b"\x03")], [("padding", b"\0\0\0")]
    if random.random() < 0.1:
        flags |= WITH_PRIORITY
        before.append(("priority", b"\0\0\0\0\x10"))
    return [made(HEADERS, flags | END_HEADERS, stream, *before, *fields, *after)]


def data(random, stream, flags, content):
    """Returns DATA, with random padding."""
    if random.random() < 0.1:
        return made(DATA, flags | PADDED, stream, ("padding", b"\x05"), ("data", content), ("padding", b"\0" * 5))
    return made(DATA, flags, stream, ("data", content))


def harmless(random):
    """Returns a frame without effect on requests."""
    return random.choice((
        made(PING, 0, 0, ("ping", b"12345678")), made(0xBE, 0xFF, random.choice((0, 1, 99)), ("unknown", b"whatever")),
        made(WINDOW_UPDATE, 0, 0, ("window", b"\0\0\4\0")), made(PRIORITY, 0, 97, ("priority", b"\0\0\0\0\x10")),
    ))


def nasty_frame(random):
    """Returns a frame that may cause an error of the connection or of a stream."""
    stream = random.choice((0, 1, 1, 3, 5, 2, 99))
    return random.choice((
        made(RST_STREAM, 0, stream, ("code", b"\0\0\0\x08")), made(RST_STREAM, 0, stream, ("code", b"\0\0\0")),
        made(GOAWAY, 0, 0, ("goaway", b"\0\0\0\0\0\0\0\0")), made(CONTINUATION, END_HEADERS, stream, ("field", b"")),
        made(PUSH_PROMISE, END_HEADERS, stream, ("promise", b"\0\0\0\2")), made(SETTINGS, ACK, 0), made(PING, ACK, 0, ("ping", b"12345678")),
        made(SETTINGS, 0, 0, ("settings", random.choice((b"\0\4\0\0\0\0", b"\0\4\xff\xff\xff\xff", b"\0\5\0\0\0\0", b"\0\2\0\0\0\2", b"\0\1\0")))),
        made(WINDOW_UPDATE, 0, stream, ("window", random.choice((b"\0\0\0\0", b"\x7f\xff\xff\xff", b"\0\0\1")))),
        made(DATA, random.choice((0, END_STREAM)), stream, ("data", random.choice((b"", b"hello", b"x" * 16384)))),
        made(HEADERS, END_HEADERS | END_STREAM, stream, *nasty_block(random)), made(PRIORITY, 0, stream, ("priority", b"\0\0\0\1\x10")),
        made(PING, 0, 0, ("ping", b"1234567")), made(DATA, PADDED, stream, ("padding", b"\x09"), ("data", b"x")),
    ))


def nasty_block(random):
    """Returns the fields of an invalid request, or an invalid representation."""
    usual = [(":method", indexed(2)), (":scheme", indexed(6)), (":path", indexed(4)), (":authority", literal(b":authority", b"s.test"))]
    broken = random.choice((
        b"\x80", indexed(99), b"\x3f\xe1\x7f", b"\x20", b"\x00\x85\x00", integer(10**9, 7, 0x80), b"\x00\x81\xff\x00", b"\x40", b"\x1f\x80\x80\x80\x80\x80",
    ))
    usual.insert(random.randrange(len(usual) + 1), ("field", broken))
    return usual


def nasty_field(random, tag):
    """Returns a replacement for a field with this tag."""
    values = {":method": NASTY_METHODS, ":path": NASTY_PATHS, ":scheme": NASTY_SCHEMES, ":authority": NASTY["host"], "length": NASTY["length"]}
    name = b"content-length" if tag == "length" else tag.encode()
    if tag in values:
        return (tag, literal(name, random.choice(values[tag])))
    how = random.random()
    if how < 0.3:
        return ("length", literal(b"content-length", random.choice(NASTY["length"] + [b"0", b"1", b"5"] * 4)))
    if how < 0.4:
        return ("host", literal(b"host", random.choice(NASTY["host"] + [b"s.test"] * 4)))
    usual = [name for name, _ in FIELDS]
    return ("field", literal(random.choice(NASTY_NAMES + usual), random.choice(NASTY_VALUES + [value for _, value in FIELDS])))


def mutate(random, frames):
    """Returns the frames after one mutation."""
    frames = [dict(frame, payload=list(frame["payload"])) for frame in frames]
    if not frames:
        return frames
    how = random.random()
    blocks = [frame for frame in frames if frame["type"] in (HEADERS, CONTINUATION) and frame["payload"]]
    at = random.randrange(len(frames))
    one = random.choice(blocks) if blocks and how < 0.6 else frames[at]
    if how < 0.6 and blocks:
        mutate_fields(random, one["payload"])
    elif how < 0.66:
        del frames[at]
    elif how < 0.7:
        frames.insert(random.randrange(len(frames) + 1), dict(one, payload=list(one["payload"])))
    elif how < 0.74:
        other = random.randrange(len(frames))
        frames[at], frames[other] = frames[other], frames[at]
    elif how < 0.8:
        one["flags"] ^= random.choice((1, 4, 8, 0x20, 0x5, 0x80))
    elif how < 0.85:
        one["stream"] = random.choice((0, 1, 2, 3, 5, 7, 0x80000001, 0x7FFFFFFF, one["stream"] + 2))
    elif how < 0.87:
        one["length"] = max(0, sum(len(data) for _, data in one["payload"]) + random.choice((-1, 1, 9, 20000)))
    elif how < 0.89:
        one["type"] = random.choice(range(12))
    else:
        frames.insert(random.randrange(len(frames) + 1), nasty_frame(random))
    return frames


def mutate_fields(random, fields):
    """Mutates one field of a block."""
    at = random.randrange(len(fields))
    how = random.random()
    if how < 0.45:
        fields[at] = nasty_field(random, fields[at][0])
    elif how < 0.75:
        fields.insert(at + random.choice((0, 1, 1)), nasty_field(random, "field"))
    elif how < 0.82:
        fields.append(nasty_field(random, "field"))
    elif how < 0.88:
        del fields[at]
    elif how < 0.93:
        fields.insert(random.randrange(len(fields) + 1), fields[at])
    else:
        tag, data = fields[at]
        place = random.randrange(len(data) + 1)
        fields[at] = (tag, data[:place] + random.choice(BYTES) + data[place + random.choice((0, 1)) :])
