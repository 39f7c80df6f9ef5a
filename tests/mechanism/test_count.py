"""The number of usable records: what a record can do to it, its noise, its key, its price, and what is said of it."""

import math
import warnings

import jax
import numpy as np
import pytest
from scipy import sparse, stats
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from skdpbayes import DPBayesianLogisticRegression, DPBetaBernoulli
from skdpbayes.intake.packing import pack_ragged, pack_records
from skdpbayes.mechanism import integer_noise as lattice
from skdpbayes.mechanism import keys as random
from skdpbayes.mechanism import private_sum as mechanism
from skdpbayes.mechanism.private_sum import noisy_count
from skdpbayes.mechanism.spec import MechanismSpec
from skdpbayes.plans.settings import Settings
from skdpbayes.preprocessing import check_data
from skdpbayes.privacy import GaussianSteps, NoisyCount, compose

SIGMA = 37.3
X = np.random.default_rng(0).random((400, 2))
BITS = (X < 0.3).astype(float)
LABELS = np.array(["ill", "well"])[np.arange(400) % 2]
KEYS = [
    np.random.SeedSequence([7, i]).generate_state(8, np.uint32).tobytes() for i in range(12_000)
]


def spec(numerics="secure", sigma=SIGMA):
    main = (GaussianSteps(1.0, 0.1, 5),)
    return MechanismSpec(main, 1, numerics, GaussianSteps(sigma, 1.0, 1))


def check_sensitivity():
    """With the same noise, one record moves the release by one at most, an integer number of grid steps."""
    key, usable = bytes(32), np.arange(100) % 3 > 0
    for sigma in (0.01, 0.5, SIGMA, 4e5):
        one, other = (
            noisy_count(key, flags, spec(sigma=sigma)) for flags in (usable, [False, *usable[1:]])
        )
        assert one == other, "that record does not count"
        flipped = noisy_count(key, [True, *usable[1:]], spec(sigma=sigma))
        units = round(lattice.noise_std(4) / one.std)
        assert abs((flipped.estimate - one.estimate) * units - units) < 1e-3 * units
        assert one.std >= sigma and one.std < sigma * (1 + 1e-4)


def check_noise():
    """It is normal, of the size that is accounted for, and each key's own."""
    for numerics in ("secure", "fast"):
        errors = [
            (noisy_count(k, np.ones(50, bool), spec(numerics)).estimate - 50) / SIGMA for k in KEYS
        ]
        total = np.square(errors).sum()
        assert min(stats.chi2.cdf(total, len(KEYS)), stats.chi2.sf(total, len(KEYS))) > 1e-5, "size"
        assert stats.kstest(errors, "norm").pvalue > 1e-6
        assert len(set(errors)) > 0.995 * len(KEYS)  # single precision has ties


def check_grid():
    """Before it becomes a floating-point number the release is a sum of integers, on the fine grid of the noise."""
    drawn, original = [], mechanism.noise_of_steps
    with pytest.MonkeyPatch.context() as patch:

        def kept(*how):
            drawn.append(original(*how))
            return drawn[-1]

        patch.setattr(mechanism, "noise_of_steps", kept)
        counts = [noisy_count(k, np.ones(50, bool), spec()) for k in KEYS[:50]]
    units = math.floor(lattice.noise_std(4) / SIGMA)
    for count, noise in zip(counts, drawn, strict=True):
        assert noise.shape == (1,) and noise.dtype == np.int64
        assert count.estimate == (50 * units + int(noise[0])) / units
    assert len({int(noise[0]) % 2**10 for noise in drawn}) > 40


CHECKS = [check_sensitivity, check_noise, check_grid]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_contract(check):
    check()


def scaled(factor):
    def change(patch):
        original = mechanism.noise_of_steps
        patch.setattr(mechanism, "noise_of_steps", lambda *how: factor * original(*how))

    return change


def one_key(patch):
    original = mechanism.noise_of_steps
    patch.setattr(mechanism, "noise_of_steps", lambda key, *how: original(bytes(32), *how))


def counted_twice(patch):
    patch.setattr(mechanism.np, "count_nonzero", lambda flags: 2 * int(np.sum(flags)))


def rounded(patch):
    original = mechanism.noise_of_steps
    patch.setattr(mechanism, "noise_of_steps", lambda *how: original(*how) // 2**11 * 2**11)


def more_units(patch):
    patch.setattr(mechanism, "noise_std", lambda levels: 1.05 * lattice.noise_std(levels))


@pytest.mark.parametrize(
    ("change", "check"),
    [
        (scaled(0), check_noise),
        (scaled(0.95), check_noise),
        (one_key, check_noise),
        (counted_twice, check_sensitivity),
        (rounded, check_grid),
        (more_units, check_noise),
    ],
    ids=["no_noise", "noise_times_095", "one_key", "counted_twice", "coarse_noise", "more_units"],
)
def test_mutants_of_the_count_are_noticed(change, check, monkeypatch, record_property):
    record_property(
        "killed", (f"count: {getattr(change, '__name__', 'scaled')}", "any", check.__name__)
    )
    change(monkeypatch)
    with pytest.raises(AssertionError):
        check()


def test_its_key_is_its_own():
    for n_chains in (1, 3):
        for state in (None, 0, np.random.RandomState(1), np.random.default_rng(1)):
            given = random.fit_keys(state, n_chains)
            solver = np.asarray(jax.random.key_data(given.solver)).tobytes()
            secrets = (*given.sampling, *given.noise, given.counting)
            assert len(given.counting) == 32 and len(set(secrets)) == 2 * n_chains + 1
            assert not any(
                solver[i : i + 8] in key for key in secrets for i in range(0, len(solver), 8)
            )


def test_records_that_cannot_contribute_are_told_one_by_one():
    rows, label = np.ones((5, 2), np.float32), np.array([0, 1, -1, 0, 1])
    rows[0, 1], rows[3, 0] = np.nan, np.inf
    assert pack_records(x=rows, y=label).usable.tolist() == [False, True, False, False, True]
    assert pack_records(usable=label > 0, x=rows).usable.tolist() == [
        False,
        True,
        False,
        False,
        True,
    ]
    documents = sparse.csr_array(np.array([[1, 2], [0, 0], [0, 3]], np.float32))
    assert pack_ragged(documents).usable.sum() == 2


@pytest.fixture(scope="module")
def fitted():
    return DPBetaBernoulli(epsilon=2.0, solver="vips").fit(BITS)


def settings(model):
    return Settings.of(model._parameters(), model._defaults)


def test_a_fit_accounts_for_it(fitted):
    spent = fitted.privacy_spent_
    count = settings(fitted).count()
    assert spent.along == (count,) and spent.releases == (*spent.steps, count)
    assert count.noise_multiplier == pytest.approx(fitted.usable_records_.std, rel=1e-4)
    assert spent.epsilon <= 2 and spent.epsilon == pytest.approx(
        compose(spent.releases, "zero_out").epsilon(1e-5)
    )
    assert compose(spent.steps, "zero_out").epsilon(1e-5) < spent.epsilon
    assert abs(fitted.usable_records_.estimate - 400) < 6 * fitted.usable_records_.std
    assert "quadrature" in str(spent.crosscheck) and "1.000" in str(spent.crosscheck)


def test_a_fit_draws_its_noise_from_its_own_key(monkeypatch):
    given, used, fit_keys, count = [], [], random.keys_of, mechanism.noisy_count
    monkeypatch.setattr(random, "keys_of", lambda *how: given.append(fit_keys(*how)) or given[-1])
    monkeypatch.setattr(
        mechanism, "noisy_count", lambda key, *what: used.append(key) or count(key, *what)
    )
    DPBetaBernoulli(solver="vips").fit(X[:, :1] < 0.3)
    assert used == [keys.counting for keys in given] and len(used) == 1


def test_a_notebook_shows_it(fitted):
    assert f"usable records: {fitted.usable_records_}" in fitted._repr_html_()


def counts(monkeypatch, estimate):
    monkeypatch.setattr(
        mechanism, "noisy_count", lambda key, usable, spec, total: NoisyCount(estimate, 10.0)
    )


def test_few_usable_records_are_warned_of_by_the_release_alone(fitted, monkeypatch):
    counts(monkeypatch, 339.0)
    with pytest.warns(
        UserWarning, match=r"About 339 \+- 10 of 400 rows can be used.*check `classes`"
    ):
        clone(fitted).fit(BITS)  # all of which can be used
    counts(monkeypatch, 341.0)
    clone(fitted).fit(np.full((400, 2), np.nan))  # none of which can


def test_rows_that_cannot_be_used_are_warned_of(fitted):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        clone(fitted).fit(BITS)
    with pytest.warns(UserWarning, match="of 400 rows can be used"):
        clone(fitted).fit(np.full((400, 2), np.nan))


def test_rows_with_mistyped_labels_cannot_be_used():
    for classes, usable in ((["ill", "well"], 400), (["Ill", "well"], 200), (["Ill", "Well"], 0)):
        model = DPBayesianLogisticRegression(classes=classes)
        assert model._reader().read(model, X, LABELS).pack().usable.sum() == usable


def test_nothing_is_said_where_the_number_of_rows_is_private(monkeypatch):
    model = DPBetaBernoulli(
        epsilon=1.0, solver="dpvi", adjacency="add_remove", sampling_rate=0.5, n_steps=2
    )
    counts(monkeypatch, 5.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", ConvergenceWarning)  # two rounds do not arrive
        # JAX 0.11 says on a GPU that the kernel's compiler is deprecated; it tells of no row.
        warnings.filterwarnings("ignore", "The Pallas Triton backend", DeprecationWarning)
        model.fit(BITS)
    assert model.usable_records_ == (5.0, 10.0)


def test_without_privacy_it_is_exact():
    count = noisy_count(bytes(32), np.ones(7, bool), spec(sigma=0.0))
    assert count == (7.0, 0.0) and str(count) == "7 +- 0"
    assert (
        noisy_count(bytes(32), np.ones(7, bool), MechanismSpec((GaussianSteps(1.0, 0.1, 5),)))
        is None
    )


def test_the_non_private_look_agrees():
    model = DPBayesianLogisticRegression(classes=["Ill", "Well"])
    assert any(
        "400 of 400 labels" in finding
        for finding in check_data(X, LABELS, estimator=model).findings
    )


def test_a_share_of_one_hundredth(fitted):
    own = settings(fitted)
    assert own.noise(1, 1.0).along == (own.count(),)
    precision = [1 / block.noise_multiplier**2 for block in fitted.privacy_spent_.releases]
    assert precision[-1] / sum(precision) == pytest.approx(0.01, rel=0.01)


def test_its_share_is_the_same_where_a_record_counts_twice():
    spent = (
        DPBetaBernoulli(solver="vips", adjacency="replace_one").fit(X[:, :1] < 0.3).privacy_spent_
    )
    precision = [4 / block.noise_multiplier**2 for block in spent.releases]
    assert precision[-1] / sum(precision) == pytest.approx(0.01, rel=0.02)
    assert spent.epsilon == pytest.approx(1, rel=1e-3)


def test_a_refit_carries_it_along():
    model = DPBetaBernoulli(solver="vips").fit(X[:, :1] < 0.3)
    first = model.privacy_spent_
    second = model.fit(X[:, :1] < 0.3).privacy_spent_
    assert second.cumulative == first.releases and len(second.releases) == 2
    assert second.cumulative_epsilon == pytest.approx(
        compose(first.releases * 2, "zero_out").epsilon(1e-5)
    )


def test_whatever_a_report_works_out_holds_it():
    spent = DPBetaBernoulli(solver="vips").fit(X[:, :1] < 0.3).privacy_spent_
    assert spent.epsilon_at(1e-5) == pytest.approx(compose(spent.releases).epsilon(1e-5), rel=1e-9)
    assert spent.compose(spent).epsilon(1e-5) == pytest.approx(
        compose(spent.releases * 2).epsilon(1e-5), rel=1e-9
    )
    assert compose(spent.steps).epsilon(1e-5) < 0.999 * spent.curve.epsilon(1e-5)
