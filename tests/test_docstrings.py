"""Every public name has a docstring that answers a user's questions, with an example that runs over ranks that are threads."""

from __future__ import annotations

import ast
import doctest
import importlib
import inspect
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import arraycomm

from . import reference_pages

_PAGES = ("group.md", "work.md", "start.md", "types.md", "errors.md", "jax.md", "torch.md")
NAMES = [(section.owner, name) for page in _PAGES for section in reference_pages.PAGES[page].sections
         for name in section.names.split()]
_STUB = Path(arraycomm.__file__).with_name("_engine.pyi")
_ARRAYS = ("Shapes", "Dtypes", "Memory")
_CALL = ("Blocks", "Errors")
_ALGORITHM = ("all_reduce", "reduce", "reduce_scatter", "scan", "exscan", "broadcast", "all_gather", "gather", "scatter",
              "all_to_all", "barrier")
_EMPTY = {"the", "a", "an", "of", "and", "or", "is", "are", "it", "to", "in", "for", "as", "any", "none", "yes", "no", "see"}


def fields(text: str) -> dict[str, str]:
    """The items "- Name: text" of a docstring."""
    return {name: " ".join(said.split()) for name, said in
            re.findall(r"^- ([A-Z]\w+): (.*?)(?=^- |^\S|\n\n|\Z)", text, re.MULTILINE | re.DOTALL)}


def found(owner: str, name: str) -> Any:
    if ".frameworks." in owner:
        pytest.importorskip(owner.rpartition(".")[2])
    return reference_pages.found(owner, name)


def docstring(value: Any) -> str:
    """Work's stands in the stub: C code has the first lines only."""
    name = getattr(value, "__qualname__", "")
    if name.split(".")[0] != "Work":
        return inspect.getdoc(value) or ""
    nodes: Any = next(node for node in ast.parse(_STUB.read_text()).body if getattr(node, "name", "") == "Work")
    for part in name.split(".")[1:]:
        nodes = next(node for node in nodes.body if getattr(node, "name", "") == part)
    return ast.get_docstring(nodes) or ""


def named_parameters(value: Any) -> set[str]:
    try:
        return set(inspect.signature(value).parameters)
    except ValueError:  # C code
        return set(re.findall(r"\w+(?==)", (value.__doc__ or "").partition("\n")[0]))


def expected(value: Any) -> set[str]:
    """Of an error's class: when it comes, and what may be done. Of others what their parameters call for."""
    if inspect.isclass(value) and issubclass(value, BaseException):
        return {"Raised", "Afterwards"}
    parameters = set() if isinstance(value, property) or inspect.isclass(value) else named_parameters(value)
    found = set(_CALL)
    if parameters & {"x", "out", "like"}:
        found.update(_ARRAYS)
    if "timeout" in parameters:
        found.add("Timeout")
    return found | ({"Algorithm"} if getattr(value, "__name__", "") in _ALGORITHM else set())


def says_nothing(field: str, text: str, name: str) -> bool:
    """Whether the text has nothing beyond the names of the field and of the call."""
    def words(said: str) -> set[str]:
        return {word.rstrip("s") for word in re.findall("[a-z]+", said.lower())}

    return not words(text) - words(f"{field} {name}") - words(" ".join(_EMPTY))


def problems(name: str, value: Any) -> list[str]:
    text = docstring(value)
    told = fields(text)
    missing = [field for field in sorted(expected(value)) if field not in told]
    return [*(f"{name} does not say: {field}" for field in missing),
            *(f"{name}: {field} says nothing" for field, said in told.items() if says_nothing(field, said, name)),
            *([] if ">>>" in text else [f"{name} has no example"])]


def test_what_is_a_problem() -> None:
    def f(x: Any, timeout: float) -> None:
        """Sums.

        - Shapes: any shape.
        - Dtypes: floats only.
        - Memory: x stays as it is.
        - Blocks: yes, it blocks until f
          has ended everywhere.
        """

    assert problems("f", f) == ["f does not say: Errors", "f does not say: Timeout", "f: Shapes says nothing", "f has no example"]
    assert fields(inspect.getdoc(f) or "")["Blocks"] == "yes, it blocks until f has ended everywhere."


def test_nothing_public_is_left_out() -> None:
    public = {name for name in dir(arraycomm.Group) if not name.startswith("_")}
    listed = {name for owner, name in NAMES if owner in ("arraycomm", "arraycomm.Group")}
    assert public <= listed and {*arraycomm.__all__} - {"ANY_TAG"} <= listed


@pytest.mark.parametrize(("owner", "name"), NAMES)
def test_a_docstring_has_all_fields(owner: str, name: str) -> None:
    wrong = problems(name, found(owner, name))
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(("owner", "name"), NAMES)
def test_examples(owner: str, name: str) -> None:
    text = docstring(found(owner, name))
    names = {"arraycomm": arraycomm, "np": np}
    if owner.endswith("jax"):
        names.update(comm=reference_pages.found("arraycomm.frameworks", "jax"), jax=importlib.import_module("jax"),
                     jnp=importlib.import_module("jax.numpy"))
    example = doctest.DocTestParser().get_doctest(text, names, name, None, None)
    runner = doctest.DocTestRunner(verbose=False, optionflags=doctest.ELLIPSIS)
    assert runner.run(example).failed == 0
