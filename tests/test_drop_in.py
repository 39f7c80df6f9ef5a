"""scikit-learn's own documented examples, with nothing changed but the name of the class.

Rows to fit to are made arrays where they are lists, whose width is not public.
"""

import doctest
import re
import warnings

import numpy as np
import pytest
from cases import slow_but
from sklearn.decomposition import LatentDirichletAllocation
from sklearn.linear_model import BayesianRidge, LogisticRegression
from sklearn.mixture import BayesianGaussianMixture, GaussianMixture
from sklearn.neural_network import BernoulliRBM
from sklearn.preprocessing import StandardScaler

import skdpbayes
from skdpbayes.privacy import PrivacyLeakWarning

pytestmark = pytest.mark.usefixtures("compiled_quickly")

PAIRS = [
    (LogisticRegression, "DPBayesianLogisticRegression"),
    (LatentDirichletAllocation, "DPLatentDirichletAllocation"),
    (GaussianMixture, "DPGaussianMixture"),
    (BayesianGaussianMixture, "DPGaussianMixture"),
    (BayesianRidge, "DPBayesianLinearRegression"),
    (BernoulliRBM, "DPSigmoidBeliefNet"),
]


def values(lines):
    """What the lines of an example show, one after the other."""
    namespace, shown = {}, []
    for line in lines:
        try:
            shown.append(eval(line, namespace))
        except SyntaxError:
            exec(line, namespace)
    return shown


def like(ours, theirs):
    """Whether two values are of one kind: arrays of one shape, numbers, estimators."""
    if isinstance(theirs, np.ndarray):
        return (
            isinstance(ours, np.ndarray)
            and ours.shape == theirs.shape
            and ours.dtype.kind == theirs.dtype.kind
        )
    if isinstance(theirs, float):
        return isinstance(ours, float) and np.isfinite(ours)
    return hasattr(theirs, "get_params") and hasattr(ours, "get_params")


@pytest.mark.parametrize("pair", slow_but(PAIRS, PAIRS[-2]), ids=lambda pair: pair[0].__name__)
def test_documented_example(pair):
    original, name = pair
    lines = [example.source for example in doctest.DocTestParser().get_examples(original.__doc__)]
    assert len(lines) > 3
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of theirs
        theirs = values(lines)
    assert any(original.__name__ in line for line in lines)
    swapped = [
        line.replace(original.__name__, name).replace(f"linear_model.{name}", name)
        for line in lines
    ]
    swapped = [re.sub(r"fit\((\[\[.*?\]\])", r"fit(numpy.asarray(\1)", line) for line in swapped]
    swapped = [
        f"import numpy; from skdpbayes import {name}\n",
        *(s for s in swapped if f"import {name}" not in s),
    ]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ours = values(swapped)
    assert {warning.category for warning in caught} <= {PrivacyLeakWarning, UserWarning}
    assert len(ours) == len(theirs)
    for mine, known in zip(ours, theirs, strict=True):
        assert like(mine, known), (mine, known)


@pytest.mark.slow
def test_without_noise_the_mixtures_example_has_the_same_answer():
    """The six points of GaussianMixture's docstring, a hundred times."""
    X = np.array(
        [[1, 2], [1, 4], [1, 0], [10, 2], [10, 4], [10, 0]] * 100
    )  # or the prior would count
    known = GaussianMixture(n_components=2, random_state=0).fit(X)
    ours = skdpbayes.DPGaussianMixture(
        n_components=2,
        random_state=0,
        epsilon=np.inf,
        bounds=((0, 0), (11, 5)),
        means_init=[[9, 2], [2, 2]],
    ).fit(X)
    order = np.argsort(known.means_[:, 0])[:: 1 if ours.means_[0, 0] < ours.means_[1, 0] else -1]
    np.testing.assert_allclose(ours.means_, known.means_[order], atol=0.1)
    assert (ours.predict(X) == ours.predict(X)[0]).tolist() == (
        known.predict(X) == known.predict(X)[0]
    ).tolist()


def test_without_noise_logistic_regression_is_scikit_learns():
    """On iris: the most probable labels are the same for all but a few of 150 flowers."""
    from sklearn.datasets import load_iris

    X, y = load_iris(return_X_y=True)
    X = StandardScaler().fit_transform(X)
    known = LogisticRegression().fit(X, y)  # its penalty is our prior
    ours = skdpbayes.DPBayesianLogisticRegression(
        classes=[0, 1, 2], data_norm=5.0, epsilon=np.inf, random_state=0
    ).fit(X, y)
    assert np.mean(ours.predict(X) == known.predict(X)) > 0.97
    assert (
        np.abs(ours.predict_proba(X) - known.predict_proba(X)).mean() < 0.03
    )  # ours are averages over the posterior
