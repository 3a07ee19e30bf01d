"""What a docstring of a public name has to say. `python -m tests.docstrings` prints how many say it, and how many examples run.

A name is public if a module's `__all__` has it; the members of its classes are public too, unless they begin with "_".
"""

from __future__ import annotations

import ast
import doctest
import importlib
import importlib.util
import inspect
import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import arraycomm

from . import reference_pages

MODULES = ("arraycomm", "arraycomm.distributed", "arraycomm.dist2", "arraycomm.frameworks.jax", "arraycomm.frameworks.torch",
           "arraycomm.frameworks.ray")
CONSTANTS = {"arraycomm.ANY_TAG", "arraycomm.distributed.default_pg_timeout"}  # they stand in a page's text
RANKS = "On each of two ranks:"  # above an example that needs a default group of arraycomm.distributed
_STUB = Path(arraycomm.__file__).with_name("_engine.pyi")
_ARRAYS = ("Shapes", "Dtypes", "Memory")
_CALL = ("Blocks", "Errors")
_ALGORITHM = {"all_reduce", "reduce", "reduce_scatter", "scan", "exscan", "broadcast", "all_gather", "gather", "scatter",
              "all_to_all", "barrier", "all_gather_single", "reduce_scatter_single", "all_to_all_single",
              "all_gather_into_tensor", "reduce_scatter_tensor", "all_reduce_coalesced", "all_gather_coalesced",
              "monitored_barrier"}
_COMMUNICATING = ("Collectives", "Older names", "Objects", "Messages")  # sections of arraycomm.distributed
_EMPTY = {"the", "a", "an", "of", "and", "or", "is", "are", "it", "to", "in", "for", "as", "any", "none", "yes", "no", "see"}


class Name(NamedTuple):
    """One public name. member: of the class `name`, or ""."""

    owner: str
    name: str
    section: str
    member: str = ""

    def __str__(self) -> str:
        return ".".join(filter(None, (self.owner, self.name, self.member)))


def is_there(owner: str) -> bool:
    """Whether the library is installed that a module of arraycomm.frameworks needs."""
    return ".frameworks." not in owner or importlib.util.find_spec(owner.rpartition(".")[2]) is not None


def names() -> Iterator[Name]:
    for page in reference_pages.PAGES.values():
        for section in page.sections:
            for name in section.names.split():
                yield Name(section.owner, name, section.title)


def _documented(cls: type) -> dict[str, Any]:
    """The class's methods and properties that this package has written."""
    found = {}
    for name in dir(cls):
        value = inspect.getattr_static(cls, name)
        function = inspect.unwrap(getattr(value, "fget", None) or getattr(value, "__func__", value))
        if not name.startswith("_") and inspect.isfunction(function) and function.__module__.startswith("arraycomm."):
            found[name] = value
    return found


def members() -> Iterator[Name]:
    """Those of classes, each once: a subclass that inherits one does not repeat it."""
    seen = set()
    for name in names():
        value = found(name) if is_there(name.owner) else None
        if not inspect.isclass(value) or issubclass(value, BaseException) or value is arraycomm.Group:
            continue  # Group's methods have names of their own
        for member, static in _documented(value).items():
            if static not in seen:
                seen.add(static)
                yield name._replace(member=member)


def found(name: Name) -> Any:
    """The object; for dist.reduce_op, which passes for a class of torch's, its own class."""
    value = reference_pages.found(name.owner, name.name)
    if type(value).__name__ == "_DeprecatedReduceOp":
        return type(value)
    if not name.member:
        return value
    static = inspect.getattr_static(value, name.member)
    return static if isinstance(static, property) else getattr(value, name.member)


def docstring(value: Any) -> str:
    """Work's stands in the stub: C code has the first lines only."""
    name = getattr(value, "__qualname__", "")
    if name.split(".")[0] != "Work" or "arraycomm.distributed" in (getattr(value, "__module__", "") or ""):
        return inspect.getdoc(value) or ""
    nodes: Any = next(node for node in ast.parse(_STUB.read_text()).body if getattr(node, "name", "") == "Work")
    for part in name.split(".")[1:]:
        nodes = next(node for node in nodes.body if getattr(node, "name", "") == part)
    return ast.get_docstring(nodes) or ""


def text_of(name: Name) -> str:
    """A member's docstring, or that of the class that its class overrides it from."""
    if not name.member:
        return docstring(found(name))
    texts = [docstring(vars(cls)[name.member]) if isinstance(vars(cls)[name.member], property) else
             docstring(getattr(cls, name.member)) for cls in found(name._replace(member="")).__mro__ if name.member in vars(cls)]
    return next(filter(None, texts), "")


def fields(text: str) -> dict[str, str]:
    """The items "- Name: text" of a docstring."""
    return {name: " ".join(said.split()) for name, said in
            re.findall(r"^- ([A-Z]\w+): (.*?)(?=^- |^\S|\n\n|\Z)", text, re.MULTILINE | re.DOTALL)}


def named_parameters(value: Any) -> set[str]:
    """Without text, which may be called x as well."""
    try:
        return {name for name, about in inspect.signature(value).parameters.items() if about.annotation != "str"}
    except ValueError:  # C code
        return set(re.findall(r"\w+(?==)", (value.__doc__ or "").partition("\n")[0]))


def _takes_arrays(parameters: set[str]) -> bool:
    return any(name in ("x", "out", "like", "output", "input", "outputs", "inputs") or "tensor" in name for name in parameters)


def expected(value: Any, section: str = "", *, member: bool = False) -> set[str]:
    """Of an error's class: when it comes, and what may be done. Of others what their parameters call for."""
    if inspect.isclass(value) and issubclass(value, BaseException):
        return {"Raised", "Afterwards"}
    parameters = set() if isinstance(value, property) or inspect.isclass(value) else named_parameters(value)
    found = set(_CALL)
    if _takes_arrays(parameters):
        found.update(_ARRAYS)
    if "timeout" in parameters or (section in _COMMUNICATING and "group" in parameters):
        found.add("Timeout")
    return found | ({"Algorithm"} if not member and getattr(value, "__name__", "") in _ALGORITHM else set())


def says_nothing(field: str, text: str, name: str) -> bool:
    """Whether the text has nothing beyond the names of the field and of the call."""
    def words(said: str) -> set[str]:
        return {word.rstrip("s") for word in re.findall("[a-z]+", said.lower())}

    return not words(text) - words(f"{field} {name}") - words(" ".join(_EMPTY))


def problems(name: str, text: str, wanted: set[str], example: bool) -> list[str]:
    given = fields(text)
    return [*(f"{name} does not say: {field}" for field in sorted(wanted - given.keys())),
            *(f"{name}: {field} says nothing" for field, said in given.items() if says_nothing(field, said, name)),
            *([] if example else [f"{name} has no example"])]


def problems_of(name: Name) -> list[str]:
    """A member's example may stand in the docstring of its class, or of another class that has it from the same base."""
    value, text = found(name), text_of(name)
    example = ">>>" in text or (bool(name.member) and any(
        re.search(rf"\.{name.member}\b", shown) for shown in _class_examples(found(name._replace(member="")), name.member)))
    return problems(str(name), text, expected(value, name.section, member=bool(name.member)), example)


def _first(cls: type, member: str) -> type | None:
    """The base that defines the member before all others."""
    return next((base for base in reversed(cls.__mro__) if member in vars(base)), None)


def _class_examples(cls: type, member: str) -> Iterator[str]:
    for name in names():
        other = found(name) if is_there(name.owner) else None
        if inspect.isclass(other) and _first(other, member) is _first(cls, member):
            yield docstring(other).partition("Examples:")[2]


def example(name: Name) -> doctest.DocTest:
    known = {"arraycomm": arraycomm, "np": np, "timedelta": timedelta, "dist": importlib.import_module("arraycomm.distributed"),
             "dist2": importlib.import_module("arraycomm.dist2")}
    if name.owner.endswith("jax"):
        known.update(comm=reference_pages.found("arraycomm.frameworks", "jax"), jax=importlib.import_module("jax"),
                     jnp=importlib.import_module("jax.numpy"))
    return doctest.DocTestParser().get_doctest(text_of(name), known, str(name), None, None)


def failure(name: Name) -> str:
    """What is wrong with the example, run here."""
    printed: list[str] = []
    doctest.DocTestRunner(verbose=False, optionflags=doctest.ELLIPSIS).run(example(name), out=printed.append)
    return "".join(printed)


def main() -> None:
    everything = [name for name in (*names(), *members()) if is_there(name.owner)]
    wrong = [text for name in everything for text in problems_of(name)]
    print("\n".join(wrong))
    bad = sum(bool(problems_of(name)) for name in everything)
    for module in MODULES:
        mine = [name for name in everything if name.owner.startswith(module) and
                not any(name.owner.startswith(other) for other in MODULES if len(other) > len(module))]
        print(f"{module}: {sum(not name.member for name in mine)} names, {sum(bool(name.member) for name in mine)} members")
    print(f"{len(everything) - bad} of {len(everything)} public names have all fields "
          f"({100 * (len(everything) - bad) / len(everything):.1f} %)")
    tests = [example(name) for name in everything]
    shown = [len(test.examples) for test in tests if test.examples]
    print(f"{len(shown)} docstrings have examples, of {sum(shown)} statements")


if __name__ == "__main__":
    main()
