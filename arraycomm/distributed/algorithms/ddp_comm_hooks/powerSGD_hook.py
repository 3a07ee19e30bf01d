"""The PowerSGD hook, under torch's module name."""

from importlib import import_module

__all__ = ["PowerSGDState", "powerSGD_hook"]

_theirs = import_module("arraycomm.frameworks.torch.comm_hooks")
PowerSGDState = _theirs.PowerSGDState
powerSGD_hook = _theirs.powerSGD_hook
