"""Every public name has a docstring that answers a user's questions, with an example that runs."""

from __future__ import annotations

import importlib
import inspect
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import arraycomm

from . import docstrings, reference_pages
from .docstrings import CONSTANTS, MODULES, RANKS, Name, expected, fields, problems, problems_of, text_of

ROOT = Path(__file__).resolve().parents[1]
NAMES = [*docstrings.names()]
MEMBERS = [*docstrings.members()]


def _needs(name: Name) -> None:
    if ".frameworks." in name.owner:
        pytest.importorskip(name.owner.rpartition(".")[2])


def test_what_is_a_problem() -> None:
    def f(x: Any, timeout: float) -> None:
        """Sums.

        - Shapes: any shape.
        - Dtypes: floats only.
        - Memory: x stays as it is.
        - Blocks: yes, it blocks until f
          has ended everywhere.
        """

    text = inspect.getdoc(f) or ""
    assert problems("f", text, expected(f), ">>>" in text) == [
        "f does not say: Errors", "f does not say: Timeout", "f: Shapes says nothing", "f has no example"]
    assert fields(text)["Blocks"] == "yes, it blocks until f has ended everywhere."


@pytest.mark.parametrize("module", MODULES)
def test_no_public_name_is_left_out(module: str) -> None:
    """A name that two modules share is on the page of the first."""
    _needs(Name(module, "", ""))
    listed = {name.name for name in NAMES if name.owner == module}
    elsewhere = {id(docstrings.found(name)) for name in NAMES if name.owner == "arraycomm.distributed" != module}
    loaded = importlib.import_module(module)
    missing = {name for name in set(loaded.__all__) - listed if id(getattr(loaded, name)) not in elsewhere}
    pages = "".join(page.text for page in reference_pages.PAGES.values())
    assert {f"{module}.{name}" for name in missing} <= CONSTANTS and all(f"`{name}`" in pages for name in missing)
    if module == "arraycomm":
        groups = {name.name for name in NAMES if name.owner == "arraycomm.Group"}
        assert {name for name in dir(arraycomm.Group) if not name.startswith("_")} <= groups


@pytest.mark.parametrize("name", [*NAMES, *MEMBERS], ids=str)
def test_a_docstring_has_all_fields(name: Name) -> None:
    _needs(name)
    wrong = problems_of(name)
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("name", [name for name in (*NAMES, *MEMBERS) if RANKS not in text_of(name)], ids=str)
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_examples(name: Name) -> None:
    _needs(name)
    assert docstrings.failure(name) == ""


@pytest.fixture(scope="module")
def of_two_ranks() -> dict[str, str]:
    """What each example that needs a default group printed, where it failed: they run in two processes, one after the other."""
    environ = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "MASTER_ADDR")}
    program = str(ROOT / "tests" / "example_ranks.py")
    done = subprocess.run([sys.executable, "-m", "arraycomm.launch", "--nproc-per-node", "2", program], capture_output=True,
                          text=True, timeout=240, env={**environ, "PYTHONPATH": str(ROOT)}, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1].removeprefix("[rank 0] "))
    return found


@pytest.mark.parametrize("name", [str(name) for name in NAMES if RANKS in text_of(name)])
def test_examples_of_two_ranks(name: str, of_two_ranks: dict[str, str]) -> None:
    assert of_two_ranks[name] == ""
