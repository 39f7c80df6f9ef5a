"""Zero of a trace of noisy gradients: a Bayesian regression on sums of the trace.

Near its optimum x* a loss has gradient ``A (x - x*)``. With a diagonal A, what a private run
releases is, for each coordinate by itself (NA-DPVI, equations 20 and A60),

    g_t ~ N(kappa a (x_t - x*), V + omega^2),   a = softplus(v),  v ~ N(m, s^2),  x* ~ N(p, r(a)),

V being the variance of the privacy noise, kappa the sampling rate and omega^2 what subsampling
adds: zero, or unknown with a half-normal prior of omega. The trace enters through its number of
rounds n, two means and three second moments (`TraceSums`). With ``b = kappa a``, ``W = V +
omega^2`` and ``D = W + n b^2 r``, x* is integrated out:

    x* | v, omega ~ N(p - n r b h / D, r W / D),   h = mean(g) - b (mean(x) - p)
    log p(v, omega | trace) = -(v - m)^2 / (2 s^2) - omega^2 / (2 scale^2) - (n - 1)/2 log W
                              - 1/2 log D
        - (Sgg - 2 b Sxg + b^2 Sxx) / (2 W) - n h^2 / (2 D) + constant

which leaves one or two dimensions for a grid (`exact`). `laplace` and `nuts`, which the paper uses,
are for comparison.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(8)
# Panels of the final grid in v and omega, with eight nodes each; with omega, half of those in v.
_PANELS, _OMEGA_PANELS = 96, 12
_REFINED = 256, 48  # nodes, in v and omega, of the grid that locates the mass
# Log densities this far below the maximum are negligible (v can have a tail of any length).
_NEGLIGIBLE, _OMEGA_NEGLIGIBLE = 45.0, 28.0
_TINY = 1e-300


class TraceSums(NamedTuple):
    """Weighted sums of a trace; arrays of shape (..., d).

    Attributes
    ----------
    n : array
        Number of rounds; with weights, their sum.
    mean_x, mean_g : array
        Means of the points and of the noisy gradients released there.
    sxx, sxg, sgg : array
        Sums of squares and products about the means.
    """

    n: Any
    mean_x: Any
    mean_g: Any
    sxx: Any
    sxg: Any
    sgg: Any

    @classmethod
    def zeros(cls, shape, dtype=np.float64) -> TraceSums:
        """Sums of no rounds; `accumulate` keeps their dtype."""
        return cls(*(np.zeros(shape, dtype) for _ in cls._fields))


def accumulate(sums: TraceSums, x, g, weight=1.0) -> TraceSums:
    """Add one round (Welford's update, with weights); NumPy or JAX arrays.

    Parameters
    ----------
    sums : TraceSums
    x, g : arrays of shape (..., d)
        The point, and the noisy gradient released there.
    weight : scalar or array of shape (..., d)
        Zero leaves a round out. If the noise differs between rounds, its variance is ``V /
        weight``.
    """
    n = sums.n + weight
    share = weight / (n + (n == 0))
    dx, dg = x - sums.mean_x, g - sums.mean_g
    mean_x, mean_g = sums.mean_x + share * dx, sums.mean_g + share * dg
    wx, wg = weight * dx, weight * dg
    return TraceSums(
        n,
        mean_x,
        mean_g,
        sums.sxx + wx * (x - mean_x),
        sums.sxg + wx * (g - mean_g),
        sums.sgg + wg * (g - mean_g),
    )


def _unit(a):
    return 1.0 + 0 * a


@dataclass(frozen=True)
class Regression:
    """Everything that the posterior of x* depends on; arrays broadcast to (..., d).

    Attributes
    ----------
    sums : TraceSums
    noise_variance : array
        V, of the privacy noise in one gradient of weight one; positive.
    kappa : float
        Sampling rate: the gradient estimates kappa times that of all records.
    v_mean, v_sd : array
        Of the normal prior of v, with ``a = softplus(v)``.
    prior_mean : array
        p, of the normal prior of x*.
    prior_variance : callable ``(a) -> variance``
        r, of the normal prior of x* given a; `a` has shape (..., d) behind one more axis, and is a
        JAX array in `nuts`. Positive and bounded.
    subsampling : array, optional
        Scale of the half-normal prior of omega. None takes omega for zero, which weights other than
        0 and 1 need.
    """

    sums: TraceSums
    noise_variance: Any
    kappa: Any
    v_mean: Any
    v_sd: Any
    prior_mean: Any
    prior_variance: Callable[[Any], Any] = _unit
    subsampling: Any = None

    @property
    def shape(self) -> tuple[int, ...]:
        """(..., d)."""
        scale = 1.0 if self.subsampling is None else self.subsampling
        others = (self.noise_variance, self.kappa, self.v_mean, self.v_sd, self.prior_mean, scale)
        return np.broadcast_shapes(*(np.shape(x) for x in (*self.sums, *others)))


def softplus(v):
    """``log(1 + exp v)``."""
    return np.maximum(v, 0) + np.log1p(np.exp(-np.abs(v)))


def softplus_inverse(a):
    """``log(exp(a) - 1)``, a positive."""
    return a + np.log(-np.expm1(-a))


class _Rows:
    """A regression with its axes flattened into rows, so that the last axis is free for a grid."""

    def __init__(self, regression: Regression):
        self.regression, self.shape = regression, regression.shape
        self.n, self.mean_x, self.mean_g, self.sxx, self.sxg, self.sgg = map(
            self._row, regression.sums
        )
        self.V, self.kappa = self._row(regression.noise_variance), self._row(regression.kappa)
        self.m, self.s = self._row(regression.v_mean), self._row(regression.v_sd)
        self.p = self._row(regression.prior_mean)
        self.scale = None if regression.subsampling is None else self._row(regression.subsampling)

    def _row(self, x) -> Array:
        return np.broadcast_to(np.asarray(x, np.float64), self.shape).reshape(-1, 1)

    def unflatten(self, draws: Array) -> Array:
        """(rows, n) to (n, ..., d)."""
        return np.moveaxis(draws, 1, 0).reshape(-1, *self.shape)

    def curvature(self, v) -> tuple[Array, Array]:
        """``kappa a``, and the prior variance of x* there; `v` has shape (rows, grid)."""
        a = np.maximum(softplus(v), _TINY)
        first = np.moveaxis(a, -1, 0)
        variance = np.asarray(
            self.regression.prior_variance(first.reshape(-1, *self.shape)), np.float64
        )
        variance = np.broadcast_to(variance, (len(first), *self.shape)).reshape(first.shape)
        return self.kappa * a, np.moveaxis(variance, 0, -1)

    def log_density(self, v, omega) -> Array:
        """Log density of (v, omega), on the product of two grids: (rows, len(omega), len(v))."""
        b, r = (x[:, None, :] for x in self.curvature(v))
        n, W = self.n[..., None], (self.V + omega**2)[..., None]
        prior = -0.5 * ((v - self.m) / self.s) ** 2
        of_omega = -(self.n - 1) / 2 * np.log(self.V + omega**2)
        if self.scale is not None:
            of_omega = of_omega - 0.5 * (omega / self.scale) ** 2
        square = (self.sgg[..., None] - 2 * b * self.sxg[..., None]) + b**2 * self.sxx[..., None]
        h = self.mean_g[..., None] - b * (self.mean_x - self.p)[..., None]
        D = W + n * b**2 * r
        fit = -0.5 * (np.log(D) + square / W + n * h**2 / D)
        return prior[:, None, :] + of_omega[:, :, None] + fit

    def conditional(self, v, omega) -> tuple[Array, Array]:
        """Mean and variance of x* given v and omega, element by element."""
        b, r = self.curvature(v)
        W = self.V + omega**2
        D = W + self.n * b**2 * r
        h = self.mean_g - b * (self.mean_x - self.p)
        return self.p - self.n * r * b * h / D, r * W / D

    def first_grids(self) -> tuple[Array, Array]:
        """Grids that hold the mass, with nodes wherever prior or likelihood may have a peak."""
        steps = np.linspace(-9, 9, 49)
        sxx = np.maximum(self.sxx, _TINY)
        slope = self.sxg / sxx
        slopes = slope, self.kappa * softplus(self.m)
        residual = [np.maximum(self.sgg - 2 * b * self.sxg + b**2 * self.sxx, 0) for b in slopes]
        omega = np.zeros((len(self.n), 1))
        W = self.V
        if self.scale is not None:
            relative = 1 + np.linspace(-8, 8, 33) * np.sqrt(2 / np.maximum(self.n, 1))
            modes = [
                np.sqrt(np.maximum(x / np.maximum(self.n, 1) * relative - self.V, 0))
                for x in residual
            ]
            omega = np.sort(np.concatenate([self.scale * np.linspace(0, 9, 33), *modes], axis=1))
            W = np.maximum(self.V, residual[0] / np.maximum(self.n, 1))
        error = np.sqrt(W / sxx)
        near = np.concatenate([slope + error * steps, error * 2.0 ** np.arange(-12, 7)], axis=1)
        likely = softplus_inverse(np.maximum(near, 1e-6 * error) / self.kappa)
        prior = self.m + self.s * steps
        likely = np.where(np.isfinite(likely) & (self.sxx > 0), likely, self.m)
        v = np.concatenate([prior, likely], axis=1)
        low, high = v.min(axis=1, keepdims=True), v.max(axis=1, keepdims=True)
        return np.sort(
            np.concatenate([v, low + (high - low) * np.linspace(0, 1, 48)], axis=1)
        ), omega


def _interpolate(at: Array, x: Array, y: Array) -> Array:
    """y at `at` (the same in all rows, in [0, 1]), row by row; x increases from 0 to 1."""
    offset = 2.0 * np.arange(len(x))[:, None]
    right = np.searchsorted((x + offset).ravel(), (at + offset).ravel()).reshape(len(x), -1)
    right = np.clip(right - x.shape[1] * np.arange(len(x))[:, None], 1, x.shape[1] - 1)
    x0, x1 = np.take_along_axis(x, right - 1, 1), np.take_along_axis(x, right, 1)
    y0, y1 = np.take_along_axis(y, right - 1, 1), np.take_along_axis(y, right, 1)
    share = np.clip((at - x0) / np.where(x1 > x0, x1 - x0, 1), 0, 1)
    return y0 + share * (y1 - y0)


def _equidistributed(
    grid: Array, log_densities: tuple[Array, ...], n: int, negligible: float
) -> Array:
    """`n` points of each row from unnormalised densities, their fourth roots and their changes.

    The roots cover tails. Their changes find the edge of a plateau: the prior's tail, where a is
    too small for the trace to see.
    """
    width = np.diff(grid, axis=1)
    total, kept = np.zeros_like(width), np.zeros(width.shape, bool)
    for log_density in log_densities:
        relative = log_density - log_density.max(axis=1, keepdims=True)
        inside = np.maximum(relative[:, 1:], relative[:, :-1]) > -negligible
        height, root = np.exp(relative), np.exp(0.25 * relative)
        cells = (
            width * (height[:, 1:] + height[:, :-1]),
            width * (root[:, 1:] + root[:, :-1]),
            np.abs(np.diff(root)),
        )
        for cell in cells:
            total += np.where(
                inside, cell / np.maximum(np.sum(cell * inside, axis=1, keepdims=True), _TINY), 0
            )
        kept |= inside
    reached = np.concatenate([np.zeros((len(grid), 1)), np.cumsum(total, axis=1)], axis=1)
    reached /= np.maximum(reached[:, -1:], _TINY)
    # Where the mass begins and ends: `reached` has a plateau before and after.
    first = np.take_along_axis(grid, kept.argmax(axis=1)[:, None], 1)
    last = np.take_along_axis(grid, (width.shape[1] - kept[:, ::-1].argmax(axis=1))[:, None], 1)
    points = _interpolate(np.linspace(0, 1, n), reached, grid)
    return np.concatenate([first, np.clip(points[:, 1:-1], first, last), last], axis=1)


class _Panels(NamedTuple):
    """Gauss-Legendre nodes on consecutive panels; node k has the cell `left` + [0, `weight`]."""

    nodes: Array
    weight: Array
    left: Array

    @classmethod
    def between(cls, edges: Array) -> _Panels:
        half, rows = np.diff(edges, axis=1)[..., None] / 2, len(edges)
        start = edges[:, :-1, None]
        cumulative = np.concatenate([[0], np.cumsum(_WEIGHTS)[:-1]])
        parts = start + half * (1 + _NODES), half * _WEIGHTS, start + half * cumulative
        return cls(*(x.reshape(rows, -1) for x in parts))


class ExactPosterior:
    """Posterior of x* and a on a grid.

    Attributes
    ----------
    mean, sd : arrays of shape (..., d)
        Of x*.
    a_mean : array of shape (..., d)
    omega_mean : array of shape (..., d)
    """

    def __init__(self, rows: _Rows, v: _Panels, omega: _Panels, probability: Array):
        self._rows, self._v, self._omega = rows, v, omega
        self._probability = probability  # (rows, omega nodes, v nodes)
        k = probability.shape[1:]
        of_v = np.broadcast_to(v.nodes[:, None, :], (len(probability), *k)).reshape(
            len(probability), -1
        )
        of_omega = np.broadcast_to(omega.nodes[:, :, None], (len(probability), *k)).reshape(
            len(probability), -1
        )
        flat = probability.reshape(len(probability), -1)
        mean, variance = (
            rows.conditional(of_v, of_omega) if k[0] > 1 else rows.conditional(v.nodes, omega.nodes)
        )
        centre = np.sum(flat * mean, axis=1, keepdims=True)
        spread = np.sum(flat * (variance + (mean - centre) ** 2), axis=1)
        self.mean, self.sd = centre.reshape(rows.shape), np.sqrt(spread).reshape(rows.shape)
        self.a_mean = np.sum(probability.sum(axis=1) * softplus(v.nodes), axis=1).reshape(
            rows.shape
        )
        self.omega_mean = np.sum(probability.sum(axis=2) * omega.nodes, axis=1).reshape(rows.shape)

    def sample(self, rng: np.random.Generator, n: int) -> tuple[Array, Array]:
        """`n` draws of (x*, a), of shape (n, ..., d): a cell, a point in it, x* given both."""
        rows, n_v = len(self._probability), self._probability.shape[2]
        reached = np.cumsum(self._probability.reshape(rows, -1), axis=1)
        reached /= reached[:, -1:]
        cell = np.stack(
            [np.searchsorted(r, u) for r, u in zip(reached, rng.random((rows, n)), strict=True)]
        )
        cell = np.minimum(cell, reached.shape[1] - 1)

        def within(panels: _Panels, index) -> Array:
            left, width = (np.take_along_axis(x, index, 1) for x in (panels.left, panels.weight))
            return left + width * rng.random((rows, n))

        v = within(self._v, cell % n_v)
        omega = (
            within(self._omega, cell // n_v)
            if self._rows.scale is not None
            else np.zeros((rows, 1))
        )
        mean, variance = self._rows.conditional(v, omega)
        x = mean + np.sqrt(variance) * rng.standard_normal((rows, n))
        return self._rows.unflatten(x), self._rows.unflatten(softplus(v))


def exact(regression: Regression) -> ExactPosterior:
    """Posterior by Gauss-Legendre quadrature over v (and omega), on panels that follow the mass.

    Three coarse grids, each placed by the one before, look for the mass. The errors of the final
    one are below 1e-6 standard deviations where a posterior has one peak, and far below Monte
    Carlo's where the prior of v is thousands of times wider than the likelihood or contradicts it.
    Time does not depend on the length of the trace.
    """
    rows = _Rows(regression)
    v, omega = rows.first_grids()
    edges = (_PANELS if rows.scale is None else _PANELS // 2) + 1, _OMEGA_PANELS + 1
    for n_v, n_omega in (_REFINED, _REFINED, edges):
        density = rows.log_density(v, omega)
        best = np.take_along_axis(omega, density.max(axis=2).argmax(axis=1)[:, None], 1)
        if rows.scale is not None:
            omega = _equidistributed(omega, (density.max(axis=2),), n_omega, _OMEGA_NEGLIGIBLE)
        # Second moments of x* can come from where there is little mass: from small a, which leave
        # x* to its prior.
        along = density.max(axis=1)
        mean, variance = rows.conditional(v, best)
        centre = np.take_along_axis(mean, along.argmax(axis=1)[:, None], 1)
        moment = along + np.log(variance + (mean - centre) ** 2)
        v = _equidistributed(v, (along, moment), n_v, _NEGLIGIBLE)
    of_v = _Panels.between(v)
    of_omega = (
        _Panels(omega, np.ones_like(omega), omega) if rows.scale is None else _Panels.between(omega)
    )
    density = rows.log_density(of_v.nodes, of_omega.nodes)
    density = np.exp(density - density.max(axis=(1, 2), keepdims=True))
    density *= of_omega.weight[:, :, None] * of_v.weight[:, None, :]
    return ExactPosterior(rows, of_v, of_omega, density / density.sum(axis=(1, 2), keepdims=True))


class LaplacePosterior:
    """Normal approximation of (v, x*) at the mode, with the interface of `ExactPosterior`."""

    def __init__(self, rows: _Rows, mode: Array, v_sd: Array, slope: Array):
        self._rows, self._mode, self._v_sd, self._slope = rows, mode, v_sd, slope
        mean, self._variance = rows.conditional(mode, np.zeros_like(mode))
        self._mean = mean
        self.mean = mean.reshape(rows.shape)
        self.sd = np.sqrt(self._variance + (slope * v_sd) ** 2).reshape(rows.shape)
        nodes, weights = np.polynomial.hermite_e.hermegauss(40)
        self.a_mean = (softplus(mode + v_sd * nodes) @ (weights / weights.sum())).reshape(
            rows.shape
        )

    def sample(self, rng: np.random.Generator, n: int) -> tuple[Array, Array]:
        """`n` draws of (x*, a), two arrays of shape (n, ..., d)."""
        z = rng.standard_normal((2, len(self._mode), n))
        v = self._mode + self._v_sd * z[0]
        x = self._mean + self._slope * (v - self._mode) + np.sqrt(self._variance) * z[1]
        return self._rows.unflatten(x), self._rows.unflatten(softplus(v))


def laplace(regression: Regression) -> LaplacePosterior:
    """Laplace's approximation in (v, x*), where the prior is normal and needs no Jacobian.

    Given v the posterior of x* is normal, so the joint mode lies on x* = E[x* | v], and minus the
    inverse Hessian follows from derivatives of the density along that line.

    Raises
    ------
    ValueError
        If omega is unknown.
    """
    if regression.subsampling is not None:
        raise ValueError(
            "laplace takes omega for zero: got a prior of omega, expected subsampling=None."
        )
    return _laplace(_Rows(regression))


def _laplace(rows: _Rows) -> LaplacePosterior:
    none = np.zeros((len(rows.n), 1))

    def along(v):  # log density at (v, E[x* | v])
        variance = rows.conditional(v, none)[1]
        return rows.log_density(v, none)[:, 0] - 0.5 * np.log(variance)

    v, _ = rows.first_grids()
    for _ in range(3):
        v = _equidistributed(v, (along(v),), _REFINED[0], _NEGLIGIBLE)
    for _ in range(12):  # between the neighbours of the best node, again and again
        best = np.clip(along(v).argmax(axis=1)[:, None], 1, v.shape[1] - 2)
        low, high = np.take_along_axis(v, best - 1, 1), np.take_along_axis(v, best + 1, 1)
        last = low, high
        v = low + (high - low) * np.linspace(0, 1, 9)
        if np.all(high - low <= 1e-7 * (1 + np.abs(low))):
            break
    mode = (last[0] + last[1]) / 2
    # Derivatives by differences of fourth order, over a step that is small beside the scale of the
    # density.
    step = np.full_like(mode, 1e-3)
    for _ in range(2):
        values = along(mode + step * np.arange(-2, 3))
        second = -(values @ [-1, 16, -30, 16, -1])[:, None] / (12 * step**2)
        v_sd = np.minimum(1 / np.sqrt(np.maximum(second, 1e-12)), rows.s * 1e3)
        step = 0.02 * np.minimum(v_sd, 1)
    means = rows.conditional(mode + step * np.arange(-2, 3), none)[0]
    return LaplacePosterior(rows, mode, v_sd, (means @ [1, -8, 0, 8, -1])[:, None] / (12 * step))


class DrawsPosterior:
    """Posterior of x* and a as draws; attributes and methods as those of `ExactPosterior`.

    Attributes
    ----------
    draws : pair of arrays of shape (chains, draws, ..., d)
        Of x* and a.
    r_hat, ess : arrays of shape (..., d)
        Split R-hat and effective sample size, the worst of x*, its square about the mean, and a:
        the tails of x* can be long, and chains that agree on its mean need not agree on its
        standard deviation.
    """

    def __init__(self, x: Array, a: Array):
        from numpyro.diagnostics import effective_sample_size, split_gelman_rubin

        self.draws = x, a
        self.mean, self.sd, self.a_mean = (
            x.mean(axis=(0, 1)),
            x.std(axis=(0, 1)),
            a.mean(axis=(0, 1)),
        )
        monitored = x, (x - self.mean) ** 2, a
        self.r_hat = np.max([split_gelman_rubin(y) for y in monitored], axis=0)
        self.ess = np.min([effective_sample_size(y) for y in monitored], axis=0)

    def sample(self, rng: np.random.Generator, n: int) -> tuple[Array, Array]:
        """`n` of the draws of (x*, a), with replacement: two arrays of shape (n, ..., d)."""
        x, a = (y.reshape(-1, *y.shape[2:]) for y in self.draws)
        chosen = rng.integers(0, len(x), n)
        return x[chosen], a[chosen]


def nuts(
    regression: Regression,
    *,
    n_warmup: int = 1000,
    n_samples: int = 1000,
    n_chains: int = 4,
    seed: int = 0,
) -> DrawsPosterior:
    """Posterior by the No-U-Turn sampler over v, x* (and log omega), given the sums.

    The joint density is written out here without integrating anything, which makes it a check of
    `exact`. Coordinates are centred and scaled by Laplace's approximation, which leaves the target
    as it is.
    """
    import jax
    import jax.numpy as jnp
    from numpyro.infer import MCMC, NUTS

    rows, shape = _Rows(regression), regression.shape
    rough = _laplace(rows)
    v_centre, v_scale = (y.reshape(shape) for y in (rough._mode, np.minimum(rough._v_sd, rows.s)))
    variances = np.maximum(rows.sgg / np.maximum(rows.n, 1) - rows.V, 1e-3 * rows.V)
    omega_centre = np.sqrt(variances).reshape(shape)

    def unpack(z):
        v, x = v_centre + v_scale * z["v"], rough.mean + rough.sd * z["x"]
        return v, x, omega_centre * jnp.exp(z["omega"]) if "omega" in z else 0.0

    def minus_log_density(z):
        v, x, omega = unpack(z)
        s, a, W = regression.sums, jax.nn.softplus(v), regression.noise_variance + omega**2
        b, r = regression.kappa * a, regression.prior_variance(a)
        # Sum over the rounds of (g_t - b (x_t - x))^2.
        squares = s.sgg - 2 * b * s.sxg + b**2 * s.sxx + s.n * (s.mean_g - b * (s.mean_x - x)) ** 2
        prior = (
            ((v - regression.v_mean) / regression.v_sd) ** 2
            + (x - regression.prior_mean) ** 2 / r
            + jnp.log(r)
        )
        total = prior + squares / W
        if "omega" in z:  # and the Jacobian of the logarithm
            total = (
                total + s.n * jnp.log(W) + (omega / regression.subsampling) ** 2 - 2 * z["omega"]
            )
        return 0.5 * jnp.sum(jnp.broadcast_to(total, shape))

    with jax.enable_x64(True):
        key = jax.random.key(seed)
        names = ["v", "x"] if regression.subsampling is None else ["v", "x", "omega"]
        keys = jax.random.split(jax.random.fold_in(key, 1), len(names))
        chains = (n_chains, *shape) if n_chains > 1 else shape
        start = {
            name: 0.5 * jax.random.normal(k, chains) for name, k in zip(names, keys, strict=True)
        }
        sampler = MCMC(
            NUTS(potential_fn=minus_log_density),
            num_warmup=n_warmup,
            num_samples=n_samples,
            num_chains=n_chains,
            chain_method="vectorized",
            progress_bar=False,
        )
        sampler.run(key, init_params=start)
        v, x, _ = unpack(sampler.get_samples(group_by_chain=True))
        return DrawsPosterior(np.asarray(x), np.asarray(jax.nn.softplus(v)))
