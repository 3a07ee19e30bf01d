"""The documents: pages that are made by commands are up to date, links lead somewhere, every page is in the site."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cffi_build import release

from . import reference_pages

ROOT = Path(__file__).resolve().parents[1]


def test_links_lead_somewhere() -> None:
    assert not [*release.document_problems(ROOT)]


@pytest.mark.parametrize("name", reference_pages.PAGES)
def test_a_reference_page_is_what_the_docstrings_say(name: str) -> None:
    if name == "jax.md":
        pytest.importorskip("jax")
    if name == "torch.md":
        pytest.importorskip("torch")
    assert (reference_pages.FOLDER / name).read_text() == reference_pages.page(name), "run python -m tests.reference_pages"


def test_commands_page_has_every_option() -> None:
    """Options only: how argparse prints them depends on the version of Python."""
    def options(text: str) -> set[str]:
        return set(re.findall(r"(?<![\w-])--?[a-z][\w-]*", text))

    page = (reference_pages.FOLDER / "commands.md").read_text()
    assert options(page) == options(reference_pages.commands()), "run python -m tests.reference_pages"


def test_every_page_is_in_the_site() -> None:
    listed = set(re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]))
    assert listed == {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
