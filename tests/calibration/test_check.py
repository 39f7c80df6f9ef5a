"""Checks of estimators on data simulated from their own prior."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy import stats
from sklearn.pipeline import make_pipeline

from skdpbayes import (
    DPBayesianLinearRegression,
    DPBayesianLogisticRegression,
    DPBetaBernoulli,
    DPDirichletCategorical,
    DPGammaExponential,
    DPGaussianMixture,
    DPHierarchicalLogisticRegression,
    DPNumPyroModel,
    DPSigmoidBeliefNet,
    LongFitWarning,
)
from skdpbayes.calibration import _model_check, _simulators, check, marginal_coverage, tarp_coverage
from skdpbayes.calibration._model_check import _names, _ravelled
from skdpbayes.calibration._simulators import simulator_of
from skdpbayes.displays import CheckDisplay
from skdpbayes.estimators import _base
from skdpbayes.estimators._hierarchical import hierarchical_logistic
from skdpbayes.privacy import PrivacyLeakWarning, PrivacyLedger


@pytest.fixture(scope="module")
def ledger():
    return PrivacyLedger(1.0, 1e-5)


@pytest.fixture(scope="module")
def found(ledger):
    model = DPBetaBernoulli(epsilon=1.0, ledger=ledger)
    with ledger:
        return check(model, 500, n_features=2, n_fits=100, random_state=0)


def test_figures_are_those_of_the_draws(found):
    assert found.names == ("probability[0]", "probability[1]") and found.n_fits == 100
    assert found.draws.shape == (100, 500, 2) and found.truth.shape == (100, 2)
    again = marginal_coverage(found.draws, found.truth, 0.9)
    np.testing.assert_array_equal(found.coverage.coverage, again.coverage)
    assert found.coverage.within_band.all() and found.tarp.within_band
    assert found.plain.within_band.all()
    assert (found.relative_width > 1.0).all() and (found.relative_width < 1.3).all()
    assert found.worst[1] == found.coverage.coverage.min()
    printed = str(found)
    assert "no budget was spent" in printed and "probability[1]" in printed
    assert "No coordinate's band excludes 90%." in printed
    shifted = found.draws + np.array([0.0, 10 * found.draws.std()])
    off = str(replace(found, coverage=marginal_coverage(shifted, found.truth, 0.9)))
    assert "Bands of 1 of 2 coordinates exclude 90% (by chance 0.05 of them do):" in off
    assert "probability[1] (too narrow)." in off
    wide = found.truth.mean() + np.linspace(-9, 9, 500)[None, :, None] * np.ones((100, 1, 2))
    off = str(replace(found, coverage=marginal_coverage(wide, found.truth, 0.9)))
    assert "probability[0] (too wide), probability[1] (too wide)." in off
    ones = {"width": [1] * 12, "crps": [1] * 12, "relative_width": None, "relative_crps": None}
    twelve = replace(found, names=tuple("abcdefghijkl"), **ones)
    many = marginal_coverage(np.tile(shifted, 6), np.tile(found.truth, 6), 0.9, confidence=0.99)
    off = str(replace(twelve, coverage=many))
    assert "Bands of 6 of 12 coordinates exclude 90% (by chance 0.01 of them do): b " in off
    many = marginal_coverage(np.tile(wide, 6), np.tile(found.truth, 6), 0.9)
    off = str(replace(twelve, coverage=many))
    assert "j (too wide) and 2 more." in off
    assert found.taken_as_public == ()


def test_no_ledger_is_charged(found, ledger):
    assert ledger.spent_epsilon == 0.0 and ledger.entries == []


def test_seed_decides_and_the_estimator_stays(found):
    model = DPBetaBernoulli(epsilon=1.0)
    short = [check(model, 500, n_fits=3, random_state=seed) for seed in (0, 0, 1)]
    np.testing.assert_array_equal(short[0].draws, short[1].draws)
    assert not np.array_equal(short[0].truth, short[2].truth)
    assert model.random_state is None and model.ledger is None
    assert not hasattr(model, "posterior_")


def test_seeds_of_a_check_are_not_those_that_are_warned_of(monkeypatch):
    monkeypatch.setattr(_base, "_warned", [])
    check(DPBetaBernoulli(), 100, n_fits=1)
    with pytest.warns(PrivacyLeakWarning, match="random_state is set"):
        DPBetaBernoulli(random_state=0).fit(np.ones((100, 1)))


def test_later_fits_compile_nothing(compilations):
    model = DPBetaBernoulli(prior_a=1.5)
    check(model, 300, n_features=3, n_fits=1, random_state=0)
    compilations.clear()
    check(model, 300, n_features=3, n_fits=3, random_state=1)
    assert not compilations


def test_truths_and_data_may_be_given():
    truths = {"probability": np.full((4, 1), 0.3)}
    rare = check(DPBetaBernoulli(epsilon=50.0), 2_000, truths=truths, random_state=0)
    assert rare.tarp is None and (rare.truth == 0.3).all()
    assert rare.draws.mean() == pytest.approx(0.3, abs=0.05)

    def ones(rng, truth, X):
        assert truth["probability"] == 0.3 and X is None
        return np.ones((2_000, 1))

    wrong = check(
        DPBetaBernoulli(epsilon=50.0), 2_000, truths=truths, simulate=ones, random_state=0
    )
    assert wrong.taken_as_public == ("truths", "simulate")
    assert "taken as public: truths and simulate" in str(wrong)
    assert "no real record" not in str(wrong)
    assert wrong.draws.mean() > 0.95 and wrong.worst == ("probability[0]", 0.0)
    assert wrong.plain is None and wrong.relative_crps is None


class Drawn:
    """Stands for a fitted model of one mean."""

    def sample_posterior(self, n, rng):
        return {"mean": rng.normal(size=n)}


def test_what_is_not_simulated_is_named(monkeypatch):
    """A design, and arrays as long as a table, whether the model or `public` holds them."""
    monkeypatch.setattr(_model_check, "_fitted", lambda *_, **__: (Drawn(), 0.0))
    table = jnp.ones((150, 2))

    def own(x, y=None, *, offset=0.0):
        mean = numpyro.sample("mean", dist.Normal(0, 1))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Normal(mean + jnp.mean(offset), 1.0), obs=y)

    def holds(x, y=None, *, offset=0.0):
        own(x, y, offset=offset + table.sum())

    few, many = {"offset": np.zeros(3)}, {"offset": np.zeros(150)}
    closed = "an array that the model closes over (shape (150, 2))"
    for function, public, X, named in (
        (own, few, None, ()),
        (holds, many, np.zeros((50, 1)), ("X", "public['offset']", closed)),
    ):
        model = DPNumPyroModel(function, public=public)
        found = check(model, 50, X=X, n_fits=2, n_draws=20)
        assert found.taken_as_public == named
        assert ("no real record was read" in str(found)) == (not named)
        assert all(name in str(found) for name in named)


def test_labels_of_simulated_rows_stay_with_a_clone(monkeypatch):
    class Fitted:
        def sample_posterior(self, n, rng):
            return {"coef": rng.normal(size=(n, 1, 2)), "intercept": rng.normal(size=(n, 1))}

    monkeypatch.setattr(_model_check, "_fitted", lambda *_, **__: (Fitted(), 0.0))
    model = DPBayesianLogisticRegression()
    check(model, 50, n_fits=1, n_draws=20, reference=False)
    assert model.classes is None


SIMULATED = {
    "bernoulli": (DPBetaBernoulli(prior_a=2.0, prior_b=5.0), 2),
    "exponential": (DPGammaExponential(prior_shape=8.0, prior_rate=2.0), 1),
    "categorical": (
        DPDirichletCategorical(categories=["b", "a", "c"], concentration=[1.0, 5.0, 2.0]),
        None,
    ),
    "linear": (DPBayesianLinearRegression(bounds=((-1, 3), (-4, 8))), 2),
    "linear, no intercept": (
        DPBayesianLinearRegression(bounds=((-1, 3), (-4, 8)), fit_intercept=False),
        2,
    ),
}


@pytest.mark.parametrize("name", SIMULATED)
def test_truths_and_rows_agree_with_the_exact_posterior(name):
    """If prior, rows and reference belong together, the reference is calibrated."""
    estimator, d = SIMULATED[name]
    simulator = simulator_of(estimator, 50, d, None)
    truths, draws = [], []
    for k in range(400):
        rng = np.random.default_rng(k)
        truth = simulator.truth(rng)
        exact = simulator.plain(simulator.rows(rng, truth), 199, rng)
        truths.append(_ravelled({n: np.asarray(x)[None] for n, x in truth.items()}, truth)[0])
        draws.append(_ravelled(exact, truth))
    assert marginal_coverage(draws, truths, 0.9, confidence=0.999).within_band.all()
    assert tarp_coverage(draws, truths, confidence=0.999, random_state=0).within_band


def test_categories_are_in_the_order_of_the_posterior():
    estimator, _ = SIMULATED["categorical"]
    simulator = simulator_of(estimator, 5_000, None, None)
    assert simulator.concentration.tolist() == [5.0, 1.0, 2.0]  # of a, b, c
    (rows,) = simulator.rows(np.random.default_rng(0), {"probability": np.array([0.7, 0.1, 0.2])})
    assert (rows == "a").mean() == pytest.approx(0.7, abs=0.03)


def test_exact_posterior_of_logistic_regression_holds_the_truth():
    pytest.importorskip("polyagamma")
    X = np.random.default_rng(0).standard_normal((3_000, 2))
    estimator = DPBayesianLogisticRegression(solver="dpvi", classes=["no", "yes"])
    simulator = simulator_of(estimator, 3_000, None, X)
    rng = np.random.default_rng(1)
    truth = {"coef": np.array([[2.0, -1.0]]), "intercept": np.array([0.5])}
    rows = simulator.rows(rng, truth)
    assert rows[0] is simulator.design.given and set(rows[1]) == {"no", "yes"}
    drawn = simulator.plain(rows, 200, rng)
    for name, value in truth.items():
        z = (drawn[name].mean(axis=0) - value) / drawn[name].std(axis=0)
        assert (np.abs(z) < 4).all() and (drawn[name].std(axis=0) < 0.2).all()
    # Of ten equal labels the prior of the intercept decides how far out it is.
    alone = X[:10], np.full(10, "yes")
    assert simulator.plain(alone, 500, rng)["intercept"].mean() > 2


def test_prior_of_logistic_regression_is_that_of_the_solver():
    rng = np.random.default_rng(0)
    normal, student = (
        simulator_of(DPBayesianLogisticRegression(solver=solver, prior_scale=2.0), 500, 40, None)
        for solver in ("dpvi", "na-dpvi")
    )
    truths = np.concatenate([normal.truth(rng)["coef"].ravel() for _ in range(100)])
    assert truths.std() == pytest.approx(2.0, rel=0.05)
    assert normal.model.prior_df is None and student.model.prior_df is not None


def test_coefficients_of_a_truth_have_a_common_scale(monkeypatch):
    student = simulator_of(DPBayesianLogisticRegression(), 500, 3, None)
    rng = np.random.default_rng(0)
    drawn = [_simulators._common_scale(rng) ** 2 for _ in range(1000)]
    assert stats.kstest(np.log(drawn), lambda x: 2 * stats.logistic.cdf(x)).pvalue > 0.01
    truths = []
    for scale in (1.0, 0.5):
        monkeypatch.setattr(_simulators, "_common_scale", lambda rng, scale=scale: scale)
        truths.append(student.truth(np.random.default_rng(0)))
    np.testing.assert_allclose(truths[1]["coef"], truths[0]["coef"] / 2)
    np.testing.assert_allclose(truths[1]["intercept"], truths[0]["intercept"])


class Switched:
    """Stands for a fitted mixture: the truth with its components in another order."""

    def __init__(self, truth, order):
        self.truth, self.order = truth, order

    def sample_posterior(self, n, rng):
        return {
            name: np.repeat(np.asarray(x)[None, self.order], n, axis=0)
            for name, x in self.truth.items()
        }


@pytest.mark.parametrize(
    ("kind", "entries"), [("full", 9), ("tied", 3), ("diag", 6), ("spherical", 3)]
)
def test_components_are_aligned_with_the_truth(kind, entries):
    estimator = DPGaussianMixture(
        n_components=3, covariance_type=kind, mean_prior=[0.0, 1.0], covariance_prior=2.0,
        mean_precision_prior=0.01, degrees_of_freedom_prior=5.0,
    )  # fmt: skip
    simulator = simulator_of(estimator, 300, None, None)
    rng = np.random.default_rng(0)
    truth = simulator.truth(rng)
    (rows,) = simulator.rows(rng, truth)
    assert rows.shape == (300, 2)
    drawn = simulator.draws(Switched(truth, [2, 0, 1]), 5, rng, truth)
    compared = simulator.compared(truth)
    assert np.size(compared["covariances"]) == entries
    for name, value in compared.items():
        np.testing.assert_allclose(drawn[name], np.repeat(value[None], 5, axis=0))


def test_mixture_without_a_prior_of_its_own_needs_truths():
    with pytest.raises(ValueError, match=r"mean_prior and covariance_prior.*or truths="):
        check(DPGaussianMixture(n_components=2, bounds=(-5, 5)), 100, n_features=2)


def counts(x, y=None):
    slope = numpyro.sample("slope", dist.Normal(0, 1))
    with numpyro.plate("data", len(x)):
        numpyro.sample("response", dist.Poisson(2.0 + slope**2 + 0 * x[:, 0]), obs=y)


def test_numpyro_model_draws_its_response_by_one_program():
    simulator = simulator_of(DPNumPyroModel(counts), 4_000, 1, None)
    slopes = []
    for k in range(5):
        rng = np.random.default_rng(k)
        slopes.append(simulator.truth(rng)["slope"])
        x, y = simulator.rows(rng, {"slope": np.array(2.0)})
        assert x.shape == (4_000, 1) and y.mean() == pytest.approx(6.0, abs=0.3)
    assert len({float(own) for own in slopes}) == 5
    assert simulator._records._cache_size() == simulator._prior._cache_size() == 1


def test_numpyro_sites_go_to_the_arguments_that_they_observe():
    def two(x, a=None, b=None, *, shift):
        mean = numpyro.sample("mean", dist.Normal(0, 1))
        with numpyro.plate("data", len(x)):
            numpyro.sample("b", dist.Normal(mean + shift, 0.1), obs=b)
            numpyro.sample("a", dist.Normal(mean - shift, 0.1), obs=a)

    def density(x):
        mean = numpyro.sample("mean", dist.Normal(0, 1))
        with numpyro.plate("data", len(x)):
            numpyro.sample("own", dist.Normal(mean, 0.1).expand([2]).to_event(1), obs=x)

    rng, truth = np.random.default_rng(0), {"mean": np.array(1.0)}
    (fields,) = simulator_of(
        DPNumPyroModel(two, public={"shift": 5.0}), 300, None, {"x": np.zeros(300)}
    ).rows(rng, truth)
    assert fields["a"].mean() == pytest.approx(-4, abs=0.1)
    assert fields["b"].mean() == pytest.approx(6, abs=0.1) and sorted(fields) == ["a", "b", "x"]
    (x,) = simulator_of(DPNumPyroModel(density), 300, 2, None).rows(rng, truth)
    assert x.shape == (300, 2) and x.mean() == pytest.approx(1, abs=0.1)


def test_numpyro_site_of_no_argument_is_refused_by_name():
    def unclear(x, a=None, b=None):
        mean = numpyro.sample("mean", dist.Normal(0, 1))
        with numpyro.plate("data", len(x)):
            numpyro.sample("one", dist.Normal(mean, 1.0), obs=a)
            numpyro.sample("two", dist.Normal(mean, 1.0), obs=b)

    with pytest.raises(ValueError, match=r"'one'.*simulate="):
        check(DPNumPyroModel(unclear), X={"x": np.zeros(50)}, n_fits=2)


@pytest.mark.parametrize("groups", [3, ["A", "B", "C"]])
def test_hierarchy_draws_groups_and_their_weights(groups):
    estimator = DPHierarchicalLogisticRegression(groups, [[0.0], [1.0], [2.0]], group_scale=None)
    simulator = simulator_of(estimator, 600, 3, None)
    truth = simulator.truth(np.random.default_rng(0))
    assert {name: np.shape(x) for name, x in truth.items()} == {
        "effects": (3, 2), "weights": (3, 3), "group_scale": (),
    }  # fmt: skip
    truth["weights"] = np.array([[0, 0, 9], [0, 0, -9], [0, 0, 9.0]])
    X, y = simulator.rows(np.random.default_rng(0), truth)
    labels = estimator._groups_and_table()[0]
    assert [round(y[X[:, 2] == label].mean()) for label in labels] == [1, 0, 1]
    assert _names(truth)[-1] == "weights[2,2]" and _names(truth)[6] == "group_scale"


@pytest.mark.parametrize(
    ("estimator", "n_rows", "options", "message"),
    [
        (DPSigmoidBeliefNet(), 100, {}, r"functions of rows.*applies to logistic"),
        (make_pipeline(DPSigmoidBeliefNet()), 100, {}, r"check\(pipeline\[-1\], \.\.\.\)"),
        (DPBetaBernoulli(), None, {}, "n_rows is needed"),
        (DPBetaBernoulli(), 5, {"X": np.ones((5, 1))}, "no design"),
        (DPBayesianLinearRegression(), 100, {}, "needs bounds"),
        (DPBayesianLogisticRegression(), 4, {"X": np.ones((5, 1))}, "n_rows is 4"),
        (DPBayesianLogisticRegression(), 5, {"X": np.ones(5)}, "two axes"),
        (DPBetaBernoulli(), 5, {"truths": {"probability": [[0.1]]}, "n_fits": 2}, "first axis"),
        (DPBetaBernoulli(), 5, {"truths": {"rate": [[0.1]]}}, r"lack \['probability'\].*'rate'"),
        (DPBetaBernoulli(), 5, {"n_fits": 0}, "n_fits"),
        (DPBetaBernoulli(), 5, {"level": 90}, "level"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(estimator, n_rows, options, message):
    with pytest.raises(ValueError, match=message):
        check(estimator, n_rows, **options)


def test_names_of_truths_and_posterior_must_agree():
    like = {"rate": np.zeros(2)}
    with pytest.raises(ValueError, match=r"no 'rate'.*'other'"):
        _ravelled({"other": np.zeros((5, 2))}, like)
    with pytest.raises(ValueError, match="the shape"):
        _ravelled({"rate": np.zeros((5, 3))}, like)


def test_display_has_a_point_for_each_coordinate(found):
    pyplot = pytest.importorskip("matplotlib.pyplot")
    display = CheckDisplay.from_check(found)
    np.testing.assert_array_equal(display.points_.lines[0].get_xdata(), found.coverage.coverage)
    assert [label.get_text() for label in display.ax_.get_yticklabels()] == list(found.names)
    pyplot.close("all")


def test_a_long_check_says_so_once(monkeypatch):
    monkeypatch.setattr(_base, "_LONG", 0.0)
    with pytest.warns(LongFitWarning) as said:
        check(DPBetaBernoulli(epsilon=1.0), 100, n_features=1, n_fits=3, random_state=0)
    assert sum(w.category is LongFitWarning for w in said) == 1


def test_records_may_be_persons():
    """Each fit gets the persons of its rows, which are taken as public."""
    owner = np.repeat(np.arange(100), 3)
    own = DPBetaBernoulli(epsilon=1.0, max_rows_per_person=3)
    found = check(own, 300, groups=owner, n_fits=20, random_state=0)
    assert "groups" in found.taken_as_public and 0.6 < found.coverage.coverage[0] <= 1
    by_row = check(DPBetaBernoulli(epsilon=1.0), 300, n_fits=20, random_state=0)
    assert found.width[0] > 1.2 * by_row.width[0]  # of noise that is root 3 times as large
    with pytest.raises(ValueError, match="groups"):
        check(own, 300, n_fits=2)


def test_a_hierarchys_truths_are_of_the_priors_of_its_fit():
    """Prior and truths both, at the scale that is asked for."""
    rng, spreads = np.random.default_rng(0), []
    for scale in ("auto", None):
        own = DPHierarchicalLogisticRegression(20, prior_scale=3.0, group_scale=scale)
        simulator = simulator_of(own, 20_000, 3, None)
        truths = [simulator.truth(rng) for _ in range(400)]
        spreads += [truth["group_scale"] for truth in truths]
        assert np.std([truth["effects"] for truth in truths]) == pytest.approx(3, rel=0.1)
    assert np.mean(spreads) == pytest.approx(3 * stats.halfnorm.mean(), rel=0.1)
    few = DPHierarchicalLogisticRegression(20, group_scale="auto", epsilon=0.1)
    assert "group_scale" not in simulator_of(few, 600, 3, None).truth(rng)

    public = {"group_features": np.ones((2, 1)), "prior_scale": 3.0, "group_scale": None}
    with numpyro.handlers.seed(rng_seed=0):
        trace = numpyro.handlers.trace(hierarchical_logistic).get_trace(
            np.ones((4, 1)), np.zeros(4, int), **public
        )
    law = trace["group_scale"]["fn"]
    assert law.log_prob(2.0) == pytest.approx(stats.halfnorm(scale=3).logpdf(2.0), abs=1e-5)
