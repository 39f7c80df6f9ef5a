"""Public data sets with public schemas, for examples and benchmarks.

Everything a private fit must know about a table beside its rows (column names, categories, bounds,
labels) is a constant of this module, copied from the documentation that its publishers wrote.
Nothing is measured on the rows: a bound that is computed from the data is a release of data that
no budget pays for.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.utils import Bunch

from skdpbayes.declarations import Declared
from skdpbayes.schema import Column, Schema

__all__ = ["adult_preprocessor", "fair_preprocessor", "load_adult", "load_fair"]

DATA_HOME_VARIABLE = "SKDPBAYES_DATA_HOME"

# Categories: the attribute list of adult.names (UCI Machine Learning Repository). "?" is its marker
# of an unknown value; the repository's table of variables says which three columns have it.
#
# Bounds: adult.names gives the census filter (age above 16, more than 0 hours a week) and calls the
# columns continuous. The other ends are declared here: the survey's public-use files report ages up
# to 90, hours and dollars end at the largest number of two, five and four digits, and schooling has
# the sixteen levels of `education`. A value beyond a declared end is set to the end: that costs
# accuracy, never privacy.
ADULT = Schema(
    {
        "age": {"bounds": (17, 90), "unit": "years"},
        "workclass": {"categories": (
            "Private", "Self-emp-not-inc", "Self-emp-inc", "Federal-gov", "Local-gov", "State-gov",
            "Without-pay", "Never-worked", "?",
        )},
        "fnlwgt": {},
        "education": {"categories": (
            "Bachelors", "Some-college", "11th", "HS-grad", "Prof-school", "Assoc-acdm",
            "Assoc-voc", "9th", "7th-8th", "12th", "Masters", "1st-4th", "10th", "Doctorate",
            "5th-6th", "Preschool",
        )},
        "education-num": {"bounds": (1, 16)},
        "marital-status": {"categories": (
            "Married-civ-spouse", "Divorced", "Never-married", "Separated", "Widowed",
            "Married-spouse-absent", "Married-AF-spouse",
        )},
        "occupation": {"categories": (
            "Tech-support", "Craft-repair", "Other-service", "Sales", "Exec-managerial",
            "Prof-specialty", "Handlers-cleaners", "Machine-op-inspct", "Adm-clerical",
            "Farming-fishing", "Transport-moving", "Priv-house-serv", "Protective-serv",
            "Armed-Forces", "?",
        )},
        "relationship": {"categories": (
            "Wife", "Own-child", "Husband", "Not-in-family", "Other-relative", "Unmarried",
        )},
        "race": {"categories": (
            "White", "Asian-Pac-Islander", "Amer-Indian-Eskimo", "Other", "Black",
        )},
        "sex": {"categories": ("Female", "Male")},
        "capital-gain": {"bounds": (0, 99_999), "unit": "US dollars"},
        "capital-loss": {"bounds": (0, 9_999), "unit": "US dollars"},
        "hours-per-week": {"bounds": (1, 99), "unit": "hours"},
        "native-country": {"categories": (
            "United-States", "Cambodia", "England", "Puerto-Rico", "Canada", "Germany",
            "Outlying-US(Guam-USVI-etc)", "India", "Japan", "Greece", "South", "China", "Cuba",
            "Iran", "Honduras", "Philippines", "Italy", "Poland", "Jamaica", "Vietnam", "Mexico",
            "Portugal", "Ireland", "France", "Dominican-Republic", "Laos", "Ecuador", "Taiwan",
            "Haiti", "Columbia", "Hungary", "Guatemala", "Nicaragua", "Scotland", "Thailand",
            "Yugoslavia", "El-Salvador", "Trinadad&Tobago", "Peru", "Hong", "Holand-Netherlands",
            "?",
        )},
    },
    outcome={"name": "income", "labels": ("<=50K", ">50K")},
)  # fmt: skip

ADULT_DESCRIPTIONS: dict[str, str] = {
    "age": "age in years",
    "workclass": "class of worker",
    "fnlwgt": "survey weight: people that the row stands for in the census population",
    "education": "highest level of education",
    "education-num": "the same level as a number, 1 to 16",
    "marital-status": "marital status",
    "occupation": "occupation",
    "relationship": "role in the household",
    "race": "race, as the 1994 survey recorded it",
    "sex": "sex, as the 1994 survey recorded it",
    "capital-gain": "capital gains of the year, in US dollars",
    "capital-loss": "capital losses of the year, in US dollars",
    "hours-per-week": "usual hours of work in a week",
    "native-country": "country of birth",
}

_ENCODED = ("workclass", "education", "marital-status", "occupation", "race", "sex")
_SCALED = ("age", "capital-gain", "capital-loss", "hours-per-week")

# Each encoded or scaled column contributes at most 1 to the squared norm of a row.
ADULT_DATA_NORM = float(np.sqrt(len(_ENCODED) + len(_SCALED)))

# Published sizes: rows, and rows above 50K, of the two files adult.data and adult.test.
_ADULT_TRAIN = (32_561, 7_841)
_ADULT_TEST = (16_281, 3_846)

_NETWORK_SECONDS = 20.0

# The codes of `occupation` and `occupation_husb` in the notes of statsmodels, 1 to 6, in short
# words.
_OCCUPATIONS = (
    *("student", "farm or unskilled", "white-collar", "teacher, nurse or skilled"),
    *("manager", "professional"),
)

# The survey asked for ranges, and the table holds a number for each. Those of marriage, religion
# and education are in the notes of statsmodels; the others in Fair (1978): age from 17.5 (under 20)
# to 42 (40 or over), years married from 0.5 (less than one) to 23 (over ten, with a child of 18),
# children from 0 to 5.5 (five or more).
FAIR = Schema(
    {
        "rate_marriage": {"bounds": (1, 5)},
        "age": {"bounds": (17.5, 42), "unit": "years"},
        "yrs_married": {"bounds": (0.5, 23), "unit": "years"},
        "children": {"bounds": (0, 5.5)},
        "religious": {"bounds": (1, 4)},
        "educ": {"bounds": (9, 20), "unit": "years"},
        "occupation": {"categories": _OCCUPATIONS},
        "occupation_husb": {"categories": _OCCUPATIONS},
    },
    outcome={"name": "affair", "labels": ("no affair", "affair")},
)

FAIR_DESCRIPTIONS: dict[str, str] = {
    "rate_marriage": "her rating of the marriage, 1 (very poor) to 5 (very good)",
    "age": "age in years, 17.5 (under 20) to 42 (40 or over)",
    "yrs_married": "years married, 0.5 (less than one) to 23",
    "children": "number of children, 0 to 5.5 (five or more)",
    "religious": "how religious she is, 1 (not) to 4 (strongly)",
    "educ": "education in years of school, 9 (grade school) to 20 (advanced degree)",
    "occupation": "her occupation",
    "occupation_husb": "her husband's occupation",
}

# Other occupations are compared with this one, which has no column of its own.
_FAIR_REFERENCE = "white-collar"

# Each scaled or encoded column contributes at most 1 to the squared norm of a row.
FAIR_DATA_NORM = float(np.sqrt(len(FAIR.columns)))

# Rows, and rows with an affair, of the table.
_FAIR_SIZE = (6_366, 2_053)

_FAIR_DESCR = """\
Extramarital affairs: has a married woman had one?

6366 answers of married women to a survey of the magazine Redbook (1974), one woman a row, 8
columns. Every third row is for testing, so that 4244 are for training and 2122 for testing. Fair
(1978), "A Theory of Extramarital Affairs", Journal of Political Economy 86, 45-61. Ships with
statsmodels (`statsmodels.datasets.fair`), by permission of the author.

`schema` is a constant written from the documentation of the data set and never computed from its
rows. Readers of a magazine chose to answer: the table does not describe other women.
"""

_ADULT_DESCR = """\
UCI Adult: does a person of the 1994 US Current Population Survey earn more than 50,000 dollars a
year?

32561 training and 16281 test rows, 14 columns, in the original order and split. Becker and Kohavi
(1996), "Adult", UCI Machine Learning Repository, https://doi.org/10.24432/C5XW20, CC BY 4.0.

`schema` is a constant written from the documentation of the data set and never computed from its
rows; "?" marks an unknown value and is a category like the others.
"""


def load_fair() -> Bunch:
    """Load 6366 answers on extramarital affairs, which statsmodels ships, with their public schema.

    Returns
    -------
    data : :class:`~sklearn.utils.Bunch`
        With the entries

        - ``X_train``, ``X_test``: DataFrames of shape (4244, 8) and (2122, 8). Every third row is
          for testing. Occupations are strings, all else is a float.
        - ``y_train``, ``y_test``: Series of "no affair" or "affair".
        - ``classes``: list of the labels.
        - ``feature_descriptions``: dict from column name to description.
        - ``schema``: the public `Schema`; of it ``categories`` and ``bounds``, dicts by column
          name of tuples of str and pairs (lower, upper).
        - ``data_norm``: the largest Euclidean norm of a row that :func:`fair_preprocessor` can
          return.
        - ``DESCR``: source and permission.

    Raises
    ------
    ImportError
        If statsmodels is not installed: ``pip install skdpbayes[datasets]``.
    ValueError
        If the table of this version of statsmodels is not the one that is described here.

    References
    ----------
    Fair, R. C. (1978). A theory of extramarital affairs. Journal of Political Economy 86, 45-61.

    Examples
    --------
    >>> from skdpbayes.datasets import load_fair
    >>> data = load_fair()
    >>> data.X_train.shape, data.X_test.shape, data.classes
    ((4244, 8), (2122, 8), ['no affair', 'affair'])
    >>> data.bounds["children"]
    (0.0, 5.5)
    """
    try:
        from statsmodels.datasets import fair
    except ImportError as error:
        raise ImportError(
            "load_fair needs statsmodels, which ships the table: pip install skdpbayes[datasets]"
        ) from error

    table = fair.load_pandas().data
    missing = [column for column in (*FAIR.names, "affairs") if column not in table.columns]
    if missing:
        raise ValueError(f"The table of statsmodels.datasets.fair lacks the columns {missing}.")
    X = table[list(FAIR.names)].astype(float)
    for name in _categories(FAIR):
        X[name] = X[name].map(dict(enumerate(_OCCUPATIONS, start=1)))
    no, yes = _labels(FAIR)
    y = table["affairs"].gt(0).map({False: no, True: yes}).rename("affair")
    found = (len(y), int((y == yes).sum()))
    if found != _FAIR_SIZE:
        raise ValueError(
            f"The table of statsmodels.datasets.fair has {found[0]} rows, {found[1]} of them with "
            f"an affair; the one that is described here has {_FAIR_SIZE[0]} and {_FAIR_SIZE[1]}."
        )
    testing = np.arange(len(y)) % 3 == 2
    parts = (part[own].reset_index(drop=True) for own in (~testing, testing) for part in (X, y))
    return _bunch(parts, FAIR, FAIR_DESCRIPTIONS, FAIR_DATA_NORM, _FAIR_DESCR)


def fair_preprocessor() -> Any:
    """Return a transformer of the columns of :func:`load_fair` that learns nothing from the rows.

    Two columns are one-hot encoded with their public categories, without "white-collar", with which
    the other occupations are compared; six are scaled to [-1, 1] by their public bounds.

    Returns
    -------
    preprocessor : :class:`~sklearn.compose.ColumnTransformer`
        Unfitted. Its ``fit`` looks at column names only, so it costs no privacy inside a pipeline.
        It returns 16 columns, in rows of Euclidean norm at most ``sqrt(8)``. An unknown category
        becomes zeros and a number that cannot be read becomes NaN, so that no value whatever
        raises.

    Examples
    --------
    >>> from skdpbayes.datasets import fair_preprocessor
    >>> from skdpbayes.pipelines import check_pipeline
    >>> [step.verdict for step in check_pipeline(fair_preprocessor()).steps]
    ['learns nothing', 'learns nothing']
    """
    from skdpbayes.preprocessing import make_preprocessor

    compared = Schema(
        Column(name, categories=tuple(own for own in levels if own != _FAIR_REFERENCE))
        for name, levels in _categories(FAIR).items()
    )
    numbers = FAIR.select(_bounds(FAIR))
    return make_preprocessor(Schema([*numbers.columns, *compared.columns]))


def load_adult(data_home: str | os.PathLike[str] | None = None) -> Bunch:
    """Load the UCI Adult (census income) table with its public schema.

    Parameters
    ----------
    data_home : path-like or None, default=None
        Folder that holds ``adult.csv.gz`` (14 columns, ``income`` and ``split``). When None, the
        folder that the environment variable ``SKDPBAYES_DATA_HOME`` names, and when that is unset
        or empty,
        :func:`sklearn.datasets.fetch_openml` downloads the table once.

    Returns
    -------
    data : :class:`~sklearn.utils.Bunch`
        With the entries

        - ``X_train``, ``X_test``: DataFrames of shape (32561, 14) and (16281, 14), in the original
          order; categories are strings and unknown ones are "?".
        - ``y_train``, ``y_test``: Series of "<=50K" or ">50K".
        - ``classes``: list of the labels.
        - ``feature_descriptions``: dict from column name to description.
        - ``schema``: the public `Schema`, from ``adult.names``; of it ``categories`` and
          ``bounds``, dicts by column name of tuples of str and pairs (lower, upper).
        - ``data_norm``: the largest Euclidean norm of a row that :func:`adult_preprocessor` can
          return.
        - ``DESCR``: source and licence.

    Raises
    ------
    FileNotFoundError
        If a folder is named and it does not hold the table.
    ConnectionError
        If no folder is named and the original table cannot be downloaded, whatever the network
        answers.
    ValueError
        If the table in the folder is not the original one.

    Examples
    --------
    >>> from skdpbayes.datasets import load_adult
    >>> data = load_adult()  # doctest: +SKIP
    >>> data.X_train.shape, data.classes  # doctest: +SKIP
    ((32561, 14), ['<=50K', '>50K'])
    """
    home, origin = data_home, "data_home"
    if home is None and os.environ.get(DATA_HOME_VARIABLE):
        home, origin = (
            os.environ[DATA_HOME_VARIABLE],
            f"the environment variable {DATA_HOME_VARIABLE}",
        )
    parts = _fetch_adult() if home is None else _read_adult(Path(home), origin)
    return _bunch(parts, ADULT, ADULT_DESCRIPTIONS, ADULT_DATA_NORM, _ADULT_DESCR)


def adult_preprocessor() -> Any:
    """Return a transformer of the Adult columns that learns nothing from the rows.

    Six columns are one-hot encoded with their public categories and four are scaled by their public
    bounds. Left out are ``fnlwgt`` (a survey weight), ``education-num`` (a copy of ``education``),
    ``relationship`` and ``native-country``.

    Returns
    -------
    preprocessor : :class:`~sklearn.compose.ColumnTransformer`
        Unfitted. Its ``fit`` looks at column names only, so it costs no privacy inside a pipeline.
        It returns 58 columns, in rows of Euclidean norm at most ``sqrt(10)``. An unknown category
        becomes zeros and a number that cannot be read becomes NaN, so that no value whatever
        raises.

    Examples
    --------
    >>> from skdpbayes.datasets import adult_preprocessor
    >>> from skdpbayes.pipelines import check_pipeline
    >>> [step.verdict for step in check_pipeline(adult_preprocessor()).steps]
    ['learns nothing', 'learns nothing']
    """
    from skdpbayes.preprocessing import make_preprocessor

    return make_preprocessor(ADULT.select([*_SCALED, *_ENCODED]), feature_range=(0.0, 1.0))


def _categories(schema: Schema) -> dict[str, tuple[Any, ...]]:
    return {own.name: own.categories for own in schema.columns if own.categories is not None}


def _bounds(schema: Schema) -> dict[str, tuple[float, float]]:
    return {own.name: own.bounds for own in schema.columns if own.bounds is not None}


def _labels(schema: Schema) -> list[Any]:
    return Declared.of_classes(schema).labels


def _bunch(
    parts: Iterable[Any],
    schema: Schema,
    descriptions: Mapping[str, str],
    data_norm: float,
    description: str,
) -> Bunch:
    """A data set of X_train, y_train, X_test and y_test."""
    X_train, y_train, X_test, y_test = parts
    return Bunch(
        X_train=X_train,
        y_train=y_train,
        X_test=X_test,
        y_test=y_test,
        classes=_labels(schema),
        feature_descriptions=dict(descriptions),
        schema=schema,
        categories=_categories(schema),
        bounds=_bounds(schema),
        data_norm=data_norm,
        DESCR=description,
    )


def _read_adult(home: Path, origin: str) -> tuple[Any, Any, Any, Any]:
    """Read ``adult.csv.gz`` from the folder `home`, which `origin` named."""
    import pandas as pd

    path = home / "adult.csv.gz"
    if not path.is_file():
        raise FileNotFoundError(
            f"Adult was looked for at {str(path)!r}, because {origin} names that folder, and there "
            "is no such file. Put adult.csv.gz there, or name no folder to download the table from "
            "OpenML."
        )
    table = pd.read_csv(path, keep_default_na=False)
    table = table.rename(columns=lambda name: name.replace("_", "-"))
    train = table["split"] == "train"
    return _checked_adult(table[train], table[~train], "income", str(path))


def _fetch_adult() -> tuple[Any, Any, Any, Any]:
    """Download Adult from OpenML, or read scikit-learn's cache of it."""
    import socket

    from sklearn.datasets import fetch_openml

    # fetch_openml sets no limit: a network that drops packets would hold the caller for minutes.
    patience = socket.getdefaulttimeout()
    socket.setdefaulttimeout(_NETWORK_SECONDS)
    try:
        with warnings.catch_warnings():
            # scikit-learn warns and tries again after an answer without sense. The last one counts.
            warnings.simplefilter("ignore")
            table = fetch_openml("adult", version=2, as_frame=True, n_retries=1).frame
        return _openml_adult(table)
    except Exception as error:  # a network can answer anything, and parsers fail in as many ways
        raise ConnectionError(
            f"Adult could not be had from OpenML ({type(error).__name__}: {error}). Check the "
            "network, or put adult.csv.gz in a folder and name the folder by data_home or the "
            f"environment variable {DATA_HOME_VARIABLE}."
        ) from error
    finally:
        socket.setdefaulttimeout(patience)


def _openml_adult(table: Any) -> tuple[Any, Any, Any, Any]:
    """Part the table of OpenML into the original training and test rows."""
    for name in _categories(ADULT):  # whose unknown values OpenML gives as missing ones
        table[name] = table[name].astype(object).where(table[name].notna(), "?").astype(str)
    # OpenML joined the two original files; the published number of rows above 50K tells which came
    # first.
    (n_train, positives), (n_test, _) = _ADULT_TRAIN, _ADULT_TEST
    above = table["class"].astype(str) == _labels(ADULT)[1]
    train_first = int(above.iloc[:n_train].sum()) == positives
    train = table.iloc[:n_train] if train_first else table.iloc[n_test:]
    test = table.iloc[n_train:] if train_first else table.iloc[:n_test]
    return _checked_adult(train, test, "class", "OpenML, data set 'adult' version 2")


def _checked_adult(train: Any, test: Any, target: str, source: str) -> tuple[Any, Any, Any, Any]:
    """Split features from labels, and refuse a table that is not the original one."""
    parts: list[Any] = []
    for name, part, expected in (("training", train, _ADULT_TRAIN), ("test", test, _ADULT_TEST)):
        missing = [column for column in ADULT.names if column not in part.columns]
        if missing:
            raise ValueError(
                f"The Adult table of {source} lacks the columns {missing}; use the original table."
            )
        X = part[list(ADULT.names)].reset_index(drop=True)
        numeric = [own.name for own in ADULT.columns if own.categories is None]
        X = X.astype({column: np.int64 for column in numeric})
        y = part[target].astype(str).rename("income").reset_index(drop=True)
        above = _labels(ADULT)[1]
        found = (len(y), int((y == above).sum()))
        if found != expected:
            raise ValueError(
                f"The {name} part of the Adult table of {source} has {found[0]} rows, {found[1]} "
                f"of them {above!r}; the original has {expected[0]} and {expected[1]}. Use the "
                "original."
            )
        parts += [X, y]
    return parts[0], parts[1], parts[2], parts[3]
