"""`python PATH/peers FILE NAME probe|DIRECTORY`: says which version of contender NAME is here, or is a rank of it.

Run by path, under the contender's own interpreter. FILE is a module of this folder or the path of another.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from types import ModuleType

_PACKAGE = "bench_peers"
_HERE = os.path.dirname(os.path.abspath(__file__))


def _package() -> None:
    """This folder as a package. Not by sys.path: there, jax.py and its like would shadow the libraries of that name."""
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != _HERE]
    _module(_PACKAGE, os.path.join(_HERE, "__init__.py"), [_HERE])


def _module(name: str, path: str, inside: list[str] | None = None) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path, submodule_search_locations=inside)
    if spec is None or spec.loader is None:
        raise ImportError(f"cannot load {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    file, contender, what = sys.argv[1:4]
    _package()
    protocol = importlib.import_module(f"{_PACKAGE}.protocol")
    if file.endswith(".py"):
        module = _module(f"{_PACKAGE}.given", file)
    else:
        module = importlib.import_module(f"{_PACKAGE}.{file}")
    if what == "probe":
        protocol.probe(module.Contender, contender)
    else:
        protocol.serve(module.Contender, what, contender)
