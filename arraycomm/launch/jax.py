"""`arraycomm-run --jax`: JAX's own collectives between the ranks run over arraycomm, in programs that say nothing of it."""

from __future__ import annotations

import argparse

import arraycomm._engine as engine

from .environ import Place
from .job import Extras, launch


class _Ranks(Extras):
    runner = "arraycomm_jax"

    def variables(self, place: Place, attempt: int) -> dict[str, str]:
        return {"ARRAYCOMM_JAX": "1", "MPITRAMPOLINE_LIB": engine.__file__}


def launch_jax(options: argparse.Namespace) -> int:
    """As launch(). A Python program learns from JAX itself which processes there are (see arraycomm_jax); any other has the
    variables alone."""
    return launch(options, _Ranks())
