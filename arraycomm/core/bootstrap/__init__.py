"""How processes become ranks: environments of launchers, stores, addresses, authentication."""
