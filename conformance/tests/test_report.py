"""Reports contain every result, and show failures with their reason."""

from __future__ import annotations

import json
from pathlib import Path

from weir_conformance import report
from weir_conformance.outcome import Result, Verdict
from weir_conformance.requirement import all_requirements
from weir_conformance.runner import TargetReport
from weir_conformance.target import Target


def test_all_forms_have_all_results(reference: Target, tmp_path: Path) -> None:
    requirements = all_requirements()
    results = [Result(one.identifier, Verdict.PASS) for one in requirements]
    results[1] = Result(requirements[1].identifier, Verdict.FAIL, "admitted 6 of <5>")
    results[2] = Result(requirements[2].identifier, Verdict.INCONCLUSIVE, "too slow")
    results[3] = Result(requirements[3].identifier, Verdict.NOT_CLAIMED, "needs path")
    report.write(tmp_path, [TargetReport(reference, "1.2.3", results, 7.0)], requirements)
    written = json.loads((tmp_path / "report.json").read_text())
    assert [one["verdict"] for one in written["targets"][0]["results"]] == [result.verdict.value for result in results]
    assert all(one["source"] and one["description"] for one in written["requirements"])
    markdown, page = (tmp_path / "report.md").read_text(), (tmp_path / "report.html").read_text()
    for one in requirements:
        assert one.identifier in markdown and one.identifier in page
    assert "admitted 6 of <5>" in markdown and "admitted 6 of &lt;5&gt;" in page
    assert f"{len(results) - 3} of {len(results) - 2} passed" in (tmp_path / "reference.svg").read_text()
