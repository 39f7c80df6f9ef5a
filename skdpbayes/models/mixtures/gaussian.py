"""Gaussian mixtures by variational Bayes on noisy sums of expected statistics.

A record's statistic is taken in coordinates of each component: with ``y_k`` its distance from the
component's mean in units of `radius` standard deviations, ``r_k (1, y_k, y_k y_k')``, of norm ``|r|
sqrt(3)`` at most. Four releases come first: columns (``models/columns.py``), the
moments of all records, a sketch, to which mixtures are fitted (``models/mixtures/sketch.py``), and
the records' choice among these as a start.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import digamma
from scipy import stats

from skdpbayes.mechanism.spec import Block
from skdpbayes.models.base import NORM, Opening, double, released_count, single
from skdpbayes.models.columns import fit_columns, waves
from skdpbayes.models.mixtures.marginal import MarginalMixture
from skdpbayes.models.mixtures.sketch import N_FITS, Sketch, features, fit_sketch
from skdpbayes.models.protocols import Array, Contribution, Number, Record
from skdpbayes.posteriors.mixture import MixturePosterior
from skdpbayes.pytrees import pytree

_LEAST = 0.125  # least factor of a variance in one round, with noise
# Clipping norm of a row's log density ratios, and the usual size of their sums: noise beyond it
# makes them count for less than the sketch.
_RATIO_NORM, _USUAL_GAP = 0.3, 10.0
# Blocks of the first release. Of persons, the number of rows is another than the sum of weights.
_COLUMNS = {
    "count": Block(NORM, 0.1, "sum"),
    "waves": Block(NORM, 0.8, "statistic"),
    "weight": Block(NORM, 0.1, "weight"),
}
_LIGHTER = 0.2  # standard deviation of the share in which the weights of records may be lighter
_SIZES = 1.0  # standard deviation of logarithms of components' variances, about that of the mean
_COLUMN_ERROR = 0.2  # variance of what columns say of the moments of all records, in their units


class Start(NamedTuple):
    """Start of the rounds, and the variances of its errors in units of each component."""

    count: Any  # (K,)
    mean: jax.Array  # (K, d)
    covariance: jax.Array  # (K, d, d)
    errors: (
        jax.Array
    )  # (3, K): of counts, means (each coordinate), whitened covariances (each entry)


class MixtureParams(NamedTuple):
    """Variational posterior of a mixture.

    Weights are Dirichlet; given its covariance, the mean of a component is normal around `mean`
    with covariance ``covariance / precision``; covariances are inverse Wishart with scatter
    ``freedom * covariance``.
    """

    concentration: jax.Array  # (K,)
    precision: jax.Array  # (K,)
    freedom: jax.Array  # (K,)
    mean: jax.Array  # (K, d)
    covariance: jax.Array  # (K, d, d), for every covariance type
    noise: jax.Array  # (3, K): variance added by privacy, as `Start.errors`
    moved: jax.Array  # largest step of a mean in the last round, in units of its component
    centre: jax.Array  # (d,): mean of all records
    spread: jax.Array  # (d, d): their covariance
    total: jax.Array  # their number
    total_error: jax.Array  # its standard deviation, as a share
    start: Start
    rivals: Start  # starts among which the rows choose, with an axis in front
    log_posterior: jax.Array  # (N_FITS,): of each, given the sketch


@pytree
@dataclass(frozen=True)
class GaussianMixture:
    """Mixture of K normal distributions in d dimensions.

    A record is ``{"x": (d,)}``; a null record holds a NaN.

    Attributes
    ----------
    kind : {"full", "tied", "diag", "spherical"}
    n_components, n_features : int
    concentration, precision, freedom : float
        Parameters of the priors: Dirichlet for weights, normal-inverse-Wishart for means and
        covariances.
    mean_prior : array of shape (d,) or None
        None: the released mean of all records.
    covariance_prior : array of shape (d, d) or None
        Scatter of the prior. None: see `_prior_covariance`.
    ridge : float or array of shape (d,)
        Added to variances.
    radius : float
        Distance, in standard deviations of a component, beyond which records are down-weighted.
    kept : array of shape (2,)
        `mean_weights` at `radius`.
    frequencies : array of shape (m, d) or None
        Frequencies of the sketch. None: no sketch, for given `means` or one component.
    means, weights : arrays of shape (K, d) and (K,), or None
        Given start.
    nodes : array of shape (m, d + 1)
        As of `MarginalMixture`.
    sampling_rate : float
        Of the releases: the fewer rows a sketch has, the larger are its errors.
    """

    kind: str = field(metadata={"static": True})
    n_components: int = field(metadata={"static": True})
    n_features: int = field(metadata={"static": True})
    concentration: Number
    precision: Number
    freedom: Number
    mean_prior: Array | None
    covariance_prior: Array | None
    ridge: Number | Array
    radius: Number
    kept: Array
    frequencies: Array | None
    means: Array | None
    weights: Array | None
    nodes: Array
    sampling_rate: Number = 1.0

    def at_rate(self, sampling_rate: float) -> GaussianMixture:
        """The model, for releases of that sampling rate."""
        return replace(self, sampling_rate=np.float32(sampling_rate))

    # ------------------------------------------------------------ what a record contributes

    def init(self) -> MixtureParams:
        """Parameters before any release."""
        k, d = self.n_components, self.n_features

        def zeros(*shape: int) -> jax.Array:
            return jnp.zeros(shape, jnp.float32)

        eye = jnp.eye(d, dtype=jnp.float32)
        eyes = jnp.broadcast_to(eye, (k, d, d))
        start = Start(zeros(k), zeros(k, d), eyes, zeros(3, k))
        rivals = jax.tree.map(lambda x: jnp.broadcast_to(x, (N_FITS, *x.shape)), start)
        return MixtureParams(
            concentration=zeros(k) + 1,
            precision=zeros(k) + 1,
            freedom=zeros(k) + d,
            mean=zeros(k, d),
            covariance=eyes,
            noise=zeros(3, k),
            moved=zeros(),
            centre=zeros(d),
            spread=eye,
            total=zeros(),
            total_error=zeros(),
            start=start,
            rivals=rivals,
            log_posterior=zeros(N_FITS),
        )

    def statistics(self, params: MixtureParams) -> Callable[[Record], Mapping[str, Contribution]]:
        """Responsibilities of one record, and its weighted first two moments by component."""
        factor = single(inverse_factor(double(params.covariance)))
        offset = single(self._log_weights(double(params)))

        def of_record(record):
            x = record["x"]
            y = jnp.einsum("kij,kj->ki", factor, x - params.mean)
            r = jax.nn.softmax(offset - jnp.sum(y**2, axis=1) / 2)
            return bounded(self.kind, r, y / self.radius)

        return of_record

    def _log_weights(self, params):
        """Expected log weight and log normalising constant of each component."""
        d = self.n_features
        shift = jnp.arange(d) if self.kind in ("full", "tied") else jnp.zeros(d)
        half = (params.freedom[:, None] - shift) / 2
        log_precision = jnp.sum(digamma(half) - jnp.log(params.freedom[:, None] / 2), axis=1)
        log_precision -= 2 * jnp.sum(
            jnp.log(jnp.diagonal(jnp.linalg.cholesky(params.covariance), axis1=1, axis2=2)), axis=1
        )
        return digamma(params.concentration) + (log_precision - d / params.precision) / 2

    def blocks(self) -> Mapping[str, Block]:
        """Norms of 1, and shares that minimise the loss of log-likelihood to noise.

        See ``docs/solvers/vips-mixtures.md``.
        """
        radius = math.sqrt(self.n_features + 3)
        return _shared(self.kind, self.n_features, self.n_components, radius)

    def zeros(self) -> Mapping[str, Any]:
        """Sums of no records."""
        record = {"x": jax.ShapeDtypeStruct((self.n_features,), jnp.float32)}
        shapes = jax.eval_shape(self.statistics(self.init()), record)
        return jax.tree.map(lambda s: jnp.zeros(s.shape, jnp.float32), shapes)

    # ------------------------------------------------------------ releases that lead to a start

    def openings(self) -> tuple[Opening, ...]:
        """Columns, moments of all records; their sketch and a choice, unless the start is given."""
        columns = Opening(
            statistics=lambda params: _columns,
            blocks=_COLUMNS,
            update=self._after_columns,
        )
        moments = Opening(
            statistics=self._moments,
            blocks=_shared(self._whole_kind, self.n_features, 1, 2 * math.sqrt(self.n_features)),
            update=self._after_moments,
        )
        sketch = Opening(self._sketch, {"sketch": Block(NORM)}, self._after_sketch)
        block = {"ratios": Block(NORM)}
        choice = Opening(self._log_ratios, block, self._after_choice)
        whole = columns, moments
        return whole if self.frequencies is None else (*whole, sketch, choice)

    @property
    def _whole_kind(self) -> str:
        return "full" if self.kind in ("full", "tied") else "diag"

    def _after_columns(
        self,
        params: MixtureParams,
        sums: Mapping[str, Any],
        scales: Mapping[str, jax.Array],
        key: jax.Array,
    ) -> MixtureParams:
        del key
        sums, scales = double(sums), double(scales)
        n = released_count(sums, scales)
        rate = jnp.asarray(self.sampling_rate, float)
        sampling = (1 - rate) / (rate * n)
        params = params._replace(
            total=n, total_error=jnp.sqrt((scales["count"] / n) ** 2 + sampling)
        )
        weight = _sum_of_weights(params, sums["weight"][0], scales["weight"])
        found = fit_columns(sums["waves"], weight, scales["waves"], rate)
        return single(params._replace(centre=found.centre, spread=jnp.diag(found.std**2)))

    def _whole_radius(self, params):
        """Norm in units of columns beyond which records count less in the moments of all.

        The larger it is, the more of small groups far away is seen, and the larger is the noise: of
        about a quarter of a variance.
        """
        square = 0.25 / jnp.maximum(params.total_error, 1e-7)
        return jnp.sqrt(jnp.maximum(square, 2 * (self.n_features + 3)))

    def _moments(self, params):
        std = jnp.sqrt(jnp.diagonal(params.spread)) * self._whole_radius(params)
        one = np.ones(1, np.float32)
        return lambda record: bounded(
            self._whole_kind, one, ((record["x"] - params.centre) / std)[None]
        )

    def _after_moments(
        self,
        params: MixtureParams,
        sums: Mapping[str, Any],
        scales: Mapping[str, jax.Array],
        key: jax.Array,
    ) -> MixtureParams:
        """Moments as far as noise allows: what it hides stays as the columns have it."""
        del key
        params, sums, scales = double((params, sums, scales))
        eye, square = jnp.eye(self.n_features), self._whole_radius(params) ** 2
        n = _sum_of_weights(params, sums["count"][0], scales["count"])
        shift, _ = _weighed(
            sums["first"][0] * jnp.sqrt(square) / n,
            square * (scales["first"] / n) ** 2,
            0.0,
            _COLUMN_ERROR,
        )
        second = sums["second"][0]
        second = jnp.diag(second) if self._whole_kind == "diag" else (second + second.T) / 2
        noise = (scales["second"] * square / n) ** 2 * (1 + eye) / 2  # of symmetric matrices
        second, error = _weighed(
            second * square / n - jnp.outer(shift, shift), noise, eye, _COLUMN_ERROR
        )
        least = jnp.minimum(jnp.sqrt(error.max() * self.n_features), 0.5)
        second = floored(second, jnp.maximum(least, 1e-6))
        std = jnp.sqrt(jnp.diagonal(params.spread))
        # Whitened by one number, spherical components stay spherical.
        spread = restricted(self.kind, (second * jnp.outer(std, std))[None])[0]
        params = params._replace(centre=params.centre + std * shift, spread=spread)
        if self.frequencies is None:
            params = self._started(params, self._given(params))
        return single(params)

    def _given(self, params):
        """Start at the given means, or at the moments of all records for a single component."""
        k = self.n_components
        means = params.centre[None] if self.means is None else jnp.asarray(self.means)
        count = params.total * (jnp.full(k, 1 / k) if self.weights is None else self.weights)
        covariance = jnp.broadcast_to(
            k ** (-2 / self.n_features) * params.spread, params.covariance.shape
        )
        return Start(count, means, covariance, jnp.stack([count**2, jnp.ones(k), jnp.ones(k)]))

    def _sketch(self, params):
        factor = single(inverse_factor(double(params.spread)))
        return lambda record: {
            "sketch": features(self.frequencies, factor @ (record["x"] - params.centre))
        }

    def _after_sketch(
        self,
        params: MixtureParams,
        sums: Mapping[str, Any],
        scales: Mapping[str, jax.Array],
        key: jax.Array,
    ) -> MixtureParams:
        params = double(params)
        frequencies = double(jnp.asarray(self.frequencies))
        rate = jnp.asarray(self.sampling_rate, float)
        sketch = Sketch(frequencies, double(sums["sketch"]), params.total, params.total_error, rate)
        fit = fit_sketch(key, sketch, double(scales["sketch"]), self.n_components, self.kind)
        scale = jnp.linalg.cholesky(params.spread)
        covariances = jnp.einsum("ij,ckjl,ml->ckim", scale, fit.covariances, scale)
        rivals = Start(
            fit.counts,
            params.centre + fit.means @ scale.T,
            jax.vmap(lambda x: restricted(self.kind, x))(covariances),
            fit.errors,
        )
        return single(params._replace(rivals=rivals, log_posterior=fit.log_posterior))

    def _log_ratios(self, params):
        """Log densities of one record under each rival, less that under the first."""
        rivals = jax.vmap(lambda start: self.marginal(params._replace(start=start)))(params.rivals)

        def of_record(record):
            log = jax.vmap(lambda rival: rival.log_likelihood(rival.init(), record))(rivals)
            return {"ratios": (log[1:] - log[0]) / _RATIO_NORM}

        return of_record

    def _after_choice(
        self,
        params: MixtureParams,
        sums: Mapping[str, Any],
        scales: Mapping[str, jax.Array],
        key: jax.Array,
    ) -> MixtureParams:
        """Start that rows and sketch support best."""
        del key
        params, ratios = double(params), double(sums["ratios"]) * _RATIO_NORM
        share = 1 / (1 + (double(scales["ratios"]) * _RATIO_NORM / _USUAL_GAP) ** 2)
        best = jnp.argmax(params.log_posterior + share * jnp.concatenate([jnp.zeros(1), ratios]))
        start = jax.tree.map(lambda x: x[best], params.rivals)
        return single(self._started(params._replace(total=start.count.sum()), start))

    def _started(self, params, start):
        return params._replace(
            concentration=self.concentration + start.count,
            precision=self.precision + start.count,
            freedom=self.freedom + start.count,
            mean=start.mean,
            covariance=start.covariance,
            noise=start.errors,
            start=start,
        )

    # ------------------------------------------------------------ M-step

    def carry(
        self, sums: Mapping[str, Any], old: MixtureParams, new: MixtureParams
    ) -> Mapping[str, Any]:
        """Sums about old components, translated to new ones by a linear map."""
        sums, old, new = double((sums, old, new))
        kept = double(self.kept)
        factor = inverse_factor(new.covariance)
        b = jnp.einsum("kij,kjl->kil", factor, jnp.linalg.cholesky(old.covariance))
        c = jnp.einsum("kij,kj->ki", factor, old.mean - new.mean) / self.radius
        count, moved = sums["count"] * kept[1] / kept[0], jnp.einsum("kij,kj->ki", b, sums["first"])
        cross = moved[:, :, None] * c[:, None, :]
        cross = (
            cross + jnp.swapaxes(cross, 1, 2) + count[:, None, None] * c[:, :, None] * c[:, None, :]
        )
        second = sums["second"]
        if self.kind == "full":
            second = jnp.einsum("kij,kjl,kml->kim", b, second, b) + cross
        elif self.kind == "tied":
            second = b[0] @ second @ b[0].T + cross.sum(axis=0)
        elif self.kind == "diag":
            second = jnp.diagonal(b, axis1=1, axis2=2) ** 2 * second + jnp.diagonal(
                cross, axis1=1, axis2=2
            )
        else:
            second = b[:, 0, 0] ** 2 * second + jnp.trace(cross, axis1=1, axis2=2)
        return single(
            {"count": sums["count"], "first": moved + count[:, None] * c, "second": second}
        )

    def m_step(
        self, params: MixtureParams, sums: Mapping[str, Any], scales: Mapping[str, jax.Array]
    ) -> MixtureParams:
        """Variational posterior given noisy sums about the components of `params`.

        Count, mean and covariance are averages of the sums' values and the start, weighted by their
        precisions. Without noise the start has no weight but in the default prior, and this is the
        M-step of variational Bayes.
        """
        params, sums, scales = double((params, sums, scales))
        k, d, eye = self.n_components, self.n_features, jnp.eye(self.n_features)
        inverse, scale, start = (
            inverse_factor(params.covariance),
            jnp.linalg.cholesky(params.covariance),
            params.start,
        )

        def white(matrix: jax.Array) -> jax.Array:
            return jnp.einsum("kij,kjl,kml->kim", inverse, matrix, inverse)

        kept = double(self.kept)
        first, second = (
            sums["first"] * self.radius / kept[1],
            sums["second"] * self.radius**2 / kept[1],
        )
        tau = jnp.stack([scales["count"] / kept[0], scales["first"] * self.radius / kept[1]])

        count, count_error = _weighed(
            sums["count"] / kept[0], tau[0] ** 2, start.count, start.errors[0]
        )
        n = jnp.maximum(count, 1e-3 + jnp.sqrt(count_error) / 4)
        from_start = jnp.einsum("kij,kj->ki", inverse, start.mean - params.mean)
        shift, mean_error = _weighed(
            first / n[:, None], (tau[1] / n)[:, None] ** 2, from_start, start.errors[1][:, None]
        )

        tau_second = scales["second"] * self.radius**2 / kept[1]
        if self.kind == "tied":
            size = jnp.full(k, n.sum())
            scatter = jnp.broadcast_to(
                (second + second.T) / 2 - jnp.einsum("k,ki,kj->ij", n, shift, shift), (k, d, d)
            )
            size_k, tau_second = size / k, tau_second / math.sqrt(2)
        else:
            if self.kind == "full":
                second, tau_second = (
                    (second + jnp.swapaxes(second, 1, 2)) / 2,
                    tau_second / math.sqrt(2),
                )
            elif self.kind == "diag":
                second = second[:, :, None] * eye
            else:
                second, tau_second = second[:, None, None] / d * eye, tau_second / d
            size = size_k = n
            scatter = second - n[:, None, None] * shift[:, :, None] * shift[:, None, :]
        within, second_error = _weighed(
            scatter / size[:, None, None],
            (tau_second / size)[:, None, None] ** 2,
            white(start.covariance),
            start.errors[2][:, None, None],
        )
        noisy = (tau_second > 0) & jnp.isfinite(tau_second)
        within = floored(within, jnp.where(noisy, _LEAST, 1e-9))

        centre = jnp.einsum("kij,kj->ki", inverse, self._prior_mean(params) - params.mean)
        precision, pull = self.precision + n, shift - centre
        between = (
            (self.precision * n / precision)[:, None, None] * pull[:, :, None] * pull[:, None, :]
        )
        if self.kind == "tied":
            between = jnp.broadcast_to(between.mean(axis=0), (k, d, d))
        freedom = self.freedom + size_k
        prior = white(self._prior_covariance(params))
        covariance = (prior + size_k[:, None, None] * within + between) / freedom[:, None, None]
        covariance = jnp.einsum("kij,kjl,kml->kim", scale, covariance, scale) + self.ridge * eye
        step = (self.precision * centre + n[:, None] * shift) / precision[:, None]
        new = params._replace(
            concentration=self.concentration + jnp.maximum(count, 0),
            precision=precision,
            freedom=freedom,
            mean=params.mean + jnp.einsum("kij,kj->ki", scale, step),
            covariance=restricted(self.kind, covariance),
            noise=jnp.stack([count_error, mean_error[:, 0], second_error[:, 0, 0]]),
            moved=jnp.max(jnp.abs(step)),
        )
        return single(new)

    def posterior(self, params: MixtureParams) -> MixturePosterior:
        """Posterior of weights, means and covariances, with the privacy noise."""
        fields = [np.asarray(x, np.float64) for x in params[:6]]
        return MixturePosterior(self.kind, float(self.concentration), *fields)

    def marginal(self, params: MixtureParams) -> MarginalMixture:
        """The mixture with labels summed out, in coordinates about the start found."""
        weights = jnp.maximum(params.start.count, 1e-3 * jnp.max(params.start.count))
        precise = double(params)
        # Errors of a sketch are correlated, which variances ignore: they count four times.
        errors = params.start.errors * (1 if self.frequencies is None else 16)
        return MarginalMixture(
            self.kind,
            self.n_components,
            self.n_features,
            self.concentration,
            self.precision,
            self.freedom,
            centre=jnp.asarray(self._prior_mean(params), jnp.float32),
            scatter=single(self._prior_covariance(precise)),
            weights=single(weights / weights.sum()),
            mean=params.start.mean,
            factor=single(inverse_factor(precise.start.covariance)),
            errors=single(errors.at[0].divide(jnp.square(jnp.maximum(params.start.count, 1)))),
            n_records=single(params.total),
            nodes=self.nodes,
        )

    def _prior_mean(self, params):
        return params.centre if self.mean_prior is None else self.mean_prior

    def _prior_covariance(self, params):
        """Scatters of the prior, (K, d, d): by default, `freedom` times covariances at the start.

        They have the shape of the mean covariance, and sizes of the components, as far as the start
        knows these. A start that was given says nothing of sizes: there K components fill the
        whole.
        """
        k, d = self.n_components, self.n_features
        if self.covariance_prior is not None:
            return jnp.broadcast_to(self.covariance_prior, (k, d, d))
        if self.frequencies is None:
            return jnp.broadcast_to(params.spread * self.freedom * k ** (-2 / d), (k, d, d))
        start, error = params.start, params.start.errors[2]
        mean = jnp.einsum("k,kij->ij", start.count / start.count.sum(), start.covariance)
        log_size = (jnp.linalg.slogdet(start.covariance)[1] - jnp.linalg.slogdet(mean)[1]) / d
        # Under a scatter far below their own, components that noise hides would collapse.
        log_size = log_size / (1 + error / _SIZES**2) + jnp.sqrt(error)
        return mean * self.freedom * jnp.exp(log_size)[:, None, None]


def _columns(record):
    """Waves of one record, and twice the number one."""
    found = waves(record["x"])
    one = jnp.where(jnp.isfinite(found).all(), jnp.ones(1), jnp.nan)
    return {"count": one, "weight": one, "waves": found}


def _sum_of_weights(params, weight, noise):
    """Sum of weights of records; where noise hides it, their number."""
    error = (params.total_error**2 + _LIGHTER**2) * params.total**2
    return jnp.maximum(_weighed(weight, noise**2, params.total, error)[0], params.total / 10)


def bounded(kind, r, y):
    """``r (1, y, y y')`` with r over ``|y|^2`` where ``|y| > 1``; block norms are at most |r|."""
    square = jnp.sum(y**2, axis=1)
    r = r / jnp.maximum(square, 1)
    if kind == "full":
        second = r[:, None, None] * y[:, :, None] * y[:, None, :]
    elif kind == "tied":
        second = jnp.einsum("k,ki,kj->ij", r, y, y)
    else:
        second = r[:, None] * y**2 if kind == "diag" else r * square
    return {"count": r, "first": r[:, None] * y, "second": second}


def _shared(kind, d, k, radius):
    costs = {
        "full": math.sqrt(d * (d + 1)) / 2,
        "tied": math.sqrt(d * (d + 1)) / 2 / k,
        "diag": math.sqrt(d / 2),
        "spherical": 1 / math.sqrt(2 * d),
    }
    costs = {"count": 1.0, "first": radius * math.sqrt(d), "second": radius**2 * costs[kind]}
    return {
        name: Block(NORM, cost / sum(costs.values()), "weight" if name == "count" else "statistic")
        for name, cost in costs.items()
    }


def mean_weights(radius: float, d: int) -> np.ndarray:
    """Means of ``w`` and of ``w |y|^2 / d``.

    Here ``y ~ N(0, I)`` in d dimensions, with weight ``w = min(1, radius^2 / |y|^2)``.
    """
    chi2, square = stats.chi2(d), radius**2
    # E[1 / chi^2; chi^2 > radius^2], integrated in log t.
    t = np.linspace(0, 1, 2000) ** 2 * 12 + math.log(square)
    tail = np.trapezoid(chi2.pdf(np.exp(t)), t)
    inside = stats.chi2(d + 2).cdf(square) + square / d * chi2.sf(square)
    return np.array([chi2.cdf(square) + square * tail, inside], np.float32)


def _weighed(one, one_error, other, other_error):
    """Precision-weighted average of two estimates, and its variance."""
    total = one_error + other_error
    share = jnp.where(total > 0, other_error / jnp.where(total > 0, total, 1), 1)
    return share * one + (1 - share) * other, share * one_error


def inverse_factor(covariance):
    """Inverse of the Cholesky factor, which whitens a component."""
    eye = jnp.broadcast_to(jnp.eye(covariance.shape[-1], dtype=covariance.dtype), covariance.shape)
    return jax.scipy.linalg.solve_triangular(jnp.linalg.cholesky(covariance), eye, lower=True)


def floored(matrix, least):
    """Symmetric matrices with no eigenvalue below `least`."""
    values, vectors = jnp.linalg.eigh(matrix)
    return jnp.einsum("...ij,...j,...kj->...ik", vectors, jnp.maximum(values, least), vectors)


def restricted(kind, covariances):
    """Covariances (K, d, d) of a type: the mean of all, the diagonal, or its mean."""
    d = covariances.shape[-1]
    eye = jnp.eye(d, dtype=covariances.dtype)
    if kind == "tied":
        return jnp.broadcast_to(covariances.mean(axis=0), covariances.shape)
    if kind == "spherical":
        return jnp.trace(covariances, axis1=1, axis2=2)[:, None, None] / d * eye
    return covariances * eye if kind == "diag" else covariances
