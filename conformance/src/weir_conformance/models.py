"""Models of algorithms: which requests a limit of N in a period admits.

A decision is made some time between the moment at which a request is sent and the one at which its reply arrives. So a model
is asked for both, and only a reply that contradicts both is a failure.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Protocol


class Model(Protocol):
    """State of one key. Times are seconds, and never decrease."""

    def admits(self, now: float) -> bool:
        """Returns whether a request would be admitted. Changes nothing."""
        ...

    def charge(self, now: float) -> None:
        """Charges an admitted request."""
        ...


@dataclass
class Gcra:
    """Generic cell rate algorithm (ITU-T I.371), and the token bucket, which admits the same: N at once, then one each
    `period / count`."""

    count: int
    period: float
    _arrival: float = float("-inf")

    def admits(self, now: float) -> bool:
        interval = self.period / self.count
        return max(self._arrival, now) - now <= self.period - interval + 1e-9

    def charge(self, now: float) -> None:
        self._arrival = max(self._arrival, now) + self.period / self.count


@dataclass
class FixedWindow:
    """A counter that begins again with each window of the clock."""

    count: int
    period: float
    _window: int = -1
    _used: int = 0

    def admits(self, now: float) -> bool:
        return int(now // self.period) != self._window or self._used < self.count

    def charge(self, now: float) -> None:
        window = int(now // self.period)
        if window != self._window:
            self._window, self._used = window, 0
        self._used += 1


@dataclass
class FixedWindowFirst:
    """A counter whose window begins with the first request."""

    count: int
    period: float
    _start: float = float("-inf")
    _used: int = 0

    def admits(self, now: float) -> bool:
        return now >= self._start + self.period or self._used < self.count

    def charge(self, now: float) -> None:
        if now >= self._start + self.period:
            self._start, self._used = now, 0
        self._used += 1


@dataclass
class SlidingLog:
    """The times of the last requests: N in any period, exactly."""

    count: int
    period: float
    _times: deque[float] = field(default_factory=deque)

    def admits(self, now: float) -> bool:
        return sum(time > now - self.period for time in self._times) < self.count

    def charge(self, now: float) -> None:
        self._times.append(now)
        while len(self._times) > self.count:
            self._times.popleft()


@dataclass
class SlidingWindow:
    """The current window and a share of the one before, as it is still within the period (Cloudflare's approximation).

    Products differ in two ways, and their documentation says so: the share is rounded down or not, and windows are those of the
    clock or begin with the first request of a key.
    """

    count: int
    period: float
    rounds_down: bool = False
    begins_with_first: bool = False
    _origin: float = 0.0
    _window: int = -1
    _used: int = 0
    _before: int = 0

    def _at(self, now: float) -> tuple[int, int, int]:
        window = int((now - self._origin) // self.period)
        if window == self._window:
            return window, self._used, self._before
        return window, 0, self._used if window == self._window + 1 else 0

    def admits(self, now: float) -> bool:
        window, used, before = self._at(now)
        share = before * (1.0 - ((now - self._origin) / self.period - window))
        return used + (int(share) if self.rounds_down else share) + 1 <= self.count + 1e-9

    def charge(self, now: float) -> None:
        if self.begins_with_first and self._window < 0:
            self._origin = now
        self._window, self._used, self._before = self._at(now)
        self._used += 1


@dataclass
class RefillBucket:
    """A bucket of N tokens that is filled again each period, counted from the target's start, which is not known. Only the
    number of requests in any period is compared."""

    count: int
    period: float
    _times: deque[float] = field(default_factory=deque)

    def admits(self, now: float) -> bool:
        # At most one refill lies within a period, so at most twice the count passes.
        return sum(time > now - self.period for time in self._times) < 2 * self.count

    def charge(self, now: float) -> None:
        self._times.append(now)
        while len(self._times) > 2 * self.count:
            self._times.popleft()


@dataclass(frozen=True)
class Bounds:
    """What an algorithm may and must admit. The two models are the same where its documentation leaves no choice."""

    most: Model
    """A request that this one rejects must not be admitted."""
    least: Model | None
    """A request that this one admits must not be rejected; `None` if there is no such bound."""

    def charge(self, now: float) -> None:
        for model in {id(model): model for model in (self.most, self.least) if model is not None}.values():
            model.charge(now)


def create(name: str, count: int, period: float) -> Bounds:
    """Returns the model with this name, for a key without requests."""
    if name in ("sliding_window", "sliding_window_first"):
        first = name.endswith("first")
        most = SlidingWindow(count, period, rounds_down=True, begins_with_first=first)
        return Bounds(most, SlidingWindow(count, period, begins_with_first=first))
    if name == "refill_bucket":
        return Bounds(RefillBucket(count, period), None)
    exact: dict[str, type[Gcra | FixedWindow | FixedWindowFirst | SlidingLog]] = {
        "gcra": Gcra,
        "fixed_window": FixedWindow,
        "fixed_window_first": FixedWindowFirst,
        "sliding_log": SlidingLog,
    }
    model = exact[name](count, period)
    return Bounds(model, model)
