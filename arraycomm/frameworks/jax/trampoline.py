"""MPItrampoline, a part of jaxlib, loads MPI's functions from the library that MPITRAMPOLINE_LIB names.

It reads the variable when jaxlib is loaded, before most programs select these collectives, and sets a flag. To make it read the
variable again, the flag is reset and the function called; both are found by the symbol table of jaxlib's file.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
from collections.abc import Iterator

import arraycomm._engine as engine

_VARIABLE = "MPITRAMPOLINE_LIB"
_FUNCTION, _NOTE = b"mpitrampoline_init", b"did_init_mpitrampoline"
_SYMTAB = 2  # a section's type
_SYMBOL = struct.Struct("<IBBHQQ")


def use() -> None:
    """Makes the engine jaxlib's "mpi" implementation. RuntimeError if that is no longer possible."""
    before = os.environ.get(_VARIABLE)
    os.environ[_VARIABLE] = engine.__file__
    if engine.lib.acomm_mpi_used():
        return
    if before not in (None, engine.__file__):
        raise RuntimeError(f"jaxlib was loaded with {_VARIABLE}={before}: unset it to run JAX's collectives over arraycomm")
    path, base = _loaded()
    function, note = _addresses(path, _FUNCTION, _NOTE)
    if not function or not note:
        raise RuntimeError(f"jaxlib was loaded before {_VARIABLE} was set, and has no symbols by which to set it now: start with "
                           f"arraycomm-run --jax, or set {_VARIABLE}={engine.__file__} before Python starts")
    ctypes.c_bool.from_address(base + note).value = False
    ctypes.CFUNCTYPE(None)(base + function)()
    if not engine.lib.acomm_mpi_used():
        raise RuntimeError(f"jaxlib has not taken MPI's functions from {_VARIABLE}={engine.__file__}")


def _loaded() -> tuple[str, int]:
    """The path of jaxlib's library, and its load address."""
    with open("/proc/self/maps") as maps:
        for line in maps:
            address, _, offset, _, _, *path = line.split(maxsplit=5)
            if path and int(offset, 16) == 0 and os.path.basename(path[0].strip()).startswith("libjax_common."):
                return path[0].strip(), int(address.partition("-")[0], 16)
    raise RuntimeError("jaxlib has no libjax_common.so here, in which its MPI collectives are: docs/guide/jax.md names the "
                       "versions that do")


def _addresses(path: str, *symbols: bytes) -> list[int]:
    """The addresses of these symbols in a 64-bit library; 0 if the library is stripped."""
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        sections = list(_sections(data))
        for kind, start, size, link in sections:
            if kind == _SYMTAB:
                _, names, length, _ = sections[link]
                return [_address(data, start, start + size, data.find(b"\0" + symbol + b"\0", names, names + length) + 1 - names)
                        for symbol in symbols]
    return [0] * len(symbols)


def _sections(data: mmap.mmap) -> Iterator[tuple[int, int, int, int]]:
    """type, offset, size and link of each."""
    table, = struct.unpack_from("<Q", data, 0x28)
    width, count = struct.unpack_from("<HH", data, 0x3A)
    for at in range(table, table + width * count, width):
        _, kind, _, _, offset, size, link = struct.unpack_from("<IIQQQQI", data, at)
        yield kind, offset, size, link


def _address(data: mmap.mmap, start: int, end: int, name: int) -> int:
    """The address of the symbol whose name has this offset in the string table; 0 if there is none."""
    if name <= 0:
        return 0
    wanted, at = struct.pack("<I", name), start
    while (at := data.find(wanted, at, end)) >= 0:
        if (at - start) % _SYMBOL.size == 0:
            return int(_SYMBOL.unpack_from(data, at)[4])
        at += 1
    return 0
