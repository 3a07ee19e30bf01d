"""docs/reference/settings.md, made of the table of settings. `python -m tests.core.settings_page` writes it."""

from __future__ import annotations

from pathlib import Path

from arraycomm.core.base.settings import TABLE

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "settings.md"
_HEAD = """# Settings

Settings are environment variables. `arraycomm-info` prints them with their current values and the source of each. If ranks
differ in a setting that must be equal, all ranks get an error that names the setting, two ranks and their values. `init()`
refuses invalid numbers and switches, even unused ones; rank 0 warns of variables ARRAYCOMM_... that are not in this table.

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
