"""Solvers: what is asked of the records in each round, and what is done with the noisy answer."""
