"""How much code there is outside tests/, in every language, without blanks, comments and docstrings: it must not grow."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from .test_layers import ROOT

LINES = 42_210  # it only goes down
FOLDERS = ("arraycomm", "backends", "bench", "cffi_build", "examples")
_COMMENTS = re.compile(r"//[^\n]*|/\*.*?\*/|<!--.*?-->", re.DOTALL)


def python_lines(text: str) -> int:
    """Without strings that are statements of their own, as docstrings are."""
    documents: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            documents.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return sum(number not in documents and not line.isspace() and bool(line) and not line.lstrip().startswith("#")
               for number, line in enumerate(text.splitlines(), 1))


def other_lines(text: str) -> int:
    text = _COMMENTS.sub(lambda found: "\n" * found[0].count("\n"), text)
    return sum(bool(line.strip()) for line in text.splitlines())


COUNTS = {".py": python_lines, ".pyi": python_lines, ".c": other_lines, ".h": other_lines, ".def": other_lines,
          ".html": other_lines}


def code() -> dict[Path, int]:
    files = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*")) if path.suffix in COUNTS]
    return {path: COUNTS[path.suffix](path.read_text()) for path in files}


def test_what_is_counted() -> None:
    assert python_lines('"""Doc."""\n\nx = """a\nb"""  # why\n\n\ndef f():\n    "What."\n    # so\n    return (1,\n  2)\n') == 5
    assert other_lines('/* A\n * caption. */\n\n#include "x.h" // this\nint x; /* of\n which */ int y;\n') == 3


def test_the_code_does_not_grow() -> None:
    lines = sum(code().values())
    print(f"\n{lines} lines of code")
    assert LINES - 2_000 < lines <= LINES, f"{lines} lines: remove as much as was added"


def test_no_code_hides_under_another_name() -> None:
    rest = {path.suffix for folder in FOLDERS for path in (ROOT / folder).rglob("*")
            if path.is_file() and "__pycache__" not in path.parts and path.suffix not in COUNTS
            and path not in (ROOT / "bench" / "measured").glob("*.json")}  # times that `tune` wrote
    assert rest <= {".so", ".typed", ".ipynb"}, "count it"
