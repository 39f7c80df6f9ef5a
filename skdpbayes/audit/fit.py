"""What a fit of an estimator would run: the common part of what audits do."""

from __future__ import annotations

import contextlib
from functools import cached_property

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from sklearn.base import clone

from skdpbayes import inference
from skdpbayes.mechanism.draws import Draw
from skdpbayes.mechanism.keys import fit_keys
from skdpbayes.mechanism.private_sum import noisy_count, private_sum


class Fit:
    """A fit that stops where the private loop would begin, and all that the loop would be given."""

    def __init__(self, estimator, X, y):
        self.estimator, self.X, self.y = clone(estimator), X, y
        with contextlib.suppress(_Stopped):
            self._fit(self._stop)

    def _stop(self, model, solver, spec, pack):
        self.model, self.solver, self.spec = model, solver, spec
        self._pack = pack
        raise _Stopped

    @cached_property
    def records(self):
        """What the loop would read."""
        return self._pack()

    def _fit(self, run):
        self.estimator._run = run
        self.estimator._charge = lambda report: None
        try:
            self.estimator.fit(*(data for data in (self.X, self.y) if data is not None))
        finally:
            del self.estimator._run, self.estimator._charge

    def keys(self, seed):
        """Keys of a run."""
        return fit_keys(seed, self.spec.n_chains)

    def run(self, seed):
        """Final state, and releases of shape (n_chains, n_steps, size)."""
        how = (self.keys(seed), self.model, self.solver, self.spec, self.records)
        state, releases = inference.run(*how, keep_releases=True)
        return state, np.asarray(releases if self.spec.n_chains > 1 else releases[None])

    def usable(self, seed):
        """Noisy number of usable records, of a run."""
        return noisy_count(self.keys(seed).counting, self.records.usable, self.spec)

    def finished(self, seed, state, usable):
        """Fitted attributes that follow from a final state and the number of usable records."""
        rng = self.estimator._draws_rng(self.keys(seed))
        self._fit(lambda *arguments: (jax.device_get(state), rng, usable))
        own = self.estimator.get_params()
        return {name: value for name, value in vars(self.estimator).items() if name not in own}


class _Stopped(Exception):
    pass


def multipliers(fit):
    """Noise multiplier of each step, as accounted for."""
    steps = fit.estimator.privacy_spent_.steps[: len(fit.spec.steps)]
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
    """What `observe` makes of each step, padded to the width of `releases`, if the steps released what is given."""

    def release(query, blocks, step):
        return inference.recorded_release(query, blocks, records.one(), releases[step])

    kept, state = jnp.zeros(releases.shape), inference.start(key, model, solver)
    return inference.loop(
        release, key, 0, len(releases), model, solver, mechanism, state, kept, observe
    )[1]
