"""Mutated upstream responses: the client must get the same response, or a local reply, or detect that it is truncated.

Several plain requests use one client connection. Each has a script with the bytes that the upstream sends for it.
"""

from . import grammar
from .arena import converse
from .case import TOKEN, Case, Finding, joined, shown
from .reader import Broken, Incomplete, read_response
from .requests import OWN, OWN_PREFIXES, says_close
from .responses_grammar import NASTY, exchange, request

# Example of a token with the number of a request; all have this length.
NAME = b"tok0000000zn0"
ENDS = ("close", "half", "reset")
LOCAL = (502, 503, 504)
HOP = (b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-connection", b"upgrade", b"te", b"http2-settings")


def generate(random):
    """Generates one to three requests on a connection, most of them with mutated scripts."""
    exchanges = [exchange(random, number) for number in range(random.choice((1, 2, 2, 3)))]
    for one in exchanges:
        for _ in range(random.choice((0, 0, 1, 1, 2, 3))):
            one["script"] = grammar.mutate(random, one["script"], NASTY)
    # Bytes after an odd response must not reach the next request, so there always is one more.
    exchanges.append(exchange(random, len(exchanges), plain=True))
    size = sum(len(request(one)) for one in exchanges)
    return Case("responses", {"exchanges": exchanges, "cuts": grammar.cuts(random, size)})


async def play(arena, case):
    """Plays a case and returns the findings."""
    exchanges = case.data["exchanges"]
    plan = Plan(exchanges)
    data = b"".join(request(one) for one in exchanges)
    edges = [0, *[cut for cut in case.data["cuts"] if cut < len(data)], len(data)]
    segments = [data[begin:end] for begin, end in zip(edges, edges[1:])]
    judge = Judge(exchanges, data)

    def is_done(received):
        responses, _, wrong = judge.read(received, ended=False)
        return len(responses) >= len(exchanges) or bool(wrong or responses and says_close(responses[-1]))

    outcome = await converse(arena, plan, segments, is_done)
    return outcome.findings or judge.compare(outcome)


class Plan:
    """Behaviour of the upstream: the script of each request, which is named by the request's target."""

    def __init__(self, exchanges):
        self.scripts = {one["number"]: one for one in exchanges}
        # Number of times that each request was received completely.
        self.seen = {}

    def find(self, message):
        """Returns the exchange of a request."""
        return self.scripts.get(int(message.start[1].rsplit(b"/", 1)[1]))

    def responds_early(self, message):
        """Whether the exchange has an early response."""
        return self.find(message)["early"]

    def response(self, record, token):
        """Returns the script of the exchange, with the token inserted."""
        one = self.find(record.message)
        name = token + b"n%d" % one["number"]
        self.seen[one["number"]] = self.seen.get(one["number"], 0) + 1
        return [(tag, data.replace(TOKEN, name)) for tag, data in complete(one)]


def complete(one):
    """Returns the script of an exchange. Adds a close if the response has no end, so that the client does not wait for
    more.
    """
    script = one["script"]
    message, how, _ = sent(script, one["method"], NAME)
    if how == "whole" and message.end < len(joined(script, NAME)):
        # Bytes after the response cannot be distinguished from the next response, so they are sent without a pause.
        script = [step for step in script if step[0] != "pause"]
    if any(tag in ENDS for tag, _ in script):
        return script
    return script if how == "whole" else [*script, ("close", b"")]


def sent(script, method, name):
    """Parses a script. Returns the response or `None`, whether it is `whole`, `cut` or `broken`, and whether it is odd.
    """
    end = next((index for index, (tag, _) in enumerate(script) if tag in ENDS), None)
    data = joined([step for step in script[:end] if step[0] != "pause"], name)
    # A reset may discard what was sent before it.
    is_reset = end is not None and script[end][0] == "reset"
    ended, at, odd = end is not None and not is_reset, 0, is_reset
    while True:
        try:
            message = read_response(data, at, method, ended)
        except Incomplete as incomplete:
            return incomplete.message, "cut", odd or bool(incomplete.message and incomplete.message.oddities)
        except Broken as broken:
            return broken.message, "broken", True
        odd = odd or bool(message.oddities)
        if message.status >= 200 or message.status == 101:
            # A protocol switch was not requested, so it is odd.
            return message, "whole", odd or message.status == 101
        at = message.end


class Judge:
    """Responses that the client may get, from a strict parser's view of what the upstream has sent."""

    def __init__(self, exchanges, data):
        self.exchanges, self.data = exchanges, data

    def method(self, index):
        """Returns the method of an exchange."""
        return self.exchanges[index]["method"] if index < len(self.exchanges) else b"GET"

    def version(self, index):
        """Returns the HTTP version of an exchange's request."""
        return self.exchanges[index]["version"] if index < len(self.exchanges) else b"HTTP/1.1"

    def read(self, received, ended):
        """Returns the complete final responses at the client, the truncated one, and a problem or `None`."""
        found, at = [], 0
        while at < len(received):
            index = len(found)
            try:
                message = read_response(received, at, self.method(index), ended, self.version(index))
            except Incomplete as incomplete:
                return found, incomplete.message, None
            except Broken as broken:
                return found, broken.message, broken.reason
            at = message.end
            if message.status >= 200 or message.status == 101:
                found.append(message)
            if message.status == 101:
                break
        return found, None, None

    def sent(self, one, token):
        """Returns what the upstream has sent for an exchange."""
        return sent(complete(one), one["method"], token + b"n%d" % one["number"])

    def compare(self, outcome):
        """Checks an outcome, and returns the findings."""
        if outcome.end == "timeout":
            return [Finding("no end of the connection in time", self.state(outcome))]
        responses, cut, wrong = self.read(outcome.received, ended=True)
        if wrong:
            return [Finding(f"client gets an invalid response: {wrong}", self.state(outcome))]
        for number, one in enumerate(self.exchanges):
            if one["method"] in (b"POST", b"PATCH") and outcome.plan.seen.get(one["number"], 0) > 1:
                return [Finding("upstream gets a POST twice", self.state(outcome))]
        if len(responses) > len(self.exchanges):
            return [Finding("more responses than requests", self.state(outcome))]
        for index, response in enumerate(responses):
            for kind in self.compare_one(self.exchanges[index], response, outcome):
                return [Finding(kind, self.state(outcome))]
        index = len(responses)
        if index == len(self.exchanges) or (responses and says_close(responses[-1])):
            return []
        return [Finding(kind, self.state(outcome)) for kind in self.compare_end(index, cut, outcome)][:1]

    def compare_one(self, one, response, outcome):
        """Checks a complete response at the client."""
        for oddity in response.oddities:
            # The class of the status is still recognisable.
            if oddity != "status above 599":
                yield f"client gets {oddity}"
        sent, how, odd = self.sent(one, outcome.token)
        if b"poison" in response.values(b"x-number") and (not sent or b"poison" not in sent.values(b"x-number")):
            yield "client gets bytes that were behind a response"
        if response.status in LOCAL and not response.values(b"x-number"):
            # A kept connection may end at any time, so a request that must not be repeated is lost then.
            repeats = one["body"] == 0 and one["method"] != b"POST"
            if how == "whole" and not odd and not one["early"] and (repeats or response.status != 503):
                yield f"status {response.status} for a valid response"
            return
        if sent is None or how == "broken" and sent.framing != "chunked" and sent.framing != "close":
            yield "client gets a response that the upstream has not sent"
        elif how != "whole" and response.framing != "close" and sent.framing != "close":
            yield "client gets an incomplete response as a complete one"
        elif response.status != sent.status:
            yield "client gets another status"
        elif response.body != sent.body and not (how != "whole" and sent.body.startswith(response.body)):
            yield "client gets other content"
        else:
            yield from compare_fields(sent, response)

    def compare_end(self, index, cut, outcome):
        """Checks a connection that ended before a complete response to this exchange."""
        one = self.exchanges[index]
        sent, how, odd = self.sent(one, outcome.token)
        before = [self.sent(other, outcome.token) for other in self.exchanges[:index]]
        if any(how == "whole" and message.status == 101 for message, how, _ in before):
            return
        # If the rest of a request is not read, the connection ends after its response, by a reset if more bytes have
        # arrived.
        if any(other["early"] for other in self.exchanges[:index]) or outcome.end == "reset":
            return
        if cut is None and outcome.end == "closed":
            yield f"closed without a response to a request whose response is {how}"
        elif how == "whole" and not odd and not one["early"]:
            yield "a valid response is cut off"
        elif cut is not None and sent is not None and not sent.body.startswith(cut.body):
            yield "client gets other content"

    def state(self, outcome):
        """Describes the outcome in readable form."""
        scripts = "\n".join(
            f"  {one['number']} {'early ' if one['early'] else ''}"
            + " ".join(shown(data, 600) if tag not in (*ENDS, "pause") else f"<{tag}>" for tag, data in complete(one))
            for one in self.exchanges
        )
        seen = "\n".join(f"  {shown(record.raw, 300)}" for record in outcome.records)
        return (
            f"client sends: {shown(self.data)}\nupstream sends:\n{scripts}\nupstream sees:\n{seen}\n"
            f"client gets ({outcome.end}): {shown(outcome.received)}"
        )


def compare_fields(sent, response):
    """Compares the headers of a forwarded response."""
    named = sent.tokens(b"connection")
    got = [(name.lower(), value) for name, value in response.fields]
    for name, value in got:
        if name in HOP and (name, value.lower()) not in ((b"connection", b"close"), (b"connection", b"keep-alive")):
            if response.status != 101:
                yield f"client gets the hop's {name.decode()}"
    for name, value in sent.fields:
        name = name.lower()
        if name in OWN or name.startswith(OWN_PREFIXES) or name.startswith((b"x-ratelimit-", b"ratelimit")):
            continue
        if name in named or name in HOP:
            continue
        if (name, value) not in got:
            yield "client gets other fields"
