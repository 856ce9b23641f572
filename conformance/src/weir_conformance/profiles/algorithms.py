"""Each algorithm against its model."""

from __future__ import annotations

import random
import time

from weir_conformance import models
from weir_conformance.context import Context, align, expect, sleep_until
from weir_conformance.limit import Limit
from weir_conformance.outcome import Noise
from weir_conformance.reply import Probe, Reply
from weir_conformance.requirement import requirement

COUNT = 4
SOURCE = "docs of the target, for its algorithm; models in `weir_conformance/models.py`"


def compare(context: Context, limit: Limit, model_name: str, moments: list[float]) -> None:
    """Sends a request at each of these moments, in periods after the start, and compares the replies with the model.

    Where the model's answer changes between the sending and the reply, the reply is right in any case, and the model continues
    from it. If that is so for more than a tenth, the result is inconclusive.
    """
    client, key = context.client(context.instance(limit)), context.new_key()
    client.send(Probe(context.new_key()))
    bounds = models.create(model_name, limit.count, limit.period)
    align(limit.period, 0.05)
    offset = time.time() - time.monotonic()
    start, unclear = time.monotonic(), 0
    for moment in moments:
        sleep_until(start + moment * limit.period)
        reply = client.send(Probe(key))
        unclear += _step(bounds, reply, offset, moment, limit)
    if unclear * 10 > len(moments):
        raise Noise(f"{unclear} of {len(moments)} replies could be either")


def _step(bounds: models.Bounds, reply: Reply, offset: float, moment: float, limit: Limit) -> bool:
    """Compares one reply. Returns whether the time at which it was decided matters."""
    # Clocks of the target may have the resolution of a millisecond.
    before, after = reply.sent + offset - 0.0015, reply.received + offset + 0.0015
    model = bounds.most if reply.admitted else bounds.least
    early, late = (model.admits(before), model.admits(after)) if model is not None else (False, False)
    verb = "admitted" if reply.admitted else "rejected"
    is_wrong = early == late != reply.admitted
    expect(not is_wrong, f"{verb} a request {moment:.2f} periods after the first, of {limit.count} in {limit.period} s")
    if reply.admitted:
        # If a window ends in between, the reply shows on which side of its end the decision was made.
        middle = (reply.sent + reply.received) / 2 + offset
        bounds.charge(middle if model is None or model.admits(middle) else after)
    return early != late


def for_each_algorithm(context: Context, moments: list[float]) -> None:
    for name, model_name in context.target.algorithms.items():
        limit = context.limit(COUNT).with_algorithm(name)
        if limit.period > 5:
            raise Noise(f"the shortest period is {limit.period} s, which would take minutes")
        compare(context, limit, model_name, moments)


@requirement("ALGORITHMS-1", "Bursts follow the model", source=SOURCE, needs=("key.header",))
def bursts(context: Context) -> None:
    """Three bursts of twice the limit, at different distances."""
    burst = [0.01 * place for place in range(2 * COUNT)]
    for_each_algorithm(context, [start + step for start in (0.0, 0.6, 1.9) for step in burst])


@requirement("ALGORITHMS-2", "A steady stream follows the model", source=SOURCE, needs=("key.header",))
def steady(context: Context) -> None:
    """A client that sends half as much again as it may, for four periods."""
    # No multiple of it is an edge of a window or of an interval.
    step = 0.1713
    for_each_algorithm(context, [0.003 + place * step for place in range(int(4 / step))])


@requirement("ALGORITHMS-3", "Edges of windows follow the model", source=SOURCE, needs=("key.header",))
def edges(context: Context) -> None:
    """The whole limit just before the end of a window, and again just after it."""
    before = [0.80 + 0.01 * place for place in range(COUNT + 1)]
    after = [1.05 + 0.01 * place for place in range(COUNT + 1)]
    for_each_algorithm(context, before + after + [moment + 1.3 for moment in after])


@requirement("ALGORITHMS-4", "Random requests follow the model", source=SOURCE, needs=("key.header",))
def at_random(context: Context) -> None:
    """Sixty requests with random distances, the same in every run."""
    source = random.Random(7)
    moments, at = [], 0.0
    for _ in range(60):
        at += source.choice([0.01, 0.01, 0.05, 0.1, 0.3])
        moments.append(at)
    for_each_algorithm(context, moments)


@requirement("ALGORITHMS-5", "Long use neither gains nor loses", source=SOURCE, needs=("key.header",))
def long_use(context: Context) -> None:
    """A client that tries without a pause for eight periods is admitted as often as by the model, give or take half of N."""
    for name, model_name in context.target.algorithms.items():
        limit = context.limit(COUNT).with_algorithm(name)
        if limit.period > 5:
            raise Noise(f"the shortest period is {limit.period} s, which would take minutes")
        client, key = context.client(context.instance(limit)), context.new_key()
        # What a client that tries without a pause gets of each.
        bounds = models.create(model_name, limit.count, limit.period)
        align(limit.period)
        offset = time.time() - time.monotonic()
        until, count, most, least = time.monotonic() + 8 * limit.period, 0, 0, 0
        while time.monotonic() < until:
            reply = client.send(Probe(key))
            count += reply.admitted
            now = (reply.sent + reply.received) / 2 + offset
            if bounds.most.admits(now):
                bounds.most.charge(now)
                most += 1
            if bounds.least is not None and bounds.least is not bounds.most and bounds.least.admits(now):
                bounds.least.charge(now)
                least += 1
            time.sleep(0.005)
        least = most if bounds.least is bounds.most else least
        context.measures[f"{name}_of_limit_percent"] = 100.0 * count / (8 * limit.count)
        slack = limit.count / 2
        expect(count <= most + slack, f"{name}: admitted {count} in eight periods of {limit.count}, the model {most}")
        # What rejected requests cost is CORE-5.
        if "free_rejections" in context.target.claims:
            expect(count >= least - slack, f"{name}: admitted only {count} in eight periods of {limit.count}, the model {least}")
