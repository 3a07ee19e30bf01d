"""What the tree must be like for all of it to be installed, because nothing else notices before a wheel is used."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("top", ["arraycomm", "backends", "bench"])
def test_every_module_lies_in_a_package(top: str) -> None:
    homeless = [path for path in (ROOT / top).rglob("*.py") if not (path.parent / "__init__.py").exists()]
    assert not homeless
