"""Models that users write in NumPyro."""
