"""docs/settings.md, made of the table of settings. `python -m tests.core.settings_page` writes it."""

from __future__ import annotations

from pathlib import Path

from arraycomm.core.base.settings import TABLE

PAGE = Path(__file__).resolve().parents[2] / "docs" / "settings.md"
_HEAD = """# Settings

All are environment variables. `arraycomm-info` prints them with the values that are in force and where these come from. Where
ranks must say the same, the error names the setting, two ranks and their values, and comes on all ranks. Numbers and
switches that cannot be are refused by `init()`, whether they are needed or not; a variable ARRAYCOMM_... that stands in no row is
named in a warning of rank 0.

| variable | default | meaning | ranks |
|---|---|---|---|
"""


def page() -> str:
    """The whole text."""
    rows = []
    for row in TABLE.values():
        also = f"; else {', '.join(f'`{name}`' for name in row.fallbacks)}" if row.fallbacks else ""
        cells = (f"`{row.name}`", f"`{row.default}`" if row.default else "", row.help + also, row.ranks)
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n")
    return _HEAD + "".join(rows)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
