"""What every rate limiter promises."""

from __future__ import annotations

import time

from weir_conformance.context import Context, admitted, align, duration, expect, in_time, send_all
from weir_conformance.limit import Limit
from weir_conformance.reply import Probe
from weir_conformance.requirement import Severity, requirement

COUNT = 5
RFC_6585 = "RFC 6585 section 4"
ENVOY = "Envoy, Global rate limiting: `requests_per_unit` of `unit`"


def exhaust(context: Context, limit: Limit, extra: int = 1) -> tuple[str, int, int]:
    """Sends what the limit admits at once, and `extra` more, within a time in which none of it comes back. Returns the key,
    and how many of both were admitted."""
    client, key = context.client(context.instance(limit)), context.new_key()
    align(limit.period)
    first = send_all(client, [Probe(key)] * limit.count)
    more = send_all(client, [Probe(key)] * extra)
    in_time(duration(first + more), min(limit.interval, 0.4 * limit.period) * 0.8)
    return key, admitted(first), admitted(more)


def one_limit(context: Context) -> Limit:
    """A limit whose units come back so slowly that a burst takes none of that time."""
    return context.limit(COUNT)


@requirement("CORE-1", "Admits N requests in the period", source=ENVOY, needs=("key.header",))
def admits_n(context: Context) -> None:
    """A key that has not been used may send N requests at once."""
    limit = one_limit(context)
    _, first, _ = exhaust(context, limit, extra=0)
    expect(first == limit.count, f"admitted {first} of the first {limit.count}")


@requirement("CORE-2", "Rejects request N+1", source=ENVOY, needs=("key.header",))
def rejects_more(context: Context) -> None:
    """Right after N requests, the next one is rejected."""
    limit = one_limit(context)
    _, first, more = exhaust(context, limit)
    # Fewer than N are another requirement's failure.
    expect(first + more <= limit.count, f"admitted {first + more} of {limit.count + 1} at once")


@requirement("CORE-3", "Admits again after the period", source=ENVOY, needs=("key.header",))
def recovers(context: Context) -> None:
    """Two periods after a rejection, a request is admitted: enough for every algorithm."""
    limit = one_limit(context)
    client, key = context.client(context.instance(limit)), context.new_key()
    align(limit.period)
    send_all(client, [Probe(key)] * (limit.count + 1))
    time.sleep(2 * limit.period + 0.05)
    expect(client.send(Probe(key)).admitted, f"rejected {2 * limit.period} s after the last request")


@requirement("CORE-4", "Counts keys apart", source=ENVOY, needs=("key.header",))
def keys_apart(context: Context) -> None:
    """A key that is over its limit takes nothing from another key."""
    limit = one_limit(context)
    client, one, other = context.client(context.instance(limit)), context.new_key(), context.new_key()
    align(limit.period)
    spent = send_all(client, [Probe(one)] * (2 * limit.count))
    first = send_all(client, [Probe(other)] * limit.count)
    in_time(duration(spent + first), min(limit.interval, 0.4 * limit.period) * 0.8)
    expect(admitted(first) == limit.count, f"admitted {admitted(first)} of {limit.count} of another key")


@requirement(
    "CORE-5", "Charges nothing for rejected requests", source="RFC 6585 section 4: a client may wait and try again",
    severity=Severity.SHOULD, needs=("key.header", "free_rejections"),
)
def rejections_are_free(context: Context) -> None:
    """A client that goes on during its rejection waits no longer than one that is silent. It is admitted as often."""
    limit = context.limit(2)
    client, key = context.client(context.instance(limit)), context.new_key()
    align(limit.period)
    send_all(client, [Probe(key)] * limit.count)
    until, counted, slowest = time.monotonic() + 4 * limit.period, 0, 0.0
    while time.monotonic() < until:
        reply = client.send(Probe(key))
        counted += reply.admitted
        slowest = max(slowest, reply.received - reply.sent)
        time.sleep(0.02 * limit.period)
    in_time(slowest, 0.2 * limit.period)
    least = 3 * limit.count
    expect(counted >= least, f"admitted {counted} in four periods to a client that never pauses, expected {least} or more")


@requirement("CORE-6", "Rejects with the status 429", source=RFC_6585, severity=Severity.SHOULD, needs=("key.header",))
def status_is_429(context: Context) -> None:
    """A rejected request gets 429 Too Many Requests."""
    limit = one_limit(context)
    client, key = context.client(context.instance(limit)), context.new_key()
    align(limit.period)
    rejected = [reply for reply in send_all(client, [Probe(key)] * (limit.count * 2)) if not reply.admitted]
    if not rejected:
        return
    expect(rejected[0].status == 429, f"rejected with {rejected[0].status}")


@requirement(
    "CORE-7", "Forwards admitted requests only", source=RFC_6585, needs=("key.header", "forwards"),
)
def forwards_admitted(context: Context) -> None:
    """The upstream receives the admitted requests, each once, and no rejected one."""
    limit = one_limit(context)
    client, key = context.client(context.instance(limit)), context.new_key()
    before = context.origin.total
    align(limit.period)
    count = admitted(send_all(client, [Probe(key)] * (2 * limit.count)))
    received = context.origin.total - before
    expect(received == count, f"admitted {count}, the upstream received {received}")


@requirement("CORE-8", "Counts all connections together", source=ENVOY, needs=("key.header",))
def connections_together(context: Context) -> None:
    """A client does not escape its limit by opening connections, whichever process or thread serves them."""
    limit = one_limit(context)
    clients = [context.client(context.instance(limit)) for _ in range(3 * limit.count)]
    for client in clients:
        client.send(Probe(context.new_key()))
    key = context.new_key()
    align(limit.period)
    replies = [client.send(Probe(key)) for client in clients]
    in_time(duration(replies), min(limit.interval, 0.4 * limit.period) * 0.8)
    expect(admitted(replies) <= limit.count, f"admitted {admitted(replies)} over {len(clients)} connections")


@requirement("CORE-9", "Counts addresses apart", source="nginx, `limit_req_zone $binary_remote_addr`", needs=("key.address",))
def addresses_apart(context: Context) -> None:
    """With a limit for each address, a second address has a limit of its own."""
    limit = context.limit(COUNT, key="address")
    client = context.client(context.instance(limit))
    align(limit.period)
    first = send_all(client, [Probe(source="127.0.0.2")] * (limit.count + 1))
    other = send_all(client, [Probe(source="127.0.0.3")] * limit.count)
    in_time(duration(first), min(limit.interval, 0.4 * limit.period) * 0.8)
    expect(admitted(first) == limit.count, f"admitted {admitted(first)} of {limit.count + 1} of one address")
    expect(admitted(other) == limit.count, f"admitted {admitted(other)} of {limit.count} of another address")


@requirement("CORE-10", "Limits the requests that it is to limit", source=ENVOY, needs=("key.header", "path"))
def path_only(context: Context) -> None:
    """A limit on one path does not count requests for others."""
    limit = context.limit(COUNT, path="/limited")
    client, key = context.client(context.instance(limit)), context.new_key()
    align(limit.period)
    others = send_all(client, [Probe(key, "/other")] * (2 * limit.count))
    own = send_all(client, [Probe(key, "/limited")] * (2 * limit.count))
    in_time(duration(own), min(limit.interval, 0.4 * limit.period) * 0.8)
    expect(admitted(others) == len(others), f"rejected {len(others) - admitted(others)} requests for another path")
    expect(admitted(own) == limit.count, f"admitted {admitted(own)} of {len(own)}")
