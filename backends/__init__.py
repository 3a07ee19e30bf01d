"""The backends. Each follows arraycomm.core.backend and is named in arraycomm.core.registry; none is imported before use."""
