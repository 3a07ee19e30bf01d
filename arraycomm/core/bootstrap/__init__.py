"""Bootstrap and rendezvous: launchers' environments, stores, addresses, authentication."""
