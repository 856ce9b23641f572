"""Generates plain requests, each with the script of its response in tagged pieces."""

from .case import TOKEN
from .grammar import NASTY as REQUESTS
from .grammar import field

# Follows a response; must never be parsed as the response to another request.
POISON = b"HTTP/1.1 200 OK\r\nx-number: poison\r\ncontent-length: 6\r\n\r\npoison"
NASTY = {tag: REQUESTS[tag] for tag in ("eol", "name", "colon", "blank", "value", "length", "coding", "size", "extension")}
NASTY |= {
    "data-end": REQUESTS["data-end"],
    "last": REQUESTS["last"],
    "connection": REQUESTS["connection"],
    "space": REQUESTS["space"],
    "host": [b""],
    "version": [b"HTTP/1.0", b"HTTP/1.2", b"HTTP/2", b"http/1.1", b"", b"ICY", b"HTTP/1.1 ", b"\x00", b"HTTP/0.9"],
    "status": [
        b"", b"0", b"099", b"99", b"100", b"101", b"102", b"103", b"199", b"204", b"205", b"206", b"304", b"600", b"999", b"1000", b"20",
        b"2000", b"-200", b"+200", b"2OO", b"200\0", b"418", b" 200", b"\xd9\xa2\xd9\xa0\xd9\xa0",
    ],
    "reason": [b"", b"a\0b", b"a\rb", b"\xff", b"x" * 3000, b"\t", b"OK\r\n folded", b"\x01"],
    "close": [b""],
    "pause": [b""],
    "poison": [POISON, b"\r\n", b"\0", POISON * 2, b"HTTP/1.1 500 ", b"x"],
}
FIELDS = [
    (b"content-type", b"text/plain"), (b"Set-Cookie", b"a=b; path=/"), (b"Set-Cookie", b"c=d"), (b"X-Empty", b""),
    (b"cache-control", b"no-store"), (b"x-text", b"\xe4\xf6"), (b"keep-alive", b"timeout=5"), (b"proxy-authenticate", b"Basic"),
    (b"x-ratelimit-limit", b"7"), (b"date", b"Sun, 06 Nov 1994 08:49:37 GMT"), (b"trailer", b"x-sum"), (b"server", b"origin"),
    (b"x-envoy-upstream-service-time", b"99"), (b"te", b"trailers"), (b"upgrade", b"h2c"), (b"via", b"1.1 origin"),
    (b"content-encoding", b"gzip"), (b"etag", b'"x"'), (b"location", b"/elsewhere"), (b"Vary", b"*"),
]
INTERIM = [
    b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early Hints\r\nlink: </a>; rel=preload\r\n\r\n", b"HTTP/1.1 102 Processing\r\n\r\n",
    b"HTTP/1.1 199 \r\nx-a: b\r\n\r\n",
]


def exchange(random, number, plain=False):
    """Generates a request, and what the upstream sends for it."""
    method = b"GET" if plain else random.choice((b"GET", b"GET", b"GET", b"HEAD", b"POST", b"PUT", b"OPTIONS"))
    version = b"HTTP/1.0" if plain and random.random() < 0.1 else b"HTTP/1.1"
    body = 0 if method in (b"GET", b"HEAD") else random.choice((0, 1, 100, 30000))
    return {
        "number": number, "method": method, "version": version, "body": body, "expects": bool(body) and random.random() < 0.2,
        "early": bool(body) and random.random() < 0.3, "script": script(random, method, number, plain),
    }


def request(one):
    """Returns the bytes of an unambiguous request."""
    head = b"%s /r/%d %s\r\nhost: s.test\r\n" % (one["method"], one["number"], one["version"])
    if one["expects"]:
        head += b"expect: 100-continue\r\n"
    if one["body"]:
        head += b"content-length: %d\r\n" % one["body"]
    return head + b"\r\n" + b"b" * one["body"]


def script(random, method, number, plain):
    """Generates a valid response, and how its connection continues."""
    pieces = []
    if not plain and random.random() < 0.15:
        pieces += [("interim", random.choice(INTERIM)) for _ in range(random.choice((1, 1, 2)))]
    status = b"200" if plain else random.choice((b"200", b"200", b"200", b"404", b"204", b"304", b"500", b"206", b"301", b"429"))
    pieces += [("version", b"HTTP/1.1"), ("space", b" "), ("status", status), ("space", b" "), ("reason", b"OK"), ("eol", b"\r\n")]
    fields = [field(b"X-Number", "number", TOKEN, random)]
    for _ in range(0 if plain else random.choice((0, 1, 2, 3))):
        name, value = random.choice(FIELDS)
        fields.append(field(name, "value", value, random))
    if not plain and random.random() < 0.2:
        options = (b"close", b"keep-alive", b"x-hop", b"X-Number")
        fields.append(field(b"Connection", "connection", random.choice(options), random))
    body, closes = [], not plain and random.random() < 0.1
    if status not in (b"204", b"304"):
        framing, body, needs_close = content(random, plain)
        closes |= needs_close
        fields += [framing] if framing else []
        body = [] if method == b"HEAD" else body
    random.shuffle(fields)
    pieces += [piece for one in fields for piece in one] + [("eol", b"\r\n")] + body
    if not plain and random.random() < 0.2:
        pieces.insert(random.randrange(len(pieces)), ("pause", b""))
    if not plain and random.random() < 0.15:
        # Truncated at any byte, or followed by further bytes.
        pieces = cut(random, pieces) if random.random() < 0.6 else [*pieces, ("poison", POISON)]
    if closes:
        pieces.append((random.choice(("close", "close", "half", "reset")), b""))
    return pieces


def content(random, plain):
    """Generates a framing header and a body. The last value is whether the end of the connection ends the body."""
    data = TOKEN + random.choice((b"", b"x", b"\r\n0\r\n\r\n" + POISON, b"y" * random.choice((100, 8192, 20000))))
    how = random.random()
    if how < 0.5 or plain:
        # The placeholder is replaced by a token of another length, which is used here.
        return field(b"Content-Length", "length", b"%d" % (len(data) - len(TOKEN) + TOKEN_LENGTH), random), [("data", data)], False
    if how > 0.85:
        return None, [("data", data)], True
    pieces = []
    for part in (data[: len(TOKEN)], *(data[at : at + 7000] for at in range(len(TOKEN), len(data), 7000))):
        size = TOKEN_LENGTH if part == TOKEN else len(part)
        pieces += [("size", b"%x" % size), ("extension", random.choice((b"", b"", b";a=b"))), ("eol", b"\r\n")]
        pieces += [("data", part), ("data-end", b"\r\n")]
    pieces += [("last", b"0"), ("extension", b""), ("eol", b"\r\n")]
    for _ in range(random.choice((0, 0, 1))):
        pieces += field(random.choice((b"x-sum", b"content-length", b"set-cookie")), "value", b"1", random)
    return field(b"Transfer-Encoding", "coding", b"chunked", random), pieces + [("eol", b"\r\n")], False


def cut(random, pieces):
    """Truncates the pieces at some byte, and ends the connection."""
    pieces = pieces[: random.randrange(len(pieces) + 1)]
    if pieces:
        tag, data = pieces[-1]
        pieces[-1] = (tag, data[: random.randrange(len(data) + 1)])
    return [*pieces, (random.choice(("close", "half", "reset")), b"")]


# Length of the token of a case with the number of its request, which is the same for all cases.
TOKEN_LENGTH = len("tok0000000zn0")
