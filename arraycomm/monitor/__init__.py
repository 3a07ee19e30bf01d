"""Watching ranks: the debug page, merged traces."""
