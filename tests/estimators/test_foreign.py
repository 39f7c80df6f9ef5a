"""Parameters of scikit-learn that ours do not take: each is answered by what to use instead."""

import inspect
import pickle
import re
import warnings

import numpy as np
import pytest
from cases import ENTRIES, public_estimators
from sklearn.base import clone
from sklearn.decomposition import LatentDirichletAllocation
from sklearn.linear_model import BayesianRidge, LogisticRegression, Ridge
from sklearn.mixture import BayesianGaussianMixture, GaussianMixture
from sklearn.model_selection import GridSearchCV, RandomizedSearchCV
from sklearn.neural_network import BernoulliRBM, MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.validation import has_fit_parameter

from skdpbayes import (
    DPBayesianLinearRegression,
    DPBayesianLogisticRegression,
    DPBayesianMLPClassifier,
    DPBayesianMLPRegressor,
    DPBetaBernoulli,
    DPDirichletCategorical,
    DPGaussianMixture,
    DPLatentDirichletAllocation,
    DPSigmoidBeliefNet,
)
from skdpbayes.estimators._foreign import FOREIGN
from skdpbayes.model_selection import DPRandomizedSearchCV
from skdpbayes.preprocessing import DPStandardScaler
from skdpbayes.privacy import PrivacyLeakWarning

COUNTERPARTS = [
    (DPBayesianLogisticRegression, LogisticRegression),
    (DPBayesianLinearRegression, BayesianRidge),
    (DPBayesianLinearRegression, Ridge),
    (DPGaussianMixture, BayesianGaussianMixture),
    (DPGaussianMixture, GaussianMixture),
    (DPLatentDirichletAllocation, LatentDirichletAllocation),
    (DPBayesianMLPClassifier, MLPClassifier),
    (DPBayesianMLPRegressor, MLPRegressor),
    (DPSigmoidBeliefNet, BernoulliRBM),
    (DPStandardScaler, StandardScaler),
]


@pytest.mark.parametrize("theirs", [GridSearchCV, RandomizedSearchCV])
def test_parameters_of_searches_are_answered(theirs):
    own = inspect.signature(DPRandomizedSearchCV).parameters
    for name in inspect.signature(theirs).parameters:
        if name not in own:
            with pytest.raises(TypeError, match=f"^DPRandomizedSearchCV takes no '{name}': "):
                DPRandomizedSearchCV(DPBetaBernoulli(), {}, **{name: 5})


@pytest.mark.parametrize(("ours", "theirs"), COUNTERPARTS)
def test_every_parameter_of_the_counterpart_is_answered(ours, theirs):
    own = inspect.signature(ours).parameters
    for name in inspect.signature(theirs).parameters:
        if name in own:
            continue
        with pytest.raises(TypeError, match=f"^{ours.__name__} takes no '{name}': "):
            ours(**{name: 1})
        with pytest.raises(TypeError, match=f"takes no '{name}': "):
            ours().set_params(**{name: 1})


def test_answers_name_parameters_that_there_are():
    classes = {cls.__name__: cls for cls in (*public_estimators(), DPRandomizedSearchCV)}
    used = 0
    for title, table in FOREIGN.items():
        below = [cls for cls in classes.values() if title in {b.__name__ for b in cls.__mro__}]
        assert below, title
        # The nearest table counts.
        for cls in below:
            nearest = next(b.__name__ for b in cls.__mro__ if b.__name__ in FOREIGN)
            if nearest != title:
                continue
            own = inspect.signature(cls).parameters
            for name, answer in table.items():
                assert name not in own, (title, name)
                for word in re.findall(r"\b[a-z]+(?:_[a-z]+)+\b", answer.partition(":")[0]):
                    assert word in (*own, "predict_proba"), (title, name, word)
                    used += 1
    assert used > 50


def test_answers_say_how_to_convert():
    with pytest.raises(TypeError, match=r"C = prior_scale\*\*2"):
        DPBayesianLogisticRegression(epsilon=1.0, C=0.1)
    with pytest.raises(TypeError, match=r"'C': .*'max_iter': use n_steps"):
        DPBayesianLogisticRegression(C=0.1, max_iter=100)
    with pytest.raises(TypeError, match=r"takes no 'C'"):
        make_pipeline(DPBayesianLogisticRegression()).set_params(dpbayesianlogisticregression__C=1)
    search = GridSearchCV(DPBayesianLogisticRegression(), {"C": [1.0]})
    with pytest.raises(TypeError, match=r"takes no 'C'"):
        search.fit(np.zeros((10, 1)), [0, 1] * 5)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_weights_of_records_are_answered_and_nothing_is_read(entry):
    model = entry.cls(**entry.parameters)
    with pytest.raises(TypeError, match="takes no 'sample_weight': each record counts once"):
        model.fit(None, None, sample_weight=np.ones(3))
    assert not has_fit_parameter(model, "sample_weight")
    with pytest.raises(TypeError, match="unexpected keyword argument 'nonsense'"):
        model.fit(None, nonsense=1)


def test_other_mistakes_are_answered_as_before():
    with pytest.raises(TypeError, match="unexpected keyword argument 'nonsense'"):
        DPBetaBernoulli(nonsense=1)
    with pytest.raises(ValueError, match="Invalid parameter 'nonsense'"):
        DPBetaBernoulli().set_params(nonsense=1)
    with pytest.raises(TypeError, match=r"takes no 'max_iter'.*n_steps"):
        DPBetaBernoulli(max_iter=3)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_the_interface_is_what_it_was(entry):
    model = entry.cls(**entry.parameters)
    names = list(inspect.signature(entry.cls).parameters)
    assert sorted(model.get_params()) == sorted(names)
    assert "args" not in names and "kwargs" not in names
    assert next(iter(inspect.signature(model.fit).parameters)) == "X"
    assert type(clone(model)) is entry.cls
    if entry.cls.__name__ != "DPNumPyroModel":  # whose functions are of a module of tests
        assert repr(clone(model)) == repr(model)
        assert repr(pickle.loads(pickle.dumps(model))) == repr(model)


def test_warnings_of_a_fit_point_to_its_line(compiled_quickly):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        DPDirichletCategorical().fit([["a"], ["b"]] * 15)
        DPBetaBernoulli(delta=0.5).fit(np.zeros((30, 1)))
    assert caught[0].category is PrivacyLeakWarning and len(caught) >= 2
    assert {own.filename for own in caught} == {__file__}
