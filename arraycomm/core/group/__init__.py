"""Group and the implementation of its methods."""
