"""Monitoring of ranks: the debug page, merged traces."""
