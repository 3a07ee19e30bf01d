"""Which packages there are: every folder with an __init__.py. Those of backends/ and bench/ are installed inside arraycomm."""

from __future__ import annotations

from setuptools import find_packages

PLACES = {"arraycomm": "arraycomm", "backends": "arraycomm.backends", "bench": "arraycomm.bench"}
# Installed under their own names; the packages' docstrings give the reason.
ELSEWHERE = {"arraycomm.frameworks.torch_plugin": "arraycomm_torch", "arraycomm.frameworks.jax_plugin": "arraycomm_jax"}


def packages() -> list[str]:
    """The package names for setuptools. pyproject.toml maps the folders of the packages that lie elsewhere."""
    found = find_packages(include=[pattern for folder in PLACES for pattern in (folder, f"{folder}.*")])
    names = []
    for package in found:
        top, dot, rest = package.partition(".")
        name = PLACES[top] + dot + rest
        names.append(ELSEWHERE.get(name, name))
    return sorted(names)
