"""The order of collectives in compiled programs: an ordered effect, whose tokens JAX threads through jit and control flow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax._src import effects
from jax._src.dispatch import RuntimeTokenSet, runtime_tokens
from jax._src.interpreters.pxla import MeshExecutable

from arraycomm.core.base.log import log


class Collectives(effects.Effect):
    """The effect of every operation between ranks: it runs exactly once, in program order."""

    def __str__(self) -> str:
        return "arraycomm"

    def __hash__(self) -> int:
        return 0x6172726179  # equal in all processes: it is part of the cache keys of compiled programs

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Collectives)


EFFECT = Collectives()

for _allowed in (effects.lowerable_effects, effects.ordered_effects, effects.control_flow_allowed_effects,
                 effects.custom_derivatives_allowed_effects, effects.remat_allowed_effects):
    _allowed.add_type(Collectives)


def quick(given: Callable[..., Any]) -> Callable[..., Any]:
    """A fast path for tokens. JAX moves a token to the program's device in each call, in Python, which takes as long as the rest
    of the call. If the last program ran on the same device, the token is already there and is passed unchanged. given: JAX's
    own function, used for all other tokens, and permanently if this version of JAX has other tokens."""
    known = True

    def get_token_input(self: RuntimeTokenSet, eff: effects.Effect, devices: Any) -> Any:
        nonlocal known
        if not known or eff is not EFFECT or len(devices) != 1:
            return given(self, eff, devices)
        try:
            token = self.current_tokens.get(eff)
            there = token is not None and token._buf.sharding._device_assignment == tuple(devices)
        except AttributeError as error:
            known = there = False
            log().warning("this version of JAX has other tokens (%s): programs of jax.jit with collectives take longer to start; "
                          "arraycomm.frameworks.jax.jit does not need them", error)
        return token if there else given(self, eff, devices)

    return get_token_input


RuntimeTokenSet.get_token_input = quick(RuntimeTokenSet.get_token_input)


def complete(given: Callable[..., Any]) -> Callable[..., Any]:
    """For a program compiled ahead of time (`lower().compile()`) JAX's C++ handles the calls from the second on, without tokens
    of ordered effects: JAX checks only for other effects. Programs with collectives stay in Python."""

    def create_cpp_call(self: MeshExecutable, *arguments: Any) -> Any:
        return None if EFFECT in getattr(self.unsafe_call, "ordered_effects", ()) else given(self, *arguments)

    return create_cpp_call


MeshExecutable.create_cpp_call = complete(MeshExecutable.create_cpp_call)


def settle() -> None:
    """Waits until the programs that this thread has started have done their collectives. Raises their errors."""
    token = runtime_tokens.current_tokens.get(EFFECT)
    if token is not None:
        token.block_until_ready()


def forget_failed() -> None:
    """Drops failed programs' tokens, whose errors JAX would raise again at exit. Waits for other programs, as JAX does."""
    for tokens in (runtime_tokens.current_tokens, runtime_tokens.output_runtime_tokens):
        for key, token in list(tokens.items()):
            try:
                token.block_until_ready()
            except (jax.errors.JaxRuntimeError, ValueError):  # already reported
                del tokens[key]


def forget() -> None:
    """No later program waits for an earlier one."""
    runtime_tokens.current_tokens.pop(EFFECT, None)
