"""Priors are chosen from what a fit has released: no row is read, and no budget is spent."""

import copy
import pickle
import warnings

import numpy as np
import pandas as pd
import pytest
from cases import slow_but
from scipy import special, stats
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from skdpbayes import DPBayesianLogisticRegression, DPBetaBernoulli
from skdpbayes.model_selection import choose_prior
from skdpbayes.privacy import PrivacyLeakWarning, PrivacyLedger

pytestmark = pytest.mark.usefixtures("compiled_quickly")
N = 1500
RNG = np.random.default_rng(3)
X = pd.DataFrame(RNG.normal(size=(N, 4)), columns=list("abcd"))
LOGITS = X.to_numpy() @ [1.2, -0.8, 0.0, 0.0] + 0.4
Y = (RNG.uniform(size=N) < special.expit(LOGITS)).astype(int)


def model(**parameters):
    given = {"epsilon": np.inf, "classes": [0, 1], "n_posterior_samples": 50, "random_state": 0}
    return DPBayesianLogisticRegression(**(given | {"n_steps": 41} | parameters))


def shared(X, **parameters):
    """A fit for several tests, made before the warning about seeds counts as said."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyLeakWarning)
        return model(**parameters).fit(X, Y)


@pytest.fixture(scope="module")
def noiseless(compiled_quickly):
    return shared(X)


@pytest.fixture(scope="module")
def private(compiled_quickly):
    return shared(X, epsilon=20.0)


@pytest.fixture(scope="module")
def of_one_column(compiled_quickly):
    return shared(X[["b"]])


def assert_about_the_same(one, other, share):
    """Means within a share of the standard deviations, and these within a share of each other."""
    assert (
        np.abs(one.posterior_.mean - other.posterior_.mean) < share * other.posterior_.std
    ).all()
    np.testing.assert_allclose(one.posterior_.std, other.posterior_.std, rtol=share)


@pytest.mark.parametrize("name", slow_but(["noiseless", "private"], "noiseless"))
def test_under_its_own_prior_it_is_the_fit(name, request):
    fitted = request.getfixturevalue(name)
    assert_about_the_same(fitted.with_prior(), fitted, 1e-3)


@pytest.mark.parametrize("scale, df, moved", [(0.15, 30.0, True), (5.0, 3.0, False)])
@pytest.mark.parametrize(
    "name, share",
    [("noiseless", 0.15), pytest.param("private", 0.2, marks=pytest.mark.slow)],
)
def test_it_is_what_a_fit_under_the_other_prior_would_be(name, share, scale, df, moved, request):
    fitted = request.getfixturevalue(name)
    prior = {"prior_scale": scale, "prior_df": df}
    other = fitted.with_prior(**prior)
    again = clone(other)
    assert {key: again.get_params()[key] for key in prior} == prior
    assert again.intercept_scale == 2.5
    again.fit(X, Y)
    assert_about_the_same(other, again, share)
    far = np.abs(fitted.posterior_.mean - other.posterior_.mean) / other.posterior_.std
    assert not moved or far.max() > 2 * share


def test_without_columns_the_intercept_is_left(noiseless):
    other = noiseless.with_prior(columns=[])
    rate = special.expit(other.intercept_[0])
    assert abs(rate - Y.mean()) < 0.15 and 0 < other.posterior_.std[-1] < 0.5


@pytest.mark.slow
@pytest.mark.parametrize("columns", [["b"], [1], [False, True, False, False]])
def test_other_coefficients_are_zero(columns, noiseless, of_one_column):
    other, alone = noiseless.with_prior(columns=columns), of_one_column
    zero = [0, 2, 3]
    assert (other.coef_[0, zero] == 0).all() and (other.posterior_.std[zero] == 0).all()
    assert (other.posterior_samples_["coef"][:, :, zero] == 0).all()
    assert (noiseless.coef_ != 0).all()
    # The other coefficients were not zero where the scores were released: it is further away.
    some, std = [1, 4], alone.posterior_.std
    assert (np.abs(other.posterior_.mean[some] - alone.posterior_.mean) < 3 * std).all()
    np.testing.assert_allclose(other.posterior_.std[some], std, rtol=0.2)
    without_noise = noiseless.with_prior(columns=["a", "b"]).posterior_
    assert (np.abs(without_noise.mean - noiseless.posterior_.mean)[:2] < 0.2 * std[0]).all()


@pytest.mark.slow
def test_evidence_without_noise_is_that_of_the_data(of_one_column):
    """Of a coefficient and the intercept, by integration of the likelihood itself."""
    slope, intercept = np.linspace(-2, 1, 301)[:, None], np.linspace(-1, 2, 301)
    sign, x = np.where(Y == 1, 1, -1), X["b"].to_numpy()
    log = sum(special.log_expit(s * (v * slope + intercept)) for s, v in zip(sign, x, strict=True))

    def exact(scale, df):
        prior = (stats.norm if df is None else stats.t(df)).logpdf(slope / scale) - np.log(scale)
        return special.logsumexp(log + prior + stats.norm.logpdf(intercept))

    priors = [(1.0, None), (0.1, None), (5.0, None), (0.3, 3.0), (1.0, 4.0)]
    found, true = (
        np.array([of(scale, df) for scale, df in priors])
        for of in (lambda s, df: of_one_column.log_evidence(prior_scale=s, prior_df=df), exact)
    )
    np.testing.assert_allclose(found - found[0], true - true[0], atol=0.2)
    assert np.ptp(true) > 2


def test_it_reads_nothing_and_spends_nothing(private, monkeypatch):
    ledger = PrivacyLedger(epsilon=1.0, delta=1e-5)
    fitted = pickle.loads(pickle.dumps(private))

    def refuses(*arguments, **options):
        raise AssertionError("a row was read, or something was charged")

    for name in ("_fit", "_prepared", "_charge", "_run"):
        monkeypatch.setattr(type(fitted), name, refuses)
    fitted.ledger = ledger
    before = pickle.dumps(vars(fitted))
    choice = choose_prior(fitted, {"prior_scale": [0.3, 1.0], "columns": ["backward"]})
    assert ledger.spent_epsilon == 0
    assert choice.estimator.privacy_spent_ is fitted.privacy_spent_
    assert choice.estimator.ledger is ledger  # which a refit charges
    assert pickle.dumps(vars(fitted)) == before
    # A refit of the copy counts the fit that it comes from; one of a clone is a fit of its own.
    told = [own.plan(N, 4).report for own in (fitted, choice.estimator, clone(choice.estimator))]
    assert told[0].cumulative == told[1].cumulative == fitted.privacy_spent_.releases
    assert told[2].cumulative == ()
    assert any("random_state" in why for why in told[1].voided_by)
    again = choose_prior(fitted, {"prior_scale": [0.3, 1.0], "columns": ["backward"]})
    np.testing.assert_array_equal(
        again.estimator.posterior_samples_["coef"], choice.estimator.posterior_samples_["coef"]
    )


def test_choice_of_scale_degrees_and_columns(private):
    grid = {"prior_scale": [0.01, 1.0, 100.0], "prior_df": [None, 4.0], "columns": ["backward"]}
    choice = choose_prior(private, grid)
    assert len(choice.candidates) == len(choice.log_evidence) == 3 * 2 * 5
    assert choice.params["prior_scale"] == 1.0
    assert choice.params["columns"].tolist() == [True, True, False, False]
    assert choice.params is choice.candidates[choice.log_evidence.argmax()]
    for params, log in zip(choice.candidates, choice.log_evidence, strict=True):
        assert private.log_evidence(**params) == pytest.approx(log)
    assert choice.estimator.get_params()["prior_scale"] == 1.0
    assert choice.estimator.score(X, Y) > 0.7
    with_all = choose_prior(private, {"columns": [None, ["a"], []]})
    assert with_all.params["columns"].all() and with_all.log_evidence[2] < with_all.log_evidence[1]


def test_the_intercept_keeps_its_prior(noiseless):
    far = noiseless.with_prior(prior_scale=1e-3, prior_df=None)
    base = special.logit(Y.mean())
    assert abs(far.intercept_[0] - base) < 0.1 and far.intercept_scale == 2.5
    assert far.with_prior(prior_scale=1.0).intercept_scale == 2.5
    own = model(prior_scale=0.5, intercept_scale=0.1).fit(X, Y)
    assert own.intercept_[0] < noiseless.intercept_[0]


@pytest.mark.slow
def test_three_classes():
    y = np.where(Y == 0, 0, np.where(X["b"] > 0, 1, 2))
    fitted = model(classes=[0, 1, 2]).fit(X, y)
    assert_about_the_same(fitted.with_prior(), fitted, 1e-3)
    choice = choose_prior(fitted, {"columns": ["backward"]})
    assert choice.params["columns"].tolist() == [True, True, False, False]
    assert choice.estimator.coef_.shape == (3, 4)
    assert (choice.estimator.coef_[:, 2:] == 0).all()


@pytest.mark.parametrize("prior, message", [
    ({"prior_scale": 0.0}, "prior_scale"),
    ({"prior_df": 2.0}, "prior_df"),
    ({"columns": ["a", "z"]}, "z"),
    ({"columns": [True]}, r"shape \(4,\)"),
    ({"columns": [4]}, "outside of the 4 columns"),
    ({"columns": [0.5]}, "mask, indices or names"),
])  # fmt: skip
def test_priors_that_are_none_are_refused(prior, message, noiseless):
    with pytest.raises(ValueError, match=message):
        noiseless.log_evidence(**prior)
    with pytest.raises(ValueError, match=message):
        noiseless.with_prior(**prior)


def test_what_cannot_be_chosen_is_refused(noiseless):
    with pytest.raises(NotFittedError):
        model().log_evidence()
    with pytest.raises(ValueError, match="epsilon"):
        choose_prior(noiseless, {"epsilon": [1.0]})
    with pytest.raises(TypeError, match=r"got DPBetaBernoulli[.] Of a pipeline or a search pass"):
        choose_prior(DPBetaBernoulli(), {"prior_scale": [1.0]})
    changed = copy.copy(noiseless).set_params(fit_intercept=not noiseless.fit_intercept)
    with pytest.raises(ValueError, match="is not that of the fit"):
        changed.with_prior(prior_scale=1.0)


def test_a_prior_that_moves_the_estimate_far_is_not_chosen(noiseless):
    """Noise hides how the likelihood goes on: its quadratic form holds near the fit alone."""
    loud = shared(X, epsilon=0.5)
    scales = [0.01, 0.05, 1.0]
    choice = choose_prior(loud, {"prior_scale": scales, "prior_df": [None]})
    assert choice.moved[0] > choice.moved[1] > 0.25 > choice.moved[2]
    assert choice.params["prior_scale"] == 1.0
    with pytest.warns(UserWarning, match="fit again with this prior"):
        other = loud.with_prior(prior_scale=0.05, prior_df=None)
    away = np.append(other.coef_[0] - loud.coef_[0], other.intercept_ - loud.intercept_)
    rows = np.column_stack([X, np.ones(N)])
    assert choice.moved[1] == pytest.approx(np.sqrt(np.mean((rows @ away) ** 2)), rel=0.25)
    # Of candidates that are all far away the nearest is taken.
    with pytest.warns(UserWarning, match="linear predictors differ by"):
        far = choose_prior(loud, {"prior_scale": scales[:2], "prior_df": [None]})
    assert far.params["prior_scale"] == 0.05
    unhidden = choose_prior(noiseless, {"prior_scale": scales, "prior_df": [None]})
    assert not unhidden.moved.any()
