"""What a fit of an estimator would run: the common part of the audits."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from sklearn.base import clone

from skdpbayes import inference
from skdpbayes.estimators._base import Outcome, PrivateEstimator, draws_rng, runs_by
from skdpbayes.mechanism.draws import Draw
from skdpbayes.mechanism.keys import FitKeys, fit_keys
from skdpbayes.mechanism.private_sum import noisy_count, private_sum
from skdpbayes.mechanism.records import Records
from skdpbayes.privacy.count import NoisyCount


class Fit:
    """The plan of a fit, and the records that it would read."""

    def __init__(
        self, estimator: PrivateEstimator, X: Any, y: Any = None, groups: Any = None
    ) -> None:
        self.estimator, self._given = clone(estimator), (X,) if y is None else (X, y)
        self._groups = {} if groups is None else {"groups": groups}
        self.plan, self._rows = self.estimator._prepared(X, y, groups)
        self.model, self.solver, self.spec = self.plan.model, self.plan.solver, self.plan.spec

    @cached_property
    def records(self) -> Records:
        """What the loop would read."""
        return self._rows.pack()

    def keys(self, seed: int) -> FitKeys:
        """Keys of a run."""
        return fit_keys(seed, self.spec.n_chains)

    def run(self, seed: int) -> tuple[Any, np.ndarray]:
        """Final state, and releases of shape (n_chains, n_steps, size)."""
        how = (self.keys(seed), self.model, self.solver, self.spec, self.records)
        state, releases = inference.run(*how, keep_releases=True)
        return state, np.asarray(releases if self.spec.n_chains > 1 else releases[None])

    def usable(self, seed: int) -> NoisyCount | None:
        """Noisy number of usable records, of a run."""
        assert self.records.usable is not None
        return noisy_count(self.keys(seed).counting, self.records.usable, self.spec)

    def finished(self, seed: int, state: Any, usable: NoisyCount | None) -> dict[str, Any]:
        """Attributes that `fit` sets, given a final state and the number of usable records."""
        outcome = Outcome(jax.device_get(state), draws_rng(self.keys(seed).solver), usable)
        fitted = clone(self.estimator)
        with runs_by(lambda estimator, plan, rows: outcome):
            fitted.fit(*self._given, **self._groups)
        own = fitted.get_params()
        return {name: value for name, value in vars(fitted).items() if name not in own}


def multipliers(fit: Fit) -> np.ndarray:
    """Noise multiplier of each step, as accounted for."""
    steps = fit.plan.report.steps[: len(fit.spec.steps)]
    return np.repeat([piece.noise_multiplier for piece in steps], [piece.steps for piece in steps])


def units(blocks, sums):
    """Standard deviation of the noise of each value, over the noise multiplier."""

    def filled(name, block):
        return jax.tree.map(
            lambda x: jnp.full(x.shape, block.clipping_norm * block.share**-0.5, float), sums[name]
        )

    return ravel_pytree({name: filled(name, block) for name, block in blocks.items()})[0]


def contribution(query, blocks, mechanism, step, records, index, bounds, noise):
    """What one record adds to a release, in units of its noise over the noise multiplier."""
    lone = Draw(index[None], jnp.searchsorted(index[None], bounds), jnp.zeros_like(noise))
    sums = private_sum(query, blocks, mechanism, lone, step, records)
    return ravel_pytree(sums)[0].astype(float) / units(blocks, sums)


def along(key, releases, records, model, solver, mechanism, observe):
    """What `observe` makes of each step, padded, if the steps released what is given."""

    def release(query, blocks, step):
        return inference.recorded_release(query, blocks, records.one(), releases[step])

    kept, state = jnp.zeros(releases.shape), inference.start(key, model, solver)
    return inference.loop(
        release, key, 0, len(releases), model, solver, mechanism, state, kept, observe
    )[1]
