"""The evidence of priors, given a normal likelihood, beside integration on a grid."""

import numpy as np
import pytest
from cases import slow_but
from scipy import special, stats

from skdpbayes.posteriors.evidence import NormalLikelihood, Priors, evidence

U = (np.arange(2000) + 0.5) / 2000
GRID = np.tan(np.pi * (U - 0.5))  # of the whole line, with the weights
LOG_WEIGHTS = np.log(np.pi * (1 + GRID**2) / len(U))


def likelihood(strength, p=2, seed=0):
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(p, p))
    information, truth = strength * root @ root.T, rng.standard_t(3, p)
    linear = information @ truth + strength**0.5 * root @ rng.normal(size=p)
    return NormalLikelihood(information, linear, information)


def log_prior(scale, df):
    of = stats.norm if np.isinf(df) else stats.t(df)
    return of.logpdf(GRID / scale) - np.log(scale) + LOG_WEIGHTS


def integral(own, scale, df):
    """Log evidence of two coefficients, on a grid."""
    (a, b), (_, c) = own.information
    x, y = GRID[:, None], GRID
    log = own.linear[0] * x + own.linear[1] * y - (a * x**2 + 2 * b * x * y + c * y**2) / 2
    return special.logsumexp(log + log_prior(scale[0], df[0])[:, None] + log_prior(scale[1], df[1]))


@pytest.mark.parametrize("seed", slow_but(range(3), 0))
@pytest.mark.parametrize("strength", [0.1, 3.0, 100.0])
@pytest.mark.parametrize("df", [(np.inf, np.inf), (4.0, np.inf), (3.0, 3.0), (30.0, 4.0)])
def test_it_is_the_integral_over_the_prior(strength, df, seed):
    own, scale, df = likelihood(strength, seed=seed), np.array([1.0, 0.5]), np.array(df)
    found = evidence(own, Priors(scale, df))
    exact = integral(own, scale, df)
    normal = np.isinf(df).all()
    assert found.log == pytest.approx(exact, abs=1e-4 if normal else 0.02)
    only = np.exp(
        -own.information[1, 1] * GRID**2 / 2 + own.linear[1] * GRID + log_prior(scale[1], df[1])
    )
    without = np.log(only.sum()) - exact
    assert found.without[0] == pytest.approx(without, abs=1e-4 if normal else 0.1)


def test_an_observation_with_known_noise():
    """Of ``h t + N(0, s)`` the evidence of a normal prior is the density of N(0, h C h + s)."""
    rng = np.random.default_rng(1)
    h = np.diag([5.0, 2.0, 1.0]) + 0.3
    noise = np.diag([3.0, 4.0, 1.0]) + 0.5
    observed = 3 * rng.normal(size=3)
    gain = h @ np.linalg.inv(noise)
    own = NormalLikelihood(gain @ h, gain @ observed, gain @ h)
    at_zero = stats.multivariate_normal(np.zeros(3), noise).logpdf(observed)
    for scale in (np.full(3, 0.2), np.array([3.0, 1.0, 0.5])):
        exact = stats.multivariate_normal(np.zeros(3), h @ np.diag(scale**2) @ h + noise)
        found = evidence(own, Priors(scale, np.full(3, np.inf))).log
        assert found == pytest.approx(exact.logpdf(observed) - at_zero)


def test_many_coefficients_agree_with_importance_sampling():
    """Of 12 coefficients under Student t priors, from the normal posterior, widened."""
    own, p = likelihood(1.0, p=12, seed=5), 12
    scale, df = np.full(p, 0.7), np.full(p, 4.0)
    centre = np.linalg.solve(own.information + np.diag(scale**-2.0), own.linear)
    spread = 1.5 * np.linalg.inv(own.information + np.diag(scale**-2.0))
    proposal = stats.multivariate_t(centre, spread, df=8, seed=0)
    draws = proposal.rvs(400_000)
    log = draws @ own.linear - np.einsum("ij,jk,ik->i", draws, own.information, draws) / 2
    log += np.sum(stats.t.logpdf(draws / scale, df) - np.log(scale), axis=1)
    log -= proposal.logpdf(draws)
    found = evidence(own, Priors(scale, df)).log
    assert found == pytest.approx(special.logsumexp(log) - np.log(len(log)), abs=0.05)


def test_many_degrees_of_freedom_are_a_normal_prior():
    own, scale = likelihood(2.0), np.array([1.0, 0.5])
    normal, near = (evidence(own, Priors(scale, np.full(2, df))) for df in (np.inf, 1e5))
    assert near.log == pytest.approx(normal.log, abs=1e-3)
    np.testing.assert_allclose(near.without, normal.without, atol=1e-3)


def test_directions_of_which_nothing_is_known_change_nothing():
    own = likelihood(3.0)
    wide = NormalLikelihood(
        *(np.pad(x, (0, 1)) for x in (own.information, own.linear, own.reported))
    )
    scale, df = np.array([1.0, 0.5, 2.0]), np.array([4.0, 4.0, 3.0])
    found, alone = evidence(wide, Priors(scale, df)), evidence(own, Priors(scale[:2], df[:2]))
    assert found.log == pytest.approx(alone.log, abs=1e-6)
    assert found.without[2] == pytest.approx(0, abs=1e-6)


def test_other_coordinates():
    own, axes = likelihood(3.0), np.array([[2.0, 1.0], [0.0, 0.5]])
    mapped, t = own.mapped(axes), np.array([0.3, -0.7])

    def log(one, at):
        return one.linear @ at - at @ one.information @ at / 2

    assert log(mapped, axes @ t) == pytest.approx(log(own, t))
    np.testing.assert_allclose(mapped.reported, mapped.information)


def test_some_of_the_coefficients():
    own, kept = likelihood(3.0, p=3), np.array([True, False, True])
    some, t = own.among(kept), np.array([0.3, -0.7])
    at = np.array([0.3, 0.0, -0.7])
    assert some.linear @ t - t @ some.information @ t / 2 == pytest.approx(
        own.linear @ at - at @ own.information @ at / 2
    )


def test_likelihoods_under_factors_are_mapped_and_chosen_from_as_the_whole_is():
    rng = np.random.default_rng(0)
    parts = [rng.normal(size=(3, 4, 4)), rng.normal(size=(3, 4)), rng.normal(size=(3, 4, 4))]
    axes, kept = rng.normal(size=(4, 4)), np.array([True, False, True, True])
    whole = NormalLikelihood(*(x[1] for x in parts), by_factor=tuple(parts), scales=np.arange(4.0))
    for one in (whole.mapped(axes), whole.among(kept)):
        for under, own in zip(
            one.by_factor, (one.information, one.linear, one.reported), strict=True
        ):
            np.testing.assert_allclose(under[1], own)
    assert whole.mapped(axes).scales is whole.scales
    np.testing.assert_array_equal(whole.among(kept).scales, [0, 2, 3])
