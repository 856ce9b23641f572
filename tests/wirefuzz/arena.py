"""Environment in which cases are played: one Weir, one upstream, and any number of clients with distinct addresses."""

import asyncio
import contextlib
import itertools
from dataclasses import dataclass, field

from .case import Finding
from .origin import Origin
from .proxy import Proxy

# Maximum seconds from the last byte sent to the end of the connection: more than the sum of all timeouts of the
# configuration, on a busy machine.
DEADLINE = 12


@dataclass
class Outcome:
    """Result of a case."""

    address: bytes
    token: bytes
    plan: object
    records: list = field(default_factory=list)
    findings: list = field(default_factory=list)
    received: bytes = b""
    # `closed` by the peer, `reset`, `timeout`, or `left` by the client.
    end: str = ""

    def responds_early(self, message):
        """Whether the upstream responds before it has received this whole request."""
        return self.plan.responds_early(message)

    def response(self, record):
        """Returns the steps of the upstream's response."""
        return self.plan.response(record, self.token)


class Arena:
    """A proxy with its upstream, and the cases in progress."""

    def __init__(self, binary, http2=False, origin=Origin):
        self.binary, self.http2 = binary, http2
        self.playing, self.stray = {}, []
        self.origin = origin(self.playing.get, self.stray.append)
        self.proxy, self.numbers = None, itertools.count()
        # Number of cases that reached the upstream.
        self.forwarded = 0

    async def start(self):
        """Starts the upstream and the proxy."""
        port = await self.origin.start()
        self.proxy = await asyncio.to_thread(Proxy, self.binary, port, self.http2)

    async def stop(self):
        """Stops both. Returns the problems with the exit of the proxy."""
        complaints = await asyncio.to_thread(self.proxy.stop)
        self.origin.stop()
        return complaints

    def enter(self, plan):
        """Assigns an address and a token to a case."""
        number = next(self.numbers)
        third, fourth = divmod(number % (250 * 250), 250)
        second = number // (250 * 250) % 250
        address = f"127.{second + 1}.{third + 1}.{fourth + 1}".encode()
        outcome = Outcome(address, b"tok%07xz" % number, plan)
        self.playing[address] = outcome
        return outcome

    def leave(self, outcome):
        """Ends a case. Its address stays reserved for a while, so that late requests are still attributed to it."""
        loop = asyncio.get_running_loop()
        loop.call_later(DEADLINE, self.playing.pop, outcome.address, None)


class Client(asyncio.Protocol):
    """Connection of a client."""

    def __init__(self, outcome):
        self.outcome, self.transport, self.news = outcome, None, asyncio.Event()

    async def connect(self, port):
        """Connects from the address of the case."""
        loop = asyncio.get_running_loop()
        local = (self.outcome.address.decode(), 0)
        self.transport, _ = await loop.create_connection(lambda: self, "127.0.0.1", port, local_addr=local)

    def data_received(self, data):
        self.outcome.received += data
        self.news.set()

    def connection_lost(self, exc):
        self.outcome.end = self.outcome.end or ("reset" if exc else "closed")
        self.news.set()

    async def send(self, segments):
        """Sends the segments one after the other, until the server closes the connection."""
        for index, segment in enumerate(segments):
            if index:
                await asyncio.sleep(0.0004)
            if self.outcome.end:
                break
            self.transport.write(segment)

    async def receive(self, wait):
        """Waits for data. Returns whether there was any within `wait` seconds."""
        try:
            async with asyncio.timeout(wait):
                await self.news.wait()
        except TimeoutError:
            return False
        self.news.clear()
        return True

    def half_close(self):
        """Shuts down the write direction."""
        with contextlib.suppress(OSError):
            self.transport.write_eof()

    def leave(self):
        """Resets the connection if it is still open."""
        if not self.outcome.end:
            self.outcome.end = "left"
            self.transport.abort()


async def converse(arena, plan, segments, is_done, ending="wait"):
    """Plays one client connection: sends segments, receives until `is_done(received)`, half-closes and receives the
    rest.

    `is_done` may return `None`: no more data is required, but there may be some. Then a short silence is sufficient.
    """
    outcome = arena.enter(plan)
    client = Client(outcome)
    try:
        await client.connect(arena.proxy.port)
        if ending == "abort":
            await client.send(segments)
        else:
            await receive_all(client, segments, is_done)
        client.leave()
    except OSError as error:
        outcome.findings.append(Finding("connection refused", str(error)))
    finally:
        arena.leave(outcome)
    arena.forwarded += bool(outcome.records)
    return outcome


async def receive_all(client, segments, is_done):
    """Sends and receives until the connection has ended."""
    outcome, loop = client.outcome, asyncio.get_running_loop()
    sending, deadline = asyncio.ensure_future(client.send(segments)), loop.time() + DEADLINE
    is_open, silences = True, 0
    while not outcome.end:
        if loop.time() > deadline:
            outcome.end = "timeout"
            client.transport.abort()
        if is_open and sending.done():
            done = is_done(outcome.received)
            if done or (done is None and silences >= 3):
                client.half_close()
                is_open = False
        has_come = await client.receive(0.05)
        silences = 0 if has_come or not sending.done() else silences + 1
    await sending
