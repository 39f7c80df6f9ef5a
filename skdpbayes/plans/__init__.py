"""Plans: what a fit runs and what it costs, from public numbers alone. No plan sees a row."""
