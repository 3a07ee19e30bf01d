"""What builds the extension `arraycomm._engine`. Used at build time only; never installed."""
