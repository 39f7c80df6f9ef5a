"""Mutants of the mechanism, each of which must be noticed by the check named beside it.

A check that cannot fail guards nothing. The first fourteen are the classic mistakes of private training loops; the
others are ours.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import whitebox

from skdpbayes import DPBayesianLogisticRegression, inference
from skdpbayes.estimators import _logistic
from skdpbayes.models.logistic import LogisticRegression
from skdpbayes.privacy import mechanism, random
from skdpbayes.privacy.mechanism import CHUNK, MechanismSpec
from skdpbayes.privacy.random import FitKeys

MUTANTS, OUTSIDE_THE_LOOP = [], []


def mutant(check, *solvers, quick=True, compiled=True):
    """Register a mutation of the package that `check` must notice, in these solvers (both by default).

    One that is not `compiled` changes nothing in the compiled loop. Only `quick` ones run without ``-m slow``, and
    they in the first of the solvers.
    """
    solvers = solvers or ("sgld", "dpvi")

    def register(change):
        for solver in solvers:
            marks = [] if quick and solver == solvers[0] else [pytest.mark.slow]
            case = pytest.param(change, check, solver, marks=marks, id=f"{change.__name__}-{solver}")
            (MUTANTS if compiled else OUTSIDE_THE_LOOP).append(case)
        return change

    return register


def scaled_noise(patch, factor):
    original = mechanism.add_noise

    def add_noise(key, sums, scales):
        return original(key, sums, {name: factor * scale for name, scale in scales.items()})

    patch.setattr(mechanism, "add_noise", add_noise)


def changed_keys(patch, change):
    """Keys of a round, as a function of the keys of the fit and the step."""
    original = FitKeys.at
    patch.setattr(FitKeys, "at", lambda self, step: change(original(self, step), self))


def changed_fit(patch, after):
    original = DPBayesianLogisticRegression.fit

    def fit(self, X, y):
        original(self, X, y)
        after(self, X, y)
        return self

    patch.setattr(DPBayesianLogisticRegression, "fit", fit)


@mutant("check_noise")
def noise_times_070(patch):
    scaled_noise(patch, 0.7)


@mutant("check_noise")
def noise_times_098(patch):
    scaled_noise(patch, 0.98)


@mutant("check_noise")
def noise_reused_between_rounds(patch):
    changed_keys(patch, lambda now, fit: now._replace(noise=fit.noise))


@mutant("check_noise")
def coordinate_without_noise(patch):
    original = mechanism.add_noise

    def add_noise(key, sums, scales):
        noisy = original(key, sums, scales)
        return jax.tree.map(lambda x, z: z.ravel().at[-1].set(x.ravel()[-1]).reshape(x.shape), sums, noisy)

    patch.setattr(mechanism, "add_noise", add_noise)


@mutant("check_sampling")
def no_subsampling(patch):
    original = mechanism.sample_chunk
    every = np.float64(-np.inf)
    patch.setattr(mechanism, "sample_chunk", lambda key, m, *rest: original(key, m._replace(log_survival=every), *rest))


@mutant("check_sampling")
def batch_of_fixed_size(patch):
    def sample_chunk(key, m, last, n_records, slots=CHUNK):
        n, size = 400, 100  # the check's number of records, and its rate
        chosen = jnp.sort(jax.random.permutation(key, n)[:size])
        chosen = chosen.astype(jnp.int32)
        return jnp.zeros(slots, jnp.int32).at[:size].set(chosen), jnp.arange(slots) < size, jnp.int64(n)

    patch.setattr(mechanism, "sample_chunk", sample_chunk)


@mutant("check_sampling")
def batch_reused_between_rounds(patch):
    changed_keys(patch, lambda now, fit: now._replace(sampling=fit.sampling))


@mutant("check_keys", compiled=False)
def one_key_for_sampling_and_noise(patch):
    original = random.fit_keys

    def fit_keys(*arguments, **options):
        keys = original(*arguments, **options)
        return keys._replace(sampling=keys.noise)

    patch.setattr(random, "fit_keys", fit_keys)


@mutant("check_number_of_records")
def division_by_floor_of_expected_batch(patch):
    original = inference.private_sum

    def private_sum(query, blocks, m, keys, step, records):
        size = jnp.floor(m.rate * records.n_records)
        release = original(query, blocks, m, keys, step, records)
        return jax.tree.map(lambda x: (x / size).astype(x.dtype), release)

    patch.setattr(inference, "private_sum", private_sum)


@mutant("check_contribution")
def sensitivity_times_2(patch):
    original = mechanism.clipping_weights
    patch.setattr(mechanism, "clipping_weights", lambda v, clip, included: 2 * original(v, clip, included))


@mutant("check_contribution")
def nan_bypasses_the_clip(patch):
    original = mechanism.clipping_weights

    def clipping_weights(contributions, clip, included):
        parts, _ = mechanism._structured(contributions)
        square = sum(part.squared_norms(clip) for part in parts)
        weights = original(contributions, clip, included)
        return jnp.where(included & jnp.isnan(square), 1, weights)

    patch.setattr(mechanism, "clipping_weights", clipping_weights)


@mutant("check_replay", compiled=False)
def scaler_fitted_to_the_data(patch):
    original = _logistic.bounded_rows
    patch.setattr(_logistic, "bounded_rows", lambda X, *a, **k: original((X - X.mean(axis=0)) / X.std(axis=0), *a, **k))


@mutant("check_replay", compiled=False)
def raw_loss_kept(patch):
    def after(self, X, y):
        self.loss_ = -np.log(self.predict_proba(X)[np.arange(len(y)), y]).mean()

    changed_fit(patch, after)


@mutant("check_memory", compiled=False)
def records_kept(patch):
    changed_fit(patch, lambda self, X, y: setattr(self, "_X", X))


# Ours


@mutant("check_contribution", quick=False)
def clipped_by_coordinate(patch):
    original = mechanism.clipping_weights

    def clipping_weights(contributions, clip, included):
        return original(contributions, 2.5 * clip, included)  # sqrt(7) columns

    patch.setattr(mechanism, "clipping_weights", clipping_weights)


@mutant("check_noise", "dpvi")
def shares_of_blocks_ignored(patch):
    original = mechanism.noise_scales

    def noise_scales(blocks, m, step):
        return original({k: b._replace(share=1.0 / len(blocks)) for k, b in blocks.items()}, m, step) | (
            {} if len(blocks) == 1 else {k: m.noise_multiplier(step) * b.clipping_norm for k, b in blocks.items()}
        )

    patch.setattr(mechanism, "noise_scales", noise_scales)


@mutant("check_noise", "dpvi", quick=False)
def tallies_released_without_noise(patch):
    original = mechanism.add_noise

    def add_noise(key, sums, scales):
        noisy = original(key, sums, scales)
        return noisy | ({"tally": sums["tally"]} if "tally" in sums else {})

    patch.setattr(mechanism, "add_noise", add_noise)


@mutant("check_noise", "dpvi", quick=False)
def noise_shared_by_blocks(patch):
    def add_noise(key, sums, scales):
        return {
            name: jax.tree.map(lambda x, s=scales[name]: x + s * jax.random.normal(key, x.shape, x.dtype), part)
            for name, part in sums.items()
        }

    patch.setattr(mechanism, "add_noise", add_noise)


@mutant("check_contribution", "dpvi", quick=False)
def only_the_first_block_clipped(patch):
    original = mechanism._clipped_sum

    def _clipped_sum(contributions, clip, included):
        if isinstance(contributions, jax.Array) and contributions.ndim == 1:  # counts
            return jnp.sum(jnp.where(included, 8 * contributions, 0))
        return original(contributions, clip, included)

    patch.setattr(mechanism, "_clipped_sum", _clipped_sum)


@mutant("check_noise", quick=False)
def noise_scaled_by_the_sampling_rate(patch):
    original = mechanism.private_sum

    def private_sum(query, blocks, m, keys, step, records):
        return original(query, blocks, m._replace(sigmas=m.sigmas * m.rate), keys, step, records)

    patch.setattr(inference, "private_sum", private_sum)


@mutant("check_sampling")
def full_batch_lacks_the_last_record(patch):
    original = mechanism.private_sum

    def private_sum(query, blocks, m, keys, step, records):
        fewer = dataclasses.replace(records, n_records=records.n_records - (m.rate >= 1))
        return original(query, blocks, m, keys, step, fewer)

    patch.setattr(inference, "private_sum", private_sum)


@mutant("check_sampling", quick=False)
def slots_outside_the_batch_count(patch):
    original = mechanism._clipped_sum
    patch.setattr(mechanism, "_clipped_sum", lambda v, clip, included: original(v, clip, jnp.ones_like(included)))


@mutant("check_sampling", quick=False)
def sampling_rate_a_twentieth_higher(patch):
    original = mechanism.sample_chunk

    def sample_chunk(key, m, *rest):
        return original(key, m._replace(log_survival=1.05 * m.log_survival), *rest)

    patch.setattr(mechanism, "sample_chunk", sample_chunk)


@mutant("check_contribution", quick=False)
def null_label_contributes(patch):
    patch.setattr(LogisticRegression, "_known", lambda self, label: label == label)


@mutant("check_keys", quick=False)
def noise_from_the_releasable_key(patch):
    changed_keys(patch, lambda now, fit: now._replace(noise=now.solver))


@mutant("check_keys", quick=False)
def batches_from_the_noise_key(patch):
    original = mechanism.private_sum

    def private_sum(query, blocks, m, keys, step, records):
        mixed = keys._replace(sampling=jax.random.fold_in(keys.noise, 1))
        return original(query, blocks, m, mixed, step, records)

    patch.setattr(inference, "private_sum", private_sum)


@mutant("check_chains", "sgld", quick=False)
def chains_share_their_noise(patch):
    original = inference._chains

    def _chains(keys, *rest):
        return original(keys._replace(noise=keys.noise[jnp.zeros(2, int)]), *rest)

    _chains.clear_cache = original.clear_cache
    patch.setattr(inference, "_chains", _chains)


@mutant("check_chains", "sgld", quick=False)
def chains_share_their_batches(patch):
    original = inference._chains

    def _chains(keys, *rest):
        return original(keys._replace(sampling=keys.sampling[jnp.zeros(2, int)]), *rest)

    _chains.clear_cache = original.clear_cache
    patch.setattr(inference, "_chains", _chains)


@mutant("check_noise", compiled=False)
def run_has_less_noise_than_was_accounted(patch):
    original = MechanismSpec.traced
    patch.setattr(
        MechanismSpec,
        "traced",
        lambda self: original(self)._replace(sigmas=original(self).sigmas * np.float32(0.9)),
    )


@mutant("check_replay", compiled=False)
def start_fitted_to_the_data(patch):
    """A posterior mean moved by something that was computed from the records without noise."""

    def after(self, X, y):
        self.coef_ = self.coef_ + 1e-6 * X.mean(axis=0)

    changed_fit(patch, after)


@mutant("check_memory", compiled=False)
def sampling_key_kept(patch):
    def after(self, X, y):
        self._keys = np.asarray(jax.random.key_data(random.fit_keys(self.random_state, self.n_chains).sampling))

    changed_fit(patch, after)


@pytest.mark.parametrize(("change", "check", "solver"), OUTSIDE_THE_LOOP)
def test_mutant_outside_the_loop_is_noticed(change, check, solver, monkeypatch, compiled_quickly):
    change(monkeypatch)
    with pytest.raises(AssertionError):
        getattr(whitebox, check)(solver)


@pytest.mark.parametrize(("change", "check", "solver"), MUTANTS)
def test_mutant_is_noticed(change, check, solver, monkeypatch, no_compiled_programs):
    change(monkeypatch)
    with pytest.raises(AssertionError):
        getattr(whitebox, check)(solver)
