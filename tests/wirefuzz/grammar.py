"""Generates HTTP/1.1 requests as tagged pieces of the grammar, and mutates them by piece and by byte."""

from .case import TOKEN

# Values of a piece in a valid request. `NASTY` below has the replacements for mutations.
VALID = {
    "method": [b"GET", b"GET", b"POST", b"PUT", b"HEAD", b"DELETE", b"OPTIONS", b"PATCH", b"PURGE"],
    "target": [
        b"/" + TOKEN,
        b"/" + TOKEN,
        b"/a/b?" + TOKEN,
        b"/%61%2f%5c;a=b/" + TOKEN,
        b"//double/" + TOKEN,
        b"/x/../y/" + TOKEN,
        b"http://s.test/" + TOKEN,
        b"HTTP://S.test:8080/" + TOKEN + b"?q",
        b"http://[2001:db8::1]:80/" + TOKEN,
        b"https://s.test?" + TOKEN,
        b"/admin/" + TOKEN,
        b"/x/../%61dmin/" + TOKEN,
        b"http://internal.test/" + TOKEN,
    ],
    "version": [b"HTTP/1.1"] * 9 + [b"HTTP/1.0"],
    "host": [b"s.test", b"s.test", b"S.TEST:8080", b"127.0.0.1", b"[::1]:80", b"s.test:", b"internal.test"],
    "blank": [b" ", b" ", b"", b"\t", b"  \t"],
    "end-blank": [b""] * 6 + [b" ", b"\t "],
    "extension": [b""] * 5 + [b";a", b";a=b", b';a="b;c"'],
    "connection": [b"keep-alive", b"close", b"x-one", b"x-one, x-two", b"te", b"Host, content-length, keep-alive"],
}
NASTY = {
    "method": [b"", b"CONNECT", b"TRACE", b"get", b"GET\0", b"G ET", b"G\tT", b"PRI", b"A" * 70, b"GET\r\n", b"\xc3\xa9"],
    "target": [
        b"", b"*", b"s.test:80", TOKEN, b"?" + TOKEN, b"/a b", b"/a#" + TOKEN, b"/\0", b"/\x7f", b"/\xc3\xa9" + TOKEN,
        b"http://u:p@s.test/" + TOKEN, b"http://s.test,x/" + TOKEN, b"http:///" + TOKEN, b"http://s.test:99999999/",
        b"http://[::1/" + TOKEN, b"http://s.test;x/", b"http://s_t.%41/" + TOKEN, b"http://s.test:8a/", b"http://@/",
        b"ftp://s.test/" + TOKEN, b"http:/" + TOKEN, b"http://s.test#" + TOKEN, b"http://internal.test:/" + TOKEN,
        b"http://INTERNAL.test./" + TOKEN, b"http://s'.test/" + TOKEN, b"http://s.test\\@internal.test/", b"//@/../",
        b"http://(s).test/" + TOKEN, b"http://[v1.a]/" + TOKEN, b"http://[::1]x/" + TOKEN, b"/" + b"a" * 9000,
        b"/\\..\\admin/", b"/%00", b"/<\">^`{|}" + TOKEN, b"/%zz" + TOKEN, b"http://internal.test,s.test/" + TOKEN,
        b"/./admin/" + TOKEN, b"/admin/./" + TOKEN, b"/%2e%2e/admin/", b"http://s.test!/" + TOKEN, b"HTTP/1.1",
    ],
    "version": [
        b"", b"HTTP/1.2", b"HTTP/2.0", b"HTTP/0.9", b"http/1.1", b"HTTP/1.10", b"HTTP/11", b"HTTP/1.1 ", b"HTTP/1",
        b"HTTP/1.1\t", b"XHTTP/1.1", b"HTTP/1.0",
    ],
    "space": [b"", b"  ", b"\t", b"\r", b"\x0b", b"\xa0", b"\n", b"\r\n "],
    "eol": [b"\n", b"\r", b"\r\r\n", b"\n\r", b"\r\n\r\n", b"", b" \r\n", b"\r\n ", b"\r\n\t", b"\0\r\n", b"\x0b\r\n"],
    "name": [
        b"", b"content-length", b"transfer-encoding", b"Content-Length ", b"content-length\t", b" host", b"host",
        b"content_length", b"x-forwarded-for", b"x_forwarded_for", b"connection", b"te", b"x-\0", b"x-\xc3", b"x y", b"x:",
        b"Transfer-Encoding\x0b", b"transfer-encoding\0", b"(x)", b"expect", b"upgrade", b"x-envoy-internal", b"trailer",
    ],
    "colon": [b"", b" :", b"::", b"=", b";", b":\r", b"\t:", b": :"],
    "blank": [b"\x0b", b"\x0c", b"\r", b"\n", b"\0", b"\xa0", b"\r\n ", b"\r\n\t", b" " * 3000],
    "value": [b"", b"a\0b", b"a\rb", b"a\nb", b"a\x7fb", b"a\x01", b"\xff\xfe", b"a\r\n b", b"x" * 9000, b"a\r\nx-in: 1", b"\r"],
    "host": [
        b"", b"s.test,x", b"s.test, s.test", b"u@s.test", b"s.test/x", b"s.test?x", b"s.test#x", b"s.test:8a", b"[::1", b"::1",
        b"s.test:123456", b"s test", b"s.test:80:80", b"http://s.test", b"\xc3\xa9.test", b"internal.test.", b"INTERNAL.test:1",
        b"s.test\\x", b"*", b"s'.test", b"[::1]x", b"@", b":80", b"[]", b"s.test;x", b"%00", b"internal.test, s.test",
    ],
    "length": [
        b"", b"00", b"0", b"+5", b"-1", b"5, 5", b"5,6", b"5,", b",5", b"0x5", b"5 5", b"1e1", b"005", b"\xd9\xa5", b"5;", b"5.0",
        b"18446744073709551615", b"18446744073709551616", b"18446744073709551621", b"9223372036854775807",
        b"9223372036854775808", b"4294967296", b"4294967301", b"9" * 40, b"\x0b5", b"5\0", b"0005", b"0" * 300 + b"5", b"'5'", b"_5",
        b"5_0", b"5\t", b"chunked",
    ],
    "coding": [
        b"", b"Chunked", b"CHUNKED", b"chunked, chunked", b"gzip, chunked", b"chunked, gzip", b"identity", b"chunked;q=1",
        b"chunked,", b",chunked", b"xchunked", b"chunked\x0b", b"\x0bchunked", b'"chunked"', b"chunked identity", b"identity, chunked",
        b"chu\0nked", b"chunked\0", b"chunked\xa0", b"x", b"chunked\r", b"cow", b"'chunked'", b"chunked\r\n ",
    ],
    "size": [
        b"", b"00", b"0", b"+5", b"-1", b"0x5", b"5 ", b" 5", b"5\t", b"FFFFFFFFFFFFFFFF", b"10000000000000005", b"ffffffff",
        b"0" * 30 + b"5", b"5\0", b"5,", b"5_", b"g", b"\n5", b"7fffffffffffffff", b"8000000000000000", b"100000005", b"5;", b"5\r",
    ],
    "extension": [
        b";", b";;", b";a=", b";=b", b';a="', b';a="\r\n"', b" ;a", b"; a = b", b";a\n", b";\0", b";a\rb", b";\xff", b";" + b"x" * 5000,
        b";a\n0\r\n\r\n", b" ", b"\x0b;a",
    ],
    "data-end": [b"", b"\n", b"\r", b"XX", b"\r\n\r\n", b"\r\r\n", b"\n\r"],
    "last": [b"", b"00", b"000", b"0;a", b"0 ", b"-0", b"0x0", b"+0", b" 0", b"0\n", b"0000000000000000000000"],
    "connection": [
        b"", b",", b"close, keep-alive", b"transfer-encoding", b"content-length", b"host", b"x-forwarded-for", b"upgrade", b"CLOSE",
        b"close\0", b"te, upgrade", b"cookie", b"x-request-id, x-envoy-external-address, x-forwarded-proto", b"\xff", b"keep alive",
    ],
}
# Included in bodies; must never be parsed as a request.
SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: s.test\r\nX-Smuggled: 1\r\n\r\n"
FIELDS = [
    (b"accept", b"*/*"), (b"user-agent", b"wire-fuzz"), (b"cookie", b"a=b; c=\"d\""), (b"x-one", b"1"), (b"X-Two", b"a, b"),
    (b"x-empty", b""), (b"x-text", b"\xe4\xf6\xfc"), (b"x-forwarded-for", b"203.0.113.7"), (b"X-Forwarded-Proto", b"https"),
    (b"x-envoy-internal", b"true"), (b"x-envoy-max-retries", b"3"), (b"x_forwarded_for", b"203.0.113.7"),
    (b"content_length", b"3"), (b"transfer_encoding", b"chunked"), (b"x-request-id", b"mine"), (b"keep-alive", b"timeout=5"),
    (b"te", b"trailers"), (b"te", b"gzip, trailers;q=0.5"), (b"upgrade", b"h2c"), (b"upgrade", b"websocket"),
    (b"http2-settings", b"AAMAAABkAARAAAAAAAIAAAAA"), (b"proxy-connection", b"keep-alive"), (b"proxy-authorization", b"Basic eDp5"),
    (b"x-weir-over-limit", b"counted"), (b"trailer", b"x-sum"), (b"expect", b"100-continue"), (b"expect", b"200-maybe"),
    (b"x-envoy-external-address", b"203.0.113.7"), (b"forwarded", b"for=203.0.113.7"), (b"date", b"now"), (b"range", b"bytes=0-1"),
    (b"x-envoy-original-path", b"/admin/"), (b"x-http-method-override", b"DELETE"), (b"authorization", b"Bearer t"),
]
BYTES = [b"\0", b"\r", b"\n", b"\t", b" ", b":", b",", b";", b"\x0b", b"\x0c", b"\x7f", b"\x80", b"\xff", b"0", b"\r\n", b"a", b"/", b"="]


def request(random, last=False):
    """Generates one valid request in pieces. The last one of a connection is a plain one."""
    if last:
        return plain(b"GET", b"/" + TOKEN + b"?last")
    method, version = random.choice(VALID["method"]), random.choice(VALID["version"])
    pieces = [
        ("method", method), ("space", b" "), ("target", random.choice(VALID["target"])), ("space", b" "),
        ("version", version), ("eol", b"\r\n"),
    ]
    fields = [field(b"Host", "host", random.choice(VALID["host"]), random)]
    for _ in range(random.choice((0, 0, 1, 1, 2, 3, 6))):
        name, value = random.choice(FIELDS)
        fields.append(field(name, "value", value, random))
    if random.random() < 0.2:
        fields.append(field(b"Connection", "connection", random.choice(VALID["connection"]), random))
    body = []
    if method not in (b"GET", b"HEAD") or random.random() < 0.15:
        framing, body = message_body(random, version)
        if framing:
            fields.append(framing)
    random.shuffle(fields)
    for one in fields:
        pieces += one
    return pieces + [("eol", b"\r\n")] + body


def plain(method, target):
    """Returns an unambiguous request."""
    return [
        ("method", method), ("space", b" "), ("target", target), ("space", b" "), ("version", b"HTTP/1.1"), ("eol", b"\r\n"),
        ("name", b"Host"), ("colon", b":"), ("blank", b" "), ("host", b"s.test"), ("eol", b"\r\n"), ("eol", b"\r\n"),
    ]


def field(name, tag, value, random):
    """Returns a field line."""
    blanks = random.choice(VALID["blank"]), random.choice(VALID["end-blank"])
    return [("name", name), ("colon", b":"), ("blank", blanks[0]), (tag, value), ("blank", blanks[1]), ("eol", b"\r\n")]


def message_body(random, version):
    """Generates a body and the header that frames it."""
    content = random.choice([
        b"", b"x", b"hello", SMUGGLED, b"0\r\n\r\n" + SMUGGLED, b"\r\n" + SMUGGLED, random.randbytes(random.randrange(1, 4000)),
        b"5\r\nhello\r\n0\r\n\r\n" + SMUGGLED, b"\r\n\r\n", b"a" * random.choice((1023, 1024, 8191, 8192, 16384, 70000)),
    ])
    if version == b"HTTP/1.0" or random.random() < 0.5:
        return field(b"Content-Length", "length", b"%d" % len(content), random), [("data", content)]
    pieces = []
    while content:
        size = random.choice((1, 5, 16, 300, 8192, len(content)))
        chunk, content = content[:size], content[size:]
        pieces += [
            ("size", random.choice((b"%x", b"%X", b"%04x")) % len(chunk)), ("extension", random.choice(VALID["extension"])),
            ("eol", b"\r\n"), ("data", chunk), ("data-end", b"\r\n"),
        ]
    pieces += [("last", b"0"), ("extension", random.choice(VALID["extension"])), ("eol", b"\r\n")]
    for _ in range(random.choice((0, 0, 0, 1, 2))):
        pieces += field(random.choice((b"x-sum", b"content-length", b"host", b"X-Forwarded-For")), "value", b"1", random)
    return field(b"Transfer-Encoding", "coding", b"chunked", random), pieces + [("eol", b"\r\n")]


def mutate(random, pieces, nasty):
    """Returns the pieces after one mutation."""
    pieces = list(pieces)
    if not pieces:
        return pieces
    at = random.randrange(len(pieces))
    tag, data = pieces[at]
    how = random.random()
    if how < 0.55:
        # The pieces that determine framing and routing are few, so half of these mutations choose one of them.
        telling = [i for i, (tag, _) in enumerate(pieces) if tag in ("length", "coding", "size", "host", "target", "last")]
        if telling and random.random() < 0.5:
            at = random.choice(telling)
        tag = pieces[at][0]
        pieces[at] = (tag, random.choice(nasty.get(tag) or BYTES))
    elif how < 0.65:
        del pieces[at]
    elif how < 0.75:
        begin, size = random.randrange(len(pieces)), random.choice((1, 6, 6, 12))
        pieces[at:at] = pieces[begin : begin + size]
    elif how < 0.82:
        pieces[at:at] = added_line(random, nasty)
    elif how < 0.9:
        place = random.randrange(len(data) + 1)
        pieces[at] = (tag, data[:place] + random.choice(BYTES) + data[place + random.choice((0, 1)) :])
    elif how < 0.95:
        other = random.randrange(len(pieces))
        pieces[at], pieces[other] = pieces[other], pieces[at]
    else:
        pieces[at] = (tag, data[: random.randrange(len(data) + 1)])
    return pieces


def added_line(random, nasty):
    """Returns an additional header for framing or routing."""
    name, tag = random.choice(
        ((b"Content-Length", "length"), (b"Transfer-Encoding", "coding"), (b"Host", "host"), (b"Connection", "connection"))
    )
    valid = {"length": [b"5", b"0"], "coding": [b"chunked"]}.get(tag) or VALID[tag]
    return field(name, tag, random.choice(nasty[tag] + valid * 3), random)


def cuts(random, size):
    """Returns the positions at which the bytes are split into segments."""
    how = random.random()
    if how < 0.5 or size < 2:
        return []
    if how < 0.95:
        return sorted(random.randrange(1, size) for _ in range(random.choice((1, 1, 2, 4))))
    begin = random.randrange(size)
    return list(range(max(1, begin), min(size, begin + 40)))
