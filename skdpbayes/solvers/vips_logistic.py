"""Logistic regression by noisy sufficient statistics.

Source: VIPS (Park, Foulds, Chaudhuri and Welling 2020, section 6), which bounds the likelihood by
Polya-Gamma variables. For two classes a record's statistics are

    response  (y - 1/2) x',    E[xi] x x'.

The first is fixed. The second enters only through its product with the weights w, and with the
tangent at w itself that product is

    fitted  (p(w'x) - 1/2) x'.

With several classes they are ``(e_y - c) x'`` and ``(p(W x) - c) x'``, c the centre of the simplex;
their difference is the score.

Where we differ: VIPS releases both statistics in every round.

* Here the response and the products ``x x'`` are released once, and then the fitted sums a few
  times, each at a draw of the posterior: a vector of noise instead of a d x d matrix, which does
  not grow with w.
* Elsewhere the fitted sums and their slopes are predicted from the products, for normal rows
  (`LogisticRegression.mean_fitted`). Released sums correct the predictions (`_corrected`).
* The posterior includes the noise. With F the corrected function, D its covariance, and J its
  slope, which is also the covariance of the response given the rows, it is that of

      response = F + J (w - mean) + N(0, J + D + noise),

  linear in w. F and J are averages over this posterior, a fixed point (`settled`); without noise it
  is that of variational Bayes. With weights k of the records, the J in the covariance is multiplied
  by their mean, as it has ``k^2``.

See ``docs/solvers/vips.md``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import cho_factor, cho_solve, solve_triangular

from skdpbayes.mechanism.contributions import Quadratic
from skdpbayes.mechanism.spec import Block, Mechanism
from skdpbayes.models.base import prior_variance
from skdpbayes.models.denoising import noise_edge, shrunk_products
from skdpbayes.models.logistic import LogisticRegression
from skdpbayes.models.protocols import Contribution, Number, Params, Record
from skdpbayes.posteriors.base import GaussianPosterior
from skdpbayes.pytrees import pytree
from skdpbayes.solvers.base import Point, Query, Round, Scales, Sums
from skdpbayes.solvers.normal_posterior import normal_given, within_reach

FITTED_ROUNDS = 10
LEAST_WEIGHT = 0.7  # weight of a record of the public norm
WEIGHTS_NORM = 1.001 * 2**0.5  # norm of a weight and its square, with room for rounding
MOST_ROUNDS = 16
# Budget shares; the last two over all their rounds.
SHARES = {"products": 0.2, "response": 0.48, "weight": 0.02, "fitted": 0.25, "curvature": 0.05}
ONCE = SHARES["products"] + SHARES["response"] + SHARES["weight"]
# Steps to the fixed point, from the products alone and from the last fixed point.
_WITHOUT_RELEASE, _WITH_RELEASE = 40, 8
_CURVED = 0.05  # squared relative error of a slope used away from its own point
_EXPECTED_MISFIT = 0.1  # scale of the misfit's half-Cauchy prior, relative to w
_MISFITS = np.geomspace(1e-4, 3, 40)
_REACH = 15.0  # prior standard deviations
_TINY = 1e-7  # least noise variance, in units of a column's mean square


class Given(NamedTuple):
    """Normal posterior of the parameters."""

    mean: jax.Array
    precision: jax.Array


class Statistics(NamedTuple):
    """State; every entry is a function of the releases and public values."""

    weight: jax.Array  # sum of the records' weights
    mean_weight: jax.Array  # sum of squared weights over sum of weights
    products: jax.Array  # sum of x x', denoised, (n_columns, n_columns)
    product_variance: jax.Array  # variance left in an off-diagonal entry of the products
    response: jax.Array  # ravelled
    response_variance: jax.Array
    given: Given  # posterior given all releases
    # Releases of the fitted terms, each with MOST_ROUNDS rows:
    centres: jax.Array  # posterior means at the time
    points: jax.Array  # points of release, drawn from those posteriors
    differences: jax.Array  # released sums less their predictions for normal rows
    precisions: jax.Array  # precisions of their noise; zero before the release
    curvature: jax.Array  # released in the same rounds, averaged with larger weights for late ones
    curvature_variance: jax.Array  # noise variance of an off-diagonal entry


@pytree
@dataclass(frozen=True)
class LogisticVIPS:
    """Responses and products once, then the fitted terms at draws of the posterior.

    A row longer than `length` has the weight ``length / |x|``, and one longer than `row_norm` this
    times ``row_norm / |x|``, so that its products are no longer than those of a row of `row_norm`.
    The weight does not depend on the label: it lowers the noise without bias.

    Attributes
    ----------
    length, row_norm : float
    clipping_norm : float
        Clipping norm of the response and of the fitted term.
    products_norm, curvature_norm : float
    n_records : float
        Public number of rows, or their largest number where records are persons.
    intercept : bool
        Whether the last column is constant.
    """

    length: Number
    row_norm: Number
    clipping_norm: Number
    products_norm: Number
    curvature_norm: Number
    n_records: Number
    intercept: bool = field(metadata={"static": True})

    def init(self, model: LogisticRegression, key: jax.Array) -> Statistics:
        """State before any release."""
        del key
        p, d = model.n_rows * model.n_columns, model.n_columns
        zero, one, history = jnp.zeros(()), jnp.ones(()), jnp.zeros((MOST_ROUNDS, p))
        return Statistics(
            weight=one,
            mean_weight=one,
            products=jnp.eye(d),
            product_variance=zero,
            response=jnp.zeros(p),
            response_variance=one,
            given=Given(zero * history[0], jnp.diag(1 / prior_variance(model))),
            centres=history,
            points=history,
            differences=history,
            precisions=jnp.zeros(MOST_ROUNDS),
            curvature=jnp.zeros((p, p)),
            curvature_variance=zero,
        )

    def which(self, step: jax.Array) -> jax.Array:
        """Index of the kind of round: the first release, then the fitted terms."""
        return jnp.minimum(step, 1).astype(jnp.int32)

    def rounds(
        self, model: LogisticRegression, mechanism: Mechanism
    ) -> tuple[Round[Statistics], ...]:
        """The round of responses and products, and the round of fitted terms."""
        del mechanism
        length, row_norm, norm, products_norm, curvature_norm = (
            jnp.asarray(x, jnp.float32)
            for x in (
                self.length,
                self.row_norm,
                self.clipping_norm,
                self.products_norm,
                self.curvature_norm,
            )
        )
        once = {name: SHARES[name] / ONCE for name in ("response", "products", "weight")}
        again = {name: SHARES[name] / (1 - ONCE) for name in ("fitted", "curvature")}
        shape = model.n_rows, model.n_columns

        def weight_of(record: Record) -> jax.Array:
            norm = jnp.sqrt(jnp.sum(record["x"] ** 2)).clip(1e-30)
            weight = jnp.minimum(1, length / norm) * jnp.minimum(1, row_norm / norm)
            return weight * model.known(record)

        def response_terms(record: Record) -> Mapping[str, Contribution]:
            weight = weight_of(record)
            return {
                "response": model.response(record).scaled(weight),
                "products": Quadratic(weight[None, None], record["x"]),
                "weight": jnp.stack([weight, weight**2]),
            }

        def fitted_terms(params: Params, record: Record) -> Mapping[str, Contribution]:
            weight = weight_of(record)
            return {
                "fitted": model.fitted(params, record).scaled(weight),
                "curvature": model.curvature(params, record).scaled(weight),
            }

        def learn(
            state: Statistics, point: Point, step: jax.Array, estimate: Sums, scales: Scales
        ) -> Statistics:
            del point, step
            products = estimate["products"].astype(jnp.float64)[0, :, 0]
            n = self.n_records
            weights = estimate["weight"].astype(jnp.float64)
            error = scales["weight"].astype(jnp.float64)
            # Weights may be as small as rows are long: what the release can tell is believed.
            least = jnp.minimum(LEAST_WEIGHT, 3 * error / n).clip(1e-6)
            weight = jnp.clip(weights[0], least * n, n)
            mean_weight = (weights[1] + error) / (weight + error)
            products, variance = shrunk_products(
                (products + products.T) / 2,
                scales["products"].astype(jnp.float64) ** 2 / 2,
                weight,
                intercept=self.intercept,
            )
            new = state._replace(
                weight=weight,
                mean_weight=jnp.clip(mean_weight, least, 1),
                products=products,
                product_variance=variance,
                response=estimate["response"].astype(jnp.float64).ravel(),
                response_variance=scales["response"].astype(jnp.float64) ** 2,
            )
            return new._replace(given=settled(model, self, new))

        def where(state: Statistics, key: jax.Array) -> jax.Array:
            given = state.given
            draw = jax.random.normal(key, given.mean.shape, jnp.float64)
            away = solve_triangular(
                jnp.linalg.cholesky(given.precision), draw, trans="T", lower=True
            )
            # Without noise the point is the mean: then the average over the posterior is exact.
            drawn = given.mean + jnp.where(state.response_variance > 0, away, 0)
            return drawn.astype(jnp.float32)

        def ask_fitted(state: Statistics, point: jax.Array) -> Query:
            del state
            return lambda record: fitted_terms(point.reshape(shape), record)

        def learn_fitted(
            state: Statistics,
            point: jax.Array,
            step: jax.Array,
            estimate: Sums,
            scales: Scales,
        ) -> Statistics:
            # As the driver's barrier for releases: the subtraction below must not be compiled into
            # the sum.
            theta = jax.lax.optimization_barrier(point).astype(jnp.float64)
            fitted = estimate["fitted"].astype(jnp.float64).ravel()
            at, share = jnp.minimum(step - 1, MOST_ROUNDS - 1), 2 / (step + 1)
            noise = scales["fitted"].astype(jnp.float64) ** 2 + _TINY * jnp.trace(
                state.products
            ) / len(state.products)
            matrix = estimate["curvature"].astype(jnp.float64).reshape(state.curvature.shape)
            new = state._replace(
                centres=state.centres.at[at].set(state.given.mean),
                points=state.points.at[at].set(theta),
                differences=state.differences.at[at].set(
                    fitted - _fitted(model, self, state, theta)
                ),
                precisions=state.precisions.at[at].set(1 / noise),
                curvature=(1 - share) * state.curvature + share * (matrix + matrix.T) / 2,
                curvature_variance=(1 - share) ** 2 * state.curvature_variance
                + share**2 * scales["curvature"].astype(jnp.float64) ** 2 / 2,
            )
            return new._replace(given=settled(model, self, new))

        return (
            Round(
                point=lambda state, key: (),
                query=lambda state, point: response_terms,
                blocks=lambda state: {
                    "response": Block(norm, once["response"]),
                    "products": Block(products_norm, once["products"]),
                    "weight": Block(jnp.asarray(WEIGHTS_NORM, jnp.float32), once["weight"]),
                },
                update=learn,
            ),
            Round(
                point=where,
                query=ask_fitted,
                blocks=lambda state: {
                    "fitted": Block(norm, again["fitted"]),
                    "curvature": Block(curvature_norm, again["curvature"]),
                },
                update=learn_fitted,
            ),
        )

    def posterior(self, model: LogisticRegression, state: Statistics) -> GaussianPosterior:
        """Normal posterior."""
        del model
        return GaussianPosterior.from_precision(*map(np.asarray, state.given))

    def diagnostics(
        self, model: LogisticRegression, state: Statistics, posterior: Any
    ) -> dict[str, Any]:
        """None."""
        del model, posterior
        return {}


def settled(model: LogisticRegression, solver: LogisticVIPS, state: Statistics) -> Given:
    """Posterior given all releases: the fixed point of `_given`."""
    asked = state.precisions[0] > 0

    def closer(i: jax.Array, found: Given) -> Given:
        mean, precision = _given(model, solver, state, found)
        move = mean - found.mean
        # Steps of logits are limited. Late steps are shortened, for whole ones may cycle where
        # noise exceeds the signal.
        by_row = move.reshape(model.n_rows, model.n_columns)
        length = jnp.sqrt(jnp.sum((by_row @ state.products) * by_row) / state.weight)
        limited = jnp.where(i < 3, 1, 0.6) * jnp.minimum(1, 1 / length.clip(1e-30))
        new = Given(within_reach(model, found.mean + limited * move, _REACH), precision)
        # Extreme bounds or priors overflow. The budget is spent, so the last usable posterior
        # stays.
        usable = (
            jnp.isfinite(new.mean).all() & jnp.isfinite(jnp.linalg.cholesky(new.precision)).all()
        )
        return jax.tree.map(lambda x, y: jnp.where(usable, x, y), new, found)

    return jax.lax.fori_loop(
        0, jnp.where(asked, _WITH_RELEASE, _WITHOUT_RELEASE), closer, state.given
    )


def _given(
    model: LogisticRegression, solver: LogisticVIPS, state: Statistics, given: Given
) -> Given:
    """Posterior with the fitted sums linearised over the posterior `given`."""
    here, params = given.mean, given.mean.reshape(model.n_rows, model.n_columns)
    covariance = jnp.linalg.inv(given.precision)
    doubt = covariance.reshape(params.shape * 2)
    slope, released = _slopes(model, solver, state, here, doubt)
    fitted = state.weight * model.with_doubt(params, *_moments(solver, state), doubt).ravel()
    fitted, unclear = _corrected(model, state, here, fitted, slope, released)
    spread = state.mean_weight * slope + unclear + state.response_variance * jnp.eye(len(here))
    gain = _solved(spread, slope).T
    information = gain @ slope
    information = (information + information.T) / 2
    linear = gain @ (state.response - fitted) + information @ here
    return Given(*normal_given(model, information, linear, (here, covariance)))


def _fitted(
    model: LogisticRegression,
    solver: LogisticVIPS,
    state: Statistics,
    theta: jax.Array,
    unclear: jax.Array | float = 0.0,
) -> jax.Array:
    """Sum of the fitted terms over normal rows with the released products."""
    params = theta.reshape(model.n_rows, model.n_columns)
    return state.weight * model.mean_fitted(params, *_moments(solver, state), unclear).ravel()


def _slopes(
    model: LogisticRegression,
    solver: LogisticVIPS,
    state: Statistics,
    theta: jax.Array,
    doubt: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """Slope of the fitted sums, and its released part: the excess over normal rows.

    The excess counts where it stands out of its noise. Slopes are averages over parameters with
    covariance `doubt`.
    """
    unclear = jnp.einsum("iajb,ab->ij", doubt, state.products) / state.weight
    slope = jax.jacfwd(lambda at: _fitted(model, solver, state, at, unclear))(theta)
    slope, p = (slope + slope.T) / 2, len(theta)
    # Eigenvalues of the difference that stand out of its noise, shrunk (Donoho, Gavish and
    # Johnstone 2018).
    values, vectors = jnp.linalg.eigh(state.curvature - slope)
    edge = noise_edge(p, state.curvature_variance)
    out = jnp.sign(values) * jnp.sqrt((values**2 - edge**2).clip(0))
    released = jnp.where(state.precisions[0] > 0, (vectors * out) @ vectors.T, 0)
    values, vectors = jnp.linalg.eigh(slope + released)
    return (vectors * values.clip(1e-6 * values[-1])) @ vectors.T, released


def _moments(solver: LogisticVIPS, state: Statistics) -> tuple[jax.Array, jax.Array]:
    """Mean and covariance of a row, the intercept included."""
    mean_square = state.products / state.weight
    if not solver.intercept:
        return jnp.zeros(len(mean_square)), mean_square
    mean = mean_square[-1]
    return mean, mean_square - jnp.outer(mean, mean)


def _corrected(
    model: LogisticRegression,
    state: Statistics,
    here: jax.Array,
    fitted: jax.Array,
    slope: jax.Array,
    released: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """Fitted sums at `here`, corrected by the released ones, and their covariance.

    Their errors are the noise of the products and a misfit of normal rows. The misfit acts like
    independent errors of w; its variance is estimated from the released sums.
    """
    p = len(here)
    root_mean_square = jnp.sqrt(jnp.mean(here**2) + 1e-4)
    by_products = _noise_of_products(model, state, here, slope)
    by_products = by_products + 1e-8 * jnp.trace(slope) * jnp.eye(p)
    by_misfit = slope @ slope
    # The weight of a release falls with the distance of its point from here.
    away = jnp.sum(((here - state.centres) @ slope) ** 2, axis=1)
    weights = state.precisions / (1 + _CURVED * state.precisions * away)
    any_release = state.precisions[0] > 0
    noise = jnp.eye(p) / jnp.where(any_release, jnp.sum(weights), 1)
    difference = noise @ (weights @ (state.differences + (here - state.points) @ released))
    difference = jnp.where(any_release, difference, 0)
    misfit = _misfit(difference, by_products + noise, by_misfit, root_mean_square)
    before = by_products + misfit * by_misfit
    gain = _solved(before + noise, before).T
    after = before - gain @ before
    corrected, unclear = fitted + gain @ difference, (after + after.T) / 2
    return jnp.where(any_release, corrected, fitted), jnp.where(any_release, unclear, by_products)


def _noise_of_products(
    model: LogisticRegression, state: Statistics, theta: jax.Array, slope: jax.Array
) -> jax.Array:
    """Covariance of the fitted sums due to the noise of the products.

    The intercept's row of the products has less noise; this is ignored.
    """
    params = theta.reshape(model.n_rows, model.n_columns)
    # sum_kl a_ik E w_k: between rows of the parameters the slope is about a multiple of the
    # products.
    share = _row_slopes(model, state, slope)  # (n_rows, n_rows)
    moved = share @ params
    inner, outer = moved @ moved.T, jnp.einsum("ia,jb->iajb", moved, moved)
    isotropic = jnp.einsum("ij,ab->iajb", inner, jnp.eye(model.n_columns))
    swapped = jnp.swapaxes(outer, 1, 3)
    return state.product_variance * (isotropic + swapped).reshape(theta.size, theta.size)


def _row_slopes(model: LogisticRegression, state: Statistics, slope: jax.Array) -> jax.Array:
    """Slope between rows of the parameters as multiples of the products."""
    blocks = slope.reshape(model.n_rows, model.n_columns, model.n_rows, model.n_columns)
    return jnp.einsum("iaja->ij", blocks) / jnp.trace(state.products).clip(1e-30)


def _misfit(
    difference: jax.Array, covariance: jax.Array, by_misfit: jax.Array, unit: jax.Array
) -> jax.Array:
    """Posterior mean of the misfit's variance given the difference, on a grid.

    Its root has a half-Cauchy prior.
    """
    root = jnp.linalg.cholesky(covariance)
    half = solve_triangular(root, by_misfit, lower=True)
    whitened = solve_triangular(root, half.T, lower=True)
    values, vectors = jnp.linalg.eigh((whitened + whitened.T) / 2)
    seen = (vectors.T @ solve_triangular(root, difference, lower=True)) ** 2
    variances = (_MISFITS * unit) ** 2
    spread = 1 + variances[:, None] * values.clip(0)
    log = -0.5 * jnp.sum(jnp.log(spread) + seen / spread, axis=1)
    log += jnp.log(_MISFITS / (_MISFITS**2 + _EXPECTED_MISFIT**2))
    return jax.nn.softmax(log) @ variances


def _solved(matrix: jax.Array, right: jax.Array) -> jax.Array:
    return cho_solve(cho_factor(matrix), right)
