"""What a check works with: instances of the target, clients, and the measured noise of the machine."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable

from weir_conformance.entrances import Entrance, connect
from weir_conformance.limit import Limit
from weir_conformance.origin import Origin
from weir_conformance.outcome import Failure, Noise
from weir_conformance.process import Redis, TargetProcess
from weir_conformance.reply import Probe, Reply
from weir_conformance.target import Target

_KEYS = itertools.count(1)


class Context:
    """The resources of one target. Instances with the same limits are used by several requirements."""

    def __init__(self, target: Target, *, scale: float = 1.0) -> None:
        self.target = target
        self.scale = scale
        """Factor of the sizes of long requirements."""
        self.measures: dict[str, float] = {}
        """Numbers that the current requirement has measured."""
        self.origin = Origin()
        self._redis: Redis | None = None
        self._instances: dict[tuple[Limit, ...], TargetProcess] = {}
        self._entrances: list[Entrance] = []

    def new_key(self) -> str:
        """Returns a key that no request has had."""
        return f"key-{next(_KEYS)}"

    def limit(self, count: int = 5, period: int = 1, **settings: object) -> Limit:
        """Returns a limit with a period that the target supports: at least this one, in seconds."""
        periods = [known for known in self.target.periods if known >= period] or [period]
        return Limit(count, min(periods), **settings)  # type: ignore[arg-type]

    def instance(self, *limits: Limit) -> TargetProcess:
        """Returns an instance with these limits, which later requirements may use as well."""
        known = self._instances.get(limits)
        if known is None or not known.is_running:
            known = self._instances[limits] = self.start(*limits)
        return known

    def start(self, *limits: Limit) -> TargetProcess:
        """Starts an instance with these limits. The caller stops it."""
        return TargetProcess(self.target, list(limits), self._values())

    def redis(self) -> Redis:
        """Returns the store of instances that share limits."""
        if self._redis is None:
            self._redis = Redis()
        return self._redis

    def client(self, instance: TargetProcess) -> Entrance:
        """Returns a client of an instance, which is closed after the requirement."""
        entrance = connect(self.target, instance.port)
        self._entrances.append(entrance)
        return entrance

    def end_requirement(self) -> None:
        """Closes the clients of a requirement."""
        while self._entrances:
            self._entrances.pop().close()
        self.measures = {}

    def close(self) -> None:
        self.end_requirement()
        for instance in self._instances.values():
            instance.stop()
        self._instances.clear()
        if self._redis is not None:
            self._redis.close()
            self._redis = None
        self.origin.close()

    def _values(self) -> dict[str, object]:
        values: dict[str, object] = {"upstream_port": self.origin.port}
        if self.target.store == "redis" and "store" in self.target.claims:
            values["redis_port"] = self.redis().port
        return values


def send_all(client: Entrance, probes: Iterable[Probe]) -> list[Reply]:
    """Sends requests one after the other."""
    return [client.send(probe) for probe in probes]


def admitted(replies: Iterable[Reply]) -> int:
    """Returns how many requests were admitted."""
    return sum(reply.admitted for reply in replies)


def duration(replies: list[Reply]) -> float:
    """Returns the time from the first request to the last reply."""
    return replies[-1].received - replies[0].sent if replies else 0.0


def expect(condition: bool, text: str | Callable[[], str]) -> None:
    """Fails the requirement unless the condition holds."""
    if not condition:
        raise Failure(text if isinstance(text, str) else text())


def in_time(seconds: float, most: float) -> None:
    """Makes the result inconclusive if the machine took longer than this, so that time changes what is to be expected."""
    if seconds > most:
        raise Noise(f"took {seconds * 1000:.0f} ms, at most {most * 1000:.0f} ms would tell")


def align(period: float, place: float = 0.1) -> None:
    """Sleeps until this place within a period of the wall clock, where windows of the clock are young."""
    now = time.time()
    start = (now // period + place) * period
    time.sleep(max(0.0, start - now if start > now else start + period - now))


def sleep_until(moment: float) -> None:
    """Sleeps until a monotonic time."""
    time.sleep(max(0.0, moment - time.monotonic()))
