"""The cffi side of the engine: its public headers are the single source of the declarations."""

from __future__ import annotations

import hashlib
import re
import runpy
from pathlib import Path

from cffi import FFI

from cffi_build import ROOT

FOLDERS = (ROOT / "arraycomm" / "include", *sorted((ROOT / "backends").glob("**/engine")),
           *sorted((ROOT / "arraycomm").glob("**/native")))
INTERFACE = runpy.run_path(str(ROOT / "arraycomm" / "core" / "interface" / "declarations.py"))
OPERATIONS, *HEADERS = [ROOT / name for name in INTERFACE["HEADERS"]]
MODULE = "arraycomm._engine"
# Python callbacks of the engine, called from threads without the GIL: see arraycomm/frameworks/native/mpi_calls.c.
CALLED = 'extern "Python+C" int64_t acomm_mpi_join(int32_t *devices, int size, int rank, char *text);'


def declarations() -> str:
    """The public headers as cffi's parser takes them: without preprocessor lines, of which one stands for the kinds."""
    kinds = re.findall(r"^OPERATION\((\w+)", OPERATIONS.read_text(encoding="utf-8"), re.MULTILINE)
    text = "\n".join(header.read_text(encoding="utf-8") for header in HEADERS)
    text = text.replace('#include "operations.def"', "".join(f"ACOMM_{kind}, " for kind in kinds))
    return "\n".join(line for line in text.splitlines() if not line.startswith("#"))


def generate(target: Path) -> None:
    """Writes the C source of the cffi module. An unchanged file keeps its mtime, so that it is not recompiled."""
    ffi = FFI()
    ffi.cdef(f"{declarations()}\n#define ACOMM_INTERFACE ...\n{CALLED}\n")
    # The init function is in native/module.c: it calls cffi's init function and adds the functions that read arrays.
    ffi.set_source(MODULE, '#define PyInit__engine engine_cffi_init\n'
                   f"#define ACOMM_INTERFACE {INTERFACE['interface'](str(ROOT / 'arraycomm'), hashlib.sha256):#x}LL\n"
                   '#include "acomm_mpi.h"\n#include "acomm_xla.h"')
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = target.with_suffix(".new")
    ffi.emit_c_code(str(fresh))
    if target.exists() and target.read_bytes() == fresh.read_bytes():
        fresh.unlink()
    else:
        fresh.replace(target)


def sources() -> list[Path]:
    """The hand-written C files: the engine's, the MPI backend's, those that turn Python's arrays into buffers, and the
    frameworks'."""
    return [path for folder in FOLDERS for path in sorted(folder.rglob("*.c"))]


def headers() -> list[Path]:
    return [path for folder in FOLDERS for suffix in ("*.h", "*.def") for path in sorted(folder.rglob(suffix))]
