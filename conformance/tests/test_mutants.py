"""A fault is caught by its requirement, and by no unrelated one. The limiter without faults meets all of them."""

from __future__ import annotations

import pytest

from tests.mutants import MUTANTS, Mutant
from weir_conformance.outcome import Verdict
from weir_conformance.requirement import Requirement, all_requirements
from weir_conformance.runner import run
from weir_conformance.target import Target

SCALE = 0.01
REQUIREMENTS = {one.identifier: one for one in all_requirements()}
PROFILES = sorted({one.profile for one in REQUIREMENTS.values()})


def of_profiles(profiles: set[str]) -> list[Requirement]:
    return [one for one in REQUIREMENTS.values() if one.profile in profiles]


@pytest.mark.parametrize("profile", PROFILES)
def test_limiter_without_faults_meets_all_requirements(reference: Target, profile: str) -> None:
    report = run(reference, of_profiles({profile}), scale=SCALE)
    failed = [f"{result.requirement}: {result.detail}" for result in report.results if result.verdict is not Verdict.PASS]
    assert not failed


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: f"{mutant.name}-{mutant.caught_by}")
def test_fault_is_caught_by_its_requirement_only(
    reference: Target, mutant: Mutant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MUTANT", mutant.name)
    profile = REQUIREMENTS[mutant.caught_by].profile
    report = run(reference, of_profiles({profile, "core"}), scale=SCALE)
    failed = {result.requirement: result.detail for result in report.of(Verdict.FAIL)}
    assert mutant.caught_by in failed, f"not caught: {[(r.requirement, r.verdict.value, r.detail) for r in report.results]}"
    unrelated = {name: detail for name, detail in failed.items() if name not in (mutant.caught_by, *mutant.also)}
    assert not unrelated


def test_every_requirement_has_a_mutant() -> None:
    assert {mutant.caught_by for mutant in MUTANTS} == set(REQUIREMENTS)
