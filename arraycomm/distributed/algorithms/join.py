"""Ranks with different numbers of batches: torch's way works on torch's own groups."""

from __future__ import annotations

from ..torch_only import stand_in

__all__ = ["Join", "JoinHook", "Joinable"]

Join = stand_in("algorithms.join.Join")
JoinHook = stand_in("algorithms.join.JoinHook")
Joinable = stand_in("algorithms.join.Joinable")
