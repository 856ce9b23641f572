"""Runs requirements against a target."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from weir_conformance.context import Context
from weir_conformance.outcome import Failure, Noise, Result, Verdict
from weir_conformance.process import StartError
from weir_conformance.requirement import Requirement
from weir_conformance.target import Target

ATTEMPTS = 4
"""How often a requirement is tried while the machine is too slow for a verdict."""


@dataclass
class TargetReport:
    """The results of one target."""

    target: Target
    version: str
    results: list[Result] = field(default_factory=list)
    seconds: float = 0.0

    def of(self, verdict: Verdict) -> list[Result]:
        return [result for result in self.results if result.verdict is verdict]


def run(
    target: Target,
    requirements: Iterable[Requirement],
    *,
    scale: float = 1.0,
    progress: Callable[[Result], None] = lambda result: None,
) -> TargetReport:
    """Runs requirements against a target, one after the other, and calls `progress` with each result."""
    began = time.monotonic()
    report = TargetReport(target, target.installed_version())
    context = Context(target, scale=scale)
    try:
        for one in requirements:
            result = decide(one, context)
            report.results.append(result)
            progress(result)
    finally:
        context.close()
    report.seconds = time.monotonic() - began
    return report


def decide(one: Requirement, context: Context) -> Result:
    """Decides one requirement."""
    missing = sorted(one.needs - context.target.capabilities)
    if missing:
        return Result(one.identifier, Verdict.NOT_CLAIMED, f"needs {', '.join(missing)}")
    began, text, attempt = time.monotonic(), "", 0
    verdict = Verdict.INCONCLUSIVE
    measures: dict[str, float] = {}
    while attempt < ATTEMPTS:
        attempt += 1
        try:
            one.check(context)
            verdict, text = Verdict.PASS, ""
        except Noise as noise:
            text = str(noise)
            continue
        except Failure as failure:
            verdict, text = Verdict.FAIL, str(failure)
        except (OSError, ValueError, StartError) as error:
            verdict, text = Verdict.FAIL, f"no reply: {error}"
        finally:
            measures = dict(context.measures)
            context.end_requirement()
        break
    return Result(one.identifier, verdict, text, measures, time.monotonic() - began, attempt)
