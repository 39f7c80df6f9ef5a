"""Private density estimators of exponential families as their users see them."""

import pickle
import warnings

import jax
import numpy as np
import pandas as pd
import pytest
from cases import slow_but
from scipy import stats
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from whitebox import recorded

from skdpbayes import DPBetaBernoulli, DPDirichletCategorical, DPGammaExponential, inference
from skdpbayes.estimators._base import Outcome, draws_rng
from skdpbayes.intake.classified import CategoryColumn
from skdpbayes.intake.labels import codes
from skdpbayes.intake.packing import pack_records
from skdpbayes.mechanism.keys import fit_keys
from skdpbayes.mechanism.spec import MechanismSpec
from skdpbayes.models.families import BetaBernoulli
from skdpbayes.privacy import GaussianSteps, PrivacyLeakWarning, compose
from skdpbayes.solvers.vips import Counted, OneRelease

pytestmark = pytest.mark.usefixtures("compiled_quickly")

N = 600
RNG = np.random.default_rng(0)
RATES, PROBABILITIES, SHARES = np.array([0.5, 4.0]), np.array([0.2, 0.7]), np.array([0.5, 0.3, 0.2])
LETTERS = ["a", "b", "c"]


def rows(name, n, rng=RNG):
    if name == "gamma":
        return rng.exponential(1 / RATES, (n, 2))
    if name == "beta":
        return (rng.random((n, 2)) < PROBABILITIES).astype(float)
    return rng.choice(LETTERS, (n, 1), p=SHARES)


CLASSES = {
    "gamma": DPGammaExponential,
    "beta": DPBetaBernoulli,
    "dirichlet": DPDirichletCategorical,
}
TRUTH = {"gamma": RATES, "beta": PROBABILITIES, "dirichlet": SHARES}
DATA = {name: rows(name, N) for name in CLASSES}
MANY = {
    name: rows(name, 8000, np.random.default_rng(1)) for name in CLASSES
}  # the one size for gradient solvers
families = pytest.mark.parametrize("name", CLASSES)


def estimator(name, **parameters):
    own = {"dirichlet": {"categories": LETTERS}}.get(name, {})
    return CLASSES[name](**({"random_state": 0} | own | parameters))


def parameter(model):
    return model.rate_ if hasattr(model, "rate_") else model.probability_


@pytest.fixture(scope="module")
def fits(compiled_quickly):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyLeakWarning)
        return {name: estimator(name).fit(DATA[name]) for name in CLASSES}


@families
def test_shapes(name, fits):
    model, X, size = fits[name], DATA[name], len(TRUTH[name])
    assert parameter(model).shape == (size,)
    assert model.posterior_samples_.shape == (1000, size)
    assert model.sample_posterior(7).shape == (7, size)
    assert model.sample(5).shape == (5, X.shape[1])
    assert model.score_samples(X).shape == (N,)
    assert model.score(X) == pytest.approx(model.score_samples(X).mean())
    assert model.posterior_.mean.shape == model.posterior_.std.shape == (size,)
    assert model.posterior_.covariance.shape == (size, size)
    assert model.n_features_in_ == X.shape[1] and model.n_iter_ == 1
    np.testing.assert_allclose(parameter(model), model.posterior_samples_.mean(axis=0))


@families
def test_the_truth_is_within_the_posterior(name, fits):
    model = fits[name]
    assert (np.abs(parameter(model) - TRUTH[name]) < 4 * model.posterior_.std).all()


@families
def test_without_noise_it_is_the_conjugate_posterior(name):
    X = DATA[name]
    mean, std = {
        "gamma": lambda: (lambda g: (g.mean(), g.std()))(
            stats.gamma(2 + N, scale=1 / (3 + X.sum(axis=0)))
        ),
        "beta": lambda: (lambda b: (b.mean(), b.std()))(
            stats.beta(2 + X.sum(axis=0), 5 + N - X.sum(axis=0))
        ),
        "dirichlet": lambda: (lambda d: (d.mean(), d.var() ** 0.5))(
            stats.dirichlet(2 + np.array([(X == letter).sum() for letter in LETTERS]))
        ),
    }[name]()
    prior = {
        "gamma": {"prior_shape": 2.0, "prior_rate": 3.0, "upper": 100.0},
        "beta": {"prior_a": 2.0, "prior_b": 5.0},
        "dirichlet": {"concentration": 2.0},
    }
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        posterior = estimator(name, epsilon=np.inf, **prior[name]).fit(X).posterior_
    np.testing.assert_allclose(posterior.mean, mean, atol=0.05 * std.min())
    np.testing.assert_allclose(posterior.std, std, rtol=0.05)


def test_a_million_waiting_times_lose_no_precision():
    """The bound that is taken without noise leaves float32 sums precise."""
    X = np.random.default_rng(1).exponential(1.0, (1_000_000, 1))
    model = DPGammaExponential(epsilon=np.inf, delta=1e-9, random_state=0).fit(X)
    exact = stats.gamma(1 + len(X), scale=1 / (1 + X.sum()))
    assert model.posterior_.mean[0] == pytest.approx(exact.mean(), abs=0.5 * exact.std())
    assert model.posterior_.std[0] == pytest.approx(exact.std(), rel=0.05)


@families
def test_densities_average_the_draws(name, fits):
    model, X = fits[name], DATA[name][:20]
    draws = model.posterior_samples_
    if name == "gamma":
        each = stats.expon.pdf(X[:, None], scale=1 / draws).prod(axis=2)
    elif name == "beta":
        each = stats.bernoulli.pmf(X[:, None], draws).prod(axis=2)
    else:
        each = draws[:, np.searchsorted(LETTERS, X[:, 0])].T
    np.testing.assert_allclose(model.score_samples(X), np.log(each.mean(axis=1)), rtol=1e-6)


def test_impossible_rows_have_no_density(fits):
    assert fits["gamma"].score_samples([[1.0, -1.0]])[0] == -np.inf
    assert fits["dirichlet"].score_samples([["z"]])[0] == -np.inf


@families
def test_drawn_rows_look_like_the_data(name, fits):
    drawn, X = fits[name].sample(20_000, random_state=1), DATA[name]
    if name == "dirichlet":
        drawn, X = (np.array([(x == letter).mean() for letter in LETTERS]) for x in (drawn, X))
    else:
        drawn, X = drawn.mean(axis=0), X.mean(axis=0)
    np.testing.assert_allclose(drawn, X, rtol=0.2)
    np.testing.assert_array_equal(*(fits[name].sample(9, random_state=1) for _ in range(2)))


@families
@pytest.mark.parametrize("kind", ["frame", "list", "object"])
def test_tables_of_other_kinds_give_the_same(name, kind, fits):
    X = DATA[name]
    columns = [f"x{j}" for j in range(X.shape[1])]
    table = {
        "frame": lambda: pd.DataFrame(X, columns=columns),
        "list": X.tolist,
        "object": lambda: X.astype(object),
    }
    table = table[kind]()
    if kind == "list" and name != "dirichlet":  # whose number of columns is known
        with pytest.raises(ValueError, match="nothing public says how many columns"):
            estimator(name).fit(table)
    model = estimator(name).fit(X if kind == "list" and name != "dirichlet" else table)
    np.testing.assert_allclose(parameter(model), parameter(fits[name]), rtol=1e-6)
    np.testing.assert_allclose(model.score_samples(table), fits[name].score_samples(X), rtol=1e-6)
    if kind == "frame":
        assert list(model.feature_names_in_) == columns


@pytest.mark.parametrize("categories", [[0, 1, 2], [0.0, 1.0, 2.0], ["c", "a", "b"]], ids=str)
@pytest.mark.parametrize("dtype", [None, "category", "string", object])
def test_categories_may_be_numbers_or_strings(categories, dtype, fits):
    codes = np.searchsorted(LETTERS, DATA["dirichlet"][:, 0])
    column = pd.Series(np.sort(categories)[codes])
    if dtype == "string" and not isinstance(categories[0], str):
        dtype = "Int64"
    model = estimator("dirichlet", categories=categories).fit(
        pd.DataFrame({"x": column.astype(dtype or column.dtype)})
    )
    assert list(model.categories_) == sorted(categories)
    np.testing.assert_array_equal(model.probability_, fits["dirichlet"].probability_)
    assert set(model.sample(50)[:, 0]) <= set(categories)


@families
@pytest.mark.parametrize(
    "solver", ["vips", *(pytest.param(s, marks=pytest.mark.slow) for s in ("dpvi", "na-dpvi"))]
)
def test_bad_rows_raise_nothing_and_change_little(name, solver):
    X = MANY[name]
    bad = X.astype(object)
    cells = [
        None,
        np.nan,
        "text",
        [1],
        {},
        1j,
        b"7",
        pd.NA,
        np.datetime64("2020-01-01"),
        2**70,
        np.inf,
        -np.inf,
    ]
    for i, cell in enumerate(cells):
        bad[i, 0] = cell
    rounds = {} if solver == "vips" else {"sampling_rate": 0.5}
    models = [estimator(name, solver=solver, **rounds).fit(table) for table in (X, bad)]
    change = np.abs(parameter(models[0]) - parameter(models[1]))
    assert np.isfinite(models[1].posterior_samples_).all()
    assert (change < 2 * models[0].posterior_samples_.std(axis=0)).all()


@families
def test_all_rows_null_raise_nothing(name):
    X = np.full(DATA[name].shape, np.nan)
    X = X.astype(object) if name == "dirichlet" else X
    assert np.isfinite(parameter(estimator(name).fit(X))).all()


AGREE = [
    pytest.param(
        name, solver, marks=[] if (name, solver) == ("beta", "na-dpvi") else [pytest.mark.slow]
    )
    for name in CLASSES
    for solver in ("dpvi", "na-dpvi")
]


@pytest.mark.parametrize(("name", "solver"), AGREE)
def test_rounds_and_one_release_agree_on_many_rows(name, solver):
    one = estimator(name, epsilon=5.0).fit(MANY[name])
    other = estimator(name, epsilon=5.0, solver=solver, sampling_rate=0.5).fit(MANY[name])
    spreads = [fit.posterior_samples_.std(axis=0) for fit in (one, other)]
    assert (np.abs(parameter(one) - parameter(other)) < 4 * np.hypot(*spreads)).all()
    assert np.max(spreads) < 0.2
    assert other.sample_posterior(9).shape == (9, len(TRUTH[name]))


@families
@pytest.mark.parametrize("solver", ["dpvi", "na-dpvi", "sgld"])
def test_one_release_says_what_rounds_would(name, solver):
    """The posterior is that of `vips`: exact, however rare a category is."""
    one, other = (estimator(name, solver=s).fit(DATA[name]) for s in ("vips", solver))
    np.testing.assert_array_equal(parameter(one), parameter(other))
    assert other.n_iter_ == 1
    in_rounds = estimator(name, solver=solver, n_steps=30).plan(N, DATA[name].shape[1])
    assert in_rounds.n_steps == 30


@pytest.mark.parametrize(
    "asked",
    [
        {"solver": "dpvi", "guide": "mean_field"},
        {"solver": "dpvi", "learning_rate": 0.1},
        {"solver": "na-dpvi", "clipping_norm": 1.0},
        {"solver": "sgld", "n_chains": 2},
        {"solver": "sgld", "step_schedule": "decreasing"},
    ],
    ids=str,
)
def test_a_parameter_of_rounds_asks_for_rounds(asked):
    assert estimator("beta", **asked).plan(N, 2).n_steps > 10


def test_the_noise_of_the_number_of_rows_widens_the_posterior():
    model, n, scale = BetaBernoulli(1, np.float32(1), np.float32(1)), 1000, 15.0
    counted = Counted.of(model)
    total = np.array([0.4 * n, n * float(counted.unit)])
    mixture = counted.noisy_posterior(total, scale, 10 * n)
    known = model.noisy_posterior(total[:1], scale, n)
    draws = [own.sample(np.random.default_rng(0), 4000) for own in (mixture, known)]
    assert np.std(draws[0]) > 1.2 * np.std(draws[1])


def test_without_noise_every_row_is_counted_whole():
    X = DATA["beta"]
    model = estimator("beta", epsilon=np.inf, adjacency="add_remove").fit(X)
    exact = stats.beta(1 + X.sum(axis=0), 1 + N - X.sum(axis=0))
    np.testing.assert_allclose(model.posterior_.mean, exact.mean(), atol=0.1 * exact.std().min())
    np.testing.assert_allclose(model.posterior_.std, exact.std(), rtol=0.05)


@pytest.mark.parametrize("name", slow_but(CLASSES, "beta"))
def test_a_private_number_of_rows_is_released_beside_the_sums(name):
    """Intervals hold the truth as often as they say, and rows that say nothing count for none."""
    z, rng = [], np.random.default_rng(3)
    for seed in range(4 if name == "gamma" else 12):
        few = rows(name, 3000, rng)
        model = estimator(name, adjacency="add_remove", random_state=seed).fit(few)
        z.append((parameter(model) - TRUTH[name]) / model.posterior_.std)
    assert 0.2 < np.square(z).mean() < 3
    empty = np.concatenate([few, np.full((3000, few.shape[1]), None)])
    again = estimator(name, adjacency="add_remove").fit(empty)
    kept = estimator(name, adjacency="add_remove").fit(few)
    assert (np.abs(parameter(again) - parameter(kept)) < 1e-3 * kept.posterior_.std).all()
    spent = again.privacy_spent_
    assert spent.n_steps == 1 and "n_samples" not in spent.public


REFUSED = [
    (
        {"n_steps": 5},
        "n_steps=5 needs another solver: solver='vips' releases bounded statistics of all records",
    ),
    ({"sampling_rate": 0.1}, "sampling_rate=0.1 needs another solver"),
    ({"clipping_norm": 1.0}, r"clipping_norm=1\.0 needs another solver"),
    ({"learning_rate": 0.1}, "learning_rate=0.1 needs another solver"),
    ({"n_chains": 2}, "n_chains=2 needs solver='sgld'"),
    ({"solver": "nuts"}, "solver must be one of 'dpvi', 'na-dpvi', 'sgld', 'vips'"),
    ({"epsilon": -1}, r"epsilon must be a number in \(0, inf\], got -1"),
]


@families
@pytest.mark.parametrize(("parameters", "message"), REFUSED)
def test_what_vips_has_not_is_refused_with_what_works(name, parameters, message):
    model = estimator(name, **parameters)
    with pytest.raises(ValueError, match=message):
        model.fit(DATA[name])
    assert not hasattr(model, "privacy_spent_")


PRIORS = [("gamma", "prior_shape"), ("gamma", "prior_rate"), ("gamma", "upper"), ("beta", "prior_a"),
          ("beta", "prior_b"), ("dirichlet", "concentration")]  # fmt: skip


@pytest.mark.parametrize(("name", "prior"), PRIORS)
@pytest.mark.parametrize("value", [0, -1.0, np.nan])
def test_bad_priors_are_refused_by_name(name, prior, value):
    with pytest.raises(ValueError, match=f"{prior} must be"):
        estimator(name, **{prior: value}).fit(DATA[name])


def test_several_columns_of_categories_are_refused():
    for X in (np.full((5, 2), "a"), pd.DataFrame(np.full((5, 2), "a"))):
        with pytest.raises(ValueError, match="takes one column of categories, got 2"):
            estimator("dirichlet").fit(X)
    with pytest.raises(ValueError, match="no label can be in categories"):
        estimator("dirichlet").fit(np.zeros((5, 1)))


class NoLength(list):
    """A row that cannot be asked for its length."""

    def __len__(self):
        raise RuntimeError


def test_a_row_that_cannot_be_asked_for_its_category_has_none():
    model = estimator("dirichlet")
    rows = [["b"], NoLength(["b"]), [], ["a", "b"], "b", None, ("a",)]
    assert codes(CategoryColumn().column(model, rows, reset=True), np.array(LETTERS)).tolist() == [
        1,
        1,
        -1,
        -1,
        -1,
        -1,
        0,
    ]


def test_inferred_categories_warn_and_void_the_guarantee():
    with pytest.warns(
        PrivacyLeakWarning, match="categories=None takes the set of categories from X"
    ):
        model = estimator("dirichlet", categories=None, random_state=None).fit(DATA["dirichlet"])
    assert list(model.categories_) == LETTERS
    assert model.privacy_spent_.voided_by == (
        "the set of categories was taken from X (categories=None)",
    )
    public = estimator("dirichlet", random_state=None).fit(DATA["dirichlet"]).privacy_spent_
    assert public.guarantee_holds and public.public["categories"] == LETTERS


# scikit-learn's machinery


@families
def test_refits_replace_the_posterior_and_accumulate_the_budget(name):
    model = estimator(name, random_state=None)
    first = model.fit(DATA[name]).privacy_spent_
    draws = model.posterior_samples_
    second = model.fit(DATA[name][:300]).privacy_spent_
    assert second.cumulative == first.releases and second.public["n_samples"] == 300
    assert not np.array_equal(draws, model.posterior_samples_)
    with pytest.raises(NotFittedError):
        clone(model).sample()


@families
def test_clones_and_pickles(name, fits):
    model = fits[name]
    assert clone(model).get_params() == model.get_params()
    assert not hasattr(clone(model), "posterior_")
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.score_samples(DATA[name]), model.score_samples(DATA[name]))
    np.testing.assert_array_equal(again.sample(5, random_state=3), model.sample(5, random_state=3))


@families
def test_a_pickle_is_not_as_long_as_the_data(name):
    lengths = [
        len(pickle.dumps(estimator(name).fit(np.repeat(DATA[name], k, axis=0)))) for k in (1, 3)
    ]
    assert abs(lengths[1] - lengths[0]) < 64


# Privacy


def test_many_rows_whose_number_is_private_fit_the_integers():
    """On the finest grid the sums of a million rows go round at this epsilon."""
    X = np.repeat([True, False, True, True], 300_000)[:, None]
    model = DPBetaBernoulli(epsilon=20.0, adjacency="add_remove", random_state=0).fit(X)
    assert model.probability_[0] == pytest.approx(0.75, abs=1e-4)


@pytest.mark.parametrize("adjacency", ["zero_out", "replace_one", "add_remove"])
def test_the_bound_that_is_taken_does_not_depend_on_values(adjacency):
    bounds = [estimator("gamma", adjacency=adjacency).fit(X).upper_
              for X in (MANY["gamma"], 1e6 * MANY["gamma"], np.full((8000, 2), np.nan))]  # fmt: skip
    assert bounds[0] == bounds[1] == bounds[2]
    if adjacency == "add_remove":
        fewer = estimator("gamma", adjacency=adjacency).fit(MANY["gamma"][:7900])
        assert bounds[0] == fewer.upper_


@families
@pytest.mark.parametrize("adjacency", ["zero_out", "replace_one"])
def test_no_more_is_spent_than_asked_for_and_what_is_reported_ran(name, adjacency, monkeypatch):
    ran, original = [], inference.run
    monkeypatch.setattr(
        inference, "run", lambda *rest, **how: ran.append(rest[3]) or original(*rest, **how)
    )
    for epsilon in (0.3, 4.0):
        spent = estimator(name, epsilon=epsilon, adjacency=adjacency).fit(DATA[name]).privacy_spent_
        assert 0.99 * epsilon < spent.epsilon <= epsilon
        assert (
            spent.releases == ran[-1].composed() and spent.n_steps == 1 and spent.sampling_rate == 1
        )
        assert compose(spent.releases, adjacency).epsilon(spent.delta) == pytest.approx(
            spent.epsilon
        )


@families
def test_the_report_does_not_depend_on_values(name):
    other = DATA[name].astype(object)
    other[3:9, 0] = [None, np.nan, "text", 1e300, -5, 2**70]
    reports = [estimator(name).fit(X).privacy_spent_ for X in (DATA[name], other)]
    assert pickle.dumps(reports[0]) == pickle.dumps(reports[1])


BAD_CELLS = [
    np.nan,
    None,
    np.inf,
    -np.inf,
    1e300,
    -1e300,
    1e-320,
    "text",
    [1],
    2**70,
    np.datetime64("2020-01-01"),
    1j,
]
GOOD_CELLS = {"gamma": [0.0, 1e9], "beta": [0, 1], "dirichlet": LETTERS}


@families
def test_one_row_moves_the_release_by_at_most_its_bound(name):
    """Once the bound for a row that becomes null, twice for a row that becomes another."""
    X = DATA[name].astype(object)
    size = len(TRUTH[name])

    def release(cell, column=slice(None)):
        table = X.copy()
        for j in range(table.shape[1])[column]:
            table[17, j] = cell
        with recorded() as kept:
            model = estimator(name).fit(table)
        bound = model.plan(*X.shape).model.statistic_bound() if name == "gamma" else BOUNDS[name]
        out = np.asarray(kept[-1], np.float64)
        assert out.shape == (1, size) and np.isfinite(out).all()
        return out[0] / bound

    null, changed = release(None), [release(cell) for cell in BAD_CELLS + GOOD_CELLS[name]]
    from_null = np.linalg.norm(np.array(changed) - null, axis=1)
    assert from_null.max() <= 1 + 1e-3 and from_null.max() > 0.95
    assert from_null[:2].max() == 0, "a null row contributes"
    apart = np.linalg.norm(np.subtract.outer(changed, changed).diagonal(axis1=1, axis2=3), axis=-1)
    assert 1 < apart.max() <= 2 + 1e-3
    np.testing.assert_array_equal(
        release(np.nan, slice(0, 1)), null, "part of a row that is not finite contributes"
    )


BOUNDS = {"beta": 2**0.5 / 2, "dirichlet": (2 / 3) ** 0.5}


def test_a_release_has_the_noise_that_is_charged():
    """Of null rows it is noise alone: normal, independent, of the standard deviation that posteriors assume."""
    model, steps = BetaBernoulli(2, np.float32(1), np.float32(1)), 3000
    solver = OneRelease(np.float32(0.75), np.float64(N))
    spec = MechanismSpec((GaussianSteps(1.7, 1.0, steps),))
    records = pack_records(x=np.full((N, 2), np.nan, np.float32))
    state, releases = inference.run(fit_keys(0), model, solver, spec, records, keep_releases=True)
    noise = np.asarray(releases, np.float64) / (1.7 * 0.75)
    assert float(state.scale) == pytest.approx(1.7 * 0.75)
    tail = stats.chi2(noise.size).cdf(np.square(noise).sum())
    assert 1e-6 < tail < 1 - 1e-6
    assert stats.kstest(noise.ravel(), "norm").pvalue > 1e-6
    assert (
        abs(np.corrcoef(noise.T)[0, 1]) < 0.1
        and abs(np.corrcoef(noise[1:, 0], noise[:-1, 0])[0, 1]) < 0.1
    )


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n == "gamma" else n for n in CLASSES]
)
def test_noise_in_a_fit_is_what_its_report_says(name):
    """Between fits to the same rows with different keys, releases differ by noise alone."""
    releases = []
    for seed in range(30):
        with recorded() as kept:
            model = estimator(name, random_state=seed, n_posterior_samples=1).fit(DATA[name])
        releases.append(np.asarray(kept[-1], np.float64)[0])
    spent = model.privacy_spent_
    scale = spent.noise_multiplier * spent.clipping_norm
    assert model.diagnostics_["noise_std"] == pytest.approx(scale, rel=1e-5)
    freedom = np.size(releases) - len(releases[0])
    ratio = np.square(np.array(releases) - np.mean(releases, axis=0)).sum() / scale**2
    assert 1e-4 < stats.chi2(freedom).cdf(ratio) < 1 - 1e-4


@families
def test_the_posterior_follows_from_the_release_and_the_solver_key(name, compiled_as_users_do):
    with recorded() as kept:
        model = estimator(name).fit(DATA[name])
    again = estimator(name)
    plan, solver_keys = again.plan(N, model.n_features_in_), fit_keys(0).solver
    example = {
        "x": np.zeros(model.n_features_in_, np.float32) if name != "dirichlet" else np.int32(0)
    }
    state = jax.device_get(
        inference.replay(kept[-1], solver_keys, plan.model, plan.solver, plan.spec, example)
    )
    again._adopt(plan, Outcome(state, draws_rng(solver_keys), None))
    np.testing.assert_array_equal(again.posterior_samples_, model.posterior_samples_)
