"""Who may import whom: `distributed -> core <- backends`, `frameworks -> distributed, core`, `bench -> core`; core loads
nothing but the standard library and the engine, and reaches backends and frameworks by name only."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = {"arraycomm": "arraycomm", "arraycomm.backends": "backends", "arraycomm.bench": "bench"}

# Layer: what of arraycomm it may import, besides itself and the engine.
ALLOWED = {
    "arraycomm.core": set(),
    "arraycomm.core.base": set(),
    "arraycomm.core.bootstrap": {"arraycomm.core.base"},
    "arraycomm.core.arrays": {"arraycomm.core.base"},
    "arraycomm.core.interface": {"arraycomm.core.base", "arraycomm.core.arrays"},
    "arraycomm.core.group": {"arraycomm.core.base", "arraycomm.core.bootstrap", "arraycomm.core.arrays",
                             "arraycomm.core.interface"},
    "arraycomm.core.gpu": {"arraycomm.core.base", "arraycomm.core.arrays", "arraycomm.core.interface", "arraycomm.core.group"},
    "arraycomm.core.diagnostics": {"arraycomm.core.base", "arraycomm.core.arrays", "arraycomm.core.interface",
                                   "arraycomm.core.group"},
    "arraycomm.monitor": {"arraycomm.core"},
    "arraycomm.debug": {"arraycomm.monitor"},
    "arraycomm.trace": {"arraycomm.monitor"},
    "arraycomm.distributed": {"arraycomm.core", "arraycomm.monitor", "arraycomm.launch"},
    "arraycomm.dist2": {"arraycomm.distributed"},
    "arraycomm.frameworks": {"arraycomm.core", "arraycomm.distributed"},
    "arraycomm.backends": {"arraycomm.core"},
    "arraycomm.launch": {"arraycomm.core"},
    "arraycomm.bench": {"arraycomm.core", "arraycomm.launch", "arraycomm.frameworks", "arraycomm"},  # which it measures
    "arraycomm.info": {"arraycomm.core", "arraycomm.launch", "arraycomm"},
    "arraycomm": {"arraycomm.core", "arraycomm.launch"},
}
# What it may import besides inside functions, for programs that need it, and for annotations.
LATER = {
    "arraycomm.core.arrays": {"arraycomm.core.gpu", "arraycomm.core.group"},  # of a CUDA device; what a receive gives
    "arraycomm.core.interface": {"arraycomm.core.bootstrap"},
    "arraycomm.core.group": {"arraycomm.core.gpu", "arraycomm.core.diagnostics"},
}
ENGINE = "arraycomm._engine"
# Third-party packages that a layer may import, at the top of a file or inside a function.
FOREIGN: dict[str, set[str]] = {
    "arraycomm.core.base": {"cffi"},  # CUDA's runtime, bound when the first array on a GPU comes
    "arraycomm.backends": {"cffi"},  # libraries that are bound when a group asks for them
    "arraycomm.frameworks": {"numpy", "jax", "torch", "cupy", "ml_dtypes", "ray"},
    "arraycomm.bench": {"numpy", "jax", "torch", "ml_dtypes", "matplotlib", "jaxlib", "mlx", "mpi4py", "mpi4jax"},
}
STDLIB = set(sys.stdlib_module_names)


def modules() -> Iterator[tuple[str, Path]]:
    """(module name, file) of the whole package."""
    for package, folder in FOLDERS.items():
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = path.relative_to(ROOT / folder).with_suffix("").parts
            yield ".".join([package, *parts]).removesuffix(".__init__"), path


MODULES = dict(modules())


def layer(module: str) -> str:
    return max((name for name in ALLOWED if module == name or module.startswith(name + ".")), key=len)


def allowed(theirs: str, mine: str, at_once: bool) -> bool:
    names = ALLOWED[mine] | (set() if at_once else LATER.get(mine, set()))
    return theirs in {mine, ENGINE, *names} or ("arraycomm.core" in names and theirs.startswith("arraycomm.core."))


def imports(module: str, path: Path) -> Iterator[tuple[int, str, bool]]:
    """(line, absolute module, whether it is imported with this one) of every import, also those inside functions."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    tree = ast.parse(path.read_text(), str(path))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name, node in tree.body) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            up = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*up, *([node.module] if node.module else [])])
            for alias in node.names:
                full = f"{base}.{alias.name}"
                yield node.lineno, full if full in MODULES else base, node in tree.body


def test_the_layers_are_found() -> None:
    assert {layer(module) for module in MODULES} >= {"arraycomm", "arraycomm.core", "arraycomm.backends",
                                                     "arraycomm.launch"}


@pytest.mark.parametrize("module", list(MODULES))
def test_imports(module: str) -> None:
    path, mine, wrong = MODULES[module], layer(module), []
    for line, name, at_once in imports(module, path):
        top = name.partition(".")[0]
        if top == "arraycomm":
            theirs = ENGINE if name == ENGINE else layer(name)
            if not allowed(theirs, mine, at_once):
                wrong.append(f"{path.relative_to(ROOT)}:{line}: {mine} may not import {name}")
        elif top in ("backends", "bench"):
            wrong.append(f"{path.relative_to(ROOT)}:{line}: import arraycomm.{name}, or there will be two of it")
        elif top not in STDLIB and top not in FOREIGN.get(mine, set()):
            wrong.append(f"{path.relative_to(ROOT)}:{line}: {mine} may not import {name}")
    assert not wrong, "\n".join(wrong)


def test_tests_use_the_installed_names() -> None:
    wrong = [f"{path.relative_to(ROOT)}:{line}: {name}" for path in sorted((ROOT / "tests").rglob("*.py"))
             for line, name, _ in imports("tests", path) if name.partition(".")[0] in ("backends", "bench")]
    assert not wrong, "\n".join(wrong)
