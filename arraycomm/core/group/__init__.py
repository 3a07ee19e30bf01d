"""Group, and what its methods are made of."""
