"""Any array to a Buffer and back; Python objects as bytes."""
