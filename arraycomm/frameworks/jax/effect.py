"""The order of collectives in compiled programs: an ordered effect, whose tokens JAX threads through jit and control flow."""

from __future__ import annotations

from typing import Any

from jax._src import effects
from jax._src.dispatch import RuntimeTokenSet, runtime_tokens


class Collectives(effects.Effect):
    """What every operation between ranks has: it takes place, once, in program order."""

    def __str__(self) -> str:
        return "arraycomm"

    def __hash__(self) -> int:
        return 0x6172726179  # alike in all processes: it is part of the keys of compiled programs

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Collectives)


EFFECT = Collectives()

for _allowed in (effects.lowerable_effects, effects.ordered_effects, effects.control_flow_allowed_effects,
                 effects.custom_derivatives_allowed_effects, effects.remat_allowed_effects):
    _allowed.add_type(Collectives)


def _carry_quickly() -> None:
    """JAX moves a token to the program's device with each call, in Python, which takes as long as the rest of the call. Ours is
    there already where the last program ran on the same device: then it is given as it is."""
    given = RuntimeTokenSet.get_token_input

    def get_token_input(self: RuntimeTokenSet, effect: effects.Effect, devices: Any) -> Any:
        token = self.current_tokens.get(effect) if effect is EFFECT and len(devices) == 1 else None
        if token is None or token._buf.sharding._device_assignment != tuple(devices):
            return given(self, effect, devices)
        return token

    RuntimeTokenSet.get_token_input = get_token_input


_carry_quickly()


def settle() -> None:
    """Waits until the programs that this thread has started have done their collectives. Raises their errors."""
    token = runtime_tokens.current_tokens.get(EFFECT)
    if token is not None:
        token.block_until_ready()


def forget() -> None:
    """No later program waits for an earlier one."""
    runtime_tokens.current_tokens.pop(EFFECT, None)
