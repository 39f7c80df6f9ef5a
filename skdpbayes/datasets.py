"""Public data sets with public schemas, for examples and benchmarks.

Everything a private fit must know about a table beside its rows (column names, categories, bounds,
labels) is a constant of this module, copied from the documentation that its publishers wrote.
Nothing is measured on the rows: a bound that is computed from the data is a data release that
nobody accounted for.
"""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.utils import Bunch

__all__ = ["adult_preprocessor", "fair_preprocessor", "load_adult", "load_fair"]

DATA_HOME_VARIABLE = "SKDPBAYES_DATA_HOME"

ADULT_CLASSES = ("<=50K", ">50K")

# Attribute list of adult.names (UCI Machine Learning Repository). "?" is its marker of an unknown
# value; the repository's table of variables says that these three columns have unknown values.
ADULT_CATEGORIES: dict[str, tuple[str, ...]] = {
    "workclass": (
        "Private", "Self-emp-not-inc", "Self-emp-inc", "Federal-gov", "Local-gov", "State-gov",
        "Without-pay", "Never-worked", "?",
    ),
    "education": (
        "Bachelors", "Some-college", "11th", "HS-grad", "Prof-school", "Assoc-acdm", "Assoc-voc", "9th",
        "7th-8th", "12th", "Masters", "1st-4th", "10th", "Doctorate", "5th-6th", "Preschool",
    ),
    "marital-status": (
        "Married-civ-spouse", "Divorced", "Never-married", "Separated", "Widowed", "Married-spouse-absent",
        "Married-AF-spouse",
    ),
    "occupation": (
        "Tech-support", "Craft-repair", "Other-service", "Sales", "Exec-managerial", "Prof-specialty",
        "Handlers-cleaners", "Machine-op-inspct", "Adm-clerical", "Farming-fishing", "Transport-moving",
        "Priv-house-serv", "Protective-serv", "Armed-Forces", "?",
    ),
    "relationship": ("Wife", "Own-child", "Husband", "Not-in-family", "Other-relative", "Unmarried"),
    "race": ("White", "Asian-Pac-Islander", "Amer-Indian-Eskimo", "Other", "Black"),
    "sex": ("Female", "Male"),
    "native-country": (
        "United-States", "Cambodia", "England", "Puerto-Rico", "Canada", "Germany",
        "Outlying-US(Guam-USVI-etc)", "India", "Japan", "Greece", "South", "China", "Cuba", "Iran",
        "Honduras", "Philippines", "Italy", "Poland", "Jamaica", "Vietnam", "Mexico", "Portugal", "Ireland",
        "France", "Dominican-Republic", "Laos", "Ecuador", "Taiwan", "Haiti", "Columbia", "Hungary",
        "Guatemala", "Nicaragua", "Scotland", "Thailand", "Yugoslavia", "El-Salvador", "Trinadad&Tobago",
        "Peru", "Hong", "Holand-Netherlands", "?",
    ),
}  # fmt: skip

# adult.names gives the census filter (age above 16, more than 0 hours a week) and calls the columns
# continuous. The other ends are declared here: the survey's public-use files report ages up to 90,
# hours and dollars end at the largest number of two, five and four digits, and schooling has the
# sixteen levels of `education`. A declared end that is exceeded costs accuracy (the value is set to
# the end), never privacy.
ADULT_BOUNDS: dict[str, tuple[float, float]] = {
    "age": (17.0, 90.0),
    "education-num": (1.0, 16.0),
    "capital-gain": (0.0, 99_999.0),
    "capital-loss": (0.0, 9_999.0),
    "hours-per-week": (1.0, 99.0),
}

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

# Each encoded column contributes at most 1 to the squared norm of a row, and so does each scaled
# one.
ADULT_DATA_NORM = float(np.sqrt(len(_ENCODED) + len(_SCALED)))

# Published sizes: rows, and rows above 50K, of the two files adult.data and adult.test.
_ADULT_TRAIN = (32_561, 7_841)
_ADULT_TEST = (16_281, 3_846)

_NETWORK_SECONDS = 20.0

FAIR_CLASSES = ("no affair", "affair")

# The codes of `occupation` and `occupation_husb` in the notes of statsmodels, 1 to 6, in short
# words.
FAIR_OCCUPATIONS = (
    "student", "farm or unskilled", "white-collar", "teacher, nurse or skilled", "manager", "professional",
)  # fmt: skip
FAIR_CATEGORIES: dict[str, tuple[str, ...]] = dict.fromkeys(
    ("occupation", "occupation_husb"), FAIR_OCCUPATIONS
)

# The survey asked for ranges, and the table holds a number for each. Those of marriage, religion
# and education are in the notes of statsmodels; the others in Fair (1978): age from 17.5 (under 20)
# to 42 (40 or over), years married from 0.5 (less than one) to 23 (over ten, with a child of 18),
# children from 0 to 5.5 (five or more).
FAIR_BOUNDS: dict[str, tuple[float, float]] = {
    "rate_marriage": (1.0, 5.0),
    "age": (17.5, 42.0),
    "yrs_married": (0.5, 23.0),
    "children": (0.0, 5.5),
    "religious": (1.0, 4.0),
    "educ": (9.0, 20.0),
}

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

# Each scaled column contributes at most 1 to the squared norm of a row, and so does each encoded
# one.
FAIR_DATA_NORM = float(np.sqrt(len(FAIR_BOUNDS) + len(FAIR_CATEGORIES)))

# Rows, and rows with an affair, of the table.
_FAIR_SIZE = (6_366, 2_053)

_FAIR_DESCR = """\
Extramarital affairs: has a married woman had one?

6366 answers of married women to a survey of the magazine Redbook (1974), one woman a row, 8
columns. Every third row is for testing, so that 4244 are for training and 2122 for testing. Fair (1978), "A
Theory of Extramarital Affairs", Journal of Political Economy 86, 45-61. Ships with statsmodels
(`statsmodels.datasets.fair`), by permission of the author.

`categories` and `bounds` are constants written from the documentation of the data set and never computed from
its rows. Readers of a magazine chose to answer: the table says nothing of other women.
"""

_ADULT_DESCR = """\
UCI Adult: does a person of the 1994 US Current Population Survey earn more than 50,000 dollars a year?

32561 training and 16281 test rows, 14 columns, in the original order and split. Becker and Kohavi (1996),
"Adult", UCI Machine Learning Repository, https://doi.org/10.24432/C5XW20, CC BY 4.0.

`categories` and `bounds` are constants written from the documentation of the data set and never computed from
its rows; "?" marks an unknown value and is a category like the others.
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
        - ``categories``: dict from column name to tuple of str.
        - ``bounds``: dict from column name to (lower, upper).
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
    missing = [column for column in (*FAIR_DESCRIPTIONS, "affairs") if column not in table.columns]
    if missing:
        raise ValueError(f"The table of statsmodels.datasets.fair lacks the columns {missing}.")
    X = table[list(FAIR_DESCRIPTIONS)].astype(float)
    for name, names in FAIR_CATEGORIES.items():
        X[name] = X[name].map(dict(enumerate(names, start=1)))
    y = table["affairs"].gt(0).map({False: FAIR_CLASSES[0], True: FAIR_CLASSES[1]}).rename("affair")
    found = (len(y), int((y == FAIR_CLASSES[1]).sum()))
    if found != _FAIR_SIZE:
        raise ValueError(
            f"The table of statsmodels.datasets.fair has {found[0]} rows, {found[1]} of them with an affair; "
            f"the one that is described here has {_FAIR_SIZE[0]} and {_FAIR_SIZE[1]}."
        )
    for_testing = np.arange(len(y)) % 3 == 2
    return Bunch(
        X_train=X[~for_testing].reset_index(drop=True),
        y_train=y[~for_testing].reset_index(drop=True),
        X_test=X[for_testing].reset_index(drop=True),
        y_test=y[for_testing].reset_index(drop=True),
        classes=list(FAIR_CLASSES),
        feature_descriptions=dict(FAIR_DESCRIPTIONS),
        categories=dict(FAIR_CATEGORIES),
        bounds=dict(FAIR_BOUNDS),
        data_norm=FAIR_DATA_NORM,
        DESCR=_FAIR_DESCR,
    )


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
    compared = {
        name: tuple(level for level in levels if level != _FAIR_REFERENCE)
        for name, levels in FAIR_CATEGORIES.items()
    }
    return _preprocessor(compared, FAIR_BOUNDS, (-1.0, 1.0))


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
        - ``categories``: dict from column name to tuple of str, from ``adult.names``.
        - ``bounds``: dict from column name to (lower, upper).
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
    if home is None:
        X_train, y_train, X_test, y_test = _fetch_adult()
    else:
        X_train, y_train, X_test, y_test = _read_adult(Path(home), origin)
    return Bunch(
        X_train=X_train,
        y_train=y_train,
        X_test=X_test,
        y_test=y_test,
        classes=list(ADULT_CLASSES),
        feature_descriptions=dict(ADULT_DESCRIPTIONS),
        categories=dict(ADULT_CATEGORIES),
        bounds=dict(ADULT_BOUNDS),
        data_norm=ADULT_DATA_NORM,
        DESCR=_ADULT_DESCR,
    )


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
    categories = {name: ADULT_CATEGORIES[name] for name in _ENCODED}
    return _preprocessor(categories, {name: ADULT_BOUNDS[name] for name in _SCALED}, (0.0, 1.0))


def _preprocessor(
    categories: dict[str, tuple[str, ...]],
    bounds: dict[str, tuple[float, float]],
    feature_range: tuple[float, float],
) -> Any:
    """Return an encoder of columns with public `categories`, and a scaler of those with public `bounds`."""
    from sklearn.compose import ColumnTransformer

    from skdpbayes.preprocessing import BoundedScaler, CategoryEncoder

    encoder = CategoryEncoder(categories)
    scaler = BoundedScaler(bounds, feature_range=feature_range)
    return ColumnTransformer(
        [("onehot", encoder, list(categories)), ("scale", scaler, list(bounds))],
        remainder="drop",
        verbose_feature_names_out=False,
    )


def _read_adult(home: Path, origin: str) -> tuple[Any, Any, Any, Any]:
    """Read ``adult.csv.gz`` from the folder `home`, which `origin` named."""
    import pandas as pd

    path = home / "adult.csv.gz"
    if not path.is_file():
        raise FileNotFoundError(
            f"Adult was looked for at {str(path)!r}, because {origin} names that folder, and there is no "
            f"such file. Put adult.csv.gz there, or name no folder to download the table from OpenML."
        )
    table = pd.read_csv(path, keep_default_na=False)
    table = table.rename(columns=lambda name: name.replace("_", "-"))
    train = table["split"] == "train"
    return _checked_adult(table[train], table[~train], "income", str(path))


def _fetch_adult() -> tuple[Any, Any, Any, Any]:
    """Download Adult from OpenML, or read scikit-learn's cache of it."""
    import socket

    from sklearn.datasets import fetch_openml

    # fetch_openml sets no limit, and a network that drops packets would keep the caller waiting for
    # minutes.
    patience = socket.getdefaulttimeout()
    socket.setdefaulttimeout(_NETWORK_SECONDS)
    try:
        with warnings.catch_warnings():
            # scikit-learn warns and tries again when an answer makes no sense. Only the last answer
            # counts.
            warnings.simplefilter("ignore")
            table = fetch_openml("adult", version=2, as_frame=True, n_retries=1).frame
        return _openml_adult(table)
    except Exception as error:  # a network can answer anything, and parsers fail in as many ways
        raise ConnectionError(
            f"Adult could not be had from OpenML ({type(error).__name__}: {error}). Check the network, or "
            f"put adult.csv.gz in a folder and name the folder by data_home or the environment variable "
            f"{DATA_HOME_VARIABLE}."
        ) from error
    finally:
        socket.setdefaulttimeout(patience)


def _openml_adult(table: Any) -> tuple[Any, Any, Any, Any]:
    """Part the table of OpenML into the original training and test rows."""
    for (
        name
    ) in ADULT_CATEGORIES:  # OpenML gives categorical columns with unknowns as missing values.
        table[name] = table[name].astype(object).where(table[name].notna(), "?").astype(str)
    # OpenML joined the two original files; which came first shows in the published number of rows
    # above 50K.
    (n_train, positives), (n_test, _) = _ADULT_TRAIN, _ADULT_TEST
    train_first = (
        int((table["class"].astype(str).iloc[:n_train] == ADULT_CLASSES[1]).sum()) == positives
    )
    train = table.iloc[:n_train] if train_first else table.iloc[n_test:]
    test = table.iloc[n_train:] if train_first else table.iloc[:n_test]
    return _checked_adult(train, test, "class", "OpenML, data set 'adult' version 2")


def _checked_adult(train: Any, test: Any, target: str, source: str) -> tuple[Any, Any, Any, Any]:
    """Split features from labels, and refuse a table that is not the original one."""
    parts: list[Any] = []
    for name, part, expected in (("training", train, _ADULT_TRAIN), ("test", test, _ADULT_TEST)):
        missing = [column for column in ADULT_DESCRIPTIONS if column not in part.columns]
        if missing:
            raise ValueError(
                f"The Adult table of {source} lacks the columns {missing}; use the original table."
            )
        X = part[list(ADULT_DESCRIPTIONS)].reset_index(drop=True)
        numeric = [column for column in X.columns if column not in ADULT_CATEGORIES]
        X = X.astype({column: np.int64 for column in numeric})
        y = part[target].astype(str).rename("income").reset_index(drop=True)
        found = (len(y), int((y == ADULT_CLASSES[1]).sum()))
        if found != expected:
            raise ValueError(
                f"The {name} part of the Adult table of {source} has {found[0]} rows, {found[1]} of them "
                f"{ADULT_CLASSES[1]!r}; the original has {expected[0]} and {expected[1]}. Use the original."
            )
        parts += [X, y]
    return parts[0], parts[1], parts[2], parts[3]
