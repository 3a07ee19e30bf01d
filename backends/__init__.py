"""The backends. Each follows core/interface/backend.py, named in core/interface/registry.py; none is imported before use."""
