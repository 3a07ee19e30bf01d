"""The interface between core and backends, and the engine's tables."""
