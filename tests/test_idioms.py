"""The tables of docs/guide/from-mpi4py.md: complete, and what they name is there."""

from __future__ import annotations

import ast
import importlib.util
import re
from pathlib import Path

import pytest

import arraycomm
from arraycomm import dist2

PAGE = (Path(__file__).resolve().parents[1] / "docs/guide/from-mpi4py.md").read_text().partition("\n## Call by call\n")[2]
CLASSES = ("Comm", "Intracomm", "Topocomm", "Cartcomm", "Intercomm", "Request", "Prequest", "Grequest", "Message", "Op", "Group",
           "Win")
# Of handles, which are Python's objects here; and of a call in the tables, for several partitions.
HANDLES = re.compile(r"(Get|Set)_(attr|info|name|group|size|rank|dim|errhandler|topology|remote_group|remote_size)|Delete_attr|"
                     r"(Create|Free)_keyval|(Create|Call)_errhandler|Create_from_session_pset|(from|to)\w+|free|f2py|py2f|"
                     r"Pready_\w+|Intersect")


def methods() -> set[str]:
    """Of mpi4py's classes for communication, in one spelling: Iallreduce, Allreduce_init and allreduce are Allreduce."""
    spec = importlib.util.find_spec("mpi4py")
    if spec is None or spec.origin is None:
        pytest.skip("mpi4py is not installed")
    stub = ast.parse((Path(spec.origin).parent / "MPI.pyi").read_text())
    return {method.name for node in stub.body if isinstance(node, ast.ClassDef) and node.name in CLASSES
            for method in node.body if isinstance(method, ast.FunctionDef) and not method.name.startswith("_")}


def plain(name: str, known: set[str]) -> str:
    name = name.removesuffix("_init").removesuffix("_with_info")
    upper = name[:1].upper() + name[1:]
    blocking = upper[1:2].upper() + upper[2:]
    return blocking if upper.startswith("I") and blocking in known else upper


def test_every_method_is_in_the_tables() -> None:
    found = methods()
    named = set(re.findall(r"\w+", " ".join(re.findall(r"`[^`]*`", PAGE))))
    named = {plain(name, found) for name in named}
    missing = {plain(name, found) for name in found if not HANDLES.fullmatch(name)} - named
    assert len(found) > 200 and not missing, sorted(missing)


def test_what_stands_there_instead_is_there() -> None:
    cart = type(arraycomm.run(lambda group: group.cart([1]), 1)[0])
    owners = {"group": arraycomm.Group, "cart": cart, "work": arraycomm.Work, "arraycomm": arraycomm, "window": dist2.Window}
    calls = set(re.findall(r"\b(group|cart|work|arraycomm|window)\.(\w+)\(", PAGE))
    assert len(calls) > 25 and not [(owner, name) for owner, name in calls if not hasattr(owners[owner], name)]
