"""What builds the extension `arraycomm._engine`. Used at build time only; never installed."""

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
