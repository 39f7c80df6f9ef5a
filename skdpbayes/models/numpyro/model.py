"""NumPyro models as `Model`: prior and likelihood of one record, as functions of coordinates.

`skdpbayes.models.numpyro.program` has the program and the coordinates of its sites.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from numpyro import handlers
from numpyro.distributions import biject_to
from numpyro.distributions.distribution import validation_enabled

from skdpbayes.compilation import LITTLE_EFFORT
from skdpbayes.mechanism.contributions import Quadratic
from skdpbayes.models.numpyro.laws import (
    by_number,
    cut_short,
    inner_law,
    parted,
    points,
    possible_scores,
)
from skdpbayes.models.numpyro.program import (
    Observed,
    Placed,
    Program,
    log_probability,
    normal_coordinates,
    one_if_possible,
    site_law,
    traced,
    with_parameters,
)
from skdpbayes.models.protocols import Array, Contribution, Number, Params, Record, Response
from skdpbayes.models.responses import (
    information,
    typical_length,
    typical_moments,
    typical_sizes,
)
from skdpbayes.posteriors.base import DrawsPosterior, GaussianPosterior
from skdpbayes.pytrees import pytree

_OFF_CENTRE = 1e-6
_POINTS = 8  # at which priors are compared
_MOST = 12.0  # by which the logarithm of typical lengths changes


def _norm(tree):
    return jnp.sqrt(sum(jnp.sum(x**2) for x in jax.tree.leaves(tree)))


class ProgramLikelihood(ABC):
    """Likelihood of a program's records, and the prior, in a model's own parameters.

    Attributes
    ----------
    program : Program
    score_unit, curvature_unit : float
        Norms of typical scores: clipping norms of scores are relative to the first, those of
        curvatures to the square of the second.
    axes : array of shape (P,) or (P, P), or None
        Axes times the parameters are coordinates whose prior is standard normal; a vector stands
        for a diagonal. None: the identity.
    starts_at : array of shape (P,) or None
        Parameters at which rounds start. None: the centre of the prior.
    """

    program: Program
    score_unit: Number
    curvature_unit: Number
    axes: Array | None
    starts_at: Array | None

    @abstractmethod
    def prior_mean(self) -> Params:
        """Centre of the prior."""

    @abstractmethod
    def traced(self, params: Params, batch: Mapping[str, Any]) -> tuple[Placed, dict[str, Any]]:
        """Latent sites at their coordinates, and all sites of a batch of records."""

    def init(self) -> Params:
        """Where rounds start: near the centre of the prior, unless it is known better.

        At the centre itself logits are zero, where autodiff of NumPyro's Bernoulli law is wrong.
        """
        mean, start = self.prior_mean(), self.starts_at
        if start is None:
            return jax.tree.map(lambda x: x + _OFF_CENTRE, mean)
        return ravel_pytree(mean)[1](jnp.asarray(start))

    def prior_precision(self) -> Params:
        """Squares of the axes, if they are a vector; else ones."""
        mean, axes = self.prior_mean(), self.axes
        if axes is None or axes.ndim == 2:
            return jax.tree.map(jnp.ones_like, mean)
        return ravel_pytree(mean)[1](jnp.square(axes))

    def prior_axes(self) -> jax.Array | None:
        """Axes, if they are a matrix."""
        return None if self.axes is None or self.axes.ndim == 1 else jnp.asarray(self.axes)

    def coordinates(self, flat: jax.Array) -> jax.Array:
        """Axes times the ravelled parameters."""
        if self.axes is None:
            return flat
        axes = jnp.asarray(self.axes, flat.dtype)
        return axes * flat if axes.ndim == 1 else axes @ flat

    def in_coordinates(
        self, posterior: GaussianPosterior | DrawsPosterior
    ) -> GaussianPosterior | DrawsPosterior:
        """Posterior of `coordinates`."""
        if self.axes is None:
            return posterior
        return posterior.mapped(np.diag(self.axes) if self.axes.ndim == 1 else self.axes)

    def log_prior(self, params: Params) -> jax.Array:
        """Log density of the coordinates, up to a constant."""
        return self.traced(params, self.program.example(1))[0].log_prior

    def log_likelihood(self, params: Params, record: Record) -> jax.Array:
        """Log-likelihood of one record: of the observed sites, for a batch of this record alone."""
        _, sites = self.traced(params, jax.tree.map(lambda x: x[None], record))
        if self.program.censored:
            (name,) = self.program.observed
            law, value = cut_short(sites[name]["fn"], sites[name]["value"])
            with validation_enabled(False):
                log = jnp.sum(law.log_prob(value))
        else:
            log = log_probability(sites)
        return log * one_if_possible(log, sites, record)

    def curvature(self, params: Params, record: Record) -> Contribution:
        """Fisher information of a response of few values; otherwise the negative Hessian."""
        batch = jax.tree.map(lambda x: x[None], record)
        sites = self.traced(params, batch)[1]
        site = sites[self.program.observed[0]]
        if not self.program.support or site["scale"] is not None:
            flat, unravel = ravel_pytree(params)
            return -jax.hessian(lambda v: self.log_likelihood(unravel(v), record))(flat)
        eta, law_of = parted(site["fn"])
        values = site["fn"].enumerate_support(expand=False)

        def log_density(eta, value):
            return jnp.sum(law_of(eta).log_prob(value))

        scores = jax.vmap(jax.grad(log_density), (None, 0))(eta, values)
        shares = jax.nn.softmax(jax.vmap(log_density, (None, 0))(eta, values))
        # Without a response a record has no score, and must have no curvature.
        of_law = (
            (scores * shares[:, None]).T
            @ scores
            * one_if_possible(log_probability(sites), sites, record)
        )
        return information(of_law, self._slope(params, batch))

    def score_norm(self, params: Params, record: Record) -> jax.Array:
        """Norm of a record's score: a typical one if responses are known."""
        if self.known_responses:
            response = self.response(params, record)
            # Laws without covariates are known of a null record, too, which must not count.
            usable = jnp.isfinite(response.own).all()
            return jnp.where(usable, typical_length(response), jnp.nan)
        return jnp.linalg.norm(self._score(params, record))

    def score_sizes(self, params: Params, record: Record) -> jax.Array:
        """Sizes of the entries of a record's score, (P,): typical ones if responses are known."""
        if self.known_responses:
            return typical_sizes(self.response(params, record))
        return jnp.abs(self._score(params, record))

    def score_moments(self, params: Params, record: Record) -> Contribution:
        """Second moments of the entries of a record's score, (P, P), likewise."""
        if self.known_responses:
            return typical_moments(self.response(params, record))
        return Quadratic(jnp.ones((1, 1), jnp.float32), self._score(params, record))

    def foreseen_shares(self, params: Params) -> jax.Array:
        """Mean squares of the entries of scores over their norm, of made-up records, (P,).

        Zero where nothing is foreseen.
        """
        if not self.known_responses:
            return jnp.zeros_like(ravel_pytree(params)[0])
        return _foreseen_shares(self, params)

    def score_bound(self, params: Params, record: Record) -> jax.Array:
        """Largest norm of a score over all responses, if these are few or censored.

        Otherwise the norm of the score itself, so that the curvature of a clipped record has the
        same weight.
        """
        if not self.program.support and not self.program.censored:
            return self.score_norm(params, record)
        batch = jax.tree.map(lambda x: x[None], record)

        (response,) = self.program.observed
        if self.program.censored:
            law = self.traced(params, batch)[1][response]["fn"]
            scores = possible_scores(law) @ self._slope(params, batch)
            return jnp.max(jnp.linalg.norm(scores, axis=1))

        def norm(value):
            def log_likelihood(params):
                with Observed(response, value):
                    return log_probability(self.traced(params, batch)[1])

            return _norm(jax.grad(log_likelihood)(params))

        law = self.traced(params, batch)[1][response]["fn"]
        values = law.enumerate_support(expand=False)
        return jnp.max(jax.vmap(norm)(values))

    def score_scale(self, params: Params) -> jax.Array:
        """Length of typical scores of made-up records, over that at `init`."""
        if not self.known_responses:
            return jnp.ones((), jnp.float32)
        change = _typical_length(self, params) - _typical_length(self, self.init())
        return jnp.exp(jnp.clip(jnp.nan_to_num(change, posinf=0, neginf=0), -_MOST, _MOST))

    @property
    def known_responses(self) -> bool:
        """Whether `response` is known."""
        return self.program.weighed

    @jax.jit  # rounds ask for it again and again, of one kind of record: it is traced once
    def response(self, params: Params, record: Record) -> Response:
        """A record's responses, and those that it might have had, of all observed sites."""
        batch = jax.tree.map(lambda x: x[None], record)
        sites = self.traced(params, batch)[1]
        possible = one_if_possible(log_probability(sites), sites, record)
        own, others, shares = _joined([_response_of(sites[name]) for name in self.program.observed])
        return Response(self._slope(params, batch), own * possible, others, shares)

    def _slope(self, params, batch):
        """Slope of the numbers that the laws of responses depend on, in ravelled parameters."""
        flat, unravel = ravel_pytree(params)

        def numbers(flat):
            sites = self.traced(unravel(flat), batch)[1]
            laws = [sites[name]["fn"] for name in self.program.observed]
            if self.program.censored:
                laws = [inner_law(law).base_dist for law in laws]
            return jnp.concatenate([parted(law)[0] for law in laws])

        return jax.jacrev(numbers)(flat)

    def _score(self, params, record):
        return ravel_pytree(jax.grad(self.log_likelihood)(params, record))[0]


@pytree
@dataclass(frozen=True)
class NumPyroModel(ProgramLikelihood):
    """A user's model as a function of coordinates: a dict of arrays, by latent site.

    Attributes
    ----------
    program : Program
    public : dict of arrays
        Arguments that are no records.
    affine : dict of (centre, spread)
        Centre and spread of the unconstrained prior, for sites not normal given their parents.
    score_unit : float
        Norm of a typical score; clipping norms are relative to it.
    fixed : dict of pytrees
        Unconstrained values of the sites that are `numpyro.param`.
    axes, starts_at : arrays, optional
        As of `ProgramLikelihood`.
    """

    program: Program = field(metadata={"static": True})
    public: Mapping[str, Array]
    affine: Mapping[str, tuple[Array, Array]]
    score_unit: Number = 1.0
    curvature_unit: Number = 1.0
    fixed: Mapping[str, Params] = field(default_factory=dict)
    axes: Array | None = None
    starts_at: Array | None = None

    def call(self, batch: Mapping[str, Any]):
        """Call the program on a batch of records."""
        with with_parameters(self.fixed):
            return self.program.call(batch, self.public)

    def prior_mean(self) -> Params:
        """Zeros."""
        return {site.name: jnp.zeros(site.shape, jnp.float32) for site in self.program.sites}

    def has_independent_priors(self) -> bool:
        """Whether no site's prior, in its coordinates, depends on another site, at random points.

        Those of normal sites are standard normal. A site that is not normal may depend on others,
        as ``Laplace(0, tau)`` does.
        """
        sites = self.program.sites
        odd = [site.name for site in sites if not site.normal]
        if not odd or len(sites) == 1:
            return True
        rng = np.random.default_rng(0)
        one, other = (
            {
                site.name: rng.normal(size=(_POINTS, *site.shape)).astype(np.float32)
                for site in sites
            }
            for _ in range(2)
        )
        pairs = [(one | {name: other[name]}, other | {name: one[name]}) for name in odd]
        sums = jax.device_get(_sums_of_priors(self, [(one, other), *pairs]))
        return bool(np.allclose(sums, sums[0], rtol=1e-3, atol=1e-3))

    def natural(
        self, posterior: GaussianPosterior | DrawsPosterior
    ) -> GaussianPosterior | DrawsPosterior:
        """Posterior of coordinates whose prior is standard normal."""
        return self.in_coordinates(posterior)

    def values(self, params):
        """Values of the latent sites, and of deterministic ones that are functions of them."""
        placed, sites = self.traced(params, self.program.example(1))
        return placed.values | {name: sites[name]["value"] for name in self.program.derived}

    def constrained(self, draws):
        """`values` of draws of shape (n, n_parameters), as NumPy arrays."""
        unravel = ravel_pytree(self.init())[1]
        if not self.program.sites:
            values = jax.tree.map(np.asarray, self.values({}))
            return {name: np.broadcast_to(x, (len(draws), *x.shape)) for name, x in values.items()}
        return jax.tree.map(
            np.asarray, _values(self, jax.vmap(unravel)(jnp.asarray(draws, jnp.float32)))
        )

    def traced(self, params: Params, batch: Mapping[str, Any]) -> tuple[Placed, dict[str, Any]]:
        """Latent sites at their coordinates, and all sites of a batch of records."""
        if self.axes is not None:
            flat, unravel = ravel_pytree(params)
            params = unravel(self.coordinates(flat))
        placed = Placed(self.program.sites, params, self.affine)
        # No caller reads latent sites of single records.
        noise = [handlers.seed(rng_seed=0)] if self.program.local else []
        with traced(*noise, placed) as sites:
            self.call(batch)
        return placed, sites


def _response_of(site):
    """Scores of a site's responses, (R, k), of possible ones, (R, n, k), and shares, (R, n)."""
    eta, law_of = parted(site["fn"])
    y, shares = points(site["fn"])

    def log_probabilities(eta, y):
        law = by_number(law_of(eta))
        return jnp.ravel(law.log_prob(y.reshape(law.batch_shape)))

    scores = jax.jacrev(log_probabilities)
    others = jax.vmap(scores, (None, 0))(eta, y)
    with validation_enabled(False):
        own = scores(eta, jnp.ravel(site["value"]))
    return own, jnp.swapaxes(others, 0, 1), shares.T


def _joined(found):
    """Scores and shares of several sites, as `_response_of` gives them, one after the other.

    A score is zero in the numbers of other sites; points that a site lacks have no probability.
    """
    total = sum(own.shape[1] for own, *_ in found)
    n = max(shares.shape[1] for *_, shares in found)
    parts, before = [], 0
    for own, others, shares in found:
        k = own.shape[1]
        numbers, rest = (before, total - before - k), (0, n - others.shape[1])
        padded = jnp.pad(others, ((0, 0), rest, numbers))
        parts.append((jnp.pad(own, ((0, 0), numbers)), padded, jnp.pad(shares, ((0, 0), rest))))
        before += k
    return [jnp.concatenate(x) for x in zip(*parts, strict=True)]


@partial(jax.jit, compiler_options=LITTLE_EFFORT)
def _values(model, params):
    return jax.vmap(model.values)(params)


@jax.jit  # as is the response
def _typical_length(model, params):
    """Mean logarithm of the lengths of typical scores of made-up records."""
    records = model.program.made_up()
    each = jax.vmap(lambda record: typical_length(model.response(params, record)))(records)
    return jnp.mean(jnp.log(each))


@jax.jit
def _foreseen_shares(model, params):
    """Mean squares of the entries of typical scores of made-up records, over those of the norm."""
    records = model.program.made_up_normal()
    squares = jax.vmap(lambda record: typical_sizes(model.response(params, record)) ** 2)(records)
    sums = jnp.sum(squares, axis=1, keepdims=True)
    shares = jnp.where(jnp.isfinite(sums) & (sums > 0), squares / sums, jnp.nan)
    return jnp.nan_to_num(jnp.nanmean(shares, axis=0))


def coordinates(model: NumPyroModel, values: Mapping[str, Any], key):
    """Coordinates of values of latent sites, and the log prior of those sites.

    Sites without a value are drawn from their prior given the others.
    """
    with traced(handlers.seed(rng_seed=key), handlers.substitute(data=values)) as sites:
        model.call(model.program.example(1))
    params, log_prior = {}, jnp.zeros((), jnp.float32)
    for site in model.program.sites:
        law, value = site_law(sites[site.name]), sites[site.name]["value"]
        if site.normal:
            params[site.name] = normal_coordinates(law, value)
        else:
            centre, spread = model.affine[site.name]
            params[site.name] = (biject_to(law.support).inv(value) - centre) / spread
        if site.name in values:
            log_prior = log_prior + jnp.sum(law.log_prob(value))
    return params, log_prior


@partial(jax.jit, compiler_options=LITTLE_EFFORT)
def _sums_of_priors(model, pairs):
    """Sum of the log densities of each pair of points, of which there are several."""
    density = jax.vmap(model.log_prior)
    return jnp.stack([density(one) + density(other) for one, other in pairs])
