"""ProcessGroup: how groups are made, found and ended, and what they may be asked to do besides collectives."""
