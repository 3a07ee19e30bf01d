"""Test modules can be imported in the processes that tests start: as `tests.…`, after everything installed."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT))
