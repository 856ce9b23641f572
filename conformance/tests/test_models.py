"""The models agree with what they promise."""

from __future__ import annotations

import random

import pytest

from weir_conformance import models


@pytest.mark.parametrize("name", ["gcra", "fixed_window", "fixed_window_first", "sliding_log", "sliding_window", "sliding_window_first", "refill_bucket"])
def test_model_admits_at_most_its_bound(name: str) -> None:
    source, model, admitted = random.Random(3), models.create(name, 5, 1.0).most, []
    now = 1_800_000_000.0
    for _ in range(5000):
        now += source.choice([0.001, 0.01, 0.1, 0.4])
        if model.admits(now):
            model.charge(now)
            admitted.append(now)
    # The most in any period, by the definition of each.
    most = {"sliding_log": 5, "gcra": 9}.get(name, 10)
    for place, first in enumerate(admitted):
        assert sum(first <= time < first + 1.0 for time in admitted[place : place + 20]) <= most
    assert len(admitted) >= 0.9 * 5 * (now - 1_800_000_000.0) * (0.5 if name == "fixed_window_first" else 0.8)


def test_asking_a_model_changes_nothing() -> None:
    for name in ("gcra", "fixed_window", "fixed_window_first", "sliding_log", "sliding_window", "refill_bucket"):
        model = models.create(name, 1, 1.0).most
        assert all(model.admits(1000.0) for _ in range(10))
        model.charge(1000.0)
        assert model.admits(1002.5)


def test_rounding_down_admits_more() -> None:
    for name in ("sliding_window", "sliding_window_first"):
        bounds = models.create(name, 4, 1.0)
        assert isinstance(bounds.most, models.SlidingWindow) and isinstance(bounds.least, models.SlidingWindow)
        for _ in range(4):
            bounds.charge(1000.0)
        # Of the window before, 3.6 are still within the period.
        assert bounds.most.admits(1001.1) and not bounds.least.admits(1001.1)
        assert not bounds.most.admits(1000.9)


def test_gcra_returns_units_evenly() -> None:
    model = models.Gcra(4, 1.0)
    for _ in range(4):
        model.charge(10.0)
    assert [model.admits(10.0 + step) for step in (0.0, 0.24, 0.25, 0.3)] == [False, False, True, True]
