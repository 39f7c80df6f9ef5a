"""Bayesian networks and auto-encoders: with noise off the known posterior, and what their users expect."""

import jax
import numpy as np
import pytest
from cases import slow_but
from sklearn.datasets import make_moons

from skdpbayes import DPBayesianMLPClassifier, DPBayesianMLPRegressor, DPVariationalAutoencoder
from skdpbayes.audit import audit
from skdpbayes.privacy import GaussianSteps, compose, step_size_bound
from skdpbayes.privacy.accounting import noise_multiplier
from skdpbayes.reference import logistic_gibbs
from skdpbayes.solvers.recalibrated import Recalibrated

pytestmark = pytest.mark.usefixtures("compiled_quickly")

RNG = np.random.default_rng(0)
N = 1500
X = RNG.uniform(-1, 1, (N, 2))
Y = (X @ [3.0, -2.0] + 1 + RNG.logistic(size=N) > 0).astype(int)


@pytest.fixture(scope="module")
def exact():
    """Gibbs sampler of logistic regression in the network's units: weights times the root of two, all of unit prior."""
    rows = np.column_stack([X / 2**0.5, np.ones(N)])
    draws = logistic_gibbs(
        rows, Y, n_draws=3000, n_burn=300, n_chains=1, random_state=0, fit_intercept=False
    )
    return draws[0]


CHAINS = {
    "sgld": {"sampler": "sgld", "n_steps": 6000, "learning_rate": 0.0015},
    "sghmc": {"sampler": "sghmc", "n_steps": 3000, "learning_rate": 0.004, "friction": 0.1},
    "sgnht": {"sampler": "sgnht", "n_steps": 3000, "learning_rate": 0.004, "friction": 0.1},
}


@pytest.mark.parametrize("sampler", slow_but(CHAINS, "sgnht"))
def test_without_noise_a_network_without_hidden_layers_has_the_exact_posterior(sampler, exact):
    own = {"sampling_rate": 1.0, "n_posterior_samples": 1500, "data_norm": 2.0, "classes": [0, 1]}
    model = DPBayesianMLPClassifier(
        (), epsilon=np.inf, solver="sgld", random_state=0, **own | CHAINS[sampler]
    )
    draws = model.fit(X, Y).posterior_samples_
    np.testing.assert_allclose(
        draws.mean(axis=0), exact.mean(axis=0), atol=0.25 * exact.std(axis=0).max()
    )
    np.testing.assert_allclose(draws.std(axis=0), exact.std(axis=0), rtol=0.2)


@pytest.mark.parametrize("sampler", slow_but(CHAINS, "sgnht"))
def test_the_noise_that_is_charged_is_that_of_the_steps(sampler):
    own = CHAINS[sampler] | {
        "solver": "sgld",
        "learning_rate": 1e-5,
        "clipping_norm": 0.7,
        "sampling_rate": 0.1,
    }
    model = DPBayesianMLPClassifier((3,), epsilon=1.0, classes=[0, 1], **own | {"n_steps": 5})
    spent = model.fit(X, Y).privacy_spent_  # and no warning: weights of networks do not mix
    friction = own.get("friction", 1.0)
    assert spent.steps[0].noise_multiplier == pytest.approx(
        0.1 * np.sqrt(2 * friction / 1e-5) / 0.7
    )
    assert spent.epsilon < 1
    largest = step_size_bound(
        1.0, 1e-5, n_steps=5, sampling_rate=0.1, clipping_norm=0.7, friction=friction
    )
    model.set_params(learning_rate=1.01 * largest)
    with pytest.raises(ValueError, match=f"At most {largest:.3g}"[:12]):
        model.fit(X, Y)


@pytest.mark.parametrize("friction", [0.1, 1.0])
def test_the_bound_with_friction_is_what_the_budget_allows(friction):
    h = step_size_bound(
        1.0, 1e-5, n_steps=30, sampling_rate=0.3, clipping_norm=2.0, friction=friction
    )
    sigma = noise_multiplier(h, 0.3, 2.0, friction)
    assert 0.99 < compose([GaussianSteps(sigma, 0.3, 30)], "zero_out").epsilon(1e-5) <= 1
    assert (h / 0.3 * sigma * 2.0) ** 2 == pytest.approx(2 * friction * h)
    for wrong in (0.0, 1.5):
        with pytest.raises(ValueError, match="friction"):
            step_size_bound(1.0, 1e-5, n_steps=30, sampling_rate=0.3, friction=wrong)


FEW = {"epsilon": 20.0, "n_steps": 20, "sampling_rate": 0.3}
AUDITED = {
    "dpvi": {},
    "point": {"guide": "point"},
    "sgld": {"solver": "sgld", "learning_rate": 0.2},
    "persons": {"max_rows_per_person": 2},
    "add_remove": {"adjacency": "add_remove", "random_state": 0},
}


@pytest.mark.parametrize("how", slow_but(AUDITED, "point"))
def test_rounds_on_weights_and_outputs_pass_the_audit(how):
    own = {"classes": [0, 1], "activation": "tanh", **FEW, **AUDITED[how]}
    model, rows, y = DPBayesianMLPClassifier((3,), **own), np.abs(X[:80]), Y[:80]
    groups = None
    if how == "persons":
        rows, y, groups = np.repeat(rows, 2, axis=0), np.repeat(y, 2), np.arange(160) // 2
    assert isinstance(model.plan(None if how == "add_remove" else 80, 2).solver, Recalibrated)
    kinds = {} if groups is None else {"groups": groups}
    report = audit(model, rows, y, n_trials=0, **kinds)
    assert all(check.passed for check in report.checks), str(report)


@pytest.mark.slow
def test_an_auto_encoder_passes_the_audit(compiled_as_users_do):
    model = DPVariationalAutoencoder(1, (3,), epsilon=8.0, n_steps=20, sampling_rate=0.3)
    report = audit(model, np.abs(X[:40]), n_trials=0)
    assert all(check.passed for check in report.checks), str(report)


def test_without_noise_mean_field_finds_the_optimum(exact):
    own = {
        "epsilon": np.inf,
        "sampling_rate": 1.0,
        "n_steps": 400,
        "data_norm": 2.0,
        "classes": [0, 1],
    }
    for guide in ("mean_field", "point"):
        model = DPBayesianMLPClassifier((), guide=guide, random_state=0, **own).fit(X, Y)
        np.testing.assert_allclose(model.posterior_.mean, exact.mean(axis=0), atol=0.15)
        assert (model.posterior_.std > 0).all() == (guide == "mean_field")
        np.testing.assert_allclose(model.coefs_[0][:, 0], model.posterior_.mean[:2] / 2**0.5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "how",
    [
        pytest.param({"solver": "dpvi"}, id="dpvi", marks=pytest.mark.slow),
        pytest.param({"solver": "sgld", "sampler": "sghmc"}, id="sghmc"),
    ],
)
def test_a_network_separates_what_no_line_does(how):
    rows, y = make_moons(6000, noise=0.15, random_state=0)
    own = {
        "epsilon": 3.0,
        "classes": ["in", "out"],
        "n_steps": 400,
        "data_norm": 3.0,
        "random_state": 0,
    }
    model = DPBayesianMLPClassifier((30,), "tanh", **own | how).fit(
        rows[:5000], np.array(["in", "out"])[y[:5000]]
    )
    assert (
        model.score(rows[5000:], np.array(["in", "out"])[y[5000:]]) > 0.87
    )  # of a line: .85 at most
    assert model.privacy_spent_.epsilon <= 3 and model.n_layers_ == 3
    proba = model.predict_proba(rows[5000:])
    lower, upper = model.predict_interval(rows[5000:])
    assert (lower <= proba + 1e-12).all() and (proba <= upper + 1e-12).all()
    assert (
        np.mean(model.log_predictive_density(rows[5000:], np.array(["in", "out"])[y[5000:]])) > -0.4
    )
    drawn = model.sample_posterior_predictive(rows[5000:], 200, 0)
    np.testing.assert_allclose((drawn == "out").mean(axis=0), proba[:, 1], atol=0.2)
    assert model.sample_posterior(3, 0).shape == (3, model.posterior_samples_.shape[1])


NOISY = {
    "dpvi": {"n_steps": 300, "clipping_norm": 0.3},
    "sghmc": {"solver": "sgld", "sampler": "sghmc", "n_steps": 600},
}


@pytest.mark.parametrize("how", slow_but(NOISY, "dpvi"))
def test_noisy_networks_say_what_is_right_as_often_as_they_are(how):
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(24_000, 2))
    logits = 3 * rows[:, 0] * rows[:, 1] - 1
    y = (logits + rng.logistic(size=len(rows)) > 0).astype(int)
    train, test = slice(4000), slice(4000, None)

    def gap(model):
        """The larger one of mean probability and frequency, or mean confidence and accuracy."""
        proba = model.predict_proba(rows[test])
        right = proba.argmax(axis=1) == y[test]
        return max(
            abs(proba[:, 1].mean() - y[test].mean()), abs(proba.max(axis=1).mean() - right.mean())
        )

    own = {"classes": [0, 1], "activation": "tanh", "epsilon": 4.0, "random_state": 0}
    model = DPBayesianMLPClassifier((10,), **own | NOISY[how]).fit(rows[train], y[train])
    told = model.diagnostics_
    assert told["output_offsets"].shape == (1,) and model.n_iter_ == NOISY[how]["n_steps"]
    assert gap(model) < 0.025
    # As it was before the last rounds, the network was not calibrated.
    weights = model.posterior_samples_.copy()
    weights[:, -1] -= told["output_offsets"][0]
    weights[:, -11:] /= told["output_scale"]
    model.posterior_samples_ = weights
    assert gap(model) > 0.04


@pytest.mark.parametrize(
    ("parameters", "recalibrated"),
    [
        ({}, True),
        ({"solver": "sgld"}, True),
        ({"guide": "point"}, True),
        ({"epsilon": 0.2}, False),
        ({"epsilon": 0.2, "max_rows_per_person": 9}, True),  # rows of persons tell more
        ({"n_steps": 10}, False),  # too few to spare any
        ({"epsilon": 0.05}, False),  # noise would hide the outputs' scale
        ({"epsilon": np.inf}, False),
    ],
)
def test_the_last_rounds_are_on_the_outputs_where_they_can_tell(parameters, recalibrated):
    plan = DPBayesianMLPClassifier(**{"classes": [0, 1], "epsilon": 2.0} | parameters).plan(
        2000, n_features=2
    )
    assert isinstance(plan.solver, Recalibrated) == recalibrated
    if recalibrated:
        steps = np.arange(plan.spec.n_steps)
        kinds = np.asarray(jax.vmap(plan.solver.which)(steps))
        last = round(0.02 * len(steps))
        assert (kinds[:-last] >= 2).all() and set(kinds[-last:]) == {0, 1}


@pytest.mark.slow
def test_classes_of_an_image_by_convolutions():
    images = RNG.random((3000, 6, 5)) * 0.3
    y = RNG.integers(0, 3, 3000)
    for k, (row, column) in enumerate([(0, 0), (3, 2), (1, 3)]):
        images[y == k, row : row + 2, column : column + 2] += 0.7
    model = DPBayesianMLPClassifier(
        (10,), "tanh", convolutions=[(4, 2, 1)], image_shape=(6, 5), classes=[0, 1, 2], epsilon=3.0, n_steps=150,
        random_state=0,
    )  # fmt: skip
    model.fit(images.reshape(3000, -1), y)
    assert model.score(images.reshape(3000, -1), y) > 0.9
    assert model.coefs_[0].shape == (2, 2, 1, 4) and model.coefs_[1].shape == (80, 10)
    assert [len(b) for b in model.intercepts_] == [4, 10, 3]


@pytest.mark.slow
def test_regression_finds_a_curve_and_its_noise():
    x = RNG.uniform(-2, 2, (6000, 1))
    y = 10 + 3 * np.sin(2 * x[:, 0]) + 0.5 * RNG.normal(size=6000)
    model = DPBayesianMLPRegressor(
        (30,), "tanh", epsilon=3.0, bounds=((-2, 2), (5, 15)), n_steps=600, random_state=0
    )
    model.fit(x[:5000], y[:5000])
    assert model.score(x[5000:], y[5000:]) > 0.85 and 0.4 < model.noise_std_ < 1.2
    mean, std = model.predict(x[5000:], return_std=True)
    inside = np.abs(y[5000:] - mean) < 2 * std
    assert 0.9 < inside.mean()
    low, high = model.predict_interval(x[5000:5050], 0.9)
    assert (low < high).all()
    assert model.sample_posterior_predictive(x[5000:5050], 7, 0).shape == (7, 50)
    assert np.isfinite(model.log_predictive_density(x[5000:], y[5000:])).all()


@pytest.mark.slow
def test_an_auto_encoder_tells_the_parts_of_a_row():
    parts = RNG.random((5000, 2)) < 0.5
    rows = (RNG.random((5000, 20)) < np.where(np.repeat(parts, 10, axis=1), 0.9, 0.1)).astype(float)
    model = DPVariationalAutoencoder(2, (20,), epsilon=2.0, n_steps=400, random_state=0).fit(rows)
    latent = model.transform(rows)
    assert latent.shape == (5000, 2) and list(model.get_feature_names_out()) == [
        "dpvariationalautoencoder0",
        "dpvariationalautoencoder1",
    ]
    assert (model.reconstruct(rows).round() == rows).mean() > 0.8
    independent = 20 * np.log(0.5)
    assert (
        independent + 3
        < model.score(rows)
        < 20 * (0.9 * np.log(0.9) + 0.1 * np.log(0.1)) + 2 * np.log(0.5) + 3
    )
    drawn = model.sample(2000, 0)
    blocks = drawn.reshape(2000, 2, 10).mean(axis=2)
    assert (np.abs(blocks - 0.5) > 0.15).mean() > 0.6  # parts are on or off as a whole


def test_scores_and_codes_of_a_row_do_not_depend_on_other_rows():
    rows = RNG.random((30, 8))
    model = DPVariationalAutoencoder(2, (5,), n_steps=2, sampling_rate=1.0, random_state=0).fit(
        rows
    )
    np.testing.assert_allclose(model.score_samples(rows)[3:5], model.score_samples(rows[3:5]))
    rows[3, 2] = np.nan
    with pytest.warns(UserWarning, match="1 of these rows hold NaN"):
        scores = model.score_samples(rows)
    assert np.isnan(scores[3]) and np.isfinite(np.delete(scores, 3)).all()
    with pytest.warns(UserWarning, match="1 of these rows hold NaN"):
        assert (model.transform(rows)[3] == 0).all()


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"hidden_layer_sizes": (0,)}, "each of hidden_layer_sizes"),
        ({"hidden_layer_sizes": 2.5}, "hidden_layer_sizes must be a sequence"),
        ({"activation": "sign"}, "activation must be one of"),
        ({"image_shape": (1, 2)}, "image_shape needs convolutions"),
        ({"convolutions": [(1, 1, 1)]}, "convolutions need image_shape"),
        ({"convolutions": [(1, 3, 1)], "image_shape": (1, 2)}, "does not fit an image"),
        ({"convolutions": [(1, 2)], "image_shape": (1, 2)}, "must hold triples"),
    ],
)
@pytest.mark.parametrize("kind", [DPBayesianMLPClassifier, DPVariationalAutoencoder])
def test_wrong_networks_are_refused(kind, parameters, message):
    own = {"classes": [0, 1]} if kind is DPBayesianMLPClassifier else {}
    with pytest.raises(ValueError, match=message):
        kind(**own | parameters).fit(X, Y)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"guide": "full_rank"}, "guide must be one of"),
        ({"sampler": "sghmc"}, "needs solver='sgld'"),
        ({"solver": "sgld", "sampler": "nuts"}, "sampler must be one of"),
        ({"solver": "sgld", "friction": 0.0}, "friction"),
        ({"n_posterior_samples": 10**7, "hidden_layer_sizes": (100,)}, "do not fit in memory"),
        ({"solver": "sgld", "learning_rate": 1e6}, "is too large for epsilon"),
    ],
)
def test_what_makes_no_sense_is_refused(parameters, message):
    with pytest.raises(ValueError, match=message):
        DPBayesianMLPClassifier(classes=[0, 1], **parameters).fit(X, Y)
