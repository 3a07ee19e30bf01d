"""The framework-neutral core: standard library and the engine's module only. Never imports a backend, a framework or a facade."""
