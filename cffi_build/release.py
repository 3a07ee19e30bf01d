"""`python -m cffi_build release`: checks that a tree is fit to be released, and builds what is. It publishes nothing."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

from cffi_build import ROOT, wheels

TAGS = [f"{python}-{target.platform}" for python in ("cp310-cp310", "cp311-abi3") for target in wheels.TARGETS]
RUNS = Path("docs/lab/wheels.md")


def main(arguments: list[str]) -> None:
    found = [*version_problems(ROOT), *tree_problems(ROOT), *document_problems(ROOT), *page_problems(ROOT)]
    if found:
        raise SystemExit("\n".join(found))
    found = [*wheel_problems(ROOT, wheels.main(arguments))]
    if found:
        raise SystemExit("\n".join(found))
    print(f"version {version(ROOT)} can be released")


def version(root: Path) -> str:
    """The version; pyproject.toml reads it from the same place."""
    return str(re.findall(r'^__version__ = "(.*)"$', (root / "arraycomm/__init__.py").read_text(), re.MULTILINE)[0])


def version_problems(root: Path) -> Iterator[str]:
    number = version(root)
    _, entry, *_ = [*re.split(r"^## ", (root / "CHANGELOG.md").read_text(), flags=re.MULTILINE), ""]
    heading, _, body = entry.partition("\n")
    if not re.fullmatch(rf"{re.escape(number)}, \d{{4}}-\d\d-\d\d", heading):
        yield f"CHANGELOG.md: the first entry is '{heading}', not '{number}, YYYY-MM-DD'"
    if not body.strip():
        yield "CHANGELOG.md: the first entry is empty"


def tree_problems(root: Path) -> Iterator[str]:
    if git(root, "status", "--porcelain"):
        yield "there are files that are not committed (git status)"
    tag = f"v{version(root)}"
    if git(root, "tag", "--list", tag) and git(root, "rev-list", "-n1", tag) != git(root, "rev-parse", "HEAD"):
        yield f"{tag} is the tag of another commit: arraycomm/__init__.py needs a new version"


def git(root: Path, *arguments: str) -> str:
    return subprocess.run(["git", "-C", root, *arguments], check=True, capture_output=True, text=True).stdout.strip()


def document_problems(root: Path) -> Iterator[str]:
    """Links inside the tree, and the commands of README.md."""
    for page in sorted([*root.glob("*.md"), *root.glob("docs/**/*.md")]):
        for path, heading in re.findall(r"\]\((?!\w+:)([^)\s#]*)(?:#([^)\s]+))?\)", page.read_text()):
            there = page.parent / path if path else page
            if not there.exists() or (heading and heading not in anchors(there)):
                yield f"{page.relative_to(root)}: nothing is at {path}{'#' if heading else ''}{heading}"
    readme, project = (root / "README.md").read_text(), (root / "pyproject.toml").read_text()
    for command in sorted(set(re.findall(r"\barraycomm-\w+", readme))):
        if f"\n{command} = " not in project:
            yield f"README.md: {command} is none of pyproject.toml's scripts"
    for command in sorted(set(re.findall(r"\btests/run\w*", readme))):
        if not os.access(root / command, os.X_OK):
            yield f"README.md: {command} is no command"


def page_problems(root: Path) -> Iterator[str]:
    """Checks that the wheels' page lists each wheel of this version, as run or not run."""
    page = (root / RUNS).read_text()
    for named in (f"version {version(root)}", *TAGS):
        if named not in page:
            yield f"{RUNS} does not have {named}: run tests/run_wheels"


def wheel_problems(root: Path, made: list[Path]) -> Iterator[str]:
    """Checks that all wheels of a release are present, and no other file that could be published with them."""
    folder, prefix, names = made[0].parent, f"arraycomm-{version(root)}", {path.name for path in made}
    for tag in TAGS:
        if (name := f"{prefix}-{tag}.whl") not in names:
            yield f"{name} was not built: name its interpreter by --python, and no --platform"
    for name in sorted({path.name for path in folder.iterdir()} - names - {f"{prefix}.tar.gz"}):
        yield f"{folder / name} is none of this release's: remove it"


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as code hosts generate them."""
    headings = re.findall(r"^#+ (.*)", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
