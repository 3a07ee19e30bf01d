"""jit() takes jax.jit's options; memory of donated arguments."""

from __future__ import annotations

from .conftest import Programs


def test_options(pair: Programs) -> None:
    pair.run("programs.jit_options")


def test_donation(pair: Programs) -> None:
    pair.run("programs.donated")
