"""Benchmarks, one module a table: ``make bench`` runs them all. Figures come from runs."""
