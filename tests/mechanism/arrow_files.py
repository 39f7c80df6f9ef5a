"""Arrow files, for tests."""

import pyarrow as pa


def write(path, columns, block=70, **options):
    """Write columns in batches of `block` rows, and open the file."""
    from skdpbayes import open_table

    table = pa.table(columns)
    with pa.ipc.new_file(path, table.schema, **options) as file:
        file.write_table(table, max_chunksize=block)
    return open_table(path)


def of_rows(path, X, y=None):
    """X as a table of columns a, b, ..., and y as a column."""
    own = {"abcdefgh"[j]: X[:, j] for j in range(X.shape[1])}
    if y is None:
        return write(path, own), None
    table = write(path, own | {"y": y})
    return table[list(own)], table["y"]
