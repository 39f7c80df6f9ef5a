"""Posteriors given noisy sums: against enumeration, numerical integration, conjugacy and simulation."""

import itertools

import numpy as np
import pytest
from scipy import special, stats

from skdpbayes.models.families import BetaBernoulli, DirichletCategorical, GammaExponential
from skdpbayes.posteriors import conjugate
from skdpbayes.posteriors.conjugate import CountsPosterior, RatePosterior

f32 = np.float32


def close(draws, mean, variance):
    """Whether moments of independent draws are these, up to six standard errors."""
    spread = np.sqrt(variance)
    fourth = ((draws - draws.mean(axis=0)) ** 4).mean(axis=0)
    assert (np.abs(draws.mean(axis=0) - mean) <= 6 * spread / len(draws) ** 0.5 + 1e-9).all()
    assert (np.abs(draws.var(axis=0) - variance) <= 6 * np.sqrt(fourth / len(draws)) + 1e-9).all()


# Counts


def enumerated(noisy, scale, n, alpha):
    """Moments of counts and of probabilities by summing over all counts of three categories."""
    counts = np.array(
        [(i, j, n - i - j) for i, j in itertools.product(range(n + 1), repeat=2) if i + j <= n]
    )
    log = stats.dirichlet_multinomial(alpha, n).logpmf(counts) + stats.norm(noisy, scale).logpdf(
        counts
    ).sum(axis=1)
    weight = np.exp(log - log.max())
    weight /= weight.sum()
    p = (counts + alpha) / (n + alpha.sum())

    def moments(values, within):
        mean = weight @ values
        return mean, weight @ (within + (values - mean) ** 2)

    return moments(counts, 0), moments(p, p * (1 - p) / (n + alpha.sum() + 1))


@pytest.mark.parametrize("noisy", [(16.2, 9.0, 7.1), (34.0, 2.5, -8.0)])
@pytest.mark.parametrize(
    "alpha", [(1, 1, 1), (0.5, 2, 9), (0.02, 0.02, 0.02), (1e6, 2e6, 1e6)], ids=str
)
@pytest.mark.parametrize("scale", [3.0, 200.0])
def test_counts_and_probabilities_are_those_of_an_enumeration(noisy, alpha, scale):
    noisy, alpha = np.array(noisy), np.array(alpha, float)
    of_counts, of_probabilities = enumerated(noisy, scale, 30, alpha)
    posterior = CountsPosterior(noisy, scale, 30, alpha)
    counts = posterior.sample_counts(np.random.default_rng(0), 50_000)
    assert (counts.sum(axis=1) == 30).all() and (counts >= 0).all()
    close(counts, *of_counts)
    close(posterior.sample(np.random.default_rng(1), 50_000), *of_probabilities)


def test_only_differences_of_noisy_counts_matter():
    draws = [CountsPosterior(np.array([9.0, 3, 1]) + c, 2.0, 20, np.ones(3)).sample(np.random.default_rng(0), 50)
             for c in (0, -7.5)]  # fmt: skip
    np.testing.assert_allclose(*draws)


def test_many_records_give_the_normal_approximation():
    n, scale, p = 100_000, 300.0, np.array([0.6, 0.3, 0.1])
    noisy = n * p + [200.0, -500, 900]
    posterior = CountsPosterior(noisy, scale, n, np.ones(3))
    mean = (noisy + (n - noisy.sum()) / 3) / n
    variance = (scale / n) ** 2 * (1 - 1 / 3) + mean * (1 - mean) / n
    np.testing.assert_allclose(posterior.mean, mean, atol=0.05 * variance.min() ** 0.5)
    np.testing.assert_allclose(posterior.std, variance**0.5, rtol=0.03)
    np.testing.assert_allclose(np.sqrt(np.diag(posterior.covariance)), posterior.std, rtol=1e-3)


@pytest.mark.parametrize("n_categories", [2, 5, 40])
def test_noiseless_counts_give_the_conjugate_dirichlet(n_categories):
    rng = np.random.default_rng(n_categories)
    counts, alpha = (
        rng.multinomial(500, np.full(n_categories, 1 / n_categories)),
        rng.gamma(2, size=n_categories),
    )
    posterior = CountsPosterior(counts - 500 / n_categories, 0.0, 500, alpha)
    assert (posterior.sample_counts(rng, 200) == counts).all()
    exact = stats.dirichlet(alpha + counts)
    close(posterior.sample(rng, 20_000), exact.mean(), exact.var())


# Rates


def density(theta, total, scale, n, upper):
    """Of a noisy sum given the rate."""
    posterior = RatePosterior(np.array([total]), scale, n, 1.0, 1.0, upper)
    return np.exp(posterior._log_density(np.log(np.atleast_1d(theta)), total))


@pytest.mark.parametrize("scale", [0.1, 1.0, 30.0])
@pytest.mark.parametrize(("n", "size"), [(1, 200_000), (5, 200_000), (200, 10_000)])
@pytest.mark.parametrize("upper", [0.02, 0.5, 2.0, 30.0])
def test_density_of_a_noisy_sum_is_that_of_a_simulation(n, size, upper, scale):
    """From nearly everything censored to nearly nothing, from little noise to much."""
    theta, rng = 1.3, np.random.default_rng(0)
    sums = np.zeros(size)
    for _ in range(n):
        sums += np.minimum(rng.exponential(1 / theta, size), upper) - upper / 2
    deviation = scale * upper
    for total in np.quantile(sums, [0.02, 0.3, 0.6, 0.98]):
        terms = stats.norm(total, deviation).pdf(sums)
        error = 5 * terms.std() / size**0.5 + 1e-3 * terms.mean()
        assert density(theta, total, deviation, n, upper)[0] == pytest.approx(
            terms.mean(), abs=error
        )


@pytest.mark.parametrize(("theta", "upper"), [(1.3, 2.0), (0.2, 1.0), (5.0, 1.0)])
def test_density_of_one_noisy_value_is_the_integral(theta, upper):
    x, scale = np.linspace(0, upper, 20_001), 0.4
    for total in (-1.0, 0.0, 0.7):
        kernel = stats.norm(total, scale).pdf(x - upper / 2)
        want = (
            np.trapezoid(kernel * theta * np.exp(-theta * x), x)
            + np.exp(-theta * upper) * kernel[-1]
        )
        assert density(theta, total, scale, 1, upper)[0] == pytest.approx(want, rel=1e-5)


@pytest.mark.parametrize("n", [60, 1000])
def test_few_frequencies_suffice_where_they_are_taken(n, monkeypatch):
    """Of points by themselves and of a whole grid."""
    own, total = RatePosterior(np.zeros(1), 2.0, n, 1.0, 1.0, 3.0), 0.1 * n
    points = np.linspace(-4, 4, 40)
    few = np.concatenate([own._log_density(points[[i]], total) for i in range(len(points))])
    together = own._log_density(points, total)
    monkeypatch.setattr(conjugate, "_FEWER", conjugate._FREQUENCIES)
    many = own._log_density(points, total)
    seen = many > many.max() - 30
    np.testing.assert_allclose(few[seen], many[seen], atol=1e-6)
    np.testing.assert_allclose(together, many, atol=1e-12 if n == 60 else 1e-6)


@pytest.mark.parametrize("shape", [0.1, 0.5, 1.0])
def test_noise_may_make_a_sum_of_positive_values_negative(shape):
    for i, total in enumerate([-52.76842160616645, -49.9, -60.1, -120.7, -1e4]):
        own = RatePosterior(np.array([total]), 4.5 + i, 100, shape, 1.0, 1.0)
        draws = own.sample(np.random.default_rng(0), 100)
        assert np.isfinite(draws).all() and np.isfinite(own.log_evidence)


@pytest.mark.parametrize("n", [5, 200, 100_000])
@pytest.mark.parametrize(("shape", "rate"), [(1.0, 1.0), (30.0, 10.0)])
def test_without_noise_and_censoring_it_is_the_conjugate_gamma(n, shape, rate):
    upper, total = 60.0, n / 2.5
    posterior = RatePosterior(np.array([total - n * upper / 2]), 0.0, n, shape, rate, upper)
    exact = stats.gamma(shape + n, scale=1 / (rate + total))
    assert posterior.mean[0] == pytest.approx(exact.mean(), abs=0.03 * exact.std())
    assert posterior.std[0] == pytest.approx(exact.std(), rel=0.03)


def test_everything_censored_tells_that_the_rate_is_small():
    """Without noise the likelihood is ``exp(-n theta upper)``; noise leaves more."""
    n, upper = 40, 0.5
    posterior = RatePosterior(np.array([n * upper / 2]), 2.0 * upper, n, 1.0, 1.0, upper)
    assert 1 / (1 + n * upper) < posterior.mean[0] < 0.3


def test_without_information_it_is_the_prior():
    posterior = RatePosterior(np.array([3.0, -3.0]), 1e9, 50, 2.0, 4.0, 1.0)
    for rates in posterior.sample(np.random.default_rng(0), 20_000).T:
        assert stats.kstest(rates, stats.gamma(2, scale=1 / 4).cdf).pvalue > 1e-4


def test_draws_of_a_rate_follow_its_density():
    """Their distribution is the integral of prior times density of the noisy sum."""
    total, scale, n, upper = -10.0, 3.0, 30, 1.5
    posterior = RatePosterior(np.array([total]), scale, n, 2.0, 1.0, upper)
    theta = np.geomspace(1e-3, 40, 4001)
    weight = stats.gamma(2).pdf(theta) * density(theta, total, scale, n, upper)
    cumulative = np.concatenate([[0], np.cumsum((weight[1:] + weight[:-1]) / 2 * np.diff(theta))])
    draws = posterior.sample(np.random.default_rng(0), 100_000)[:, 0]
    quantiles = np.array([0.001, 0.05, 0.25, 0.5, 0.75, 0.95, 0.999])
    want = np.interp(quantiles, cumulative / cumulative[-1], theta)
    got = np.array([(draws <= q).mean() for q in want])
    assert (
        np.abs(got - quantiles) <= 5 * np.sqrt(quantiles * (1 - quantiles) / len(draws)) + 1e-4
    ).all()


@pytest.mark.parametrize("shape", [1e-3, 0.01, 1e6])
def test_extreme_priors_raise_nothing(shape):
    draws = RatePosterior(np.array([100.0 - 200 * 5]), 4.0, 200, shape, shape / 2, 10.0).sample(
        np.random.default_rng(0), 1000
    )
    assert np.isfinite(draws).all() and (draws >= 0).all()
    assert draws.mean() == pytest.approx(2, rel=0.1)


@pytest.mark.parametrize(
    ("n", "shape", "rate", "truth"), [(1000, 1e4, 1e4, 3.0), (20_000, 1.0, 1.0, 1000.0)]
)
def test_data_win_over_a_prior_that_contradicts_them(n, shape, rate, truth):
    """Far out in the tails of prior and likelihood it still is the conjugate posterior."""
    total, upper = n / truth, 60 / truth
    posterior = RatePosterior(np.array([total - n * upper / 2]), 0.0, n, shape, rate, upper)
    exact = stats.gamma(shape + n, scale=1 / (rate + total))
    assert posterior.mean[0] == pytest.approx(exact.mean(), abs=0.2 * exact.std())
    assert posterior.std[0] == pytest.approx(exact.std(), rel=0.05)


# Calibration

DRAWS = 63
MODELS = {  # with n_records, a noise larger than the sampling error of the sum, and how often to repeat
    "gamma": (GammaExponential(1, f32(2), f32(1), f32(1.0)), 400, 40.0, 100),
    "beta": (BetaBernoulli(1, f32(2), f32(3)), 40, 6.0, 600),
    "dirichlet": (DirichletCategorical(np.array([1, 2, 3], f32)), 30, 5.0, 600),
}


def simulated(name, rng):
    """Parameters from the prior, and noisy sums of the statistics of records drawn with them."""
    _, n, scale, repeats = MODELS[name]
    if name == "gamma":
        theta = rng.gamma(2, 1, repeats)
        values = np.minimum(rng.exponential(1 / theta, (n, repeats)), 1.0) - 0.5
        return theta, values.sum(axis=0) + scale * rng.standard_normal(repeats)
    if name == "beta":
        theta = rng.beta(2, 3, repeats)
        return theta, rng.binomial(n, theta) - n / 2 + scale * rng.standard_normal(repeats)
    theta = rng.dirichlet([1, 2, 3], repeats)
    return theta[:, 0], rng.multinomial(n, theta) - n / 3 + scale * rng.standard_normal(
        (repeats, 3)
    )


def p_value_of_ranks(name, factor=1.0):
    """Of the ranks of the parameter among posterior draws, which are uniform if the posterior is right."""
    model, n, scale, _ = MODELS[name]
    rng = np.random.default_rng(7)
    theta, sums = simulated(name, rng)
    if name == "dirichlet":
        draws = [
            model.noisy_posterior(one, factor * scale, n).sample(rng, DRAWS)[:, 0] for one in sums
        ]
        draws = np.stack(draws, axis=1)
    else:  # each a feature of its own
        draws = model.noisy_posterior(sums, factor * scale, n).sample(rng, DRAWS)
    ranks = (draws < theta).sum(axis=0)
    return stats.chisquare(np.bincount(ranks // 8, minlength=8)).pvalue


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n == "gamma" else n for n in MODELS]
)
def test_ranks_of_the_truth_are_uniform(name):
    assert p_value_of_ranks(name) > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n == "gamma" else n for n in MODELS]
)
def test_ranks_notice_half_the_noise(name):
    assert p_value_of_ranks(name, 0.5) < 1e-5


def test_counts_with_noise_of_their_own_sizes_are_nearest_on_the_total():
    """Against all counts of three categories with the total."""
    counts, scale, n = np.array([12.0, 30.0, 21.0]), np.array([1.0, 6.0, 3.0]), 60
    model = DirichletCategorical(np.array([1.0, 2.0, 0.5]))
    posterior = model.noisy_posterior(counts - n / 3, scale, n)
    first, second = np.meshgrid(np.arange(n + 1), np.arange(n + 1), indexing="ij")
    known = np.stack([first, second, n - first - second], axis=-1)[first + second <= n]
    log = np.sum(
        special.gammaln(known + model.concentration)
        - special.gammaln(known + 1)
        - ((known - counts) / scale) ** 2 / 2,
        axis=1,
    )
    expected = special.softmax(log) @ known
    found = posterior.sample_counts(np.random.default_rng(0), 20_000).mean(axis=0)
    np.testing.assert_allclose(found, expected, atol=0.1)
