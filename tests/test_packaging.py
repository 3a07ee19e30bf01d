"""What pyproject.toml must say about the tree, because nothing else notices before a wheel is used."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TOPS = {"arraycomm": "arraycomm", "backends": "arraycomm.backends", "bench": "arraycomm.bench"}

ELSEWHERE = {"arraycomm.frameworks.torch_plugin": "arraycomm_torch"}  # see there why


def listed() -> set[str]:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    found = re.search(r"^packages = \[(.*?)^\]", text, re.DOTALL | re.MULTILINE)
    assert found
    return set(re.findall(r'"([\w.]+)"', found[1]))


def in_tree() -> set[str]:
    names = set()
    for top, package in TOPS.items():
        for init in (ROOT / top).rglob("__init__.py"):
            name = ".".join([package, *init.parent.relative_to(ROOT / top).parts])
            names.add(ELSEWHERE.get(name, name))
    return names


def test_every_package_is_listed() -> None:
    assert listed() == in_tree()


@pytest.mark.parametrize("top", TOPS)
def test_every_module_lies_in_a_package(top: str) -> None:
    homeless = [path for path in (ROOT / top).rglob("*.py") if not (path.parent / "__init__.py").exists()]
    assert not homeless
