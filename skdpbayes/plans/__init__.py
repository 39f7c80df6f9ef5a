"""Plans: what a fit will run and what it will cost, from public numbers alone. No plan sees a row."""
