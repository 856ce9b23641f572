"""Several instances that share a limit through a store."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from weir_conformance.context import Context, expect
from weir_conformance.entrances import connect
from weir_conformance.limit import Limit
from weir_conformance.process import TargetProcess
from weir_conformance.reply import Probe
from weir_conformance.requirement import Severity, requirement

INSTANCES = 3
COUNT = 300
"""Enough that parts of it can be handed out."""
DATABRICKS = "Databricks, High performance rate limiting: 5 % over-admission is accepted"


def spend(context: Context, instances: list[TargetProcess], key: str, seconds: float, clients: int = 1) -> int:
    """Sends requests of one key to all instances at the same time, from some clients each. Returns how many were admitted."""
    def of_instance(instance: TargetProcess) -> int:
        entrance, count, until = connect(context.target, instance.port), 0, time.monotonic() + seconds
        try:
            while time.monotonic() < until:
                reply = entrance.send(Probe(key))
                count += reply.admitted and reply.status < 400
                time.sleep(0.002)
        except OSError:
            pass
        finally:
            entrance.close()
        return count

    with ThreadPoolExecutor(len(instances) * clients) as pool:
        return sum(pool.map(of_instance, instances * clients))


def with_fleet(context: Context, check: Callable[[list[TargetProcess], Limit], None]) -> None:
    limit = Limit(COUNT, 3600 if not context.target.periods or 3600 in context.target.periods else 60, shared=True)
    instances = [context.start(limit) for _ in range(INSTANCES)]
    try:
        # Instances may have to find one another.
        time.sleep(2)
        check(instances, limit)
    finally:
        for instance in instances:
            instance.stop()


def excess(context: Context, count: int, limit: Limit) -> float:
    percent = 100.0 * (count - limit.count) / limit.count
    context.measures["excess_percent"] = max(0.0, percent)
    context.measures["used_percent"] = min(100.0, 100.0 * count / limit.count)
    return percent


@requirement("FLEET-1", "Instances together admit no more than N", source=DATABRICKS, needs=("key.header", "store"))
def no_excess(context: Context) -> None:
    """Three instances spend one limit at the same time."""
    def check(instances: list[TargetProcess], limit: Limit) -> None:
        count = spend(context, instances, context.new_key(), 4)
        expect(excess(context, count, limit) <= 0, f"admitted {count} of {limit.count}")

    with_fleet(context, check)


@requirement("FLEET-2", "Instances together use at least 90 % of N", source=DATABRICKS, severity=Severity.SHOULD, needs=("key.header", "store"))
def used(context: Context) -> None:
    """What one instance does not need, the others may use."""
    def check(instances: list[TargetProcess], limit: Limit) -> None:
        count = spend(context, instances[:1], context.new_key(), 6)
        excess(context, count, limit)
        expect(count * 10 >= limit.count * 9, f"one of {INSTANCES} instances admitted {count} of {limit.count}")

    with_fleet(context, check)


@requirement("FLEET-3", "An instance that ends takes nothing back", source="docs of the target, on its store", needs=("key.header", "store"))
def killed(context: Context) -> None:
    """An instance is killed after the limit was spent. The others admit nothing more."""
    def check(instances: list[TargetProcess], limit: Limit) -> None:
        key = context.new_key()
        count = spend(context, instances, key, 3)
        instances[0].kill()
        count += spend(context, instances[1:], key, 2)
        expect(excess(context, count, limit) <= 0, f"admitted {count} of {limit.count}")

    with_fleet(context, check)


@requirement("FLEET-4", "Requests are decided while the store is away", source="docs of the target, on its store", severity=Severity.SHOULD, needs=("key.header", "store"))
def store_loss(context: Context) -> None:
    """While the store does not respond, requests get a decision within a second, whichever it is."""
    def check(instances: list[TargetProcess], limit: Limit) -> None:
        client = context.client(instances[0])
        client.send(Probe(context.new_key()))
        context.redis().pause()
        try:
            slowest = 0.0
            for _ in range(10):
                reply = client.send(Probe(context.new_key()))
                slowest = max(slowest, reply.received - reply.sent)
                expect(reply.status < 500, f"status {reply.status} while the store does not respond")
        finally:
            context.redis().resume()
        context.measures["slowest_ms"] = slowest * 1000
        expect(slowest < 1, f"a request took {slowest:.1f} s while the store did not respond")

    with_fleet(context, check)


@requirement("FLEET-5", "A lost store does not multiply the limit", source=DATABRICKS, severity=Severity.SHOULD, needs=("key.header", "store"))
def loss_of_store_is_bounded(context: Context) -> None:
    """The store stops responding, and the instances go on. Together they admit at most 1.5 times N."""
    def check(instances: list[TargetProcess], limit: Limit) -> None:
        key = context.new_key()
        count = spend(context, instances, key, 0.5)
        context.redis().pause()
        try:
            # A request may have to wait for the store before it is decided without it.
            count += spend(context, instances, key, 4, clients=16)
        finally:
            context.redis().resume()
        expect(excess(context, count, limit) <= 50, f"admitted {count}, the limit is {limit.count}")

    with_fleet(context, check)
