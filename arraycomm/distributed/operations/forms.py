"""Methods that can be called in several documented forms, as torch's C++ methods: by position or by each form's own names.

    @forms("(tensors, opts=AllreduceOptions())", "(tensor, op=ReduceOp.SUM, timeout=None)")
    def allreduce(self, tensors, op=None, timeout=None, opts=None): ...

The arguments that all forms begin with are passed to the function by position, the others by name, and only those that the
caller passed. The first form that fits is used; if none fits, a TypeError lists the forms.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import wraps
from typing import Any

from .reduce_op import ReduceOp

# The types that distinguish the forms. Every other argument is an array or a list, which the function checks itself.
_FITS: dict[str, Callable[[Any], bool]] = {
    "op": lambda value: isinstance(value, ReduceOp) or type(value).__module__.startswith("torch."),
    "timeout": lambda value: value is None or isinstance(value, timedelta),
    "root": lambda value: hasattr(value, "__index__") and not hasattr(value, "__dlpack__"),
    "tensors": lambda value: isinstance(value, (list, tuple)),
}
_SHOWN = {"op": "op: ReduceOp", "timeout": "timeout: timedelta | None", "root": "root: int"}


class _Form:
    """One form. text: "(tensor, op=ReduceOp.SUM)"; an argument with a default is optional."""

    def __init__(self, text: str) -> None:
        parts = text.strip("()").split(", ") if text != "()" else []
        if parts and parts[-1].startswith("opts="):
            parts[-1] = parts[-1].rstrip("()")
        self.names = [part.partition("=")[0] for part in parts]
        self.needed = sum("=" not in part for part in parts)
        self.fits = {name: _FITS[name] for name in self.names if name in _FITS}
        if "opts" in self.names:
            kind = parts[-1].partition("=")[2]  # of options.py, or torch's own of the same name and fields
            self.fits["opts"] = lambda value: kind in [cls.__name__ for cls in type(value).__mro__]
        self.leading = [name for name in self.names if name not in ("op", "timeout", "root", "opts")]

    def bind(self, given: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any] | None:
        """The arguments by this form's names, or None where they do not fit."""
        values = dict(zip(self.names, given, strict=False))
        if len(given) > len(self.names) or not named.keys().isdisjoint(values):
            return None
        values.update(named)
        if not values.keys() <= set(self.names) or not values.keys() >= set(self.names[:self.needed]):
            return None
        return values if all(fits(values[name]) for name, fits in self.fits.items() if name in values) else None


def _refusal(method: str, texts: tuple[str, ...], given: tuple[Any, ...], named: dict[str, Any]) -> TypeError:
    shown = []
    for text in texts:
        for name, kind in _SHOWN.items():
            text = text.replace(f"{name}=", f"{kind} = ").replace(f" {name},", f" {kind},").replace(f" {name})", f" {kind})")
        shown.append(f"\n    {method}{text}")
    got = [type(value).__name__ for value in given] + [f"{name}: {type(value).__name__}" for name, value in named.items()]
    return TypeError(f"{method}(): incompatible function arguments ({', '.join(got)}). It is called as one of{''.join(shown)}")


def forms(*texts: str) -> Callable[[Callable[..., Any]], Any]:
    """The decorator. The method's `forms` are the texts."""
    alternatives = [_Form(text) for text in texts]

    def decorate(function: Callable[..., Any]) -> Any:
        @wraps(function)
        def method(self: Any, *given: Any, **named: Any) -> Any:
            for form in alternatives:
                values = form.bind(given, named)
                if values is not None:
                    leading = [values.pop(name) for name in form.leading]
                    return function(self, *leading, **values)
            raise _refusal(function.__name__, texts, given, named)

        method.forms = texts  # type: ignore[attr-defined]
        return method

    return decorate
