"""Responses of the upstream, mutated: the client gets the same, or a local reply, or sees that something is missing.

Several plain requests go over one connection of the client; each has a script, the bytes that the upstream sends for it.
"""

from . import grammar
from .arena import converse
from .case import TOKEN, Case, Finding, joined, shown
from .reader import Broken, Incomplete, read_response
from .requests import OWN, OWN_PREFIXES, says_close
from .responses_grammar import NASTY, exchange, request

# What the token of any case looks like.
NAME = b"tok0000000zn0"
ENDS = ("close", "half", "reset")
LOCAL = (502, 503, 504)
HOP = (b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-connection", b"upgrade", b"te", b"http2-settings")


def generate(random):
    """One to three requests on a connection, and mutated scripts for most of them."""
    exchanges = [exchange(random, number) for number in range(random.choice((1, 2, 2, 3)))]
    for one in exchanges:
        for _ in range(random.choice((0, 0, 1, 1, 2, 3))):
            one["script"] = grammar.mutate(random, one["script"], NASTY)
    # What is behind an odd response must not reach the next client, so there is one.
    exchanges.append(exchange(random, len(exchanges), plain=True))
    size = sum(len(request(one)) for one in exchanges)
    return Case("responses", {"exchanges": exchanges, "cuts": grammar.cuts(random, size)})


async def play(arena, case):
    """Plays a case; what is wrong."""
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
    """The upstream's part: the script of each request, which its target names."""

    def __init__(self, exchanges):
        self.scripts = {one["number"]: one for one in exchanges}
        # How often each request came to its end.
        self.seen = {}

    def find(self, message):
        """The exchange of a request."""
        return self.scripts.get(int(message.start[1].rsplit(b"/", 1)[1]))

    def responds_early(self, message):
        """As the exchange says."""
        return self.find(message)["early"]

    def response(self, record, token):
        """The script of the exchange, with what names it."""
        one = self.find(record.message)
        name = token + b"n%d" % one["number"]
        self.seen[one["number"]] = self.seen.get(one["number"], 0) + 1
        return [(tag, data.replace(TOKEN, name)) for tag, data in complete(one)]


def complete(one):
    """The script of an exchange, with an end of the connection where the response has none: nobody is to wait for more."""
    script = one["script"]
    message, how, _ = sent(script, one["method"], NAME)
    if how == "whole" and message.end < len(joined(script, NAME)):
        # What comes later than the response cannot be told from the next one, so it comes at once.
        script = [step for step in script if step[0] != "pause"]
    if any(tag in ENDS for tag, _ in script):
        return script
    return script if how == "whole" else [*script, ("close", b"")]


def sent(script, method, name):
    """What a script says: the response if there is one, whether that is `whole`, `cut` or `broken`, and whether it is odd."""
    end = next((index for index, (tag, _) in enumerate(script) if tag in ENDS), None)
    data = joined([step for step in script[:end] if step[0] != "pause"], name)
    # A reset may overtake what was sent before it.
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
            # Nobody has asked for another protocol.
            return message, "whole", odd or message.status == 101
        at = message.end


class Judge:
    """What the client may get, by a strict reading of what the upstream has sent."""

    def __init__(self, exchanges, data):
        self.exchanges, self.data = exchanges, data

    def method(self, index):
        """The method of an exchange."""
        return self.exchanges[index]["method"] if index < len(self.exchanges) else b"GET"

    def version(self, index):
        """The version of an exchange's request."""
        return self.exchanges[index]["version"] if index < len(self.exchanges) else b"HTTP/1.1"

    def read(self, received, ended):
        """The final responses that the client has got whole, the one that is cut off, and what is wrong."""
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
        """What the upstream has sent for an exchange."""
        return sent(complete(one), one["method"], token + b"n%d" % one["number"])

    def compare(self, outcome):
        """What is wrong with an outcome."""
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
        """A whole response that the client has got."""
        for oddity in response.oddities:
            # What class it is of can still be told.
            if oddity != "status above 599":
                yield f"client gets {oddity}"
        sent, how, odd = self.sent(one, outcome.token)
        if b"poison" in response.values(b"x-number") and (not sent or b"poison" not in sent.values(b"x-number")):
            yield "client gets bytes that were behind a response"
        if response.status in LOCAL and not response.values(b"x-number"):
            # A kept connection may end at any time: what cannot be sent twice is lost then.
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
        """The connection has ended before a whole response to this exchange."""
        one = self.exchanges[index]
        sent, how, odd = self.sent(one, outcome.token)
        before = [self.sent(other, outcome.token) for other in self.exchanges[:index]]
        if any(how == "whole" and message.status == 101 for message, how, _ in before):
            return
        # Where nobody reads the rest of a request, the connection ends behind its response; by a reset, if more has come.
        if any(other["early"] for other in self.exchanges[:index]) or outcome.end == "reset":
            return
        if cut is None and outcome.end == "closed":
            yield f"closed without a response to a request whose response is {how}"
        elif how == "whole" and not odd and not one["early"]:
            yield "a valid response is cut off"
        elif cut is not None and sent is not None and not sent.body.startswith(cut.body):
            yield "client gets other content"

    def state(self, outcome):
        """What happened, for people."""
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
    """The fields of a response that was passed on."""
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
