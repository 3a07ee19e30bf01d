"""`python -m arraycomm_jax [-m] program arguments`: runs a Python program whose jax.distributed.initialize() needs no arguments.

`arraycomm-run --jax` uses it. JAX detects the processes by its cluster classes; one of arraycomm's is added when the program
imports jax, so environment variables that the program sets before that are respected.
"""

from __future__ import annotations

import importlib.util
import os
import runpy
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class _AfterJax(MetaPathFinder):
    """An import hook: finds jax through the other finders, and imports cpu_collectives after it."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != "jax":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def and_ours(module: ModuleType) -> None:
                execute(module)
                importlib.import_module("arraycomm.frameworks.jax.cpu_collectives")

            spec.loader.exec_module = and_ours  # type: ignore[method-assign]
        return spec


def _run(arguments: list[str]) -> None:
    sys.meta_path.insert(0, _AfterJax())
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        if not getattr(sys.flags, "safe_path", False):
            sys.path[0] = os.path.dirname(os.path.realpath(arguments[0]))
        runpy.run_path(arguments[0], run_name="__main__")


_run(sys.argv[1:])
