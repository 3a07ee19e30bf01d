"""What `python -m cffi_build release` finds before it builds wheels."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from cffi_build import release, wheels

ROOT = Path(__file__).resolve().parents[1]


def test_documents_of_this_tree() -> None:
    assert list(release.document_problems(ROOT)) == []


def test_a_release_names_its_version_once() -> None:
    assert 'dynamic = ["version"]' in (ROOT / "pyproject.toml").read_text()
    assert release.version(ROOT)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """As much of a tree as is looked at, in order, tagged v1.2."""
    files = {
        "arraycomm/__init__.py": '__version__ = "1.2"\n',
        "CHANGELOG.md": "# Changes\n\n## 1.2, 2026-11-28\n\nA change.\n\n## 1.1, unreleased\n",
        "README.md": "# A\n[a](docs/a.md#two-words) [b](#a) [c](https://a.example)\n\n    arraycomm-run\n    tests/run_it\n",
        "docs/a.md": "## Two words\n[a](../README.md)\n",
        "docs/lab/wheels.md": f"version 1.2: {', '.join(release.TAGS)}\n",
        "pyproject.toml": '[project.scripts]\narraycomm-run = "a:b"\n',
        "tests/run_it": "#!/bin/sh\n",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "tests/run_it").chmod(0o755)
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "-m", "a")
    git(tmp_path, "tag", "v1.2")
    return tmp_path


def git(tree: Path, *arguments: str) -> None:
    subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@a.example", "-C", tree, *arguments], check=True)


def problems(tree: Path) -> list[str]:
    return [*release.version_problems(tree), *release.tree_problems(tree), *release.document_problems(tree),
            *release.page_problems(tree)]


def test_nothing_is_wrong(tree: Path) -> None:
    assert problems(tree) == []


@pytest.mark.parametrize(("name", "old", "new", "told"), [
    ("CHANGELOG.md", "1.2, 2026-11-28", "1.2, unreleased",
     "CHANGELOG.md: the first entry is '1.2, unreleased', not '1.2, YYYY-MM-DD'"),
    ("CHANGELOG.md", "## 1.2", "## 1.20", "CHANGELOG.md: the first entry is '1.20, 2026-11-28', not '1.2, YYYY-MM-DD'"),
    ("CHANGELOG.md", "A change.", "", "CHANGELOG.md: the first entry is empty"),
    ("CHANGELOG.md", "## 1.2, 2026-11-28\n\nA change.\n\n## 1.1, unreleased\n", "",
     "CHANGELOG.md: the first entry is '', not '1.2, YYYY-MM-DD'"),
    ("README.md", "a.md", "b.md", "README.md: nothing is at docs/b.md#two-words"),
    ("README.md", "two-words", "2-words", "README.md: nothing is at docs/a.md#2-words"),
    ("README.md", "#a", "#b", "README.md: nothing is at #b"),
    ("docs/a.md", "../README", "README", "docs/a.md: nothing is at README.md"),
    ("README.md", "arraycomm-run", "arraycomm-ran", "README.md: arraycomm-ran is none of pyproject.toml's scripts"),
    ("README.md", "run_it", "run_that", "README.md: tests/run_that is no command"),
    ("arraycomm/__init__.py", "", "\n", "v1.2 is the tag of another commit: arraycomm/__init__.py needs a new version"),
    ("docs/lab/wheels.md", "version 1.2", "version 1.1", "docs/lab/wheels.md does not have version 1.2: run tests/run_wheels"),
    ("docs/lab/wheels.md", "cp310-cp310-musllinux_1_2_aarch64", "",
     "docs/lab/wheels.md does not have cp310-cp310-musllinux_1_2_aarch64: run tests/run_wheels"),
])
def test_what_is_wrong(tree: Path, name: str, old: str, new: str, told: str) -> None:
    path = tree / name
    path.write_text(path.read_text().replace(old, new, 1))
    assert "there are files that are not committed (git status)" in problems(tree)
    git(tree, "commit", "--quiet", "--all", "-m", "b")
    git(tree, "tag", "--force", "v1.2", "HEAD~" if "tag" in told else "HEAD")
    assert told in problems(tree)


def test_the_wheels_of_a_release(tree: Path) -> None:
    dist = tree / "dist"
    dist.mkdir()
    (dist / "arraycomm-1.2.tar.gz").touch()
    made = [dist / f"arraycomm-1.2-{tag}.whl" for tag in (*release.TAGS, "cp314-cp314t-manylinux_2_26_x86_64")]
    for path in made:
        path.touch()
    assert list(release.wheel_problems(tree, made)) == []
    missing = made.pop(0)
    assert list(release.wheel_problems(tree, made)) == [
        f"{missing.name} was not built: name its interpreter by --python, and no --platform",
        f"{missing} is none of this release's: remove it"]
    missing.rename(dist / "arraycomm-1.1.tar.gz")
    assert f"{dist}/arraycomm-1.1.tar.gz is none of this release's: remove it" in release.wheel_problems(tree, made)


def test_an_interpreter_that_is_not_there_is_told_first(tmp_path: Path) -> None:
    """Before the other one's wheels are built, which takes minutes."""
    with pytest.raises(FileNotFoundError, match="python3.none"):
        wheels.main(["-o", str(tmp_path), "--python", "python3.none", sys.executable])
    assert list(tmp_path.iterdir()) == []
