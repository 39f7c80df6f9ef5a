"""Rows by a coverage-guided fuzzer (``make fuzz``): what is in one neither raises nor changes what another becomes.

The bytes of an input say what is asked (`SUBJECTS`), in what kind of container (`CONTAINERS`), and
what is in each row. Three tables are made of them: the table; one with a row in another's place;
and one of harmless rows, alike in all that is public, which says what metadata alone explains.
Nothing is compiled here: that is for ``test_fuzz.py``.
"""

import contextlib
import datetime
import decimal
import fractions
import itertools
import math
import os
import sys
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import sparse

try:
    import atheris
except ImportError:  # one input can be run without
    atheris = None

with atheris.instrument_imports(include=["skdpbayes"]) if atheris else contextlib.nullcontext():
    import skdpbayes.intake.fields
    import skdpbayes.intake.packing
    from skdpbayes import (
        DPBayesianLinearRegression,
        DPBayesianLogisticRegression,
        DPBayesianMLPClassifier,
        DPBayesianMLPRegressor,
        DPBetaBernoulli,
        DPDirichletCategorical,
        DPGammaExponential,
        DPGaussianMixture,
        DPHierarchicalLogisticRegression,
        DPLatentDirichletAllocation,
        DPNumPyroModel,
        DPSigmoidBeliefNet,
        DPVariationalAutoencoder,
        Schema,
    )
    from skdpbayes.intake.classified import LONGEST_ROW
    from skdpbayes.intake.labels import as_labels, codes
    from skdpbayes.intake.rows import as_numeric, bounded_rows, counted
    from skdpbayes.intake.tables import is_sequence
    from skdpbayes.preprocessing import (
        BoundedScaler,
        CategoryEncoder,
        DPStandardScaler,
        NormClipper,
    )

LARGE = 2**53  # the next integer is no float
CATEGORIES = [0, 1, "a", LARGE, LARGE + 1]
LONGEST_INPUT = 128


class Refused(BaseException):
    """What a hostile cell raises; no handler of errors catches it."""


class Finding(Exception):
    """The promise is broken."""


def require(true, message):
    if not true:
        raise Finding(message)


class Source:
    """Choices from the bytes of an input; zeros after its end."""

    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, n):
        self.at += n
        return self.data[self.at - n : self.at].ljust(n, b"\0")

    def below(self, n):
        return self.take(1)[0] % n

    def of(self, choices):
        return choices[self.below(len(choices))]


# Cells


def refusing(name, base=object):
    """An object that raises when asked for one thing."""

    def refuse(self, *arguments):
        raise Refused(name)

    # Hashes as a label does, so that it is compared with it.
    return type(f"Refuses{name}", (base,), {"__hash__": lambda self: 1, name: refuse})


class Hostile:
    """A cell that objects to everything."""

    def refuse(self, *other):
        raise Refused

    __getattr__ = __hash__ = __eq__ = __float__ = refuse


class Warns:
    """A cell that answers, and says more than it was asked."""

    def __float__(self):
        warnings.warn("float", stacklevel=1)
        return 1.0

    def __hash__(self):
        warnings.warn("hash", stacklevel=1)
        return 1

    def __eq__(self, other):
        warnings.warn("eq", stacklevel=1)
        return True


def row_like(**own):
    """Something that says it is a one-dimensional array."""
    return type("RowLike", (), {"ndim": 1} | own)()


class Longer(list):
    """A row that is longer than it says."""

    def __iter__(self):
        return iter(list(self[:]) * 2)


class Endless:
    """A row without an end."""

    ndim = 1

    def __init__(self, cells):
        self.cells = cells

    def __len__(self):
        return len(self.cells)

    def __getitem__(self, i):
        return self.cells[i % len(self)]


REFUSED = "__float__ __index__ __eq__ __hash__ __len__ __iter__ __getitem__ __bool__ __array__ __getattribute__".split()
STRANGE = [
    *(refusing(name)() for name in REFUSED),
    *(refusing(name, list)([1.0]) for name in ("__len__", "__iter__", "__getitem__")),
    *(refusing(name, str)("1") for name in ("__float__", "__eq__", "__hash__")),
    *(
        Hostile(),
        Warns(),
        object(),
        NotImplemented,
        ...,
        int,
        {},
        {1: 2},
        range(2),
        memoryview(b"1"),
        bytearray(b"1"),
    ),
    *(
        None,
        True,
        pd.NA,
        pd.NaT,
        np.ma.masked,
        math.nan,
        math.inf,
        -math.inf,
        5e-324,
        -0.0,
        1.7e308,
        3.5e38,
        1e-46,
    ),
    *(
        1j,
        complex(1, 0),
        10**400,
        -(10**400),
        LARGE,
        LARGE + 1,
        fractions.Fraction(1, 3),
        fractions.Fraction(10**400),
    ),
    *(decimal.Decimal(text) for text in ("1", "1e400", "NaN", "sNaN", "Infinity")),
    *(
        datetime.datetime(2020, 1, 1),
        datetime.date(1, 1, 1),
        datetime.timedelta(1),
        pd.Timestamp(0),
        pd.Period("2020"),
    ),
    *("a", "", " 1 ", "1_0", "nan", "1e999", "0x1", "\u0661", "\ud800", "\0", b"\xff"),
    *(
        np.array(1.0),
        np.array([1.0]),
        np.array(["a"]),
        np.array([], object),
        pd.Series([1.0]),
        sparse.coo_array([1.0]),
    ),
    *(
        row_like(),
        row_like(__len__=lambda self: 1),
        row_like(__len__=lambda self: 1, __getitem__=lambda self, i: 1.0),
    ),
    *(
        row_like(__len__=lambda self: -1),
        row_like(ndim=np.ones(2)),
        row_like(ndim=refusing("__eq__")()),
    ),
    row_like(ndim=property(lambda self: 1 / 0)),
]
ROWS = [refusing("__len__", list), refusing("__iter__", list), Longer, Endless]
SCALARS = "f2 f4 f8 g i1 u8 c8 M8[D] M8[ns] m8[s] S3 V2".split()
CELLS = [  # after the end of an input, the first
    lambda source: source.below(256) - 3,
    lambda source: source.of(STRANGE),
    lambda source: source.of(STRANGE),
    lambda source: float(np.frombuffer(source.take(8))[0]),
    lambda source: np.frombuffer(source.take(16), source.of(SCALARS), 1)[0],
    lambda source: source.take(source.below(6)),
    lambda source: source.take(source.below(6)).decode("utf-8", "surrogateescape"),
    lambda source: repr(float(np.frombuffer(source.take(8))[0])),
    lambda source: (source.below(256) - 128) << 4 * source.below(256),
    lambda source: source.of([list, tuple, set, cells_of])([source.below(3)] * source.below(3)),
]


def cell(source):
    return source.of(CELLS)(source)


def cells_of(values):
    """Object array of cells, none of which is looked into."""
    out = np.empty(len(values), object)
    for i, value in enumerate(values):
        out[i] = value
    return out


# Containers: how to draw a row, a harmless row, and how to make a table of rows


def lists(source, d):
    outer = source.of([list, tuple])

    def row(source):
        cells = [cell(source) for _ in range(d)]
        strange = [
            lambda: cells[1:],
            lambda: cells * 2,
            lambda: cell(source),
            *(lambda kind=kind: kind(cells) for kind in ROWS),
        ]
        usual = [
            lambda: cells,
            lambda: tuple(cells),
            lambda: cells_of(cells),
            lambda: pd.Series(cells_of(cells), dtype=object),
        ]
        return source.of(usual * 4 + strange)()

    return row, [1.0] * d, outer


def objects(source, d):
    order = source.of("CF")

    def build(rows):
        return np.stack([cells_of(row) for row in rows]).copy(order)

    return lambda source: [cell(source) for _ in range(d)], [1.0] * d, build


NUMBERS = "f8 f8 f4 f2 g >f8 i8 u8 i1 ? M8[ns] M8[D] m8[s] S2 U1 c8 V3".split()


def arrays(source, d):
    """Arrays of any bits."""
    dtype, order = np.dtype(source.of(NUMBERS)), source.of("CF")

    def row(source):
        drawn = source.take(d * dtype.itemsize)
        return bytes(byte & 1 for byte in drawn) if dtype.kind == "b" else drawn

    def build(rows):
        return np.frombuffer(b"".join(rows), dtype).reshape(len(rows), d).copy(order)

    return row, np.zeros(d, dtype).tobytes(), build


MISSING = [None, pd.NA, math.nan]
COLUMNS = {
    "object": None,
    "float64": [1.0, math.nan, math.inf, 5e-324, 1.7e308],
    "float32": [1.0, math.nan, 3e38],
    "int64": [1, 0, LARGE + 1, -LARGE - 1],
    "bool": [True, False],
    "Int64": [1, None, LARGE, LARGE + 1],
    "UInt64": [1, None, 2**64 - 1],
    "Float64": [1.0, None, math.inf],
    "boolean": [True, None, False],
    "string": ["1", None, "a", "nan"],
    "str": ["1", None, "a", "nan"],
    "Sparse[float64]": [1.0, math.nan, 0.0],
    "datetime64[ns]": [pd.Timestamp(0), pd.NaT],
    "datetime64[ns, UTC]": [pd.Timestamp(0, tz="UTC"), pd.NaT],
    "timedelta64[s]": [pd.Timedelta(1), pd.NaT],
    "period[D]": [pd.Period("2020-01-01"), pd.NaT],
    pd.CategoricalDtype([1, 0, LARGE, LARGE + 1]): [1, None, 0, LARGE, LARGE + 1],
    pd.CategoricalDtype(["1", "a"]): ["1", None, "a"],
    pd.CategoricalDtype([True, False]): [True, None, False],
}


def frames(source, d):
    dtypes = [source.of(list(COLUMNS)) if source.below(2) else "object" for _ in range(d)]

    def row(source):
        return [
            cell(source) if COLUMNS[dtype] is None else source.of(COLUMNS[dtype])
            for dtype in dtypes
        ]

    def build(rows):
        columns = [cells_of([row[j] for row in rows]) for j in range(d)]
        return pd.DataFrame(
            {f"column {j}": pd.Series(columns[j], dtype=dtypes[j]) for j in range(d)}
        )

    return row, [1.0 if COLUMNS[dtype] is None else COLUMNS[dtype][0] for dtype in dtypes], build


def matrices(source, d):
    """CSR matrices, whose columns may repeat, be out of order, or out of range."""
    kind = source.of([sparse.csr_array, sparse.csr_matrix])
    dtype = np.dtype(source.of(["f8", "f4", "i8", "u1", "?", "c8"]))
    places = [*range(d), *range(d), -1, d, 2**31 - 1, -(2**31)]

    def row(source):
        taken = [(source.of(places), source.take(dtype.itemsize)) for _ in range(source.below(5))]
        return [
            (place, bytes([value[0] & 1]) if dtype.kind == "b" else value) for place, value in taken
        ]

    def build(rows):
        values = np.frombuffer(b"".join(value for row in rows for _, value in row), dtype)
        starts = np.cumsum([0, *map(len, rows)])
        X = kind((values, np.zeros(len(values), int), starts), shape=(len(rows), d))
        X.indices = np.array([place for row in rows for place, _ in row], X.indices.dtype)
        return X

    return row, [(0, np.ones(1, dtype).tobytes())], build


CONTAINERS = [lists, objects, arrays, frames, matrices]


def responses(source):
    """As `CONTAINERS`, for labels and responses."""
    kind = source.below(4)
    if kind == 0:
        return lambda source: float(np.frombuffer(source.take(8))[0]), 0.0, np.array
    build = [list, cells_of, lambda items: pd.Series(cells_of(items), dtype=object)][kind - 1]
    return lambda source: cell(source) if source.below(2) else source.of(CATEGORIES), 0, build


# What is asked: each returns arrays with a row for each row of X


class Public:
    """What is declared of the table that is asked about."""

    width = 1
    schema: Schema | None = None

    @classmethod
    def of(cls, d, by_schema):
        columns = {f"column {j}": {"bounds": (-3, 3)} for j in range(d)}
        cls.width, cls.schema = (
            d,
            Schema(columns, {"name": "y", "labels": [0, 1]}) if by_schema else None,
        )

    @classmethod
    def classes(cls):
        return cls.schema or [0, 1]

    @classmethod
    def bounds(cls):
        return cls.schema or (-3, 3)


def numbers(X, y):
    return [dense(as_numeric(X, Public.width))]


def bounded(X, y, bound=2.0):
    X = as_numeric(X, Public.width)
    outputs = []
    for dtype in (np.float32, np.float64):
        rows, null = bounded_rows(X, bound, intercept=True, dtype=dtype)
        rows = dense(rows)
        check_norms(rows[:, :-1], bound)
        require((rows[:, -1] == ~null).all() and not rows[null].any(), "a null row is not zero")
        outputs += [rows, null]
    return outputs


def counts(X, y):
    rows, null = counted(as_numeric(X, Public.width))
    skdpbayes.intake.packing.pack_ragged(rows)
    require(np.isfinite(rows.data).all() and (rows.data > 0).all(), "not a count")
    require(not rows[np.flatnonzero(null)].nnz, "a null row is not empty")
    return [dense(rows), null]


def labels(X, y):
    y = as_labels(y)
    found = codes(np.asarray(y), np.array([0, 1])), codes(cells_of(list(y)), cells_of(CATEGORIES))
    check_range(found[0], -1, 1)
    check_range(found[1], -1, len(CATEGORIES) - 1)
    return list(found)


def clipper(X, y):
    rows = dense(
        NormClipper(2.0).fit(np.zeros((1, Public.width)) if is_sequence(X) else X).transform(X)
    )
    null = np.isnan(rows).any(axis=1)
    check_norms(rows[~null], 2.0)
    return [rows]


def scaler(X, y):
    rows = (
        BoundedScaler(Public.schema or ([-3] * Public.width, [4] * Public.width), (-1, 1))
        .fit(X)
        .transform(X)
    )
    check_range(rows, -1, 1)
    return [rows]


def encoder(X, y):
    rows = CategoryEncoder([CATEGORIES] * Public.width).fit(X).transform(X)
    require(np.isin(rows, [0, 1]).all(), "not zero or one")
    require(
        (rows.reshape(len(rows), -1, len(CATEGORIES)).sum(axis=2) <= 1).all(),
        "two categories in one cell",
    )
    return [rows]


def packed(model, X, y=None):
    """Records that a fit would hand to the mechanism."""
    rows = model._reader().read(model, X, y)
    return fields(rows.pack(), rows.facts.n_rows)


def standard_scaler(X, y):
    model = DPStandardScaler(Public.schema or ([-3] * Public.width, [4] * Public.width))
    (own,) = packed(model, X)
    d = model.n_features_in_
    model.mean_, model.scale_ = np.zeros(d), np.ones(d)
    rows = model.transform(X)
    check_range(rows, -3, 4)
    check_range(own, -1, 1)
    return [rows, own]


def logistic(X, y):
    model = DPBayesianLogisticRegression(classes=Public.classes(), data_norm=2.0)
    rows, labels, *grid = packed(model, X, y)
    check_norms(rows[:, :-1], 2.0 * LONGEST_ROW)
    check_range(labels, -1, 1)
    return [rows, labels, *grid]


def linear(X, y):
    model = DPBayesianLinearRegression(bounds=(Public.bounds(), (-3, 3)))
    rows, response = packed(model, X, y)
    require(np.isfinite(rows).all(), "not finite")
    return [rows, response]


def mixture(X, y):
    return packed(DPGaussianMixture(bounds=Public.bounds()), X)


def gamma(X, y):
    return packed(DPGammaExponential(), X)


def beta(X, y):
    return packed(DPBetaBernoulli(), X)


def dirichlet(X, y):
    (found,) = packed(DPDirichletCategorical(categories=[0, 1, LARGE, LARGE + 1]), X)
    check_range(found, -1, 3)
    return [found]


def belief_net(X, y):
    rows, known = packed(DPSigmoidBeliefNet(), X)
    check_range(rows, 0, 1)
    require(np.isfinite(rows).all() and not rows[known == 0].any(), "an unknown row is not zero")
    return [rows, known]


def auto_encoder(X, y):
    (rows,) = packed(DPVariationalAutoencoder(), X)
    check_range(rows[~np.isnan(rows).any(axis=1)], 0, 1)
    return [rows]


def network(X, y):
    rows, labels = packed(DPBayesianMLPClassifier(classes=Public.classes(), data_norm=2.0), X, y)
    check_norms(rows, 2.0)
    check_range(labels, -1, 1)
    return [rows, labels]


def network_regression(X, y):
    return packed(DPBayesianMLPRegressor(bounds=(Public.bounds(), (-3, 3))), X, y)


def topics(X, y):
    model = DPLatentDirichletAllocation()
    reader = model._reader()
    X = reader.numeric(model, X, reset=True)
    reader.pack(X)
    return [dense(counted(X)[0])]


def program(X, y):
    model = DPNumPyroModel(print)
    found = model._reader().fields(model, X, y, reset=True)
    skdpbayes.intake.fields.pack(found)
    return [dense(field) for field in found.values()]


def hierarchical(X, y):
    model = DPHierarchicalLogisticRegression(
        3, group_column=0, classes=Public.classes(), data_norm=2.0
    )
    rows, groups, found = packed(model, X, y)
    check_norms(rows[~np.isnan(rows).any(axis=1), :-1], 2.0 * LONGEST_ROW)
    check_range(groups, 0, 2)
    check_range(found, 0, 1)
    return [rows, groups, found]


SUBJECTS = [
    *(numbers, bounded, counts, labels, clipper, scaler, encoder, standard_scaler),
    *(logistic, linear, mixture, gamma, beta, dirichlet, belief_net, topics, program, hierarchical),
    *(auto_encoder, network, network_regression),
]


def fields(records, n):
    """The fields of records as they are packed, without what pads."""
    of_each = (field if isinstance(field, tuple) else [field] for field in records.fields.values())
    return [np.asarray(field)[:n] for field in itertools.chain(*of_each)]


def dense(rows):
    if not sparse.issparse(rows):
        return rows
    # Another index would be written into another row, or out of the array.
    require(
        ((rows.indices >= 0) & (rows.indices < rows.shape[1])).all(), "a column is out of range"
    )
    return rows.toarray()


def check_norms(rows, bound):
    require(np.isfinite(rows).all(), "not finite")
    with np.errstate(under="ignore"):
        longest = np.linalg.norm(rows.astype(np.float64), axis=1).max(initial=0)
    require(longest <= bound * (1 + 1e-6), f"a row of norm {longest} at the bound {bound}")


def check_range(values, low, high):
    """NaN is allowed: it stands for a row that is not there."""
    require(not ((values < low) | (values > high)).any(), f"outside of [{low}, {high}]")


# One input


def outcome(subject, X, y):
    """What it says and what it returns; None, where it raises."""
    with warnings.catch_warnings(record=True) as said, np.errstate(all="raise"):
        warnings.simplefilter("always")
        try:
            outputs = subject(X, y)
        except Finding:
            raise
        except Refused as refusal:
            raise Finding(f"a cell's own code runs: {refusal}") from None
        except Exception as error:
            return [f"{type(error).__name__}: {error}"], None
    return [f"{item.category.__name__}: {item.message}" for item in said], outputs


def bits(rows):
    """Each row by itself; all NaN are one, and negative zero is another than zero."""
    rows = np.where(np.isnan(rows), np.nan, rows) if rows.dtype.kind == "f" else rows
    with np.errstate(over="ignore"):  # of longdoubles
        return [row.astype(np.float64).tobytes() for row in rows]


def run(data):
    """Raise `Finding` if the promise does not hold on one input."""
    source = Source(data)
    subject, container = source.of(SUBJECTS), source.of(CONTAINERS)
    n, d = 2 + source.below(4), 1 if subject is dirichlet else source.of([1, 2, 3, 9])
    row, harmless, table = container(source, d)
    Public.of(d, by_schema=container is lists or source.below(2))
    response, good, column = responses(source)
    changed = source.below(n)
    rows = [(row(source), response(source)) for _ in range(n)]
    others = [*rows[:changed], (row(source), response(source)), *rows[changed + 1 :]]

    def of(pairs):
        # Tables with harmless rows only and with others must be alike in what is public: that is
        # the containers' part.
        return outcome(
            subject, table([row for row, _ in pairs]), column([label for _, label in pairs])
        )

    try:
        said, explained = of([(harmless, good)] * n)
        tables = [of(rows), of(others)]
        for words, outputs in tables:
            require(words == said, f"says {words}; harmless rows: {said}")
            require((outputs is None) == (explained is None), "raises by a row")
        if explained is None:
            return
        (_, one), (_, other) = tables
        for own, a, b in zip(explained, one, other, strict=True):
            require(
                own.dtype == a.dtype == b.dtype and own.shape == a.shape == b.shape,
                "a dtype or shape by a row",
            )
            kept = [i for i in range(n) if i != changed]
            a, b = bits(a), bits(b)
            require(all(a[i] == b[i] for i in kept), f"row {changed} changes another")
        words, fewer = of(rows[:-1])
        require(fewer is not None, "raises by the number of rows")
        for a, b in zip(one, fewer, strict=True):
            require(bits(a)[:-1] == bits(b), "the last row changes another")
    except Finding as finding:
        of_what = (
            f"{subject.__name__} of {container.__name__}, {d} columns; row {changed} is replaced"
        )
        pairs = [
            f"row {i if i < n else 'instead'}: {shown(pair)}"
            for i, pair in enumerate([*rows, others[changed]])
        ]
        again = f"make fuzz FUZZ_INPUT={data.hex()}"
        raise Finding("\n".join([str(finding), of_what, *pairs, again])) from None


def shown(item):
    if type(item) in (list, tuple):
        return "[" + ", ".join(map(shown, item)) + "]"
    try:
        return f"{item!r} ({type(item).__name__})"
    except Exception:
        return f"({type(item).__name__})"


def seeds(each=3):
    """Each subject with each container, and rows at random."""
    rng = np.random.default_rng(0)
    for subject in range(len(SUBJECTS)):
        for container in range(len(CONTAINERS)):
            for _ in range(each):
                yield bytes([subject, container]) + rng.bytes(LONGEST_INPUT - 2)


def main():
    if one := os.environ.get("FUZZ_INPUT"):  # a file, as libFuzzer leaves it, or hexadecimal digits
        return run(Path(one).read_bytes() if Path(one).is_file() else bytes.fromhex(one))
    folder = Path(__file__).parents[2] / ".fuzz"  # the next run begins with what this one keeps
    (folder / "inputs").mkdir(parents=True, exist_ok=True)
    for i, seed in enumerate(seeds()):
        (folder / "inputs" / f"seed-{i}").write_bytes(seed)
    options = {
        "max_total_time": os.environ.get("FUZZ_SECONDS", 60),
        "max_len": LONGEST_INPUT,
        "print_final_stats": 1,
        "timeout": 30,
        "rss_limit_mb": 0,  # the fuzzer itself keeps about a kilobyte for each input
        "artifact_prefix": f"{folder}/",
    }
    options = [f"-{name}={value}" for name, value in options.items()]
    atheris.Setup([sys.argv[0], *options, str(folder / "inputs")], run)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
