"""What a release of NCCL offers, as a table of text: `python -m tests.backends.nccl.tables FOLDER > 2.x.y.txt`.

FOLDER: an unpacked wheel nvidia-nccl-cu12 (or -cu13), with nvidia/nccl/include/nccl.h and nvidia/nccl/lib/libnccl.so.2. The
wheels are hundreds of megabytes, so what was found in two of them stands beside this file. Needs a C compiler and nm.

    function NAME RETURN PARAMETERS...   i int or enum, u unsigned, z size_t, p pointer, s string, v nothing, U ncclUniqueId
    constant NAME VALUE
    struct NAME SIZE
    field STRUCT.NAME OFFSET SIZE
    symbol NAME
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
STRUCTS = ("ncclUniqueId", "ncclConfig_t")
# What nccl.h takes from CUDA's headers.
_CUDA = "typedef struct CUstream_st *cudaStream_t; typedef struct CUevent_st *cudaEvent_t;\n"
_INCLUDED = ("cuda_runtime.h", "cuda_fp16.h")
# Types that are there for some compilers only.
_ALWAYS = ("-DCUDART_VERSION=0", "-D__CUDA_BF16_TYPES_EXIST__", "-D__CUDA_FP8_TYPES_EXIST__")


def header_of(folder: Path) -> Path:
    return folder / "nvidia" / "nccl" / "include" / "nccl.h"


def symbols(folder: Path) -> list[str]:
    """The functions that the library exports."""
    path = folder / "nvidia" / "nccl" / "lib" / "libnccl.so.2"
    out = subprocess.run(["nm", "-D", "--defined-only", str(path)], capture_output=True, text=True, check=True).stdout
    names = {line.split()[-1].partition("@")[0] for line in out.splitlines()}
    return sorted(name for name in names if re.fullmatch(r"nccl[A-Z]\w*", name))


def _plain(header: Path) -> str:
    return re.sub(r"/\*.*?\*/|//[^\n]*", "", header.read_text(), flags=re.S)


def _kind(parameter: str, *, returned: bool = False) -> str:
    words = re.sub(r"\bconst\b", "", parameter).strip()
    if words in ("", "void"):
        return "v"
    if "*" in words:
        return "s" if returned and words.startswith("char") else "p"
    kind = words.split()[0]
    known = {"size_t": "z", "int": "i", "unsigned": "u", "uint64_t": "z", "ncclUniqueId": "U", "ncclComm_t": "p",
             "cudaStream_t": "p", "ncclWindow_t": "p", "uintptr_t": "p"}
    if kind in known:
        return known[kind]
    return "i" if kind.startswith("nccl") and kind.endswith("_t") else "?"


def signature(returns: str, parameters: str) -> str:
    """As in the table, of C's words."""
    kinds = [_kind(parameter) for parameter in parameters.split(",")]
    return " ".join([_kind(returns, returned=True), *kinds])


def functions(header: Path) -> list[str]:
    found = re.finditer(r"^\s*((?:const )?(?:ncclResult_t|char ?\*|void))\s+(nccl\w+)\(([^)]*)\);", _plain(header), re.M)
    return [f"function {match[2]} {signature(match[1], match[3])}" for match in found]


def _names(header: Path) -> list[str]:
    text = _plain(header)
    enums = [name for body in re.findall(r"enum \{(.*?)\}", text, re.S) for name in re.findall(r"(\w+)\s*=", body)]
    return enums + re.findall(r"^#define (NCCL_[A-Z_]+) +(?:-?\d|0x|INT_MIN)", text, re.M) + ["NCCL_VERSION_CODE"]


def _fields(header: Path, struct: str) -> list[str]:
    body = re.search(r"typedef struct\s*\w*\s*\{([^}]*)\}\s*" + struct + ";", _plain(header))
    return re.findall(r"(\w+)(?:\[\w+\])?;", body[1]) if body else []


def program(header: Path) -> str:
    """A C program that prints constants, sizes and offsets."""
    lines = [f'printf("constant {name} %lld\\n", (long long){name});' for name in dict.fromkeys(_names(header))]
    for struct in STRUCTS:
        fields = _fields(header, struct)
        if fields:
            lines.append(f'printf("struct {struct} %zu\\n", sizeof({struct}));')
        lines += [f'printf("field {struct}.{field} %zu %zu\\n", offsetof({struct}, {field}), sizeof((({struct} *)0)->{field}));'
                  for field in fields]
    return (f'#include <stdio.h>\n#include <stddef.h>\n#include "{header}"\nint main(void)\n{{\n' + "\n".join(lines) + "\n}\n")


def compiled(header: Path) -> list[str]:
    """What that program says."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for included in _INCLUDED:
            (folder / included).write_text("#pragma once\n" + (_CUDA if included == _INCLUDED[0] else ""))
        (folder / "print.c").write_text(program(header))
        subprocess.run(["cc", "-w", f"-I{folder}", *_ALWAYS, "print.c", "-o", "print"], cwd=folder, check=True)
        return subprocess.run([folder / "print"], capture_output=True, text=True, check=True).stdout.splitlines()


def table(folder: Path) -> list[str]:
    header = header_of(folder)
    return [*functions(header), *compiled(header), *(f"symbol {name}" for name in symbols(folder))]


def main(arguments: Sequence[str]) -> int:
    print("\n".join(table(Path(arguments[0]))))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
