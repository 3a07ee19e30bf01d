"""`python PATH/peers NAME SOCKET`: a rank of contender NAME. Run by path, under the contender's own interpreter."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys

_PACKAGE = "bench_peers"


def _load(name: str) -> object:
    """The contender's module. Not by sys.path: there, gloo.py and its like would shadow the libraries of that name."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != here]
    spec = importlib.util.spec_from_file_location(
        _PACKAGE, os.path.join(here, "__init__.py"), submodule_search_locations=[here]
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"cannot load the contenders of {here}")
    package = importlib.util.module_from_spec(spec)
    sys.modules[_PACKAGE] = package
    spec.loader.exec_module(package)
    return importlib.import_module(f"{_PACKAGE}.{name}")


if __name__ == "__main__":
    contender, path = sys.argv[1:3]
    module = _load(contender.partition("/")[0])
    importlib.import_module(f"{_PACKAGE}.protocol").serve(module.Contender, path, contender)  # type: ignore[attr-defined]
