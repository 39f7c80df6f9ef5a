"""Logistic regression by noisy sufficient statistics.

Of the statistics that the Polya-Gamma bound makes of a record of two classes (Park et al. 2020,
section on logistic regression),

    response  (y - 1/2) x',    E[xi] x x',

the first never changes, and the second is only ever used as its product with the weights w. With
the tangent at w itself that product is

    fitted  (p(w'x) - 1/2) x'.

Several classes have ``e_y - c`` and ``p(W x) - c``, c being the
centre of the simplex; the difference of the two is the score.

So the response and the products ``x x'`` are released once, and afterwards a few sums of the
fitted, each where the parameters are thought to be by then: a d-vector of noise instead of a d x d
matrix, and it does not grow with w.

What the fitted would be elsewhere, and how steep they are, follows from the products for rows that
are normal (`LogisticRegression.mean_fitted`); what the rows are otherwise is a misfit, which the
released sums tell (`_corrected`). With F the function so corrected, of covariance D, and J its
slope, which is also the covariance that labels give the response, the posterior is that of

    response = F + J (w - mean) + N(0, J + D + noise),

which is linear in w. F and J are averages over this posterior, which is a fixed point (`settled`);
without noise it is that of variational Bayes. (With weights k of the records, ``J`` is multiplied
by their mean: the covariance has ``k^2``.)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import cho_factor, cho_solve, solve_triangular

from skdpbayes.mechanism.contributions import Quadratic
from skdpbayes.mechanism.spec import Block, Mechanism
from skdpbayes.models.base import prior_variance
from skdpbayes.posteriors.base import GaussianPosterior
from skdpbayes.solvers.base import Round
from skdpbayes.solvers.normal import normal_given, reach
from skdpbayes.solvers.spectra import noise_edge, shrunk_products

FITTED_ROUNDS = 10
LEAST_WEIGHT = 0.7  # of a record
WEIGHTS_NORM = 1.001 * 2**0.5  # of a weight and its square, with room for rounding
MOST_ROUNDS = 16
# Of the budget; the last two over all their rounds.
SHARES = {"products": 0.2, "response": 0.48, "weight": 0.02, "fitted": 0.25, "curvature": 0.05}
ONCE = SHARES["products"] + SHARES["response"] + SHARES["weight"]
_WITHOUT_RELEASE, _WITH_RELEASE = (
    40,
    8,
)  # steps to the fixed point, by the products alone and from the last one
_CURVED = 0.05  # squared relative error of a slope that is used away from where it was taken
_EXPECTED_MISFIT = 0.1  # relative, in w: the scale of its half-Cauchy prior
_MISFITS = np.geomspace(1e-4, 3, 40)
_REACH = 15.0  # prior standard deviations
_TINY = 1e-7  # of the mean square of a column: noise where there is none


class Given(NamedTuple):
    """Normal posterior of the parameters."""

    mean: Any
    precision: Any


class Statistics(NamedTuple):
    """State; every entry is a function of the releases and public values."""

    weight: Any  # sum of the weights of the records
    mean_weight: Any  # as the records see it: sum of squared weights over that of weights
    products: Any  # sum of x x', cleared of noise, (n_columns, n_columns)
    product_variance: Any  # of what is left of it, in an entry off the diagonal
    response: Any  # ravelled
    response_variance: Any
    given: Given  # all of the releases before the last
    centres: Any  # posterior means at which the fitted were asked, (MOST_ROUNDS, n_parameters)
    points: Any  # where they were, drawn from the posteriors
    differences: Any  # of what was released there from that of normal rows
    precisions: Any  # of their noise; zero before they are
    curvature: Any  # released in the same rounds, an average in which late ones count for more
    curvature_variance: Any  # of its noise in an entry off the diagonal


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class LogisticVIPS:
    """Response and products once, then the fitted at the posterior mean.

    A row longer than `length` counts with the weight ``length / |x|``, which does not look at its
    label: there is less noise, and no bias.

    Attributes
    ----------
    length : float
    least_weight : float
        Of a row as long as a row can be.
    clipping_norm : float
        Of response and fitted.
    products_norm, curvature_norm : float
    n_records : float
        Public.
    intercept : bool
        Whether the last column is constant.
    """

    length: Any
    least_weight: Any
    clipping_norm: Any
    products_norm: Any
    curvature_norm: Any
    n_records: Any
    intercept: bool = field(metadata={"static": True})

    def init(self, model: Any, key) -> Statistics:
        """Nothing known."""
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

    def which(self, step):
        """Index of the round: what never changes first."""
        return jnp.minimum(step, 1).astype(jnp.int32)

    def rounds(self, model: Any, mechanism: Mechanism) -> tuple[Round, ...]:
        """The first round, and the others."""
        del mechanism
        length, norm, products_norm, curvature_norm = (
            jnp.asarray(x, jnp.float32)
            for x in (self.length, self.clipping_norm, self.products_norm, self.curvature_norm)
        )
        once = {name: SHARES[name] / ONCE for name in ("response", "products", "weight")}
        again = {name: SHARES[name] / (1 - ONCE) for name in ("fitted", "curvature")}
        shape = model.n_rows, model.n_columns

        def weight_of(record):
            x = record["x"]
            return jnp.minimum(1, length / jnp.sqrt(jnp.sum(x**2)).clip(1e-30)) * model.known(
                record
            )

        def what_never_changes(record):
            weight = weight_of(record)
            return {
                "response": model.response(record).scaled(weight),
                "products": Quadratic(weight[None, None], record["x"]),
                "weight": jnp.stack([weight, weight**2]),
            }

        def what_changes(params, record):
            weight = weight_of(record)
            return {
                "fitted": model.fitted(params, record).scaled(weight),
                "curvature": model.curvature(params, record).scaled(weight),
            }

        def learn(state, point, step, estimate, scales):
            del point, step
            products = estimate["products"].astype(jnp.float64)[0, :, 0]
            n = self.n_records
            weights = estimate["weight"].astype(jnp.float64)
            weight, cautious = jnp.clip(weights[0], self.least_weight * n, n), scales["weight"]
            mean_weight = (weights[1] + cautious) / (weights[0] + cautious).clip(1e-30)
            products, variance = shrunk_products(
                (products + products.T) / 2,
                scales["products"].astype(jnp.float64) ** 2 / 2,
                weight,
                intercept=self.intercept,
            )
            return state._replace(
                weight=weight,
                mean_weight=jnp.clip(mean_weight, self.least_weight, 1),
                products=products,
                product_variance=variance,
                response=estimate["response"].astype(jnp.float64).ravel(),
                response_variance=scales["response"].astype(jnp.float64) ** 2,
            )

        def where(state, key):
            given = settled(model, self, state)
            draw = jax.random.normal(key, given.mean.shape, jnp.float64)
            away = solve_triangular(
                jnp.linalg.cholesky(given.precision), draw, trans="T", lower=True
            )
            # Without noise the mean itself: the average over the posterior is to be exact.
            draw = given.mean + jnp.where(state.response_variance > 0, away, 0)
            return draw.astype(jnp.float32), given

        def learn_fitted(state, point, step, estimate, scales):
            # As the driver's barrier for releases: what is subtracted below is not to be compiled
            # into the sum.
            point, given = jax.lax.optimization_barrier(point)
            theta = point.astype(jnp.float64)
            fitted = estimate["fitted"].astype(jnp.float64).ravel()
            at, new = jnp.minimum(step - 1, MOST_ROUNDS - 1), 2 / (step + 1)
            noise = scales["fitted"].astype(jnp.float64) ** 2 + _TINY * jnp.trace(
                state.products
            ) / len(state.products)
            matrix = estimate["curvature"].astype(jnp.float64).reshape(state.curvature.shape)
            return state._replace(
                given=given,
                centres=state.centres.at[at].set(given.mean),
                points=state.points.at[at].set(theta),
                differences=state.differences.at[at].set(
                    fitted - _fitted(model, self, state, theta)
                ),
                precisions=state.precisions.at[at].set(1 / noise),
                curvature=(1 - new) * state.curvature + new * (matrix + matrix.T) / 2,
                curvature_variance=(1 - new) ** 2 * state.curvature_variance
                + new**2 * scales["curvature"].astype(jnp.float64) ** 2 / 2,
            )

        return (
            Round(
                point=lambda state, key: (),
                query=lambda state, point: what_never_changes,
                blocks=lambda state: {
                    "response": Block(norm, once["response"]),
                    "products": Block(products_norm, once["products"]),
                    "weight": Block(jnp.asarray(WEIGHTS_NORM, jnp.float32), once["weight"]),
                },
                update=learn,
            ),
            Round(
                point=where,
                query=lambda state, point: (
                    lambda record: what_changes(point[0].reshape(shape), record)
                ),
                blocks=lambda state: {
                    "fitted": Block(norm, again["fitted"]),
                    "curvature": Block(curvature_norm, again["curvature"]),
                },
                update=learn_fitted,
            ),
        )

    def posterior(self, model: Any, state: Statistics) -> GaussianPosterior:
        """Normal posterior."""
        with jax.enable_x64(True):
            found = _settled(model, self, jax.tree.map(jnp.asarray, state))
        return GaussianPosterior.from_precision(*map(np.asarray, found))

    def diagnostics(self, state: Statistics, posterior) -> dict:
        """Nothing but the posterior."""
        del posterior
        return {}


def settled(model, solver, state) -> Given:
    """Posterior by all releases: the fixed point of `_given`."""
    asked = state.precisions[0] > 0
    most = reach(model, _REACH)

    def closer(i, found):
        mean, precision = _given(model, solver, state, found)
        move = mean - found.mean
        # Steps of logits are limited, and where there is more noise than signal whole steps may
        # circle.
        by_row = move.reshape(model.n_rows, model.n_columns)
        length = jnp.sqrt(jnp.sum((by_row @ state.products) * by_row) / state.weight)
        limited = jnp.where(i < 3, 1, 0.6) * jnp.minimum(1, 1 / length.clip(1e-30))
        new = Given(jnp.clip(found.mean + limited * move, -most, most), precision)
        # Extreme bounds or priors leave the range of numbers: a fit that was charged for must not
        # be lost to that.
        usable = (
            jnp.isfinite(new.mean).all() & jnp.isfinite(jnp.linalg.cholesky(new.precision)).all()
        )
        return jax.tree.map(lambda x, y: jnp.where(usable, x, y), new, found)

    return jax.lax.fori_loop(
        0, jnp.where(asked, _WITH_RELEASE, _WITHOUT_RELEASE), closer, state.given
    )


_settled = jax.jit(settled, compiler_options={"xla_backend_optimization_level": 1})


def _given(model, solver, state, given: Given) -> Given:
    """Posterior of the parameters, the fitted being linear as they are over the posterior `given`."""
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


def _fitted(model, solver, state, theta, unclear=0.0):
    """Sum of the fitted over normal rows with these products."""
    params = theta.reshape(model.n_rows, model.n_columns)
    return state.weight * model.mean_fitted(params, *_moments(solver, state), unclear).ravel()


def _slopes(model, solver, state, theta, doubt):
    """Slope of the fitted, and what of it was released: what normal rows do not have, if it stands out of noise.

    All of it over parameters of the covariance `doubt`.
    """
    unclear = jnp.einsum("iajb,ab->ij", doubt, state.products) / state.weight
    slope = jax.jacfwd(lambda at: _fitted(model, solver, state, at, unclear))(theta)
    slope, p = (slope + slope.T) / 2, len(theta)
    # What stands out of the noise of the difference, less what noise adds to an eigenvalue (Donoho
    # et al. 2018).
    values, vectors = jnp.linalg.eigh(state.curvature - slope)
    edge = noise_edge(p, state.curvature_variance)
    out = jnp.sign(values) * jnp.sqrt((values**2 - edge**2).clip(0))
    released = jnp.where(state.precisions[0] > 0, (vectors * out) @ vectors.T, 0)
    values, vectors = jnp.linalg.eigh(slope + released)
    return (vectors * values.clip(1e-6 * values[-1])) @ vectors.T, released


def _moments(solver, state):
    """Mean and covariance of a row, the intercept included."""
    mean_square = state.products / state.weight
    if not solver.intercept:
        return jnp.zeros(len(mean_square)), mean_square
    mean = mean_square[-1]
    return mean, mean_square - jnp.outer(mean, mean)


def _corrected(model, state, here, fitted, slope, released):
    """The fitted at `here`, corrected by what was released of them, and their covariance.

    What is unknown of them is the noise of the products and a misfit, as if w were wrong by some
    independent errors, whose variance the released sums tell.
    """
    p = len(here)
    root_mean_square = jnp.sqrt(jnp.mean(here**2) + 1e-4)
    by_products = _noise_of_products(model, state, here, slope) + 1e-8 * jnp.trace(slope) * jnp.eye(
        p
    )
    by_misfit = slope @ slope
    # A release counts for less, the farther from here it was asked.
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


def _noise_of_products(model, state, theta, slope):
    """Covariance of the fitted sums due to the noise of the products (that of the intercept's row is smaller)."""
    params = theta.reshape(model.n_rows, model.n_columns)
    # sum_kl a_ik E w_k: by row of the parameters the slope is near to a multiple of the products.
    share = _row_slopes(model, state, slope)  # (n_rows, n_rows)
    moved = share @ params
    inner, outer = moved @ moved.T, jnp.einsum("ia,jb->iajb", moved, moved)
    isotropic = jnp.einsum("ij,ab->iajb", inner, jnp.eye(model.n_columns))
    swapped = jnp.swapaxes(outer, 1, 3)
    return state.product_variance * (isotropic + swapped).reshape(theta.size, theta.size)


def _row_slopes(model, state, slope):
    """The slope between rows of the parameters as multiples of the products."""
    blocks = slope.reshape(model.n_rows, model.n_columns, model.n_rows, model.n_columns)
    return jnp.einsum("iaja->ij", blocks) / jnp.trace(state.products).clip(1e-30)


def _misfit(difference, covariance, by_misfit, unit):
    """Posterior mean of the misfit's variance, given the difference that was seen; a half-Cauchy prior of its root."""
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


def _solved(matrix, right):
    return cho_solve(cho_factor(matrix), right)
