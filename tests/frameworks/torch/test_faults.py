"""Errors of the backend "arraycomm" of torch.distributed: of this package's kinds, with ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from . import faults  # noqa: E402
from .test_autograd import start  # noqa: E402


def test_faults(tmp_path: Path) -> None:
    start("tests.frameworks.torch.faults", str(tmp_path))
    for scenario in faults.SCENARIOS:
        assert (tmp_path / f"{scenario.__name__}-0").exists(), scenario.__name__
