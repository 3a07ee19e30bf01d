"""jit() takes jax.jit's options."""

from __future__ import annotations

from .conftest import Programs


def test_options(pair: Programs) -> None:
    pair.run("programs.jit_options")
