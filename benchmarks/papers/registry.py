"""All entries, paper by paper."""

from __future__ import annotations

from benchmarks.papers import d3p, dp_advi, dp_sgld, na_dpvi, vips

ENTRIES = [*dp_sgld.ENTRIES, *d3p.ENTRIES, *dp_advi.ENTRIES, *na_dpvi.ENTRIES, *vips.ENTRIES]
BY_NAME = {entry.name: entry for entry in ENTRIES}
