"""HTTP/1.1 requests: compares what the client sends with what the upstream receives and with the responses."""

import hashlib
import re

from . import grammar
from .arena import converse
from .case import Case, Finding, joined, shown
from .reader import BLANK, Broken, Incomplete, read_request, read_response

HOST = re.compile(rb"(\[[0-9A-Za-z:._~%\-]+\]|[0-9A-Za-z._~%\-]+)(:[0-9]{0,5})?")
ABSOLUTE = re.compile(rb"([A-Za-z][A-Za-z0-9+.\-]*)://([^/?#]*)([^#]*)(#.*)?", re.DOTALL)
# Headers that Weir writes, interprets, or removes because a client must not set them.
OWN = {
    b"connection", b"keep-alive", b"te", b"transfer-encoding", b"upgrade", b"proxy-authorization", b"proxy-authenticate",
    b"proxy-connection", b"http2-settings", b"expect", b"host", b"content-length", b"trailer", b"forwarded", b"x-real-ip",
    b"x-original-url", b"x-rewrite-url", b"x-request-id", b"via", b"max-forwards",
}
OWN_PREFIXES = (b"x-forwarded-", b"x-envoy-", b"x-weir-")
NEVER_UPSTREAM = (
    b"keep-alive", b"proxy-authorization", b"proxy-connection", b"http2-settings", b"expect", b"x-envoy-internal",
    b"x-weir-over-limit", b"x-envoy-max-retries", b"x-envoy-upstream-rq-timeout-ms",
)
# Requests within these limits must be forwarded; the limits of the configuration are somewhat higher.
MAX_FIELDS, MAX_HEAD = 90, 50_000
# Number of bytes of a body that are read even if the request is rejected.
MAX_DISCARDED = 32_000


def generate(random):
    """Generates a connection with one to four requests, most of them mutated."""
    count = random.choice((1, 2, 2, 3, 4))
    pieces = [grammar.request(random, last=index and index == count - 1) for index in range(count)]
    pieces = [piece for request in pieces for piece in request]
    for _ in range(random.choice((0, 1, 1, 1, 2, 2, 3, 5))):
        pieces = grammar.mutate(random, pieces, grammar.NASTY)
    size = sum(len(data) for _, data in pieces)
    ending = "abort" if random.random() < 0.04 else "wait"
    return Case("requests", {"pieces": pieces, "cuts": grammar.cuts(random, size), "ending": ending})


async def play(arena, case):
    """Plays a case and returns the findings."""
    plan = Plan()
    data = joined(case.data["pieces"], b"tok")
    edges = [0, *[cut for cut in case.data["cuts"] if cut < len(data)], len(data)]
    segments = [data[begin:end] for begin, end in zip(edges, edges[1:])]
    expected = Expected(data)

    def is_done(received):
        responses, wrong = expected.responses(received, ended=False)
        if wrong not in (None, "incomplete") or responses and says_close(responses[-1]):
            return True
        if len(responses) < len(expected.requests):
            return False
        return None if expected.ending == "broken" and len(responses) == len(expected.requests) else True

    outcome = await converse(arena, plan, segments, is_done, case.data["ending"])
    return outcome.findings or expected.compare(outcome)


class Plan:
    """Behaviour of the upstream: it responds with a description of the request and its serial number."""

    def __init__(self):
        self.sent = {}

    def responds_early(self, message):
        """Never responds early."""
        return False

    def response(self, record, token):
        """Returns a response that identifies the request."""
        message = record.message
        content = b"%s %s %s" % (token, message.start[1], hashlib.sha1(message.body).hexdigest().encode())
        self.sent[record.serial] = b"" if message.start[0] == b"HEAD" else content
        head = b"HTTP/1.1 200 OK\r\nx-serial: %d\r\n" % record.serial
        if record.serial % 3 and message.start[0] != b"HEAD":
            return [("data", head + b"content-length: %d\r\n\r\n%s" % (len(content), content))]
        chunk = b"" if message.start[0] == b"HEAD" else b"%x\r\n%s\r\n0\r\n\r\n" % (len(content), content)
        return [("data", head + b"transfer-encoding: chunked\r\n\r\n" + chunk)]


class Expected:
    """Requests in the bytes of a client, by a strict parser."""

    def __init__(self, data):
        self.data, self.requests, self.rest = data, [], None
        # How the requests end: `end`, `incomplete`, `broken`, or `close` after the last request of a connection.
        self.ending, self.reason, at = "end", "", 0
        while at < len(data) and data[at:].strip(b"\r\n"):
            try:
                message = read_request(data, at)
            except Incomplete as incomplete:
                self.ending, self.rest = "incomplete", incomplete.message
                break
            except Broken as broken:
                self.ending, self.reason, self.rest = "broken", broken.reason, broken.message
                break
            self.requests.append(message)
            at = message.end
            if not message.keeps:
                self.ending = "close"
                break

    def method(self, index):
        """Returns the method of a request, as far as it is known."""
        if index < len(self.requests):
            return self.requests[index].start[0]
        return self.rest.start[0] if self.rest else b"GET"

    def responses(self, received, ended):
        """Returns the final responses in `received`, and a problem with them or `None`."""
        found, at = [], 0
        while at < len(received):
            try:
                message = read_response(received, at, self.method(len(found)), ended)
            except Incomplete:
                return found, "incomplete"
            except Broken as broken:
                return found, broken.reason
            at = message.end
            if message.status >= 200:
                found.append(message)
            elif message.status != 100:
                return found, f"interim response {message.status}"
        return found, None

    def compare(self, outcome):
        """Checks an outcome, and returns the findings."""
        if outcome.end == "left":
            return self.compare_records(outcome, [])
        if outcome.end == "timeout":
            return [Finding("no end of the connection in time", self.state(outcome))]
        responses, wrong = self.responses(outcome.received, ended=True)
        if wrong:
            return [Finding(f"client gets an invalid response: {wrong}", shown(outcome.received))]
        for response in responses:
            if response.oddities:
                return [Finding(f"client gets {response.oddities[0]}", shown(outcome.received))]
        return self.compare_responses(outcome, responses) or self.compare_records(outcome, responses)

    def compare_responses(self, outcome, responses):
        """Compares each response with its request."""
        for index, response in enumerate(responses):
            serial = response.values(b"x-serial")
            if index >= len(self.requests):
                if serial:
                    return [Finding(f"forwarded a request with {self.reason or 'no end'}", self.state(outcome))]
                if self.ending in ("end", "close") or index > len(self.requests):
                    return [Finding("more responses than requests", self.state(outcome))]
                if response.status < 400:
                    return [Finding(f"status {response.status} for a broken request", self.state(outcome))]
                continue
            request = self.requests[index]
            verdict, why = judge(request)
            if serial:
                if verdict == "reject":
                    return [Finding(f"forwarded a request with {why}", self.state(outcome))]
                if wrong := self.compare_forwarded(outcome, request, response, int(serial[0])):
                    return [Finding(wrong, self.state(outcome))]
            elif verdict == "forward":
                return [Finding(f"status {response.status} for a valid request", self.state(outcome))]
            elif response.status < 400:
                return [Finding(f"status {response.status} for a request with {why}", self.state(outcome))]
            if says_close(response) and index + 1 < len(responses):
                return [Finding("a response behind connection: close", self.state(outcome))]
        excused = responses and says_close(responses[-1])
        # The rest of a large body that is not forwarded may stay unread.
        excused = excused or any(len(request.body) > MAX_DISCARDED for request in self.requests[: len(responses)])
        # An oddity after the header section may be detected when the response is already being sent. Unread bytes may
        # turn the end of the connection into a reset.
        is_left = self.ending in ("close", "broken") or any(len(request.body) > MAX_DISCARDED for request in self.requests)
        excused = excused or outcome.end == "reset" and is_left
        excused = excused or any(request.oddities for request in self.requests[: len(responses)])
        if len(responses) < len(self.requests) and not excused:
            verdict, _ = judge(self.requests[len(responses)])
            return [Finding(f"closed without a response to a request ({verdict})", self.state(outcome))]
        return []

    def compare_forwarded(self, outcome, request, response, serial):
        """Compares a response of the upstream with the request that it is for."""
        record = next((record for record in outcome.records if record.serial == serial), None)
        if record is None:
            return "response of another client's request"
        if response.body != outcome.plan.sent[serial]:
            return "other content than the upstream's"
        return differs(request, record.message)

    def compare_records(self, outcome, responses):
        """Checks that every request at the upstream is one of the client's, in order and without repetition."""
        requests = iter(self.requests)
        for record in outcome.records:
            leaks = leaked(record.message)
            if leaks:
                return [Finding(f"upstream sees {leaks}", self.state(outcome))]
            if not record.complete:
                continue
            if not any(differs(request, record.message) is None for request in requests):
                return [Finding("upstream sees a request that no client sent", self.state(outcome))]
        return []

    def state(self, outcome):
        """Describes the outcome in readable form."""
        seen = "\n".join(
            f"  {'whole' if record.complete else 'part '} {shown(record.raw, 600)}" for record in outcome.records
        )
        return (
            f"client sends: {shown(self.data)}\nread as {len(self.requests)} requests, then {self.ending} {self.reason}\n"
            f"upstream sees:\n{seen}\nclient gets ({outcome.end}): {shown(outcome.received)}"
        )


def says_close(response):
    """Whether the connection ends with this response."""
    return b"close" in response.tokens(b"connection") or response.start[0] == b"HTTP/1.0" and not response.keeps


def effective_host(request):
    """Returns host and origin-form of a request (RFC 9112 section 3.3). The host is empty if the request has none."""
    target, hosts = request.start[1], request.values(b"host")
    absolute = ABSOLUTE.fullmatch(target)
    if not absolute:
        return (hosts[0] if hosts else b""), target.partition(b"#")[0]
    if request.start[0] == b"OPTIONS" and not absolute[3]:
        # RFC 9112 section 3.2.4.
        return absolute[2], b"*"
    path = absolute[3] if absolute[3].startswith(b"/") else b"/" + absolute[3]
    return absolute[2], path


def judge(request):
    """Returns whether a request must be forwarded, must be rejected, or may be either, and the reason."""
    method, target, version = request.start
    hosts = request.values(b"host")
    absolute = ABSOLUTE.fullmatch(target)
    host, path = effective_host(request)
    rejected = [
        (method in (b"CONNECT", b"TRACE") or len(method) > 64, "a method that is not forwarded"),
        (len(hosts) > 1, "two Host fields"),
        (not hosts and version == b"HTTP/1.1", "no Host field"),
        (absolute and absolute[1].lower() not in (b"http", b"https"), "another scheme"),
        (absolute and b"@" in absolute[2], "userinfo"),
        (absolute and not HOST.fullmatch(absolute[2]), "an invalid authority"),
        (hosts and not HOST.fullmatch(hosts[0]), "an invalid Host"),
        (not absolute and not target.startswith(b"/") and (target, method) != (b"*", b"OPTIONS"), "an invalid target"),
        (host.lower().partition(b":")[0].rstrip(b".") == b"internal.test", "a host that is denied"),
        (normal_path(path).startswith(b"/admin/"), "a path that is denied"),
        (b"%00" in path.partition(b"?")[0], "a null character in the path"),
        ("several transfer codings" in request.oddities, "several transfer codings"),
    ]
    for is_rejected, why in rejected:
        if is_rejected:
            return "reject", why
    bad_host = hosts and absolute and not HOST.fullmatch(hosts[0])
    large = len(request.fields) > MAX_FIELDS or request.head_end - request.begin > MAX_HEAD or len(request.trailers) > 60
    expects = [value.lower() for value in request.values(b"expect")] not in ([], [b"100-continue"])
    escapes = re.search(rb"%(?![0-9A-Fa-f]{2})", path) or absolute and re.search(rb"[%_~]", host)
    if request.oddities or bad_host or large or expects or escapes or b"#" in target:
        return "either", (request.oddities or ["an unusual form"])[0]
    return "forward", ""


def normal_path(path):
    """Returns the path as rules see it: unreserved characters decoded, dot segments resolved, slashes merged."""
    path = re.sub(rb"%([2-7][0-9A-Fa-f])", unreserved, path.partition(b"?")[0])
    segments = []
    for segment in path.split(b"/"):
        if segment == b"..":
            del segments[-1:]
        elif segment not in (b"", b"."):
            segments.append(segment)
    return b"/" + b"/".join(segments) + (b"/" if path.endswith((b"/", b"/.", b"/..")) else b"")


def unreserved(match):
    """Decodes an escape that stands for an unreserved character (RFC 3986 section 6.2.2.2)."""
    character = bytes.fromhex(match[1].decode())
    return character if character.isalnum() or character in b"-._~" else match[0]


def differs(request, seen):
    """Returns the difference between the client's request and the one at the upstream, or `None`."""
    host, target = effective_host(request)
    if seen.start[0] != request.start[0]:
        return "upstream sees another method"
    if seen.start[1] != target:
        return "upstream sees another target"
    if seen.values(b"host") != [host]:
        return "upstream sees another host"
    if seen.body != request.body:
        return "upstream sees another body"
    named = request.tokens(b"connection")
    if end_to_end(request.fields, named) != end_to_end(seen.fields, ()):
        return "upstream sees other fields"
    extra = [field for field in seen.trailers if field not in [(n.lower(), v) for n, v in request.trailers]]
    return "upstream sees other trailers" if extra else None


def is_own(name):
    """Whether Weir itself handles a header, under this name or under one that imitates it."""
    name, meant = name.lower(), name.lower().replace(b"_", b"-")
    return name in OWN or meant.startswith(OWN_PREFIXES) or meant in (b"content-length", b"transfer-encoding")


def end_to_end(fields, named):
    """Returns the headers that are forwarded unchanged."""
    kept = [(name.lower(), value) for name, value in fields if not is_own(name) and name.lower() not in named]
    return sorted(kept, key=lambda field: field[0])


def leaked(seen):
    """Returns a description of what the upstream must never receive, or `None`."""
    for name, value in seen.fields:
        name = name.lower()
        if name in NEVER_UPSTREAM:
            return f"the field {name.decode()}"
        if b"_" in name and is_own(name):
            return "a field that imitates one of the proxy's"
        if name == b"te" and value.strip(BLANK) != b"trailers":
            return "a transfer coding of the client's hop"
        if name == b"upgrade" and value.lower() != b"websocket":
            return "an upgrade that is not configured"
    hosts = seen.values(b"host")
    if len(hosts) != 1:
        return "no Host field" if not hosts else "two Host fields"
    if seen.start[2] != b"HTTP/1.1":
        return "another version"
    return None
