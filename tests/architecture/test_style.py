"""Files and functions stay small: 500 lines a file, 60 a function, and a median function of at most 12."""

from __future__ import annotations

import ast
import re
import statistics
from collections.abc import Iterator
from pathlib import Path

import pytest

from .test_layers import MODULES, ROOT

FILE_LINES, FUNCTION_LINES, MEDIAN_LINES = 500, 60, 12
C_FOLDERS = ("backends/engine", "backends/mpi/engine", "arraycomm/core/native", "arraycomm/frameworks/native")
NOT_INSTALLED = ("cffi_build", "tests")


def c_files() -> list[Path]:
    return sorted(path for folder in C_FOLDERS for path in (ROOT / folder).rglob("*.[ch]"))


def python_files() -> list[Path]:
    return [*MODULES.values(), *sorted(path for folder in NOT_INSTALLED for path in (ROOT / folder).rglob("*.py"))]


def c_tests() -> list[Path]:
    return sorted((ROOT / "tests").rglob("*.[ch]"))


def python_functions(path: Path) -> Iterator[tuple[str, int]]:
    """(name, lines) without the docstring: documentation is not what makes a function long."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            documented = ast.get_docstring(node) is not None and len(node.body) > 1
            first = node.body[1].lineno if documented else node.body[0].lineno
            yield f"{path.relative_to(ROOT)}: {node.name}", (node.end_lineno or node.lineno) - first + 1


def c_functions(path: Path) -> Iterator[tuple[str, int]]:
    """By the layout of the code: a body is what stands between a brace in the first column and its partner."""
    start, name = 0, ""
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if found := re.match(r"[A-Za-z_].*?(\w+)\(", line):
            name = found[1]
        if line.startswith("{") and not line.startswith("{}"):
            start = number
        elif line.startswith("}") and start:
            if not line.rstrip().endswith(";"):
                yield f"{path.relative_to(ROOT)}: {name}", number - start - 1
            start = 0


@pytest.mark.parametrize("path", [*python_files(), *c_files(), *c_tests()], ids=lambda path: str(path.relative_to(ROOT)))
def test_files_are_short(path: Path) -> None:
    lines = len(path.read_text().splitlines())
    assert lines <= FILE_LINES, f"{lines} lines: split it by what it is about"


def test_c_files_have_a_caption() -> None:
    assert not [str(path.relative_to(ROOT)) for path in c_files() if not path.read_text().startswith("/*")]


def test_static_functions_carry_their_noun() -> None:
    """A search, a debugger and a profile find one function of a name."""
    homes: dict[str, set[str]] = {}
    for path in c_files():
        for name in re.findall(r"^static (?!__)[\w *]*?(?!__)(\w+)\(", path.read_text(), re.MULTILINE):
            homes.setdefault(name, set()).add(str(path.relative_to(ROOT)))
    assert len(homes) > 500 and not {name: files for name, files in homes.items() if len(files) > 1}


def test_functions_are_short() -> None:
    found = [function for path in python_files() for function in python_functions(path)]
    found += [function for path in [*c_files(), *c_tests()] for function in c_functions(path)]
    long = [f"{name}: {lines} lines" for name, lines in found if lines > FUNCTION_LINES]
    assert len(found) > 100 and not long, "\n".join(long)
    assert statistics.median(lines for _, lines in found) <= MEDIAN_LINES


def test_no_loose_ends() -> None:
    """Nothing unfinished and no silent failure is committed."""
    words = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
    wrong = [f"{path.relative_to(ROOT)}:{number}: {line.strip()}" for path in [*MODULES.values(), *c_files()]
             for number, line in enumerate(path.read_text().splitlines(), 1) if words.search(line)]
    for path in MODULES.values():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ExceptHandler) and all(isinstance(step, ast.Pass) for step in node.body):
                wrong.append(f"{path.relative_to(ROOT)}:{node.lineno}: an exception is dropped silently")
    assert not wrong, "\n".join(wrong)


def test_documents_name_files_that_are_there() -> None:
    """Paths, however short: `core/native/reader/view.c`, `link/tcp.c`."""
    files = [*python_files(), *c_files(), *c_tests(), *(ROOT / "examples").iterdir(), *(ROOT / "arraycomm").glob("*/*.*"),
             *(ROOT / "docs/guide/recipes").iterdir()]
    paths = "\n".join(f"/{path.relative_to(ROOT)}" for path in files) + "\n"
    pages = [page for page in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("[!l]*/*.md")] if page.name != "CHANGELOG.md"]
    named = [(page.name, path) for page in pages
             for path in re.findall(r"(?<![\w/.-])((?:[\w-]+/)+[\w-]+\.(?:py|c|h|def|html))\b", page.read_text())]
    missing = {(page, path) for page, path in named if f"/{path}\n" not in paths}
    assert len(named) > 20 and missing <= {("design.md", "collectives/links/broadcast_star.c")}, missing  # to be written
