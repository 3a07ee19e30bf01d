"""Collectives and messages: arguments as torch checks them, one call of the core, Work."""
