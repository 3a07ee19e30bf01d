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


def test_the_citation_is_of_this_version() -> None:
    yaml = pytest.importorskip("yaml")
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == release.version(ROOT) and citation["license"] == "Apache-2.0"
    assert {"cff-version", "message", "title", "authors"} <= set(citation)


def test_templates_ask_for_what_there_is() -> None:
    folder = ROOT / ".github"
    text = "".join(path.read_text() for path in [folder / "pull_request_template.md", *folder.glob("ISSUE_TEMPLATE/*.md")])
    scripts = (ROOT / "pyproject.toml").read_text()
    commands = set(re.findall(r"\barraycomm-\w+", text))
    assert commands and all(f"\n{command} = " in scripts for command in commands)
    assert "@" not in text  # nobody's address


def test_questions_are_answered_in_pages() -> None:
    rows = [line for line in (ROOT / "docs/lab/questions.md").read_text().splitlines() if line.startswith("| ")][1:]
    assert len(rows) == 20
    for row in rows:
        asked, answered = row.split(" | ")[1:3]
        assert "https://github.com/" in asked and re.search(r"\]\(\.\./[^)]+|\]\(jax-coll", answered), row


def test_the_strict_build_counts_warnings() -> None:
    """With --quiet mkdocs counts none, and --strict never fails."""
    assert "mkdocs build --strict &&" in (ROOT / ".ci" / "run").read_text()
