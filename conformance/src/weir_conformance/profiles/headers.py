"""What responses tell clients."""

from __future__ import annotations

import math
import re
import time

from weir_conformance.context import Context, align, expect, send_all, sleep_until
from weir_conformance.limit import Limit
from weir_conformance.outcome import Noise
from weir_conformance.reply import Probe, Reply
from weir_conformance.requirement import Severity, requirement

COUNT = 2
LONGEST_ALIGNED = 5
"""Longest period in seconds whose beginning is awaited."""
DRAFT = "draft-ietf-httpapi-ratelimit-headers"
RFC_9110 = "RFC 9110 section 10.2.3"


def rejected_reply(context: Context, limit: Limit) -> tuple[Reply, str]:
    """Returns the first rejection of a key, and the key."""
    client, key = context.client(context.instance(limit)), context.new_key()
    if limit.period <= LONGEST_ALIGNED:
        align(limit.period)
    for _ in range(4 * limit.count):
        reply = client.send(Probe(key))
        if not reply.admitted:
            return reply, key
    raise Noise(f"no rejection among {4 * limit.count} requests")


def retry_after(reply: Reply) -> int:
    value = reply.header("retry-after")
    expect(value is not None, "a rejection without `retry-after`")
    expect(re.fullmatch(r"[0-9]+", value or "") is not None, f"`retry-after: {value}` is no number of seconds")
    return int(value or "0")


def slow_limit(context: Context) -> Limit:
    """A limit of some seconds, so that whole seconds say something."""
    return context.limit(COUNT, 4)


@requirement("HEADERS-1", "A rejection says when to try again", source="RFC 6585 section 4", severity=Severity.SHOULD, needs=("key.header", "retry_after"))
def has_retry_after(context: Context) -> None:
    """A rejection has `retry-after` with a whole number of seconds, at least 1."""
    reply, _ = rejected_reply(context, slow_limit(context))
    expect(retry_after(reply) >= 1, f"`retry-after: {reply.header('retry-after')}`")


@requirement("HEADERS-2", "A client that waits for `retry-after` is admitted", source=RFC_9110, needs=("key.header", "retry_after"))
def retry_after_is_sufficient(context: Context) -> None:
    """A request after the stated time, without others in between, is admitted."""
    limit = slow_limit(context)
    reply, key = rejected_reply(context, limit)
    wait = retry_after(reply)
    if wait > 4 * limit.period:
        raise Noise(f"`retry-after: {wait}` is too long to wait for")
    sleep_until(reply.received + wait)
    again = context.client(context.instance(limit)).send(Probe(key))
    expect(again.admitted, f"rejected after {wait} s, as `retry-after` said")


@requirement("HEADERS-3", "`retry-after` is no longer than needed", source=RFC_9110, severity=Severity.SHOULD, needs=("key.header", "retry_after"))
def retry_after_is_minimal(context: Context) -> None:
    """A request more than a second before the stated time is rejected: whole seconds round up by less than one."""
    limit = slow_limit(context)
    reply, key = rejected_reply(context, limit)
    wait = retry_after(reply)
    if wait <= 1:
        return
    expect(wait <= limit.period, f"`retry-after: {wait}` with a period of {limit.period} s")
    sleep_until(reply.sent + wait - 1.1)
    early = context.client(context.instance(limit)).send(Probe(key))
    expect(not early.admitted, f"`retry-after: {wait}`, but a request after {wait - 1.1:.1f} s is admitted")


def numbers(reply: Reply, name: str) -> list[int]:
    """Returns the numbers at the beginning of a header's value, with or without the prefix `x-`."""
    value = reply.header(f"x-ratelimit-{name}") or reply.header(f"ratelimit-{name}")
    expect(value is not None, f"a response without `x-ratelimit-{name}`")
    return [int(number) for number in re.findall(r"(?<![\w=])\d+", value or "")]


@requirement("HEADERS-4", "`x-ratelimit-remaining` counts down to 0", source="Envoy, `enable_x_ratelimit_headers: DRAFT_VERSION_03`", severity=Severity.SHOULD, needs=("key.header", "x_ratelimit"))
def remaining_counts_down(context: Context) -> None:
    """Each admitted request leaves one unit less, the last one 0; `x-ratelimit-limit` is N."""
    limit = context.limit(5, 60)
    client, key = context.client(context.instance(limit)), context.new_key()
    replies = send_all(client, [Probe(key)] * limit.count)
    left = [numbers(reply, "remaining")[0] for reply in replies if reply.admitted]
    expect(left == list(range(limit.count - 1, -1, -1)), f"remaining was {left}")
    limits = [numbers(reply, "limit")[0] for reply in replies]
    expect(set(limits) == {limit.count}, f"the limit was {sorted(set(limits))}, expected {limit.count}")


@requirement("HEADERS-5", "`x-ratelimit-reset` lies within the period", source="Envoy, `enable_x_ratelimit_headers: DRAFT_VERSION_03`", severity=Severity.SHOULD, needs=("key.header", "x_ratelimit"))
def reset_is_within_the_period(context: Context) -> None:
    """The time until the quota is whole, or until the window ends, is at most one period. It may be stated as a time of the clock."""
    limit = context.limit(5, 60)
    client = context.client(context.instance(limit))
    reply = client.send(Probe(context.new_key()))
    reset = float(numbers(reply, "reset")[0])
    if reset > 1e9:
        reset -= time.time()
    expect(-1 <= reset <= limit.period + 1, f"the quota is whole after {reset:.0f} s, the period has {limit.period} s")


@requirement("HEADERS-6", "`RateLimit` is a structured field", source=f"{DRAFT}; RFC 9651 section 3.1", severity=Severity.MAY, needs=("key.header", "ratelimit_fields"))
def fields_parse(context: Context) -> None:
    """`RateLimit` and `RateLimit-Policy` are lists of items with the parameters `r` and `t`, and `q` and `w`."""
    limit = context.limit(5, 60)
    reply = context.client(context.instance(limit)).send(Probe(context.new_key()))
    policy, state = reply.header("ratelimit-policy"), reply.header("ratelimit")
    expect(policy is not None and state is not None, "a response without both fields")
    item = r'(?:"(?:[^"\\]|\\.)*"|[A-Za-z*][\w:/.*-]*)(?:; *[a-z*][a-z0-9_.*-]*(?:=[^;,]+)?)*'
    for name, value in (("RateLimit-Policy", policy or ""), ("RateLimit", state or "")):
        expect(re.fullmatch(rf"{item}(?:, *{item})*", value) is not None, f"{name}: {value} is no list of items")
    expect(f"q={limit.count}" in (policy or ""), f"RateLimit-Policy: {policy} has no q={limit.count}")
    expect(f"r={limit.count - 1}" in (state or ""), f"RateLimit: {state} has no r={limit.count - 1}")


@requirement("HEADERS-7", "Rejections state that nothing is left", source="Envoy, `enable_x_ratelimit_headers: DRAFT_VERSION_03`", severity=Severity.SHOULD, needs=("key.header", "x_ratelimit"))
def rejection_has_nothing_left(context: Context) -> None:
    """`x-ratelimit-remaining` of a rejection is 0."""
    reply, _ = rejected_reply(context, context.limit(COUNT, 60))
    left = numbers(reply, "remaining")[0]
    expect(left == 0, f"a rejection with {left} left")


@requirement("HEADERS-8", "`retry-after` is the same for clients that go on", source=RFC_9110, severity=Severity.SHOULD, needs=("key.header", "retry_after", "free_rejections"))
def retry_after_does_not_grow(context: Context) -> None:
    """Further rejections do not move the time at which a request is admitted."""
    limit = slow_limit(context)
    reply, key = rejected_reply(context, limit)
    due = reply.received + retry_after(reply)
    client = context.client(context.instance(limit))
    for again in send_all(client, [Probe(key)] * 10):
        if not again.admitted:
            moved = again.received + retry_after(again) - due
            expect(moved < 1.1, f"the time to wait for has moved by {math.ceil(moved)} s after a few rejections")
