"""Monitoring of operations: traces, flight recorders, checks."""
