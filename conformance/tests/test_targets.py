"""Target files are read whole, and every mistake in one says where it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from weir_conformance.target import TargetError, load

TARGETS = sorted((Path(__file__).parent.parent / "targets").glob("*.yaml"))
VALID = """
name: x
homepage: https://example.org
version: { command: [x, -v], pattern: "(.*)" }
start: [x]
algorithms: { gcra: gcra }
claims: [key.header]
"""


@pytest.mark.parametrize("file", TARGETS, ids=lambda file: file.stem)
def test_target_is_valid(file: Path) -> None:
    target = load(file)
    assert target.name == file.stem
    assert target.homepage.startswith("https://")


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("claims: [key.header]", "claims: [key.headers]", "claims: unknown value 'key.headers'"),
        ("gcra: gcra", "gcra: leaky", "algorithms.gcra: unknown model 'leaky'"),
        ("start: [x]", "", "start: missing"),
        ("start: [x]", "start: [x]\nstrat: [y]", "strat: unknown key"),
        ("start: [x]", "start: [x]\nentrance: grpc", "entrance: unknown value 'grpc'"),
        ("start: [x]", "start: [x]\nfiles: [{ template: none.j2, to: x }]", "files[0].template: there is no"),
        ("name: x", "name: [x]", "name: expected str, got list"),
        ("name: x", "name: 'x", "while scanning"),
    ],
)
def test_mistake_is_named_with_its_place(tmp_path: Path, before: str, after: str, message: str) -> None:
    file = tmp_path / "target.yaml"
    file.write_text(VALID)
    load(file)
    file.write_text(VALID.replace(before, after))
    with pytest.raises(TargetError, match="target.yaml") as raised:
        load(file)
    assert message in str(raised.value)
