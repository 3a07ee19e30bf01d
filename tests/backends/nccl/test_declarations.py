"""What backends/nccl/declarations.py says of NCCL, against tables made of two releases (tables.py), and against the library
of this environment where there is one with its header."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cffi import FFI

from arraycomm.backends.nccl.declarations import CONFIG, CONSTANTS, FUNCTIONS, OLDEST, source, version_text

from . import tables

RELEASES = ("2.21.5", "2.32.3")


class Release:
    """A table, read."""

    def __init__(self, lines: list[str]) -> None:
        rows = [line.split() for line in lines]
        self.functions = {row[1]: " ".join(row[2:]) for row in rows if row[0] == "function"}
        self.constants = {row[1]: int(row[2]) for row in rows if row[0] == "constant"}
        self.structs = {row[1]: int(row[2]) for row in rows if row[0] == "struct"}
        self.fields = {row[1]: (int(row[2]), int(row[3])) for row in rows if row[0] == "field"}
        self.symbols = {row[1] for row in rows if row[0] == "symbol"}
        self.version = self.constants["NCCL_VERSION_CODE"]


def installed() -> Iterator[Path]:
    """Folders of installed wheels that have the header too."""
    found = importlib.util.find_spec("nvidia")
    for root in (found.submodule_search_locations or ()) if found else ():
        folder = Path(root).parent
        if tables.header_of(folder).exists():
            yield folder


@pytest.fixture(scope="module", params=[*RELEASES, *map(str, installed())])
def release(request: pytest.FixtureRequest) -> Release:
    if request.param in RELEASES:
        return Release((tables.HERE / f"{request.param}.txt").read_text().splitlines())
    return Release(tables.table(Path(request.param)))


@pytest.fixture(scope="module")
def ffi() -> Any:
    made = FFI()
    made.cdef(source())
    return made


def declared(name: str) -> str:
    """Our declaration as the table has it. Our integers stand for NCCL's pointers."""
    _, returns, parameters = FUNCTIONS[name]
    return tables.signature(returns, parameters)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(release: Release, name: str) -> None:
    since = FUNCTIONS[name][0]
    present = release.version >= since
    assert (name in release.symbols) == present, f"{name} is declared to be there since {version_text(since)}"
    if present:
        assert declared(name) == release.functions[name]


@pytest.mark.parametrize("name", CONSTANTS)
def test_constants(release: Release, name: str) -> None:
    value, since = CONSTANTS[name]
    assert (name in release.constants) == (release.version >= since)
    assert release.constants.get(name, value) == value


@pytest.mark.parametrize("struct", tables.STRUCTS)
def test_structs(release: Release, ffi: Any, struct: str) -> None:
    ours = dict(ffi.typeof(struct).fields)
    theirs = {name.partition(".")[2]: at for name, at in release.fields.items() if name.startswith(f"{struct}.")}
    both = [name for name in ours if name in theirs]
    assert {name: (ours[name].offset, ffi.sizeof(ours[name].type)) for name in both} == {name: theirs[name] for name in both}
    if struct == "ncclConfig_t":
        assert both == [name for name in ours if CONFIG.get(name, OLDEST) <= release.version]
        assert list(theirs)[: len(both)] == both, "the struct grows at its end only"
    else:
        assert set(ours) == set(theirs) and ffi.sizeof(struct) == release.structs[struct]

