"""Variational inference: without noise the exact optimum, with nothing but noise the prior."""

import warnings
from itertools import pairwise

import jax.numpy as jnp
import numpy as np
import pytest
from cases import slow_but
from numpyro.diagnostics import effective_sample_size
from scipy.special import expit
from sklearn.exceptions import ConvergenceWarning
from variational import variational_optimum

from benchmarks.coverage import standardised_errors
from skdpbayes import DPBayesianLogisticRegression
from skdpbayes.models import base
from skdpbayes.reference import logistic_gibbs
from skdpbayes.solvers import gaussian_guides, released_curvature


@pytest.fixture(scope="module")
def data():
    """Two thousand rows of five columns, two of them correlated."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(2000, 5)) * [1, 0.5, 2, 1, 1]
    X[:, 4] = 0.8 * X[:, 0] + 0.6 * X[:, 4]
    X /= np.maximum(1, np.linalg.norm(X, axis=1) / 4)[:, None]
    y = (rng.random(2000) < expit(X @ [1, -0.5, 0.5, 0, -1] + 0.3)).astype(int)
    return X, y, np.c_[X, np.ones(2000)]


def without_noise(X, y, **parameters):
    estimator = DPBayesianLogisticRegression(
        **(
            {
                "epsilon": np.inf,
                "solver": "dpvi",
                "classes": [0, 1],
                "data_norm": 4.0,
                "random_state": 0,
                "n_steps": 2000,
                "intercept_scale": 1.0,
            }
            | parameters
        )
    )
    return estimator.fit(X, y).posterior_


@pytest.mark.parametrize("guide", slow_but(["full_rank", "mean_field"], "mean_field"))
def test_optimum_is_found_without_noise(data, guide):
    X, y, Z = data
    mean, covariance = variational_optimum(Z, y, guide == "mean_field")
    sd = np.sqrt(np.diag(covariance))
    found = without_noise(X, y, guide=guide, learning_rate=0.02, n_steps=12_000)
    np.testing.assert_allclose((found.mean - mean) / sd, 0, atol=0.06)
    np.testing.assert_allclose(found.std / sd, 1, atol=0.05)
    if guide == "full_rank":
        np.testing.assert_allclose(
            found.covariance / np.outer(sd, sd), covariance / np.outer(sd, sd), atol=0.03
        )
    else:
        assert found.std[0] < 0.7 * np.sqrt(np.diag(variational_optimum(Z, y, False)[1]))[0]


@pytest.mark.slow
def test_agreement_with_gibbs(data):
    """At the default learning rate: means within .1 standard deviations, those within 10%."""
    X, y, Z = data
    draws = logistic_gibbs(
        Z, y, fit_intercept=False, n_draws=8000, n_burn=300, n_chains=1, random_state=0
    )
    assert effective_sample_size(draws).min() >= 4000
    found, mean, sd = without_noise(X, y, n_steps=4000), draws[0].mean(axis=0), draws[0].std(axis=0)
    np.testing.assert_allclose((found.mean - mean) / sd, 0, atol=0.1)
    np.testing.assert_allclose(found.std / sd, 1, atol=0.1)


@pytest.mark.slow
def test_the_prior_remains_where_there_is_only_noise():
    rng = np.random.default_rng(5)
    n, d = 500, 200
    w = rng.normal(size=d)
    w *= 2 / np.linalg.norm(w)
    X = rng.normal(size=(n + 4000, d))
    y = (rng.random(n + 4000) < expit(X @ w)).astype(int)
    model = DPBayesianLogisticRegression(
        epsilon=0.1, solver="dpvi", classes=[0, 1], random_state=0
    ).fit(X[:n], y[:n])
    posterior = model.posterior_
    assert np.sqrt(np.mean(posterior.mean**2)) < 0.15
    assert 0.9 < np.median(posterior.std) < 1.1
    log_loss = -model.log_predictive_density(X[n:], y[n:]).mean()
    assert log_loss <= np.log(2) + 0.01


@pytest.mark.parametrize("guide", slow_but(["full_rank", "mean_field"], "full_rank"))
def test_reported_uncertainty_grows_with_the_noise(data, guide):
    X, y, _ = data
    sizes = []
    for epsilon in (np.inf, 10.0, 1.0, 0.1, 0.01):
        found = without_noise(X, y, epsilon=epsilon, guide=guide, n_steps=500, clipping_norm=4.2)
        sizes.append(np.mean(np.log(found.std)))
        assert (found.std < 1.05).all()
    # Without noise and at epsilon 10 the noise hardly counts.
    assert all(small < large + 0.1 for small, large in pairwise(sizes)), sizes
    assert sizes[-1] > sizes[0] + 1
    assert sizes[3] > sizes[2] + 0.1


@pytest.mark.slow
def test_errors_are_no_larger_than_reported(data):
    """The privacy noise of the mean is in the covariance: standardised errors are not far above one."""
    X, y, Z = data
    mean, _ = variational_optimum(Z, y, False)
    for epsilon in (0.1, 1.0):
        fits = [
            without_noise(X, y, epsilon=epsilon, n_steps=500, clipping_norm=4.2, random_state=seed)
            for seed in range(12)
        ]
        scores = np.concatenate([(fit.mean - mean) / fit.std for fit in fits])
        assert np.sqrt(np.mean(scores**2)) < 1.5


def spread_and_coverage(epsilon=1.0, fits=40):
    """Of standardised errors, and of the intervals of the largest coefficient."""
    z = standardised_errors(2000, 3, epsilon, [2.0, -1.0], fits, solver="dpvi")
    return z.std(), (np.abs(z[:, 0]) < 1.96).mean()


@pytest.mark.slow
def test_intervals_cover_the_truth():
    """Means and standard deviations hold what shortened scores and privacy noise do: 95% intervals cover 95%."""
    spread, covered = spread_and_coverage(fits=60)
    assert 0.8 < spread < 1.2
    assert covered > 0.86  # three standard errors


@pytest.mark.slow
def test_bias_of_clipping_would_be_noticed(monkeypatch, no_compiled_programs):
    for module in (base, released_curvature):
        monkeypatch.setattr(module, "unbiased_weight", lambda *rest: jnp.ones((), jnp.float32))
    assert spread_and_coverage()[1] < 0.85


@pytest.mark.slow
def test_privacy_noise_that_is_not_reported_would_be_noticed(monkeypatch):
    reported, original = spread_and_coverage(epsilon=0.3)[0], gaussian_guides.FullRank.posterior
    monkeypatch.setattr(
        gaussian_guides.FullRank,
        "posterior",
        lambda *arguments: original(*arguments[:-1], arguments[-1]._replace(privacy=0.0)),
    )
    assert spread_and_coverage(epsilon=0.3)[0] > 1.5 * reported


def test_a_fit_that_has_not_arrived_says_so():
    """A long step from the averages to the estimate; at the default number of rounds none."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(5000, 3))
    y = (rng.random(5000) < expit(X @ [2, -2, 1.5])).astype(int)
    short, default = (
        DPBayesianLogisticRegression(4.0, classes=[0, 1], solver="dpvi", n_steps=n, random_state=0)
        for n in (60, None)
    )
    with pytest.warns(
        ConvergenceWarning, match=r"not arrived: its last step is \d+\.\d\d posterior"
    ):
        short.fit(X, y)
    assert short.diagnostics_["last_step"] > 5
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        default.fit(X, y)
    assert 0 < default.diagnostics_["last_step"] < 0.3


def test_prior_that_is_not_normal_is_refused():
    class Laplace:
        def init(self):
            return jnp.zeros(2)

        def log_prior(self, params):
            return -jnp.abs(params).sum()

    with pytest.raises(TypeError, match="Laplace has none"):
        base.prior_precision(Laplace())


@pytest.mark.slow
def test_what_the_data_do_not_say_stays_with_the_prior():
    """Collinear one-hot columns and an empty category: over fits, coefficients vary no more than the prior does."""
    rng = np.random.default_rng(0)
    n = 3000
    sex, ward = (
        np.eye(2)[rng.integers(0, 2, n)],
        np.eye(4)[rng.integers(0, 3, n)],
    )  # nobody in the fourth ward
    X = np.c_[rng.uniform(-1, 1, (n, 2)), sex, ward]
    y = (rng.random(n) < expit(X @ [1, -1, 0.3, -0.3, 0.5, 0, -0.5, 0])).astype(int)

    def fit(**parameters):
        return (
            DPBayesianLogisticRegression(classes=[0, 1], solver="dpvi", data_norm=2.0, **parameters)
            .fit(X, y)
            .posterior_
        )

    exact = fit(epsilon=np.inf, random_state=0)
    fits = [fit(epsilon=1.0, random_state=seed) for seed in range(20)]
    errors = np.array([found.mean - exact.mean for found in fits])
    assert errors.std(axis=0).max() < 1.1
    assert (np.abs(errors / [found.std for found in fits]) < 1.96).mean() > 0.9
    assert np.mean([found.std[7] for found in fits]) > 0.9  # the empty ward's is the prior's
