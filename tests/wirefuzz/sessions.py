"""Mutated HTTP/2 sessions with a listener, forwarded to an HTTP/1.1 upstream."""

from .arena import converse
from .case import Case, Finding, joined, shown
from .frames import PING, PREFACE, Invalid, Replies, frame, split
from .grammar import cuts
from .requests import Plan, differs, judge, leaked
from .sessions_grammar import session
from .sessions_model import Session

# Payload of the last frame of each session. Its acknowledgement shows that all earlier frames were read.
MARK = b"the mark"


def generate(random):
    """Generates one connection with a few requests."""
    frames = session(random)
    size = sum(9 + len(joined(one["payload"])) for one in frames)
    return Case("sessions", {"frames": frames, "cuts": cuts(random, size)})


async def play(arena, case):
    """Plays a case and returns the findings."""
    sent = [
        frame(one["type"], one["flags"], one["stream"], joined(one["payload"]), one["length"]) for one in case.data["frames"]
    ]
    data = PREFACE + b"".join(sent) + frame(PING, 0, 0, MARK)
    expected = Expected(data)
    edges = [0, *[cut + len(PREFACE) for cut in case.data["cuts"] if cut + len(PREFACE) < len(data)], len(data)]
    segments = [data[begin:end] for begin, end in zip(edges, edges[1:])]
    outcome = await converse(arena, Plan(), segments, expected.is_done)
    return outcome.findings or expected.compare(outcome)


class Expected:
    """Interpretation of a session by the model, and its comparison with the outcome."""

    def __init__(self, data):
        self.data, self.session = data, Session(data)

    def owed(self):
        """Returns the streams that must get a response."""
        session = self.session
        if session.error or session.quiet:
            return []
        return [
            number
            for number, one in session.streams.items()
            if one.ended and not one.reset and not one.malformed and judge(one.message())[0] == "forward"
        ]

    def is_done(self, received):
        """Returns whether all responses have arrived; `None` if more may follow."""
        try:
            replies = Replies.read(received)
        except Invalid:
            return True
        if replies.goaway:
            return True
        if MARK not in replies.pings:
            return None if self.session.error else False
        waits = [number for number, one in self.session.streams.items() if one.ended and not one.reset]
        if all(number in replies.streams and replies.streams[number].is_over for number in waits):
            return True
        owed = (number for number in self.owed() if number not in replies.streams or not replies.streams[number].is_over)
        return False if any(owed) else None

    def compare(self, outcome):
        """Checks an outcome, and returns the findings."""
        if outcome.end == "timeout":
            return [Finding("no end of the connection in time", self.state(outcome))]
        try:
            replies = Replies.read(outcome.received)
        except Invalid as invalid:
            return [Finding(f"client gets an invalid frame: {invalid}", self.state(outcome))]
        for number, reply in replies.streams.items():
            for kind in self.compare_reply(number, reply, outcome):
                return [Finding(kind, self.state(outcome))]
        # A stream error may be treated as a connection error (RFC 9113 section 5.4.2).
        ended = replies.goaway or outcome.end == "reset"
        excused = ended and any(one.malformed or one.doubt for one in self.session.streams.values())
        for number in [] if excused else self.owed():
            if number not in replies.streams or not replies.streams[number].is_over:
                return [Finding("no response to a valid request", self.state(outcome))]
        return self.compare_records(outcome)

    def compare_reply(self, number, reply, outcome):
        """Checks the response on one stream."""
        one = self.session.streams.get(number)
        if one is None:
            if reply.fields and not self.session.error:
                yield "response on a stream that the client has not opened"
            return
        length = reply.value(b"content-length")
        has_no_body = one.message().start[0] == b"HEAD" or reply.value(b":status") in (b"204", b"304")
        if reply.ended and length is not None and not has_no_body and int(length) != len(reply.body):
            yield "client gets content of another length"
        serial = reply.value(b"x-serial")
        if serial is None:
            status = (reply.value(b":status") or b"000").decode()
            if number in self.owed():
                yield f"status {status} for a valid request" if reply.fields else f"reset {reply.reset} for a valid request"
            elif reply.fields and int(status) < 400:
                yield f"status {status} for a request with {one.malformed or 'no end'}"
            return
        if self.session.is_opaque:
            return
        if one.malformed:
            yield f"forwarded a request with {one.malformed}"
        if not one.is_whole():
            yield "forwarded a request without an end"
        message = one.message()
        verdict, why = judge(message)
        if verdict == "reject":
            yield f"forwarded a request with {why}"
        record = next((record for record in outcome.records if record.serial == int(serial)), None)
        if record is None:
            yield "response of another client's request"
        elif wrong := differs(message, record.message):
            yield wrong
        elif reply.ended and reply.body != outcome.plan.sent[int(serial)]:
            yield "other content than the upstream's"

    def compare_records(self, outcome):
        """Checks that every request at the upstream is one of the client's."""
        streams = list(self.session.streams.values())
        for record in outcome.records:
            if leaks := leaked(record.message):
                return [Finding(f"upstream sees {leaks}", self.state(outcome))]
            if not record.complete or self.session.is_opaque:
                continue
            same = [one for one in streams if differs(one.message(), record.message) is None]
            # Of several equal requests, prefers one that may be forwarded.
            same = min(same, key=lambda one: (not one.is_whole(), one.malformed), default=None)
            if same is None or not same.is_whole():
                return [Finding("upstream sees a request that no client sent", self.state(outcome))]
            if same.malformed:
                return [Finding(f"forwarded a request with {same.malformed}", self.state(outcome))]
            streams.remove(same)
        return []

    def state(self, outcome):
        """Describes the outcome in readable form."""
        sent = "\n".join(f"  {kind} {flags:02x} {stream} {shown(payload, 400)}" for kind, flags, stream, payload in split(self.data[24:]))
        streams = "\n".join(
            f"  {number}: {'ended' if one.ended else 'open'} {one.malformed or one.doubt}" for number, one in self.session.streams.items()
        )
        seen = "\n".join(f"  {'whole' if record.complete else 'part '} {shown(record.raw, 600)}" for record in outcome.records)
        got = "\n".join(
            f"  {kind} {flags:02x} {stream} {shown(payload, 200)}" for kind, flags, stream, payload in split(outcome.received)
        )
        return (
            f"client sends (type, flags, stream, payload):\n{sent}\nread as, error {self.session.error or 'none'}:\n{streams}\n"
            f"upstream sees:\n{seen}\nclient gets ({outcome.end}):\n{got}"
        )
