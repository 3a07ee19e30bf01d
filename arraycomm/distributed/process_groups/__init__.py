"""ProcessGroup: making, looking up and destroying groups, and their operations other than collectives."""
