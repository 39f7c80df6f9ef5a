"""Private Gaussian mixtures as their users see them."""

import copy
import pickle
import warnings

import jax
import numpy as np
import pytest
from scipy import stats
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.mixture import BayesianGaussianMixture, GaussianMixture
from whitebox import assert_given_the_same, assert_replayed, one_program, planned, replay_mixture

from skdpbayes import DPGaussianMixture, inference
from skdpbayes.models.mixtures.gaussian import restricted
from skdpbayes.posteriors.mixture import MixturePosterior
from skdpbayes.privacy import PrivacyLeakWarning, compose

pytestmark = pytest.mark.usefixtures("compiled_quickly")

N, MEANS, WEIGHTS = 6000, np.array([[-2.0, 0], [2, 1], [1, -2]]), np.array([0.5, 0.3, 0.2])
ROOTS = np.array([[[0.5, 0], [0.2, 0.4]], [[0.6, 0], [0, 0.6]], [[0.4, 0], [-0.3, 0.3]]])


def rows(seed, n=N):
    rng = np.random.default_rng(seed)
    labels = rng.choice(3, n, p=WEIGHTS)
    return MEANS[labels] + np.einsum("nij,nj->ni", ROOTS[labels], rng.normal(size=(n, 2)))


X, MOST = rows(0), 400  # releases of a fit
# No sketch, and priors that are given: one program, which most tests run.
GIVEN = {"means_init": MEANS + 0.2, "mean_prior": np.zeros(2), "covariance_prior": 0.7 * np.eye(2)}


@pytest.fixture(autouse=True)
def fits():
    with one_program(MOST) as kept:
        yield kept


def estimator(epsilon=1.0, **parameters):
    return DPGaussianMixture(
        epsilon=epsilon,
        **(
            {"n_components": 3, "bounds": ((-6, -5), (5, 5)), "random_state": 0, "solver": "vips"}
            | parameters
        ),
    )


@pytest.mark.parametrize(
    ("n", "change", "solver"),
    [
        (5000, {}, "na-dpvi"),
        (200, {"epsilon": 0.2}, "na-dpvi"),
        (5000, {"n_components": 100}, "vips"),
        (None, {"adjacency": "add_remove", "sampling_rate": 0.1}, "vips"),
        (5000, {"learning_rate": 0.1}, "dpvi"),
    ],
)
def test_public_numbers_choose_the_solver(n, change, solver):
    automatic, own = (estimator(solver=name, **change).plan(n, 2) for name in ("auto", solver))
    assert automatic.spec == own.spec and automatic.solver_name == own.solver_name == solver
    assert f"by '{solver}'" in repr(automatic)
    assert jax.tree.structure(automatic.solver) == jax.tree.structure(own.solver)


def test_where_noise_is_large_the_start_has_most_of_the_budget_and_the_plan_says_so():
    def first(n, **change):
        plan = estimator(solver="auto", **change).plan(n, 2)
        parts = np.array([s.steps * (s.noise_multiplier or 1) ** -2.0 for s in plan.spec.steps])
        return tuple((parts / parts.sum())[:4].round(3)), plan.hints

    usual, noisy = (0.05, 0.03, 0.33, 0.1), (0.1, 0.02, 0.7, 0.05)
    assert first(2000) == (usual, ())
    assert first(200) == (noisy, ())
    shares, (hint,) = first(300, epsilon=0.5)
    assert shares == noisy and "Take about 1.4 times as many rows" in hint
    assert first(300, epsilon=np.inf)[1] == ()


def test_a_number_of_components_is_not_taken_for_a_budget():
    """It comes first, as in scikit-learn; elsewhere the budget does."""
    assert DPGaussianMixture(3).n_components == 3
    with pytest.raises(ValueError, match="n_components"):
        DPGaussianMixture(0.5, bounds=(-1, 1)).fit(np.zeros((9, 2)))


def truth(Z):
    pdf = [
        w * stats.multivariate_normal(m, r @ r.T).pdf(Z)
        for w, m, r in zip(WEIGHTS, MEANS, ROOTS, strict=True)
    ]
    return np.log(np.sum(pdf, axis=0))


@pytest.fixture(scope="module")
def fitted(compiled_quickly):
    """A fit with a sketch: a program that takes twice as long to compile."""
    with one_program(MOST):
        return estimator().fit(X)


def matched(model):
    """Places of the true components."""
    return ((model.means_[None] - MEANS[:, None]) ** 2).sum(axis=2).argmin(axis=1)


def test_the_mixture_is_found_without_a_start(fitted):
    model = fitted
    order = matched(model)
    assert sorted(order) == [0, 1, 2]
    np.testing.assert_allclose(model.means_[order], MEANS, atol=0.1)
    np.testing.assert_allclose(model.weights_[order], WEIGHTS, atol=0.03)
    np.testing.assert_allclose(model.covariances_[order], ROOTS @ ROOTS.mT, atol=0.08)
    Z = rows(1, 20_000)
    assert truth(Z).mean() - model.score(Z) < 0.02
    assert model.converged_ is True and model.n_iter_ == 10
    assert model.diagnostics_["n_records"] == pytest.approx(N, rel=0.02)


def test_it_is_scikit_learns_mixture_with_these_parameters(fitted):
    model = fitted
    theirs = GaussianMixture(3)
    theirs.weights_, theirs.means_, theirs.covariances_ = (
        model.weights_,
        model.means_,
        model.covariances_,
    )
    theirs.precisions_cholesky_ = model.precisions_cholesky_
    for name in ("score_samples", "predict_proba", "predict", "bic", "aic", "score"):
        np.testing.assert_allclose(
            getattr(model, name)(X), getattr(theirs, name)(X), rtol=1e-9, atol=1e-12, err_msg=name
        )
    holes = np.vstack([X, [[np.nan, 0.0], [0.0, np.inf]]])
    for name in ("score", "bic", "aic"):
        with pytest.warns(UserWarning, match="2 of these rows hold NaN or infinity"):
            assert getattr(model, name)(holes) == pytest.approx(getattr(model, name)(X))
    np.testing.assert_allclose(
        model.precisions_ @ model.covariances_, np.tile(np.eye(2), (3, 1, 1)), atol=1e-9
    )
    Z, labels = model.sample(50_000, random_state=1)
    assert Z.shape == (50_000, 2) and labels.shape == (50_000,)
    for k in range(3):
        np.testing.assert_allclose(Z[labels == k].mean(axis=0), model.means_[k], atol=0.04)
        np.testing.assert_allclose(np.cov(Z[labels == k].T), model.covariances_[k], atol=0.04)
    with pytest.raises(AttributeError, match="lower_bound_"):
        _ = model.lower_bound_


def test_posterior_draws_are_around_the_estimates(fitted):
    model = fitted
    draws, fresh = model.posterior_samples_, model.sample_posterior(2000, random_state=1)
    assert {name: values.shape for name, values in draws.items()} == {
        "weights": (1000, 3), "means": (1000, 3, 2), "covariances": (1000, 3, 2, 2),
    }  # fmt: skip
    for values, estimate in zip(
        fresh.values(), (model.weights_, model.means_, model.covariances_), strict=True
    ):
        spread = values.std(axis=0)
        assert (np.abs(values.mean(axis=0) - estimate) < 0.4 * spread).all()
    assert (np.linalg.eigvalsh(fresh["covariances"]) > 0).all()
    np.testing.assert_allclose(fresh["weights"].sum(axis=1), 1)
    gap = model.score_samples(X[:50]) - model.log_predictive_density(X[:50])
    assert np.abs(gap).max() < 0.3 and (gap != 0).all()
    assert model.posterior_.mean.shape == model.posterior_.std.shape == (21,)


def test_a_few_draws_are_from_all_of_a_chain(fitted):
    walk = copy.copy(fitted)
    walk.posterior_samples_ = {
        name: np.repeat(x[:2], 500, axis=0) for name, x in fitted.posterior_samples_.items()
    }
    few, all_of_them = (walk.log_predictive_density(X[:50], n_samples=n) for n in (10, 2000))
    np.testing.assert_allclose(few, all_of_them)


def test_intervals_include_the_noise():
    """Of well separated components: means and weights are within their intervals, which noise widens."""
    scores, widths = [], []
    for seed in range(8):
        model = estimator(0.3, random_state=seed, **GIVEN).fit(rows(seed))
        order = matched(model)
        assert sorted(order) == [0, 1, 2]
        for name, true in (
            ("means", MEANS),
            ("weights", WEIGHTS),
            ("covariances", ROOTS @ ROOTS.mT),
        ):
            draws = model.posterior_samples_[name][:, order]
            scores.append(((draws.mean(axis=0) - true) / draws.std(axis=0)).ravel())
        widths.append(model.posterior_samples_["means"][:, order].std(axis=0))
    scores = np.concatenate(scores)
    assert 0.7 < np.sqrt(np.mean(np.clip(scores, -4, 4) ** 2)) < 1.5
    without = estimator(np.inf, random_state=seed, **GIVEN).fit(rows(seed))
    narrow = without.posterior_samples_["means"][:, matched(without)].std(axis=0)
    assert (np.mean(widths, axis=0) > 1.3 * narrow).all(), "noise does not widen the posterior"


@pytest.mark.parametrize("kind", ["full", "tied", "diag", "spherical"])
def test_draws_have_the_noise_of_each_part(kind):
    """Of components so well known that there is nothing else: counts, means, and whitened covariances."""
    noise = np.repeat([[1e6], [0.01], [0.0025]], 3, axis=1)
    many, eyes = np.full(3, 1e8), np.tile(4 * np.eye(2), (3, 1, 1))
    posterior = MixturePosterior(
        kind, 1.0, np.full(3, 1e4), many, many, np.zeros((3, 2)), eyes, noise
    )
    weights, means, covariances = (
        x.std(axis=0) for x in posterior.draws(np.random.default_rng(0), 4000)
    )
    np.testing.assert_allclose(weights, 1000 / 3e4 * np.sqrt(2 / 3), rtol=0.1)
    np.testing.assert_allclose(means, 2 * 0.1, rtol=0.1)
    of_one = (
        np.eye(2) + (np.sqrt(2) - 1) * np.eye(2) + (1 - np.eye(2))
        if kind in ("full", "tied")
        else np.eye(2)
    )
    np.testing.assert_allclose(
        covariances, np.tile(4 * 0.05 * of_one, (3, 1, 1)), rtol=0.1, atol=1e-3
    )


def test_without_noise_it_is_variational_bayes():
    """Scikit-learn's, with the same priors, from the same side of the same optimum."""
    prior = dict(
        weight_concentration_prior=2.0, mean_precision_prior=0.5, degrees_of_freedom_prior=4.0
    )
    ours = estimator(np.inf, n_steps=60, **GIVEN, **prior).fit(X)
    theirs = BayesianGaussianMixture(
        n_components=3, weight_concentration_prior_type="dirichlet_distribution", mean_prior=[0, 0], max_iter=1000,
        tol=1e-9, covariance_prior=0.7 * np.eye(2), random_state=0, **prior,
    ).fit(X)  # fmt: skip
    place = lambda model: np.argsort(model.means_[:, 0])  # noqa: E731
    tolerances = {
        "weights_": 1e-4, "means_": 1e-3, "covariances_": 1e-3, "precisions_": 0.02,
        "weight_concentration_": 0.5, "degrees_of_freedom_": 0.5, "mean_precision_": 0.5,
    }  # fmt: skip
    for name, atol in tolerances.items():
        values = [getattr(model, name)[place(model)] for model in (ours, theirs)]
        np.testing.assert_allclose(*values, atol=atol, err_msg=name)


@pytest.mark.parametrize("kind", ["tied", "diag", "spherical"])
def test_other_covariances_have_scikit_learns_shapes(kind):
    """Of a posterior that is given, which compiles nothing."""
    model = estimator(covariance_type=kind)
    model.n_features_in_, model._scales = 2, (np.array([0.5, 0]), np.full(2, 2.0))
    covariances = np.array(restricted(kind, np.float32(ROOTS @ ROOTS.mT / 4)), float)
    counts = 1000 * WEIGHTS
    model.posterior_ = MixturePosterior(
        kind,
        1.0,
        counts,
        counts,
        counts,
        (MEANS - [0.5, 0]) / 2,
        covariances,
        np.full((3, 3), 1e-4),
    )
    model._set_components(model.posterior_.sample(np.random.default_rng(0), 1000))
    theirs = GaussianMixture(3, covariance_type=kind, random_state=0, means_init=MEANS).fit(X)
    agrees(model, theirs, kind)
    np.testing.assert_allclose(
        model._scales[1][0] ** 2 * covariances, full(model.covariances_, kind), rtol=1e-6
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["tied", "diag", "spherical"])
def test_other_covariances_are_fitted(kind):
    model = estimator(4.0, covariance_type=kind, **GIVEN).fit(X)
    theirs = GaussianMixture(3, covariance_type=kind, random_state=0, means_init=MEANS).fit(X)
    assert theirs.score(X) - model.score(X) < 0.02
    np.testing.assert_allclose(model.covariances_, theirs.covariances_, atol=0.12)
    agrees(model, theirs, kind)


def full(covariances, kind):
    """Matrices of what scikit-learn stores."""
    if kind == "tied":
        return np.tile(covariances, (3, 1, 1))
    return np.reshape(covariances, (3, -1, 1)) * np.eye(2)


def agrees(model, theirs, kind):
    """Scikit-learn's mixture takes these parameters, and gives the same densities."""
    for name in ("covariances_", "precisions_", "precisions_cholesky_"):
        assert getattr(model, name).shape == getattr(theirs, name).shape, name
    assert model._size(2) == theirs._n_parameters()
    theirs.weights_, theirs.means_ = model.weights_, model.means_
    theirs.precisions_cholesky_ = model.precisions_cholesky_
    np.testing.assert_allclose(model.score_samples(X), theirs.score_samples(X), rtol=1e-9)
    spread = model.posterior_samples_["covariances"].std(axis=0)
    assert ((spread > 0) == (np.ones((2, 2)) if kind == "tied" else np.eye(2)).astype(bool)).all()


def test_units_do_not_matter():
    scale, shift = np.array([100.0, 0.01]), np.array([5.0, -3.0])
    bounds = tuple(np.array(end) * scale + shift for end in ((-6, -5), (5, 5)))
    one = estimator(**GIVEN).fit(X)
    given = {name: GIVEN[name] * scale + shift for name in ("means_init", "mean_prior")}
    given["covariance_prior"] = GIVEN["covariance_prior"] * np.outer(scale, scale)
    other = estimator(bounds=bounds, reg_covar=0, **given).fit(X * scale + shift)
    np.testing.assert_allclose(other.means_, one.means_ * scale + shift, rtol=1e-3)
    np.testing.assert_allclose(
        other.covariances_, one.covariances_ * np.outer(scale, scale), rtol=0.02, atol=1e-4
    )
    assert other.score(X * scale + shift) == pytest.approx(
        one.score(X) - np.log(scale).sum(), abs=1e-3
    )


def test_new_values_compile_nothing(compilations):
    estimator(**GIVEN).fit(X)
    estimator(random_state=None, **GIVEN).fit(X)
    compilations.clear()
    estimator(**GIVEN).fit(X[:5500])
    for change in (
        {"epsilon": 0.5}, {"n_steps": 12}, {"sampling_rate": 0.4}, {"bounds": (-6, 5)}, {"adjacency": "replace_one"},
        {"weight_concentration_prior": 0.1}, {"mean_precision_prior": 2.0}, {"degrees_of_freedom_prior": 7.0},
        {"reg_covar": 0.1}, {"means_init": np.ones((3, 2))}, {"weights_init": [0.1, 0.2, 0.7]}, {"epsilon": np.inf},
    ):  # fmt: skip
        estimator(**GIVEN | change).fit(X)
        assert not compilations, f"{change} compiled {len(compilations)} programs"


REFUSED = [
    ({"n_components": 0}, r"n_components must be an integer in \[1, 10000\], got 0"),
    (
        {"covariance_type": "round"},
        "covariance_type must be one of 'full', 'tied', 'diag', 'spherical'",
    ),
    (
        {"solver": "gibbs"},
        "solver must be one of 'auto', 'dpvi', 'na-dpvi', 'sgld', 'vips', got 'gibbs'",
    ),
    ({"clipping_norm": 1.0}, "clipping_norm=1.0 needs another solver"),
    ({"learning_rate": 0.1}, "learning_rate=0.1 needs another solver"),
    (
        {"guide": "mean_field"},
        "guide='mean_field' needs solver='dpvi'; 'vips' has no such parameter",
    ),
    (
        {"step_schedule": "decreasing", "solver": "dpvi"},
        "step_schedule='decreasing' needs solver='sgld'",
    ),
    (
        {"n_steps": 4, "solver": "sgld"},
        "n_steps=4 is too few: 4 go into the start. Take at least 5",
    ),
    (
        {"n_steps": 5, "solver": "na-dpvi"},
        "n_steps=5 is too few: 4 go into the start, and the first round .* Take at least 6",
    ),
    ({"n_steps": 5, "solver": "dpvi"}, "n_steps=5 is too few: .* Take at least 6"),
    ({"bounds": (1, 0)}, "bounds must be a pair .* low below high"),
    ({"bounds": ((0, 0, 0), 1)}, "bounds must be a pair .* for each of the 2 columns"),
    ({"means_init": [[0, 0]]}, r"means_init must be finite numbers of shape \(3, 2\)"),
    ({"weights_init": [1, 0, 0], **GIVEN}, "weights_init must be positive and sum to 1"),
    ({"weights_init": [0.2, 0.3, 0.5]}, "weights_init needs means_init"),
    ({"covariance_prior": -np.eye(2)}, "covariance_prior must be positive definite"),
    ({"degrees_of_freedom_prior": 0.5}, r"degrees_of_freedom_prior must be a number in \(1, "),
    ({"n_steps": 4}, "n_steps=4 is too few: 4 go into the start. Take at least 5"),
    (
        {"adjacency": "add_remove", "sampling_rate": 1.0, "solver": "sgld"},
        "learning_rate=None takes the number",
    ),
    ({"adjacency": "add_remove"}, "sampling_rate=None takes the number of records from X"),
    ({"mean_precision_prior": 0}, "mean_precision_prior must be"),
    ({"weight_concentration_prior": -1}, "weight_concentration_prior must be"),
]


@pytest.mark.parametrize(("parameters", "message"), REFUSED, ids=str)
def test_what_makes_no_sense_is_refused_before_anything_is_spent(parameters, message):
    model = estimator(**parameters)
    with pytest.raises(ValueError, match=message):
        model.fit(X)
    assert not hasattr(model, "privacy_spent_")


def test_rows_that_are_not_finite_are_predicted_without_an_error(fitted):
    model = fitted
    with pytest.warns(UserWarning, match="1 of these rows"):
        proba = model.predict_proba([[np.nan, 0], [2, 1]])
    np.testing.assert_allclose(proba[0], model.weights_)
    assert np.isnan(model.score_samples([[np.inf, 0]])).all()
    with pytest.raises(TypeError, match="dense data is required"):
        from scipy import sparse

        model.predict(sparse.csr_array(X))


def test_clones_pickles_and_refits():
    model = estimator(**GIVEN).fit(X)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.score_samples(X), model.score_samples(X))
    with pytest.raises(NotFittedError):
        clone(model).sample()
    first = model.privacy_spent_
    labels = model.fit_predict(X[:5900])
    assert labels.shape == (5900,) and model.privacy_spent_.cumulative == first.releases


# Privacy


@pytest.mark.parametrize(
    "parameters", [GIVEN, pytest.param({}, marks=pytest.mark.slow)], ids=["given", "sketch"]
)
def test_the_fit_follows_from_the_releases_and_the_solver_key(
    parameters, fits, compiled_as_users_do
):
    """So nothing else of the records is in it: no start, no stopping, no bound of the likelihood."""
    model = estimator(**parameters).fit(X)
    again = estimator(**parameters)
    replay_mixture(again, fits[-1][-1], 2, N)
    assert_replayed(model, again)


@pytest.mark.parametrize(
    "parameters", [{}, GIVEN, {"n_components": 1}], ids=["sketch", "given", "one"]
)
def test_what_is_run_does_not_depend_on_what_rows_hold(parameters):
    """No start and no prior of their own; nor on how many there are, where that is private."""
    hidden = {"adjacency": "add_remove", "sampling_rate": 1.0} | parameters
    public = estimator(**parameters)
    assert_given_the_same(planned(public, X), planned(public, np.full_like(X, np.nan)))
    private = estimator(**hidden)
    assert_given_the_same(planned(private, X), planned(private, X[1:] + 1))


def test_a_null_row_is_as_no_row(fits):
    """Rows that are null change no release at all, and nothing that is made of them, where their number is private."""
    rows = X.copy()
    rows[-3:] = [[np.nan, 0], [0, np.inf], [np.nan, np.nan]]
    hidden = {"adjacency": "add_remove", "sampling_rate": 1.0, **GIVEN}
    models = [estimator(**hidden).fit(rows), estimator(**hidden).fit(rows[:-3])]
    np.testing.assert_array_equal(*(fit[-1] for fit in fits))
    assert pickle.dumps(models[0]) == pickle.dumps(models[1])


def test_a_refit_that_is_interrupted_leaves_nothing_of_the_fit_before():
    model, blank = estimator(**GIVEN).fit(X), estimator(**GIVEN)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inference, "run", lambda *given, **how: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            model.fit(X)
    assert set(vars(model)) - set(vars(blank)) <= {"privacy_spent_", "n_features_in_"}
    with pytest.raises(NotFittedError):
        model.score(X)


CELLS = [
    np.nan,
    None,
    np.inf,
    -np.inf,
    1e300,
    1e30,
    -1e300,
    1e-320,
    "text",
    [1],
    2**70,
    1j,
    0.0,
    9.0,
]


def test_one_row_moves_the_first_release_by_at_most_the_noise_unit(fits):
    """In units of the noise multiplier: 1 for a row that becomes null, 2 for another row, whatever the row."""
    table, out = X.astype(object), []
    for cell in [*CELLS, (5.0, 5.0), (-6.0, -5.0)]:
        table[17] = cell if isinstance(cell, tuple) else (cell, cell if np.ndim(cell) == 0 else 0)
        model = estimator(**GIVEN).fit(table)
        out.append(np.float64(fits[-1][-1])[0, :38])
    assert np.isfinite(out).all()
    blocks = model.plan(N, 2).model.openings()[0].blocks.values()
    unit = np.repeat([b.clipping_norm / b.share**0.5 for b in blocks], [1, 36, 1])
    moved = np.linalg.norm((np.array(out) - out[0]) / unit, axis=1)
    assert moved.max() <= 1 + 1e-4 and moved.max() > 0.9
    assert moved[:4].max() == 0, "a null row contributes"
    apart = np.linalg.norm((np.array(out)[:, None] - np.array(out)) / unit, axis=2)
    assert apart.max() <= 2 + 1e-4


def test_the_noise_of_a_round_is_what_the_report_says(fits):
    """Of null rows every release is noise alone; and the scales that posteriors assume are those of the last rounds."""
    model = estimator(n_steps=MOST, **GIVEN).fit(np.full_like(X, np.nan))
    planned, spent = model.plan(N, 2).model, model.privacy_spent_
    unit = np.repeat(
        [b.clipping_norm / b.share**0.5 for b in planned.blocks().values()], [3, 6, 12]
    )
    noise = np.float64(fits[-1][-1])[2:, :21] / unit / spent.steps[-1].noise_multiplier
    tail = stats.chi2(noise.size).cdf(np.square(noise).sum())
    assert 1e-6 < tail < 1 - 1e-6
    assert stats.kstest(noise.ravel(), "norm").pvalue > 1e-6
    weights = 2 / (np.arange(MOST - 2) + 2)
    share = weights * np.append(np.cumprod((1 - weights[1:])[::-1])[::-1], 1)
    want = spent.steps[-1].noise_multiplier * unit[0] * np.sqrt(np.sum(share**2))
    assert model.diagnostics_["noise_std"]["count"] == pytest.approx(want, rel=1e-3)


@pytest.mark.parametrize("adjacency", ["zero_out", "replace_one", "add_remove"])
def test_no_more_is_spent_than_asked_for_and_what_is_reported_ran(adjacency, fits):
    for rate in (1.0, 0.5):
        spent = estimator(adjacency=adjacency, sampling_rate=rate, **GIVEN).fit(X).privacy_spent_
        assert (
            0.99 < spent.epsilon <= 1
            and spent.releases == fits[-1][2].composed()
            and spent.sampling_rate == rate
        )
        assert compose(spent.releases, adjacency).epsilon(spent.delta) == pytest.approx(
            spent.epsilon
        )
        assert ("n_samples" in spent.public) == (adjacency != "add_remove")


def test_without_the_number_of_rows_it_is_estimated():
    """With rows added or removed the plan is the same, and so are all shapes."""
    models = [
        estimator(adjacency="add_remove", sampling_rate=0.5, **GIVEN).fit(X[:n]) for n in (N, N - 1)
    ]
    assert repr(models[0].privacy_spent_) == repr(models[1].privacy_spent_)
    assert models[0].diagnostics_["n_records"] == pytest.approx(N, rel=0.1)
    np.testing.assert_allclose(models[0].means_, MEANS, atol=0.25)


def test_ranges_taken_from_the_data_warn_and_void_the_guarantee():
    with pytest.warns(PrivacyLeakWarning, match="bounds=None takes the ranges of X"):
        model = estimator(bounds=None, random_state=None, **GIVEN).fit(X)
    assert model.privacy_spent_.voided_by == (
        "the ranges of X were taken from the data (bounds=None)",
    )
    assert estimator(random_state=None, **GIVEN).fit(X).privacy_spent_.guarantee_holds


def test_bad_rows_raise_nothing_and_change_little():
    bad = X.astype(object)
    bad[: len(CELLS), 0] = np.array([*CELLS, None], object)[:-1]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = estimator(**GIVEN).fit(bad)
    np.testing.assert_allclose(model.means_, MEANS, atol=0.15)
    nothing = estimator(**GIVEN).fit(np.full_like(X, np.nan))
    assert np.isfinite(nothing.means_).all() and np.isfinite(nothing.score(X))


def test_what_depends_on_the_number_of_rows_does_so_where_it_is_public():
    """Larger errors of a sketch of fewer rows, and rows that stand for the expectations of many."""

    def model(n, **parameters):
        return estimator(solver="na-dpvi", **parameters).plan(n, 2).model

    few, many = model(10_000), model(10**6)
    assert few.sampling_rate == 1 and len(few.nodes) < len(many.nodes)
    assert many.sampling_rate == np.float32(131_072 / 10**6)
    hidden = {"adjacency": "add_remove", "sampling_rate": 0.5}
    few, many = (model(n, **hidden) for n in (10_000, 10**6))
    assert few.sampling_rate == many.sampling_rate == 0.5 and len(few.nodes) == len(many.nodes)
