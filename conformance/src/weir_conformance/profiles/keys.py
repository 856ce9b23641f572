"""Spellings that must be one client, or one path."""

from __future__ import annotations

from weir_conformance.context import Context, admitted, align, duration, expect, in_time, send_all
from weir_conformance.limit import LIMITED_PATH, Limit
from weir_conformance.reply import Probe
from weir_conformance.requirement import Severity, requirement

COUNT = 4


def one_client(context: Context, limit: Limit, spellings: list[Probe], what: str) -> None:
    """Expects that all spellings together have one limit, and that one spelling alone has all of it."""
    client = context.client(context.instance(limit))
    align(limit.period)
    replies = send_all(client, (spellings * limit.count)[: 2 * max(limit.count, len(spellings))])
    in_time(duration(replies), min(limit.interval, 0.4 * limit.period) * 0.8)
    count = admitted(replies)
    expect(count <= limit.count, f"{what} admitted {count} together, the limit is {limit.count}")
    expect(count == limit.count, f"{what} admitted {count} together of {limit.count}")


def of_header(context: Context) -> Limit:
    return context.limit(COUNT)


def of_forwarded(context: Context) -> Limit:
    return context.limit(COUNT, key="forwarded")


def forwarded(*lines: str) -> Probe:
    return Probe(headers=tuple(("x-forwarded-for", line) for line in lines))


@requirement("KEYS-1", "Names of headers are case-insensitive", source="RFC 9110 section 5.1", needs=("key.header", "http"))
def header_names(context: Context) -> None:
    """`X-Key`, `x-key` and `X-KEY` are the same header."""
    key = context.new_key()
    spellings = [Probe(headers=((name, key),)) for name in ("x-key", "X-Key", "X-KEY")]
    one_client(context, of_header(context), spellings, "spellings of the name")


@requirement("KEYS-2", "White space around a value is no part of it", source="RFC 9110 section 5.5", needs=("key.header", "http"))
def white_space(context: Context) -> None:
    """`x-key: a` and `x-key:  a ` are the same value."""
    key = context.new_key()
    spellings = [Probe(headers=(("x-key", value),)) for value in (key, f"  {key}", f"{key}  ", f"\t{key}\t")]
    one_client(context, of_header(context), spellings, "values with white space")


@requirement("KEYS-3", "Several lines of a header do not make a new client", source="RFC 9110 section 5.3", severity=Severity.SHOULD, needs=("key.header", "http"))
def several_lines(context: Context) -> None:
    """A client that adds a second line with another value each time is rejected, or counted as one client. It does not get a new
    limit with each request."""
    limit, key = of_header(context), context.new_key()
    client = context.client(context.instance(limit))
    align(limit.period)
    first = send_all(client, [Probe(key)] * limit.count)
    evading = [Probe(headers=(("x-key", key), ("x-key", context.new_key()))) for _ in range(2 * limit.count)]
    replies = send_all(client, evading)
    in_time(duration(first + replies), min(limit.interval, 0.4 * limit.period) * 0.8)
    passed = sum(reply.admitted and reply.status < 400 for reply in replies)
    expect(passed <= limit.count, f"{passed} requests with a second value passed, although the limit was used up")


@requirement("KEYS-4", "A trusted peer's X-Forwarded-For names the client", source="nginx, `real_ip_recursive`; Envoy, `use_remote_address`", needs=("key.forwarded",))
def forwarded_for(context: Context) -> None:
    """Two clients behind one trusted proxy have a limit each."""
    limit = of_forwarded(context)
    client = context.client(context.instance(limit))
    align(limit.period)
    one = send_all(client, [forwarded("192.0.2.11")] * (limit.count + 1))
    other = send_all(client, [forwarded("192.0.2.12")] * limit.count)
    in_time(duration(one), min(limit.interval, 0.4 * limit.period) * 0.8)
    expect(admitted(one) == limit.count, f"admitted {admitted(one)} of {limit.count + 1} of one client")
    expect(admitted(other) == limit.count, f"admitted {admitted(other)} of {limit.count} of another client")


@requirement("KEYS-5", "What a client writes into X-Forwarded-For is not believed", source="MDN, X-Forwarded-For: select the last untrusted address", needs=("key.forwarded",))
def spoofed(context: Context) -> None:
    """The address that the trusted proxy has appended counts, whatever the client has written before it."""
    spellings = [forwarded(f"203.0.113.{place}, 192.0.2.13") for place in range(1, 9)]
    one_client(context, of_forwarded(context), spellings, "invented addresses before the client's")


@requirement("KEYS-6", "Lines of X-Forwarded-For are one list", source="RFC 9110 section 5.3", needs=("key.forwarded",))
def split_lines(context: Context) -> None:
    """A list in one line is the same as one in several lines."""
    spellings = [forwarded("203.0.113.9, 192.0.2.14"), forwarded("203.0.113.9", "192.0.2.14"), forwarded("192.0.2.14")]
    one_client(context, of_forwarded(context), spellings, "one list in several lines")


@requirement("KEYS-7", "Spellings of an IPv6 address are one client", source="RFC 5952 section 2", needs=("key.forwarded",))
def ipv6_spellings(context: Context) -> None:
    """Leading zeros, capital letters and `::` do not change an address."""
    spellings = [forwarded(text) for text in ("2001:db8:1::a", "2001:DB8:1::A", "2001:0db8:0001:0:0:0:0:000a")]
    one_client(context, of_forwarded(context), spellings, "spellings of one address")


@requirement("KEYS-8", "A network of IPv6 is one client", source="RFC 6177; Cloudflare and Let's Encrypt count /64", severity=Severity.SHOULD, needs=("key.forwarded",))
def ipv6_network(context: Context) -> None:
    """A client has at least a /64, so addresses of one /64 have one limit."""
    spellings = [forwarded(f"2001:db8:2::{place:x}") for place in range(1, 9)]
    one_client(context, of_forwarded(context), spellings, "addresses of one /64")


@requirement("KEYS-9", "An IPv4 address in IPv6 is the IPv4 client", source="RFC 4291 section 2.5.5.2", severity=Severity.SHOULD, needs=("key.forwarded",))
def mapped_address(context: Context) -> None:
    """`::ffff:192.0.2.15` is `192.0.2.15`."""
    spellings = [forwarded("192.0.2.15"), forwarded("::ffff:192.0.2.15"), forwarded("::ffff:c000:20f")]
    one_client(context, of_forwarded(context), spellings, "spellings of one address")


@requirement("KEYS-10", "A port is no part of a client", source="RFC 7239 section 6; Azure sends ports", severity=Severity.SHOULD, needs=("key.forwarded",))
def ports(context: Context) -> None:
    """`192.0.2.16:4711` is `192.0.2.16`."""
    spellings = [forwarded("192.0.2.16"), forwarded("192.0.2.16:4711"), forwarded("192.0.2.16:4712")]
    one_client(context, of_forwarded(context), spellings, "addresses with ports")


@requirement("KEYS-11", "Spellings of a path are one path", source="RFC 3986 section 6.2.2", needs=("key.header", "path", "http"))
def path_spellings(context: Context) -> None:
    """A server that decodes and normalises paths serves all of these as one. A limit on the path applies to each, or the request
    is rejected as malformed."""
    limit = context.limit(COUNT, path=LIMITED_PATH)
    client, key = context.client(context.instance(limit)), context.new_key()
    letters = LIMITED_PATH[1:]
    spellings = [LIMITED_PATH, f"/%{ord(letters[0]):02x}{letters[1:]}", f"/./{letters}", f"/x/../{letters}", f"{LIMITED_PATH}?a=b"]
    align(limit.period)
    replies = send_all(client, [Probe(key, path) for path in spellings * limit.count])
    in_time(duration(replies), min(limit.interval, 0.4 * limit.period) * 0.8)
    passed = sum(reply.admitted and reply.status < 400 for reply in replies)
    expect(passed <= limit.count, f"spellings of one path admitted {passed} together, the limit is {limit.count}")
