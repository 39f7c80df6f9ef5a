"""The paper's NA-DPVI and DPVIm as solvers, on our mechanism and driver; only for the comparison.

What each record contributes follows the paper (A56 to A59) and is not what our solvers do: prior
and entropy go through the clip, and u is released beside mu although its gradient follows from that
of mu. The ten draws inside a record's loss are shared by the records of a round: what that adds to
a gradient is below a thousandth of the privacy noise here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np

from benchmarks._na_dpvi_collapsed import Regression, TraceSums, accumulate
from benchmarks._na_dpvi_problems import N_RECORDS, Settings
from skdpbayes import inference
from skdpbayes.mechanism.keys import FitKeys, fit_keys
from skdpbayes.mechanism.records import Records
from skdpbayes.mechanism.spec import Block, Mechanism, MechanismSpec
from skdpbayes.models.base import Model, prior_score, score
from skdpbayes.privacy import GaussianSteps, calibrate_noise
from skdpbayes.pytrees import pytree
from skdpbayes.solvers.base import Round

N_STEPS, SAMPLING_RATE, DROPPED = 10_000, 0.1, 0.2
_DRAWS = 10  # of theta inside of each record's loss


class TraceState(NamedTuple):
    """Variational parameters (mu, u), and sums of the trace after the rounds dropped."""

    phi: Any
    sums: TraceSums


def mean_scores(model, thetas, noise, record):
    """Means over draws of a record's score and of its product with the noise of the draws."""
    if hasattr(model, "mean_scores"):
        return model.mean_scores(thetas, noise, record)
    scores = jax.vmap(lambda theta: score(model, theta, record))(thetas)
    return jnp.mean(scores, axis=0), jnp.mean(scores * noise, axis=0)


@pytree
@dataclass(frozen=True)
class Published:
    """Mean-field variational inference, ``theta = mu + softplus(u) e``, by plain gradient descent.

    Attributes
    ----------
    clipping_norm : float
    beta : array of shape (2 n,)
        Preconditioner of the gradient in (mu, u), inside of the clip.
    step_size : array of shape (2 n,)
        In units of ``beta * sum of preconditioned gradients`` (A58 and H.2).
    start : array of shape (2 n,)
    n_records : float
    """

    clipping_norm: Any
    beta: Any
    step_size: Any
    start: Any
    n_records: Any

    def init(self, model: Model, key) -> TraceState:
        """Start at public values."""
        del model, key
        return TraceState(
            jnp.asarray(self.start, jnp.float32), TraceSums.zeros(self.start.shape[-1], np.float64)
        )

    def _draw(self, state, key):
        mu, u = jnp.split(state.phi, 2)
        noise = jax.random.normal(key, (_DRAWS, mu.size), mu.dtype)
        return mu + jax.nn.softplus(u) * noise, noise

    def rounds(self, model: Model, mechanism: Mechanism) -> tuple[Round, ...]:
        """One kind of round: the gradient of the negative ELBO over N of each record."""
        prior, beta = prior_score(model), jnp.split(self.beta, 2)

        def query(state, point):
            thetas, noise = point
            u = state.phi[model.size :]
            shared = jax.vmap(prior)(thetas) / self.n_records
            of_mu, of_sd = jnp.mean(shared, axis=0), jnp.mean(shared * noise, axis=0)
            of_sd = of_sd + 1 / (self.n_records * jax.nn.softplus(u))

            def one(record):
                own, times_noise = mean_scores(model, thetas, noise, record)
                parts = own + of_mu, jax.nn.sigmoid(u) * (times_noise + of_sd)
                return {"gradient": tuple(-b * part for b, part in zip(beta, parts, strict=True))}

            return one

        def update(state, point, step, estimate, scales):
            del point, scales
            gradient = mechanism.rate * jnp.concatenate(estimate["gradient"])
            weight = (step >= DROPPED * mechanism.n_steps).astype(jnp.float64)
            sums = accumulate(state.sums, state.phi, gradient / self.beta, weight)
            return TraceState(state.phi - self.step_size * gradient, sums)

        return (
            Round(self._draw, query, lambda state: {"gradient": Block(self.clipping_norm)}, update),
        )


@pytree
@dataclass(frozen=True)
class Aligned(Published):
    """DPVIm (Jalko et al. 2023): only the gradient in mu is released; that in u follows from it.

    The paper does not say with which step sizes. Here mu takes the published steps and u takes
    those of the standard deviation (its gradient over sigmoid(u)), so that the noise moves both
    alike.
    """

    def rounds(self, model: Model, mechanism: Mechanism) -> tuple[Round, ...]:
        """One kind of round: each record's score at one draw."""
        prior = prior_score(model)

        def query(state, point):
            del state
            theta = point[0][0]
            return lambda record: {"gradient": -score(model, theta, record)}

        def update(state, point, step, estimate, scales):
            del scales
            (theta, *_), (noise, *_) = point
            _, u = jnp.split(state.phi, 2)
            of_mu = mechanism.rate * (estimate["gradient"] - prior(theta))
            of_sd = of_mu * noise - mechanism.rate / jax.nn.softplus(u)
            gradient = jnp.concatenate([of_mu, of_sd])
            weight = (step >= DROPPED * mechanism.n_steps).astype(jnp.float64)
            sums = accumulate(state.sums, state.phi, gradient, weight)
            return TraceState(state.phi - self.step_size * gradient, sums)

        return (
            Round(self._draw, query, lambda state: {"gradient": Block(self.clipping_norm)}, update),
        )


def solver(
    kind: type[Published],
    model,
    settings: Settings,
    noise_multiplier: float,
    n_records: int = N_RECORDS,
) -> Published:
    """Step sizes by the paper's heuristic, ``sqrt(2) lambda_c / (sigma C sqrt(T d))``."""
    n, aligned = model.size, kind is Aligned
    released = n if aligned else 2 * n
    beta = np.repeat([1.0, 1.0 if aligned else settings.beta_u], n)
    rate = np.tile(np.broadcast_to(settings.learning_rate, n), 2)
    step_size = (
        np.sqrt(2)
        * rate
        / (noise_multiplier * settings.clipping_norm * np.sqrt(N_STEPS * released))
    )
    start = np.concatenate([np.asarray(model.init()), np.full(n, settings.start_u)])
    arrays = (np.asarray(x, np.float32) for x in (beta, step_size, start, n_records))
    return kind(np.float32(settings.clipping_norm), *arrays)


def regression(state: TraceState, settings: Settings, noise_multiplier: float, beta) -> Regression:
    """Regression of a run's trace with the paper's priors (H.3), which use the trace twice.

    H.3 prints the variance of a least-squares slope where it should print its standard deviation.
    Taken literally, the prior of v is hundreds of times wider than the slope, half of it means no
    slope at all, and the posterior of x* is its prior; NUTS, started at the slope, does not get
    there.
    """
    sums = TraceSums(*(np.asarray(x, np.float64) for x in state.sums))
    variance = (noise_multiplier * settings.clipping_norm / np.asarray(beta, np.float64)) ** 2
    scale = SAMPLING_RATE * sums.sxx
    v_mean, v_sd = np.abs(sums.sxg) / scale, np.sqrt(variance / (SAMPLING_RATE * scale))
    return Regression(sums, variance, SAMPLING_RATE, v_mean, v_sd, prior_mean=sums.mean_x)


def fit(
    kind: type[Published], model, settings: Settings, epsilon: float, delta: float, records, rng
) -> Any:
    """Private runs on several sets of records, (R, n_records, ...): final states, regressions."""
    sigma = calibrate_noise(epsilon, delta, SAMPLING_RATE, N_STEPS).noise_multiplier
    spec = MechanismSpec((GaussianSteps(sigma, SAMPLING_RATE, N_STEPS),))
    own = solver(kind, model, settings, sigma, records.shape[1])
    state = run(fit_keys(rng, len(records)), records, model, own, spec)
    return state, regression(state, settings, sigma, own.beta)


def run(keys: FitKeys, fields, model, own: Published, spec: MechanismSpec) -> TraceState:
    """Final states of many runs, each on its own records.

    Parameters
    ----------
    keys : FitKeys
        Of R chains.
    fields : array of shape (R, n_records, ...)
    """
    states = []
    for i, rows in enumerate(fields):
        state, _ = inference.run(
            keys.chain(i), model, own, spec, Records(rows, np.int32(len(rows)))
        )
        states.append(state)
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)


def grouped(records: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Few records that stand for one set of records, and how many each stands for.

    Different records, if there are at most `most`; else means of that many groups of numbers, in
    their order.

    Parameters
    ----------
    records : array of shape (n, ...)
    most : int
    """
    values, counts = np.unique(records, axis=0, return_counts=True)
    if len(values) > most:
        groups = np.array_split(np.sort(records), most)
        values = np.array([group.mean() for group in groups], records.dtype)
        counts = np.array([len(group) for group in groups])
    padded = np.zeros((most, *values.shape[1:]), records.dtype)
    padded[: len(values)] = values
    return padded, np.pad(counts, (0, most - len(counts)))


def run_together(key, values, counts, model, own: Published, spec: MechanismSpec) -> TraceState:
    """Final states of many runs at once, each on its own records, in floating-point arithmetic.

    The rounds are the recipe's own. In the place of the private sum stands the sum over records
    that stand for several (`grouped`), with normal noise for the batch's random size, about a
    thousandth of the variance of the privacy noise, which is normal, too.

    Parameters
    ----------
    key : JAX key
    values, counts : arrays of shape (R, m, ...) and (R, m)
        From `grouped`.
    """
    with jax.enable_x64(True):
        mechanism = jax.tree.map(jnp.asarray, spec.traced())
        (round_,) = own.rounds(model, mechanism)
        rate = jnp.asarray(mechanism.rate, jnp.float32)
        clip = jnp.asarray(own.clipping_norm, jnp.float32)

        def flat(contribution):
            return jnp.concatenate(jax.tree.leaves(contribution))

        def one(key, values, counts):
            def step(i, state):
                of_point, of_batch, of_noise = jax.random.split(jax.random.fold_in(key, i), 3)
                point = round_.point(state, of_point)
                query = round_.query(state, point)
                each = jax.vmap(lambda record: flat(query(record)))(values)
                lengths = jnp.linalg.norm(each, axis=1, keepdims=True)
                each = each * jnp.minimum(1, clip / jnp.maximum(lengths, 1e-30))
                normal = jax.random.normal(of_batch, counts.shape, jnp.float32)
                sizes = rate * counts + jnp.sqrt(rate * (1 - rate) * counts) * normal
                noise = jax.random.normal(of_noise, (each.shape[1],), jnp.float32)
                sigma = mechanism.noise_multiplier(i).astype(jnp.float32)
                total = (sizes @ each + sigma * clip * noise) / rate
                split = jax.flatten_util.ravel_pytree(query(values[0])["gradient"])[1]
                return round_.update(state, point, i, {"gradient": split(total)}, None)

            return jax.lax.fori_loop(0, spec.n_steps, step, own.init(model, key))

        keys = jax.random.split(key, len(values))
        together = jax.jit(jax.vmap(one))
        return together(keys, jnp.asarray(values), jnp.asarray(counts, jnp.float32))


def fit_together(
    kind: type[Published],
    model,
    settings: Settings,
    epsilon: float,
    delta: float,
    records,
    most,
    rng,
) -> Any:
    """As `fit`, by `run_together`; `most` as in `grouped`."""
    sigma = calibrate_noise(epsilon, delta, SAMPLING_RATE, N_STEPS).noise_multiplier
    spec = MechanismSpec((GaussianSteps(sigma, SAMPLING_RATE, N_STEPS),))
    own = solver(kind, model, settings, sigma, records.shape[1])
    values, counts = map(np.stack, zip(*(grouped(rows, most) for rows in records), strict=True))
    key = jax.random.key(int(rng.integers(2**31)))
    state = run_together(key, values, counts, model, own, spec)
    return state, regression(state, settings, sigma, own.beta)
