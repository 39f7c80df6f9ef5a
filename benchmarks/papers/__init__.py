"""Tables and figures of the five papers, each as one command: ``make bench-papers``.

``benchmarks.papers.registry.ENTRIES`` lists them. The command line, ``docs/papers.md`` and a test
that they agree read that list. A module for each paper has one function for each entry, which takes
an `Order` and returns what it `Found`: tables and a figure. What other benchmarks measure already
is taken from there.
"""
