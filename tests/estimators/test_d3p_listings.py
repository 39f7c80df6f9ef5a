"""Listings 1 to 6 of d3p's paper (Prediger et al. 2021), as printed but for `model`'s signature.

Responses are optional there, since predictions have none.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import slow_but
from jax.nn import sigmoid
from jax.scipy.special import logsumexp
from numpyro import param, plate, sample
from numpyro.distributions import (
    Bernoulli,
    CategoricalProbs,
    Dirichlet,
    Distribution,
    InverseGamma,
    MultivariateNormal,
    Normal,
)
from scipy import special, stats

from skdpbayes import DPNumPyroModel

pytestmark = pytest.mark.usefixtures("compiled_quickly")

N = 3000
RNG = np.random.default_rng(0)
HOW = {"epsilon": 4.0, "random_state": 0, "n_steps": 150, "n_posterior_samples": 200}

# ---------------------------------------------------------------------------- Listings 1 and 2


def model(xs, ys=None, *, N):
    #  obtain  data  dimensions
    batch_size, d = xs.shape

    #  the  prior  for  w
    w = sample("w", Normal(0, 4), sample_shape=(d,))

    #  distribution  of  label  y  for  each  record  x
    with plate("batch", N, batch_size):
        theta = sigmoid(xs.dot(w))
        sample("ys", Bernoulli(theta), obs=ys)


def guide(xs, ys=None, *, N):
    d = jnp.shape(xs)[1]

    #  variational  parameters
    w_loc = param("w_loc", jnp.zeros((d,)))
    w_scale = jnp.exp(param("w_scale_log", jnp.zeros((d,))))

    #  variational  distribution  for  w
    sample("w", Normal(w_loc, w_scale))


WEIGHTS = np.array([1.5, -1.0])
XS = RNG.normal(size=(N, 2))
YS = (special.expit(XS @ WEIGHTS) > RNG.random(N)).astype(int)


@pytest.mark.parametrize("of_q", slow_but(["auto", guide]), ids=["listing 1", "listing 2"])
def test_logistic_regression(of_q):
    # The size of the plate multiplies no log-likelihood: the fit is that of the whole data.
    fitted = DPNumPyroModel(model, of_q, public={"N": N}, **HOW).fit(XS, YS)  # Listing 3
    draws = fitted.posterior_samples_["w"]
    assert np.abs(draws.mean(axis=0) - WEIGHTS).max() < 0.3
    assert 0.03 < draws.std(axis=0).max() < 0.2  # 0.05 without noise
    new = RNG.normal(size=(2 * N, 2))  # more records than in the plate
    expected = special.expit(new @ WEIGHTS)
    assert np.abs(fitted.predict_proba(new)[:, 1] - expected).mean() < 0.05
    assert fitted.sample_posterior_predictive(new, 3)["ys"].shape == (3, 2 * N)


# ----------------------------------------------------------------------------------- Listing 4


def hierarchical(xs, ys=None, *, ls, gs, N):
    batch_size, D = xs.shape
    L, K = gs.shape

    M = sample("M", Normal(0, 4), sample_shape=(D, K))

    with plate("group", L, L):
        etas = gs @ M.T
        ws = sample("ws", Normal(etas, 1).to_event(1))

    with plate("batch", N, batch_size):
        thetas = sigmoid(jnp.einsum("nd,nd->n", xs, ws[ls]))
        sample("ys", Bernoulli(thetas), obs=ys)


def hierarchical_guide(xs, ys=None, *, ls, gs, N):
    _, D = xs.shape
    _, K = gs.shape

    M_loc = param("M_loc", jnp.zeros((D, K)))
    M_scale = jnp.exp(param("M_scale_log", jnp.zeros((D, K))))
    sample("M", Normal(M_loc, M_scale))


@pytest.mark.slow
def test_hierarchical_logistic_regression():
    of_groups = np.array([[1.0, 1.0], [1.0, -1.0]])
    truth = of_groups @ np.array([[1.5, -0.5], [0.0, 1.0]])  # with M the transpose
    ls = RNG.integers(0, 2, N)
    ys = special.expit((XS * truth[ls]).sum(axis=1)) > RNG.random(N)
    public = {"gs": of_groups, "N": N}
    records = {"xs": XS, "ls": ls, "ys": ys}
    fitted = DPNumPyroModel(hierarchical, hierarchical_guide, public=public, **HOW).fit(records)
    # As in the paper, groups are drawn from their prior given M; predictions average over them.
    assert np.std(fitted.posterior_samples_["ws"], axis=0).min() > 0.8
    logits = (XS * truth[ls]).sum(axis=1)
    predicted = fitted.predict_proba({"xs": XS, "ls": ls})[:, 1]
    assert ((predicted > 0.5) == (logits > 0)).mean() > 0.9
    assert np.abs(predicted - special.expit(logits)).mean() < 0.1


# ---------------------------------------------------------------------------- Listings 5 and 6


class GaussianMixtureModel(Distribution):
    def __init__(self, mixture_probabilities, mixture_locs, mixture_scales):
        self._pis = mixture_probabilities
        self._locs = mixture_locs
        self._scales = mixture_scales

        batch_shape = ()
        event_shape = self._locs.shape[1:]
        super().__init__(batch_shape, event_shape)

    def sample(self, rng_key, sample_shape=()):
        zs_rng, xs_rng = jax.random.split(rng_key)
        zs = CategoricalProbs(self._pis).sample(zs_rng, sample_shape)
        xs = Normal(self._locs[zs], self._scales[zs]).sample(xs_rng)
        return xs

    def log_prob(self, value):
        per_component_log_prob = jax.vmap(
            lambda loc, scale: Normal(loc, scale).log_prob(value), out_axes=-1
        )(self._locs, self._scales)

        log_pis = jnp.log(self._pis)

        #  sum  log-likelihood  contributions
        #  from  event  dimensions
        per_component_log_prob = per_component_log_prob.sum(axis=-2)

        #  aggregate  over  components
        loglik = logsumexp(per_component_log_prob + log_pis, axis=-1)
        return loglik


def mixture(xs, *, N, k=5, d=2):
    pis = sample("pis", Dirichlet(jnp.ones(k)))

    with plate("component_priors", k, k):
        mus = sample(
            "locs",
            MultivariateNormal(jnp.zeros((d,)), jnp.eye(d)),
            sample_shape=(k,),
        )
        sigmas = sample("sigmas", InverseGamma(1, 1), sample_shape=(k,))

    batch_size = xs.shape[0]
    with plate("batch", N, batch_size):
        sample("xs", GaussianMixtureModel(pis, mus, sigmas), obs=xs, sample_shape=(batch_size,))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The law of xs")
def test_gaussian_mixture():
    labels = RNG.integers(0, 2, N)
    xs = np.array([[-1.5, 0.0], [1.5, 0.5]])[labels] + 0.4 * RNG.normal(size=(N, 2))
    fitted = DPNumPyroModel(mixture, "mean_field", public={"N": N, "k": 2}, **HOW).fit(xs)
    own = fitted.posterior_samples_
    assert own["locs"].shape == (200, 2, 2)
    first = np.sort(own["locs"].mean(axis=0)[:, 0])
    assert np.abs(first - [-1.5, 1.5]).max() < 0.3
    assert np.abs(own["sigmas"].mean(axis=0) - 0.4).max() < 0.25
    one = stats.multivariate_normal(xs.mean(axis=0), np.cov(xs.T)).logpdf(xs).mean()
    assert fitted.score(xs) > one + 0.3
