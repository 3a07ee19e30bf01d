"""The public headers and the pages of docs/reference about them: their names, and the examples of the pages."""

from __future__ import annotations

import re
from pathlib import Path

import arraycomm

from ..engine.compiling import COMPILER, compile_with

_PAGES = Path(__file__).resolve().parents[2] / "docs" / "reference"


def kinds() -> list[str]:
    """The names of the operations' kinds, without prefix."""
    rows = (Path(arraycomm.get_include()) / "operations.def").read_text()
    return re.findall(r"^OPERATION\((\w+)", rows, re.MULTILINE)


class Header:
    """An installed header. Attributes: source (its text), code (the same without comments)."""

    def __init__(self, name: str) -> None:
        self.source = (Path(arraycomm.get_include()) / name).read_text()
        self.code = re.sub(r"/\*.*?\*/", "", self.source, flags=re.DOTALL)

    def words(self) -> set[str]:
        """Every name that begins with ACOMM_ or acomm_."""
        return set(re.findall(r"\b(?:ACOMM|acomm)_\w+", self.code))

    def _struct(self, name: str) -> str:
        inside = self.code.partition(f"typedef struct {name} {{")[2].partition(f"}} {name};")[0]
        assert inside, name
        return inside

    def functions(self, struct: str) -> set[str]:
        """The function pointers of a struct."""
        return set(re.findall(r"\(\*(\w+)\)", self._struct(struct)))

    def fields(self, struct: str) -> set[str]:
        """All fields of a struct, function pointers among them; not the parameters of these."""
        plain = re.sub(r"\(\*\w+\)\([^)]*\)", "", self._struct(struct))
        return set(re.findall(r"(\w+)(?:\[\w+\])?(?=[,;])", plain)) | self.functions(struct)


class Page:
    """A page of docs/reference. Attributes: text."""

    def __init__(self, name: str) -> None:
        self.text = (_PAGES / name).read_text()

    def names(self) -> set[str]:
        """Every name that stands alone in backticks, outside of the examples."""
        return set(re.findall(r"`(?:enum )?(\w+)`", re.sub(r"```.*?```", "", self.text, flags=re.DOTALL)))

    def constants(self) -> set[str]:
        """Every constant of the C headers, in the examples too."""
        return set(re.findall(r"\bACOMM_\w+", self.text))

    def blocks(self, language: str) -> list[str]:
        """The examples in this language, in order."""
        return re.findall(rf"^```{language}\n(.*?)^```", self.text, re.DOTALL | re.MULTILINE)


def library(folder: Path, name: str, source: str) -> None:
    """Compiles a page's C example to a shared library in this folder."""
    (folder / f"{name}.c").write_text(source)
    compile_with([COMPILER, "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-pthread",
                  f"-I{arraycomm.get_include()}", str(folder / f"{name}.c"), "-o", str(folder / f"{name}.so")])
