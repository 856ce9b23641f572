"""Writes results: as JSON for programs, as Markdown and HTML for readers, and a badge for each target."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jinja2

from weir_conformance import __version__
from weir_conformance.outcome import Result, Verdict
from weir_conformance.profiles import PROFILES
from weir_conformance.requirement import Requirement
from weir_conformance.runner import TargetReport

SIGNS = {Verdict.PASS: "✓", Verdict.FAIL: "✗", Verdict.NOT_CLAIMED: "–", Verdict.INCONCLUSIVE: "?"}
HERE = Path(__file__).parent


def write(folder: Path, reports: list[TargetReport], requirements: Iterable[Requirement]) -> None:
    """Writes all forms of a report into a folder, which is created."""
    folder.mkdir(parents=True, exist_ok=True)
    listed = list(requirements)
    (folder / "report.json").write_text(json.dumps(as_json(reports, listed), indent=2, ensure_ascii=False) + "\n")
    (folder / "report.md").write_text(as_markdown(reports, listed))
    (folder / "report.html").write_text(as_html(reports, listed))
    for report in reports:
        (folder / f"{report.target.name}.svg").write_text(badge(report))


def as_json(reports: list[TargetReport], requirements: list[Requirement]) -> dict[str, Any]:
    """Returns a report as plain data."""
    return {
        "suite": __version__,
        "requirements": [
            {
                "id": one.identifier,
                "profile": one.profile,
                "title": one.title,
                "description": one.description,
                "source": one.source,
                "severity": one.severity.value,
                "needs": sorted(one.needs),
            }
            for one in requirements
        ],
        "targets": [
            {
                "name": report.target.name,
                "version": report.version,
                "homepage": report.target.homepage,
                "claims": sorted(report.target.claims),
                "seconds": round(report.seconds, 1),
                "notes": report.target.notes,
                "results": [
                    {
                        "requirement": result.requirement,
                        "verdict": result.verdict.value,
                        "detail": result.detail,
                        "measures": result.measures,
                        "seconds": round(result.seconds, 2),
                        "attempts": result.attempts,
                    }
                    for result in report.results
                ],
            }
            for report in reports
        ],
    }


def as_markdown(reports: list[TargetReport], requirements: list[Requirement]) -> str:
    """Returns a table of all results, and a list of all failures."""
    head = ["requirement", *(f"{one.target.name} {one.version}" for one in reports)]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for one in requirements:
        cells = [SIGNS[result.verdict] if (result := _result(report, one)) else "" for report in reports]
        lines.append(f"| {one.identifier} {one.title} ({one.severity.value}) | {' | '.join(cells)} |")
    lines += ["", "✓ pass, ✗ fail, – not claimed, ? inconclusive.", ""]
    for report in reports:
        failed = report.of(Verdict.FAIL) + report.of(Verdict.INCONCLUSIVE)
        if failed:
            lines += [f"## {report.target.name} {report.version}", ""]
            lines += [f"- **{result.requirement}** ({result.verdict.value}): {result.detail}" for result in failed]
            lines.append("")
    return "\n".join(lines)


def as_html(reports: list[TargetReport], requirements: list[Requirement]) -> str:
    """Returns one page without references to other files."""
    environment = jinja2.Environment(loader=jinja2.FileSystemLoader(HERE), autoescape=True, trim_blocks=True, lstrip_blocks=True)
    groups = [
        (title, [(one, [_result(report, one) for report in reports]) for one in requirements if one.profile == name])
        for name, title in PROFILES.items()
    ]
    return environment.get_template("report.html.j2").render(
        version=__version__, reports=reports, groups=[group for group in groups if group[1]], signs=SIGNS, Verdict=Verdict
    )


def badge(report: TargetReport) -> str:
    """Returns an image with the number of passed results."""
    passed, failed = len(report.of(Verdict.PASS)), len(report.of(Verdict.FAIL))
    colour = "#2e7d32" if failed == 0 else "#b26a00" if failed * 4 < passed else "#b3261e"
    text = html.escape(f"{passed} of {passed + failed} passed")
    label = html.escape("rate limit conformance")
    left, right = 150, 10 + 7 * len(text)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + right}" height="20" role="img" aria-label="{label}: {text}">'
        f'<rect width="{left}" height="20" fill="#444"/><rect x="{left}" width="{right}" height="20" fill="{colour}"/>'
        f'<g fill="#fff" font-family="Verdana,sans-serif" font-size="11"><text x="8" y="14">{label}</text>'
        f'<text x="{left + 6}" y="14">{text}</text></g></svg>\n'
    )


def _result(report: TargetReport, requirement: Requirement) -> Result | None:
    return next((result for result in report.results if result.requirement == requirement.identifier), None)
