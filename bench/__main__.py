"""arraycomm-bench: measures collectives on this machine, or runs one of its subcommands."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from arraycomm.core.base.command import command

# The subcommands: each is the module of the same name, with its own options.
SUBCOMMANDS = {
    "compare": "compares arraycomm with MPI, gloo, MLX, JAX and others, interleaved; prints ratios",
    "tune": "measures the fastest algorithm for each size; writes a file for ARRAYCOMM_TUNING",
}


@command
def main(arguments: list[str] | None = None) -> int:
    """The exit code: 0, 1 for a wrong value or a failed rank, 2 for an invalid command line or a missing library."""
    given = sys.argv[1:] if arguments is None else arguments
    try:
        if given[:1] and given[0] in SUBCOMMANDS:
            return int(_module(given[0]).main(given[1:]))
        return int(_module("ranks").run(_module("options").parse(given, SUBCOMMANDS)))
    except ModuleNotFoundError as error:
        remedy = "; pip install numpy" if error.name == "numpy" else ""
        print(f"arraycomm-bench: {error}{remedy}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(file=sys.stderr)  # the prompt goes below ^C
        return 130


def _module(name: str) -> Any:
    # Imported on demand, so that a missing NumPy is reported in one sentence.
    return importlib.import_module(f"{__package__}.{name}")


if __name__ == "__main__":
    sys.exit(main())
