"""The tokens that JAX carries from program to program."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("jax")

from arraycomm.frameworks.jax.effect import EFFECT, quick


def _tokens(**about: Any) -> Any:
    return SimpleNamespace(current_tokens={EFFECT: SimpleNamespace(**about)})


def test_a_token_on_its_device_stays_there() -> None:
    take = quick(lambda self, eff, devices: "moved")
    here = _tokens(_buf=SimpleNamespace(sharding=SimpleNamespace(_device_assignment=("a",))))
    assert take(here, EFFECT, ["a"]) is here.current_tokens[EFFECT]
    assert [take(here, EFFECT, devices) for devices in (["b"], ["a", "b"])] == ["moved", "moved"]
    assert take(here, "another effect", ["a"]) == "moved" and take(SimpleNamespace(current_tokens={}), EFFECT, ["a"]) == "moved"


def test_tokens_of_another_jax_go_its_own_way(caplog: pytest.LogCaptureFixture) -> None:
    take = quick(lambda self, eff, devices: "moved")
    with caplog.at_level(logging.WARNING):
        assert [take(_tokens(), EFFECT, ["a"]) for _ in range(3)] == ["moved"] * 3
    assert len(caplog.records) == 1 and "_buf" in caplog.text
