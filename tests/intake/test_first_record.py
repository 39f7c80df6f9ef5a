"""Every container's first record hostile: nothing raises, nothing warns, and no other record changes in a bit."""

import collections
import decimal
import io
import math
import warnings

import fuzz_rows
import numpy as np
import pandas as pd
import polars as pl
import pytest
from fuzz_rows import Hostile, Public, bits, cells_of, refusing
from scipy import sparse

from skdpbayes import DPBayesianLogisticRegression, DPDirichletCategorical, Schema, read_csv
from skdpbayes.preprocessing import CategoryEncoder

REST = [[1.0, 2.0], [0.0, 0.5], [2.0, 1.0]]
LABELS = [1, 0, 1]
GOOD = [1.0, 1.0]
STRANGE = [
    *(
        Hostile(),
        refusing("__float__")(),
        refusing("__hash__")(),
        refusing("__eq__")(),
        refusing("__array__")(),
    ),
    *(
        refusing("__index__")(),
        refusing("__len__")(),
        refusing("__getattribute__")(),
        refusing("__float__", float)(1),
    ),
    *(
        refusing("__float__", np.float64)(1),
        refusing("__hash__", str)("1"),
        refusing("__class__")(),
    ),
    *(
        None,
        "text",
        "1e400",
        math.nan,
        math.inf,
        1e300,
        10**400,
        -(10**400),
        [1.0, 2.0],
        {},
        b"\xff",
        1j,
    ),
    *(
        decimal.Decimal("sNaN"),
        np.longdouble("1e400"),
        np.datetime64("2020"),
        np.array([1.0]),
        pd.NA,
        pd.NaT,
    ),
]


class Meta(type):
    """A class that cannot be hashed or compared."""

    __hash__ = __eq__ = __instancecheck__ = Hostile.refuse


STRANGE.append(Meta("OfMeta", (), {})())
ROWS = [
    *(
        None,
        "text",
        3.0,
        [],
        [1.0],
        [1.0, 2.0, 3.0],
        [[1.0, 2.0]],
        [[1.0], [2.0]],
        {"a": 1},
        np.ones((1, 2)),
        Hostile(),
    ),
    *(refusing(name, list)([1.0, 2.0]) for name in ("__len__", "__iter__", "__getitem__")),
    *([cell, 1.0] for cell in STRANGE),
]


def frame(first, **dtypes):
    columns = [[row[j] for row in [first, *REST]] for j in range(2)]
    return pd.DataFrame(
        {f"column {j}": pd.Series(cells_of(own), **dtypes) for j, own in enumerate(columns)}
    )


def polars(first):
    return pl.DataFrame(
        {f"column {j}": [row[j] for row in [first, *REST]] for j in range(2)}, strict=False
    )


def polars_objects(first):
    cells = [row[0] for row in [first, *REST]]
    return pl.DataFrame(
        [
            pl.Series("column 0", cells, dtype=pl.Object),
            pl.Series("column 1", [r[1] for r in [first, *REST]]),
        ]
    )


def built(build, firsts):
    """Those that a library makes a table of: polars asks cells itself, before any of us sees them."""
    for first in firsts:
        try:
            build(first)
        except BaseException:
            continue
        yield first


def floats(first):
    return np.array([first, *REST], np.float64)


def csr(first):
    return sparse.csr_array(floats(first))


def out_of_range(first):
    X = sparse.csr_array(np.array([GOOD, *REST]))
    X.indices[0] = first[0]
    return X


def of_table(text):
    return read_csv(
        io.BytesIO(b"column 0,y,column 1\n" + text + b"\n1,1,2\n0,0,.5\n2,1,1\n"), Public.schema
    )


PAIRS = [[cell, 1.0] for cell in STRANGE]
NUMBERS = [[cell, 1.0] for cell in (math.nan, math.inf, -math.inf, 1e300, 5e-324, -0.0, 1.7e308)]
LINES = [
    *(f"1,1{end}0,1,1".encode() for end in "\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"),
    *(
        b"",
        b",",
        b",,",
        b",,,,,",
        b'"',
        b'"1,1,1',
        b'1,1,"',
        b'1,"1"x,1',
        b"\xff,1,1",
        b"\0,1,1",
        b"1\r1,1,1",
        b"\r",
    ),
    *(
        b"1" * 200_000 + b",1,1",
        b"1e400,1,1",
        b"text,1,1",
        b"1,other,1",
        b'"1\n2",1,1'[:2],
        b"\xef\xbb\xbf1,1,1",
        b"nan,1,1",
    ),
]
# A container, its first records, and whether only a schema says what it is.
CONTAINERS = {
    "list of lists": (lambda first: [first, *REST], ROWS, True),
    "list of tuples": (lambda first: [tuple(first) if type(first) is list else first, *map(tuple, REST)], ROWS, True),
    "list of arrays": (
        lambda first: [cells_of(first) if type(first) is list else first, *map(np.array, REST)], ROWS, True,
    ),
    "other sequence": (lambda first: collections.deque([first, *REST]), ROWS, True),
    "object array": (lambda first: np.stack([cells_of(first), *map(cells_of, REST)]), PAIRS, False),
    "float array": (floats, NUMBERS, False),
    "array of longdoubles": (
        lambda first: np.array([first, *REST], np.longdouble), [[np.longdouble("1e400"), 1.0]], False,
    ),
    "frame of objects": (lambda first: frame(first, dtype=object), PAIRS, False),
    "frame of floats": (lambda first: frame(first, dtype=float), NUMBERS, False),
    "frame of strings": (lambda first: frame(first, dtype="str"), [["text", 1.0], ["", 1.0], [None, 1.0]], True),
    "polars of text": (polars, [["text", 1.0], ["1e400", 1.0], [None, 1.0]], True),
    "polars of objects": (polars_objects, list(built(polars_objects, PAIRS)), True),
    "polars of floats": (polars, NUMBERS, False),
    "CSR": (csr, NUMBERS, False),
    "CSR, out of range": (out_of_range, [[-1], [2], [2**31 - 1]], False),
}  # fmt: skip
WITH_SCHEMA = {
    *(
        "numbers",
        "bounded",
        "counts",
        "clipper",
        "scaler",
        "encoder",
        "standard_scaler",
        "logistic",
        "linear",
    ),
    *("mixture", "network", "network_regression", "hierarchical"),
}
DENSE_ONLY = {"scaler", "encoder", "standard_scaler", "linear", "mixture", "network_regression"}


def asked(subject, X, y):
    """What the intake of an estimator makes of a table, if it neither raises nor warns."""
    with warnings.catch_warnings(), np.errstate(all="warn"):
        warnings.simplefilter("error")
        return subject(X, y)


def belong(subject, name):
    if subject is fuzz_rows.dirichlet:  # of one column: below
        return False
    if name.startswith("CSR") and subject.__name__ in DENSE_ONLY:
        return False
    if (
        subject is fuzz_rows.encoder and "text" in name
    ):  # whose columns are of numbers without a schema
        return False
    return subject.__name__ in WITH_SCHEMA or not CONTAINERS[name][2]


@pytest.mark.parametrize(
    ("subject", "name"),
    [
        pytest.param(subject, name, id=f"{subject.__name__}, {name}")
        for subject in fuzz_rows.SUBJECTS
        for name in CONTAINERS
        if belong(subject, name)
    ],
)
def test_a_hostile_first_record_changes_no_other(subject, name):
    build, firsts, by_schema = CONTAINERS[name]
    Public.of(2, by_schema=by_schema or subject.__name__ in WITH_SCHEMA)
    want = asked(subject, build([0] if name == "CSR, out of range" else GOOD), [0, *LABELS])
    for first in firsts:
        label = first[0] if type(first) is list and first else first
        for own in (label, Hostile()):
            for a, b in zip(asked(subject, build(first), [own, *LABELS]), want, strict=True):
                assert a.dtype == b.dtype and a.shape == b.shape
                assert bits(a)[1:] == bits(b)[1:], fuzz_rows.shown(first)


@pytest.mark.parametrize("subject", sorted(WITH_SCHEMA - {"encoder"}))
def test_a_hostile_first_line_of_a_file_changes_no_other(subject):
    subject = getattr(fuzz_rows, subject)
    Public.of(2, by_schema=True)
    want = asked(subject, *of_table(b"1,0,1"))
    for line in LINES:
        table = of_table(line)
        assert len(table[0]) == 4 and (table[0].dtypes == "float64").all()
        for a, b in zip(asked(subject, *table), want, strict=True):
            assert a.dtype == b.dtype and bits(a)[1:] == bits(b)[1:], line


WARDS = Schema({"ward": {"categories": ["a", "b"]}})


@pytest.mark.parametrize(
    "container", ["lists", "tuples", "arrays", "objects", "frame", "polars", "file"]
)
@pytest.mark.parametrize("intake", ["encoder", "dirichlet"])
def test_a_hostile_first_category_changes_no_other(intake, container):
    model = {
        "encoder": CategoryEncoder(WARDS),
        "dirichlet": DPDirichletCategorical(categories=WARDS),
    }[intake]
    build = {
        "lists": lambda cell: [[cell], ["a"], ["b"]],
        "tuples": lambda cell: [(cell,), ("a",), ("b",)],
        "arrays": lambda cell: [cells_of([cell]), np.array(["a"]), np.array(["b"])],
        "objects": lambda cell: cells_of([cell, "a", "b"])[:, None],
        "frame": lambda cell: pd.DataFrame(
            {"ward": pd.Series(cells_of([cell, "a", "b"]), dtype=object)}
        ),
        "polars": lambda cell: pl.DataFrame([pl.Series("ward", [cell, "a", "b"], dtype=pl.Object)]),
    }
    firsts = [*STRANGE, None, "c"] if container != "file" else LINES
    firsts = list(built(build["polars"], firsts)) if container == "polars" else firsts
    assert len(firsts) > 9
    for first in firsts:
        if container == "file":
            text = b"ward\n" + first.replace(b",", b"") + b"\na\nb\n"
            X, y = read_csv(io.BytesIO(text), WARDS)
            assert y is None
        else:
            X = build[container](first)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            if intake == "encoder":
                found = (
                    model.fit(X).transform(X).argmax(axis=1) + model.transform(X).any(axis=1) - 1
                )
            else:
                (found,) = fuzz_rows.packed(model, X)
        assert found.tolist()[1:] == [0, 1]


LABEL_CONTAINERS = {
    "list": list,
    "tuple": tuple,
    "deque": collections.deque,
    "objects": cells_of,
    "Series": lambda items: pd.Series(cells_of(items), dtype=object),
    "polars": lambda items: pl.Series(items, dtype=pl.Object),
}


@pytest.mark.parametrize("name", LABEL_CONTAINERS)
def test_a_hostile_first_label_changes_no_other(name):
    for first in built(lambda first: LABEL_CONTAINERS[name]([first, *LABELS]), [*STRANGE, *ROWS]):
        y = LABEL_CONTAINERS[name]([first, *LABELS])
        model = DPBayesianLogisticRegression(classes=[0, 1])
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            read = model._reader().read(model, np.ones((4, 2)), y)
            found = fuzz_rows.fields(read.pack(), 4)[1]
            assert found.tolist()[1:] == LABELS and not read.facts.voided_by


# The attacks themselves


def test_lists_without_a_declared_width_are_refused_whatever_their_rows_are():
    said = set()
    for rows in (
        [[1.0, 2.0], [3.0, 4.0]],
        [[1.0], [3.0, 4.0]],
        [None, [3.0, 4.0]],
        [Hostile(), [3.0, 4.0]],
    ):
        with pytest.raises(
            ValueError, match=r"numpy.asarray\(X, float\).*data frame.*Schema"
        ) as error:
            fuzz_rows.packed(DPBayesianLogisticRegression(classes=[0, 1]), rows, [0, 1])
        said.add(str(error.value))
    assert len(said) == 1


def test_the_first_row_does_not_decide_how_many_columns_there_are():
    schema = Schema({"a": {}, "b": {}}, {"name": "y", "labels": [0, 1]})
    for first in ([1.0], None, [1.0, 2.0, 3.0], "text"):
        model = DPBayesianLogisticRegression(classes=schema)
        X = model._reader().numeric(model, [first, [3.0, 4.0], [5.0, 6.0]], reset=True)
        assert (
            np.isnan(X[0]).all()
            and X[1:].tolist() == [[3, 4], [5, 6]]
            and model.n_features_in_ == 2
        )


def test_a_bad_cell_that_pandas_makes_a_text_column_of_does_not_decide_about_an_error():
    schema = Schema({"a": {}, "b": {"kind": "count"}}, {"name": "y", "labels": [0, 1]})
    found = []
    for first in ("1,2,0", "one,two,none", "1j,2,0", "2020-01-01,2,x"):
        table = pd.read_csv(io.StringIO(f"a,b,y\n{first}\n3,4,0\n5,6,1\n"))
        model = DPBayesianLogisticRegression(classes=schema)
        X = model._reader().numeric(model, table[["a", "b"]], reset=True)
        labels = fuzz_rows.packed(model, table[["a", "b"]], table["y"])[1]
        found.append((X[1:].tolist(), labels.tolist()[1:]))
    assert found == [([[3, 4], [5, 6]], [0, 1])] * 4
    with pytest.raises(ValueError, match=r"skdpbayes.read_csv"):
        model = DPBayesianLogisticRegression(classes=[0, 1])
        fuzz_rows.packed(model, table[["a", "b"]], [0, 0, 1])


def test_dtypes_that_a_record_decides_decide_nothing_under_a_schema():
    """As libraries infer them, of a whole column."""
    schema = Schema({"a": {}, "b": {}}, {"name": "y", "labels": [0, 1]})
    firsts = [
        1.0,
        1,
        1j,
        True,
        None,
        "x",
        "1",
        10**30,
        2**63,
        -(2**63),
        decimal.Decimal(1),
        np.float32(1),
        pd.NaT,
    ]
    firsts += [pd.Timestamp(0), pd.Timedelta(1), pd.Period("2020"), b"1", np.longdouble(1), [1], {}]
    found = []
    for first in firsts:
        table = pd.DataFrame([[first, 0.5], [3, 0.25], [0, 1.5]], columns=["a", "b"])
        labels = pd.Series([first, 1, 0])
        for X, y in ((table, labels), (table.convert_dtypes(), labels.convert_dtypes())):
            model = DPBayesianLogisticRegression(classes=schema)
            codes = fuzz_rows.packed(model, X, y)[1]
            X = model._reader().numeric(model, X, reset=True)
            found.append((X.dtype, X[1:].tolist(), codes.tolist()[1:]))
    assert found == [(np.float64, [[3, 0.25], [0, 1.5]], [1, 0])] * len(found)


def test_an_interrupt_of_the_user_is_heard():
    """What a cell raises is never run, so nothing is caught that the user sends."""

    def interrupted(cell):
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("skdpbayes.cells.plain", interrupted)
        fuzz_rows.as_numeric(np.array([[1.0]], object))
