"""What tests share: the reference target."""

from __future__ import annotations

from pathlib import Path

import pytest

from weir_conformance.target import Target, load

REFERENCE = Path(__file__).parent / "reference" / "target.yaml"


@pytest.fixture
def reference() -> Target:
    return load(REFERENCE)
