"""Version of the package, for reports, ledgers and saved estimators."""

__version__ = "0.1.0.dev0"
