"""Mutants of the mechanism, each of which must be noticed by the check named beside it.

A check that cannot fail guards nothing. The first fourteen are the classic mistakes of private
training loops; the others are ours.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import whitebox
from cases import BY_PERSON, every_fit
from whitebox import SOLVERS, applies

from skdpbayes import DPBayesianLogisticRegression, inference
from skdpbayes.audit import runs
from skdpbayes.intake import classified
from skdpbayes.mechanism import draws
from skdpbayes.mechanism import keys as random
from skdpbayes.mechanism import private_sum as mechanism
from skdpbayes.mechanism.contributions import contribution_norms
from skdpbayes.mechanism.records import padded_size
from skdpbayes.mechanism.spec import Mechanism, MechanismSpec
from skdpbayes.models.base import double
from skdpbayes.models.logistic import LogisticRegression

MUTANTS, OUTSIDE_THE_LOOP = [], []

pytestmark = pytest.mark.usefixtures("on_the_host")  # mutants change what the host draws


def mutant(check, *solvers, quick=True, compiled=True):
    """Register a mutation of the package that `check` must notice, in these solvers (by default all that it is for).

    One that is not `compiled` changes nothing in the compiled loop. Only `quick` ones run without
    ``-m slow``, and they in the first of the solvers.
    """
    able = (solver for solver in SOLVERS if applies(getattr(whitebox, check), solver))
    solvers = solvers or sorted(able, key=lambda solver: solver != "sgld")  # the quickest first

    def register(change):
        for solver in solvers:
            marks = [] if quick and solver == solvers[0] else [pytest.mark.slow]
            case = pytest.param(
                change, check, solver, marks=marks, id=f"{change.__name__}-{solver}"
            )
            (MUTANTS if compiled else OUTSIDE_THE_LOOP).append(case)
        return change

    return register


def scaled_noise(patch, factor):
    original = mechanism.add_noise

    patch.setattr(
        mechanism,
        "add_noise",
        lambda noise, sums: original(factor * noise, jax.tree.map(double, sums)),
    )


def changed_keys(patch, change):
    """Keys of a run, as a function of those of the fit."""
    original = inference._run
    patch.setattr(inference, "_run", lambda keys, *rest: original(change(keys), *rest))


def changed_draws(patch, change):
    """What is drawn for a run, and for the many runs of an audit."""
    original, of_runs = inference.draws_of_chain, runs.resident
    patch.setattr(runs, "resident", lambda *how: change(of_runs(*how)))
    patch.setattr(
        inference,
        "draws_of_chain",
        lambda *how, **where: (change(part) for part in original(*how, **where)),
    )


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


@mutant("check_noise", compiled=False)
def noise_reused_between_rounds(patch):
    changed_draws(
        patch, lambda part: part._replace(noise=np.repeat(part.noise[:1], len(part.noise), axis=0))
    )


@mutant("check_noise")
def coordinate_without_noise(patch):
    original = mechanism.add_noise

    def add_noise(noise, sums):
        noisy = original(noise, sums)
        return jax.tree.map(
            lambda x, z: z.ravel().at[-1].set(x.ravel()[-1]).reshape(x.shape), sums, noisy
        )

    patch.setattr(mechanism, "add_noise", add_noise)


@mutant("check_sampling", compiled=False)
def no_subsampling(patch, n=400):
    changed_draws(
        patch,
        lambda part: part._replace(
            indices=np.arange(len(part.indices), dtype=np.int32), starts=0 * part.starts + [0, n]
        ),
    )


def by_step(patch, choose):
    """Batches that `choose` makes of a generator, the check's number of records, and its rate."""

    def poisson_sample(stream, rate, length):
        rng, n = np.random.default_rng(int(stream.integers(np.uint64, 1)[0])), 400
        stride = padded_size(n)
        return np.concatenate(
            [t * stride + np.sort(choose(rng, n, rate)) for t in range(length // stride)]
        )

    patch.setattr(draws, "poisson_sample", poisson_sample)


@mutant("check_sampling", compiled=False)
def batch_of_fixed_size(patch):
    by_step(patch, lambda rng, n, rate: rng.choice(n, round(n * rate), replace=False))


@mutant("check_sampling", compiled=False)
def batch_reused_between_rounds(patch):
    by_step(patch, lambda rng, n, rate: np.flatnonzero(np.random.default_rng(7).random(n) < rate))


@mutant("check_sampling", compiled=False, quick=False)
def records_sampled_in_pairs(patch):
    by_step(patch, lambda rng, n, rate: np.flatnonzero(np.repeat(rng.random(n // 2) < rate, 2)))


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

    def private_sum(query, blocks, m, draw, step, records):
        size = jnp.floor(m.rate * records.n_records)
        release = original(query, blocks, m, draw, step, records)
        return jax.tree.map(lambda x: (x / size).astype(x.dtype), release)

    patch.setattr(inference, "private_sum", private_sum)


@mutant("check_contribution")
def sensitivity_times_2(patch):
    original = mechanism._clipped_sum
    patch.setattr(
        mechanism, "_clipped_sum", lambda *how: jax.tree.map(lambda x: 2 * x, original(*how))
    )


@mutant("check_contribution")
def nan_bypasses_the_clip(patch):
    original = mechanism._clipped_sum

    def _clipped_sum(contributions, clip, included, units, exact):
        missing = included & jnp.isnan(contribution_norms(contributions))
        total = original(contributions, clip, included, units, exact)
        return jax.tree.map(lambda x: x + (2 * units * missing.sum()).astype(x.dtype), total)

    patch.setattr(mechanism, "_clipped_sum", _clipped_sum)


@mutant("check_replay", compiled=False)
def scaler_fitted_to_the_data(patch):
    original = classified.bounded_rows
    patch.setattr(
        classified,
        "bounded_rows",
        lambda X, *a, **k: original((X - X.mean(axis=0)) / X.std(axis=0), *a, **k),
    )


@mutant("check_replay", compiled=False)
def long_rows_lose_length(patch):
    original = classified.bounded_rows
    patch.setattr(
        classified,
        "bounded_rows",
        lambda X, bound, **k: original(X, bound / classified.LONGEST_ROW, **k),
    )


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
    original = mechanism._clipped_sum

    def _clipped_sum(contributions, clip, included, units, exact):
        shorter = original(contributions, 2.5 * clip, included, units, exact)  # sqrt(7) columns
        return jax.tree.map(lambda x: (2.5 * x).astype(x.dtype), shorter)

    patch.setattr(mechanism, "_clipped_sum", _clipped_sum)


@mutant("check_noise", "dpvi")
def shares_of_blocks_ignored(patch):
    original = Mechanism.units
    patch.setattr(Mechanism, "units", lambda self, step, share: original(self, step, 1.0))


@mutant("check_noise", "dpvi", quick=False)
def tallies_released_without_noise(patch):
    original = mechanism.add_noise

    def add_noise(noise, sums):
        noisy = original(noise, sums)
        return noisy | ({"tally": sums["tally"]} if "tally" in sums else {})

    patch.setattr(mechanism, "add_noise", add_noise)


@mutant("check_noise", "dpvi", quick=False)
def noise_shared_by_blocks(patch):
    def add_noise(noise, sums):
        return jax.tree.map(lambda x: x + noise[: x.size].reshape(x.shape), sums)

    patch.setattr(mechanism, "add_noise", add_noise)


@mutant("check_contribution", "dpvi", quick=False)
def only_the_first_block_clipped(patch):
    original = mechanism._clipped_sum

    def _clipped_sum(contributions, clip, included, units, exact):
        total = original(contributions, clip, included, units, exact)
        return (
            8 * total if isinstance(contributions, jax.Array) and contributions.ndim == 1 else total
        )  # counts

    patch.setattr(mechanism, "_clipped_sum", _clipped_sum)


@mutant("check_noise", quick=False)
def noise_scaled_by_the_sampling_rate(patch):
    original = mechanism.private_sum

    def private_sum(query, blocks, m, draw, step, records):
        return original(query, blocks, m._replace(sigmas=m.sigmas * m.rate), draw, step, records)

    patch.setattr(inference, "private_sum", private_sum)


@mutant("check_sampling", compiled=False)
def full_batch_lacks_the_last_record(patch):
    original = draws.resident

    def resident(sampler, window, bounds):
        return original(sampler, window, bounds - (sampler.rate == 1) * np.arange(2))

    patch.setattr(draws, "resident", resident)


@mutant("check_sampling", quick=False)
def slots_outside_the_batch_count(patch):
    original = mechanism._clipped_sum
    patch.setattr(
        mechanism,
        "_clipped_sum",
        lambda v, clip, included, *how: original(v, clip, included | True, *how),
    )


@mutant("check_sampling", quick=False, compiled=False)
def sampling_rate_a_twentieth_higher(patch):
    original = draws.poisson_sample
    patch.setattr(
        draws, "poisson_sample", lambda stream, rate, length: original(stream, 1.05 * rate, length)
    )


@mutant("check_contribution", quick=False)
def null_label_contributes(patch):
    patch.setattr(LogisticRegression, "_known", lambda self, label: label == label)


def of_solver(keys):
    return tuple(4 * np.asarray(jax.random.key_data(key)).tobytes() for key in keys.solver)


@mutant("check_keys", quick=False, compiled=False)
def noise_from_the_releasable_key(patch):
    changed_keys(patch, lambda keys: keys._replace(noise=of_solver(keys)))


@mutant("check_keys", quick=False, compiled=False)
def batches_from_the_noise_key(patch):
    changed_keys(patch, lambda keys: keys._replace(sampling=tuple(key[::-1] for key in keys.noise)))


@mutant("check_chains", "sgld", compiled=False)
def chains_share_their_noise(patch):
    changed_keys(patch, lambda keys: keys._replace(noise=keys.noise[:1] * len(keys.noise)))


@mutant("check_chains", "sgld", quick=False, compiled=False)
def chains_share_their_batches(patch):
    changed_keys(patch, lambda keys: keys._replace(sampling=keys.sampling[:1] * len(keys.sampling)))


@mutant("check_lattice", quick=False)
def sums_are_rounded_in_the_place_of_contributions(patch):
    original = mechanism._clipped_sum

    def _clipped_sum(contributions, clip, included, units, exact):
        total = original(contributions, clip, included, units, False)
        return jax.tree.map(lambda x: jnp.round(x).astype(jnp.int64 if exact else x.dtype), total)

    patch.setattr(mechanism, "_clipped_sum", _clipped_sum)


@mutant("check_lattice", compiled=False)
def noise_is_rounded_to_single_precision(patch):
    original = draws.integer_noise
    patch.setattr(
        draws, "integer_noise", lambda *how: original(*how).astype(np.float32).astype(np.int64)
    )


@mutant("check_lattice", compiled=False, quick=False)
def noise_lacks_its_last_level(patch):
    original = draws.integer_noise
    patch.setattr(
        draws,
        "integer_noise",
        lambda words, levels: 2**10 * original(words, levels - 1),
    )


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
        self._keys = random.fit_keys(self.random_state, self.n_chains).sampling

    changed_fit(patch, after)


@pytest.mark.parametrize(("change", "check", "solver"), OUTSIDE_THE_LOOP)
def test_mutant_outside_the_loop_is_noticed(
    change, check, solver, monkeypatch, compiled_quickly, record_property
):
    record_property("killed", (change.__name__, solver, check))
    change(monkeypatch)
    with pytest.raises(AssertionError):
        getattr(whitebox, check)(solver)


@pytest.mark.parametrize(("change", "check", "solver"), MUTANTS)
def test_mutant_is_noticed(
    change, check, solver, monkeypatch, no_compiled_programs, record_property
):
    record_property("killed", (change.__name__, solver, check))
    change(monkeypatch)
    with pytest.raises(AssertionError):
        getattr(whitebox, check)(solver)


def contributions_times_1000(patch):
    original = mechanism._clipped_sum
    patch.setattr(
        mechanism, "_clipped_sum", lambda *how: jax.tree.map(lambda x: 1000 * x, original(*how))
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "case", [*every_fit(), *(pytest.param(own, id=f"{own.id}, by person") for own in BY_PERSON)]
)
@pytest.mark.parametrize(
    ("change", "check"),
    [
        (noise_times_070, "check_noise_of"),
        (contributions_times_1000, "check_one_row_of"),
        (division_by_floor_of_expected_batch, "check_number_of_rows_of"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_mutant_is_noticed_in_every_estimator(
    change, check, case, monkeypatch, no_compiled_programs, record_property
):
    record_property("killed", (change.__name__, case.id, check))
    change(monkeypatch)
    with pytest.raises(AssertionError):
        getattr(whitebox, check)(case)
