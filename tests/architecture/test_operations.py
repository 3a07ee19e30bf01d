"""operations.def is the one list of operations: what else names several of them is code for each, or the interface of somebody
else's library, and stands here with its reason."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from arraycomm.core.interface.kinds import COLLECTIVES, KINDS, RECORDED
from arraycomm.distributed.process_groups.hooks import _NAMES

ROOT = Path(__file__).resolve().parents[2]
FEW = 2  # more than so many are a list
REASONS = {
    "arraycomm/distributed/__init__.py": "names that it offers, torch's",
    "arraycomm/distributed/nn/functional.py": "names that it offers, torch's",
    "arraycomm/distributed/process_groups/options.py": "torch's older names",
    "arraycomm/frameworks/jax/__init__.py": "__all__",
    "arraycomm/frameworks/jax/eager.py": "a function for each; others are methods of Group",
    "backends/nccl/__init__.py": "what NCCL gained later",
}
PEERS = "bench/peers/"  # what each library offers, and its function for it


def _lists(source: str) -> Iterator[tuple[int, set[str]]]:
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, (ast.Dict, ast.Tuple, ast.List, ast.Set)):
            continue
        items = node.keys if isinstance(node, ast.Dict) else node.elts
        named = {item.value for item in items if isinstance(item, ast.Constant) and isinstance(item.value, str)} & KINDS.keys()
        if len(named) > FEW:
            yield node.lineno, named


def test_python_has_no_other_list() -> None:
    found = {}
    for top in ("arraycomm", "backends", "bench", "cffi_build"):
        for path in sorted((ROOT / top).rglob("*.py")):
            name = str(path.relative_to(ROOT))
            if lists := list(_lists(path.read_text())):
                found[name] = lists
    wrong = {name: lists for name, lists in found.items() if name not in REASONS and not name.startswith(PEERS)}
    assert not wrong, "take them from arraycomm.core.interface.kinds"
    assert REASONS.keys() <= found.keys(), "a reason without a list"


def test_c_has_no_other_list() -> None:
    """No numbers or names in braces or cases, in the rows' order or any other."""
    words = "|".join(f"ACOMM_{name.upper()}" for name in KINDS)
    for top in ("arraycomm", "backends"):
        for path in sorted([*(ROOT / top).rglob("*.c"), *(ROOT / top).rglob("*.h")]):
            for braces in re.findall(r"\{[^{};]*\}", path.read_text()):
                assert len(set(re.findall(rf"\b(?:{words})\b", braces))) <= FEW, f"{path}: {braces}"
                assert len(set(re.findall(r'"(\w+)"', braces)) & COLLECTIVES) <= FEW, f"{path}: {braces}"


def test_hooks_have_a_name_for_each() -> None:
    assert _NAMES.keys() == set(RECORDED) and len(set(_NAMES.values())) == len(KINDS)
