"""The C API from a program in C (c_api.c), which Python calls by ctypes:

    .venv/bin/arraycomm-run -n 4 examples/c_api.py

Python opens the group and gives its handle; from there on C needs neither Python nor the interpreter's lock.
"""

import ctypes
import subprocess
import tempfile
from pathlib import Path

import numpy as np

import arraycomm


def compiled(folder: str) -> ctypes.CDLL:
    library = f"{folder}/c_api.so"
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", f"-I{arraycomm.get_include()}", str(Path(__file__).with_suffix(".c")), "-lm",
                    "-o", library], check=True)
    return ctypes.CDLL(library)


with arraycomm.init() as group, tempfile.TemporaryDirectory() as folder:
    ring = compiled(folder)
    assert ring.ring_open(arraycomm.get_library().encode()) == 0
    x = np.zeros(10)
    x[1:-1] = np.sin(np.pi * (np.arange(8) + 8 * group.rank)) + group.rank
    text = ctypes.create_string_buffer(500)
    steps = ring.ring_smooth(ctypes.c_int64(group.handle()), ctypes.c_void_p(x.ctypes.data), 8, ctypes.c_double(1e-6), text, 500)
    assert steps > 0, text.value.decode()
    mean = group.all_reduce(x[1:-1].copy(), op="avg").mean()
    assert np.allclose(x[1:-1], mean, atol=1e-3)
    if group.rank == 0:
        print(f"{steps} steps, every number is {mean:.3f}")
