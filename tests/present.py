"""What may be None by its type, and is not where a test uses it."""

from __future__ import annotations

from typing import TypeVar

Value = TypeVar("Value")


def present(value: Value | None) -> Value:
    """The value: a Work of a call with async_op, a pipe of a process, a group that this rank is in."""
    assert value is not None
    return value
