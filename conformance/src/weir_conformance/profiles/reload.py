"""Changes of the configuration while the target runs."""

from __future__ import annotations

import threading
import time

from weir_conformance.context import Context, admitted, expect, send_all
from weir_conformance.limit import Limit
from weir_conformance.reply import Probe
from weir_conformance.requirement import Severity, requirement

DOCS = "docs of the target, on its reload"


def slow(context: Context, count: int) -> Limit:
    """A limit whose units do not come back within a reload."""
    long = [period for period in (3600, 60) if not context.target.periods or period in context.target.periods]
    return Limit(count, (long or [max(context.target.periods)])[0])


@requirement("RELOAD-1", "Units used stay used", source=DOCS, needs=("key.header", "reload"))
def units_are_kept(context: Context) -> None:
    """A key that is over its limit still is after a reload of the same configuration."""
    limit = slow(context, 5)
    instance, key = context.start(limit), context.new_key()
    try:
        before = admitted(send_all(context.client(instance), [Probe(key)] * (2 * limit.count)))
        instance.reload([limit])
        after = admitted(send_all(context.client(instance), [Probe(key)] * (2 * limit.count)))
    finally:
        instance.stop()
    expect(before == limit.count, f"admitted {before} before the reload, the limit is {limit.count}")
    expect(after == 0, f"admitted {after} more after the reload")


@requirement("RELOAD-2", "A changed limit applies", source=DOCS, needs=("key.header", "reload"))
def changed_limit_applies(context: Context) -> None:
    """After a reload with a higher limit, a new key may send as many."""
    instance = context.start(slow(context, 5))
    try:
        send_all(context.client(instance), [Probe(context.new_key())] * 3)
        instance.reload([slow(context, 8)])
        count = admitted(send_all(context.client(instance), [Probe(context.new_key())] * 16))
    finally:
        instance.stop()
    expect(count == 8, f"admitted {count} after a reload to 8")


@requirement("RELOAD-3", "A raised limit adds what it was raised by", source=DOCS, severity=Severity.SHOULD, needs=("key.header", "reload"))
def raised_limit(context: Context) -> None:
    """A key that has used 5 of 5 has 3 left when the limit is raised to 8."""
    instance, key = context.start(slow(context, 5)), context.new_key()
    try:
        send_all(context.client(instance), [Probe(key)] * 5)
        instance.reload([slow(context, 8)])
        count = admitted(send_all(context.client(instance), [Probe(key)] * 16))
    finally:
        instance.stop()
    # Where a unit stands for time, as in GCRA, the time in use is kept, which is worth more units of the faster limit.
    expect(0 <= count <= 3, f"admitted {count} more of 8 after 5 of 5 were used")


@requirement("RELOAD-4", "No request fails during a reload", source=DOCS, severity=Severity.SHOULD, needs=("key.header", "reload"))
def no_request_fails(context: Context) -> None:
    """Requests on open and new connections get responses throughout."""
    limit = slow(context, 5)
    instance = context.start(limit)
    problems: list[str] = []
    ended = threading.Event()

    def ask() -> None:
        while not ended.is_set():
            client = context.client(instance)
            try:
                for _ in range(20):
                    reply = client.send(Probe(context.new_key()))
                    if reply.status >= 500:
                        problems.append(f"status {reply.status}")
                    time.sleep(0.002)
            except OSError as error:
                problems.append(str(error))

    try:
        asking = threading.Thread(target=ask)
        asking.start()
        for _ in range(3):
            instance.reload([limit])
        ended.set()
        asking.join()
    finally:
        ended.set()
        instance.stop()
    expect(not problems, lambda: f"{len(problems)} requests failed, the first with: {problems[0]}")
