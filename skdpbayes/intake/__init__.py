"""Raw cells to records: the only code, beside the mechanism, that sees rows."""
