"""The private sum and what it needs: the only code that aggregates training records."""
