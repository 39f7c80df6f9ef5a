"""Private sigmoid belief networks as their users see them."""

import itertools
import pickle
import warnings

import jax
import numpy as np
import pytest
from cases import slow_but
from scipy import sparse, stats
from scipy.special import expit, logit, logsumexp
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from whitebox import assert_replayed, one_program

from skdpbayes import DPSigmoidBeliefNet, inference
from skdpbayes.estimators._base import Outcome, draws_rng
from skdpbayes.mechanism import records
from skdpbayes.mechanism.keys import fit_keys
from skdpbayes.privacy import compose

pytestmark = pytest.mark.usefixtures("compiled_quickly")

N, J, K, MOST = 6000, 24, 3, 60  # releases of a fit are at most MOST
STATES = np.array(list(itertools.product([0, 1], repeat=K)), float)
# Each hidden unit turns eight pixels on or off, and has a little to do with the others.
WEIGHTS = np.where(np.arange(J) // 8 == np.arange(K)[:, None], 3.0, 0.3) * np.where(
    np.arange(J) % 2, 1, -1
)
VISIBLE, HIDDEN = -WEIGHTS.sum(axis=0) / 2 - 0.3, logit([0.4, 0.5, 0.6])


def rows(seed, n=N):
    rng = np.random.default_rng(seed)
    z = rng.random((n, K)) < expit(HIDDEN)
    return (rng.random((n, J)) < expit(z @ WEIGHTS + VISIBLE)).astype(float)


X, Z = rows(0), rows(1)


@pytest.fixture(autouse=True)
def fits():
    with one_program(MOST) as kept:
        yield kept


def estimator(epsilon=1.0, **parameters):
    return DPSigmoidBeliefNet(
        **({"n_components": K, "epsilon": epsilon, "random_state": 0} | parameters)
    )


@pytest.fixture(scope="module")
def fitted(compiled_quickly):
    """Fits by epsilon."""
    with one_program(MOST):
        return {epsilon: estimator(epsilon).fit(X) for epsilon in (1.0, np.inf)}


def with_parameters(weights, visible, hidden):
    """An estimator of a network that is given."""
    model = estimator()
    model.posterior_, model.n_features_in_ = None, weights.shape[1]
    model.components_, model.intercept_visible_, model.intercept_hidden_ = weights, visible, hidden
    return model


TRUTH = with_parameters(WEIGHTS, VISIBLE, HIDDEN)


def exact(model, rows):
    """Log-likelihoods and posterior marginals of hidden units, by enumeration."""
    logits = STATES @ model.components_ + model.intercept_visible_
    log = rows @ logits.T - np.logaddexp(0, logits).sum(axis=1)
    log = log + (STATES * model.intercept_hidden_ - np.logaddexp(0, model.intercept_hidden_)).sum(
        axis=1
    )
    return logsumexp(log, axis=1), np.exp(log - logsumexp(log, axis=1, keepdims=True)) @ STATES


def pixels_alone(rows):
    p = X.mean(axis=0)
    return float((rows @ np.log(p) + (1 - rows) @ np.log1p(-p)).mean())


def right(model):
    return float(((model.reconstruct(Z) > 0.5) == Z).mean())


def matched(weights):
    """Order of the hidden units, and sign of each, as in the truth: units are found up to order and complement."""
    similar = np.corrcoef(np.concatenate([WEIGHTS, weights]))[:K, K:]
    order = np.abs(similar).argmax(axis=1)
    return order, np.sign(similar[np.arange(K), order])


# What is found


def test_without_noise_a_planted_network_is_found(fitted):
    model = fitted[np.inf]
    order, sign = matched(model.components_)
    assert sorted(order) == list(range(K))
    # Here each visible unit hangs on one hidden unit, so that its logit is not normal and the
    # weights come out larger.
    found = model.components_[order] * sign[:, None]
    assert np.corrcoef(found.ravel(), WEIGHTS.ravel())[0, 1] > 0.99
    assert 0.9 < (found * WEIGHTS).sum() / (WEIGHTS**2).sum() < 1.35
    active = expit(sign * model.intercept_hidden_[order])
    np.testing.assert_allclose(active, expit(HIDDEN), atol=0.05)
    assert right(TRUTH) - right(model) < 0.005
    assert TRUTH.score(Z) - model.score(Z) < 0.4
    assert exact(TRUTH, Z)[0].mean() - exact(model, Z)[0].mean() < 0.4
    assert model.score(Z) > pixels_alone(Z) + 2
    assert model.n_iter_ == 31 and model.diagnostics_["noise_std"]["visible"] == 0


def test_at_epsilon_one_it_is_far_above_independent_pixels(fitted):
    # Over seeds it is 2.0 to 2.8 above.
    assert fitted[1.0].score(Z) > pixels_alone(Z) + 1.5
    assert right(fitted[1.0]) > (Z == (X.mean(axis=0) > 0.5)).mean() + 0.1
    assert fitted[1.0].n_iter_ == 6


def test_the_score_is_a_lower_bound_and_near_to_the_likelihood(fitted):
    for model in (TRUTH, *fitted.values()):
        gap = exact(model, Z)[0] - model.score_samples(Z)
        assert gap.min() > 0 and gap.mean() < 1


def test_transform_gives_the_marginals_where_units_are_separate():
    apart = with_parameters(WEIGHTS * (np.abs(WEIGHTS) > 1), VISIBLE, HIDDEN)
    np.testing.assert_allclose(apart.transform(Z[:500]), exact(apart, Z[:500])[1], atol=0.05)
    assert np.abs(TRUTH.transform(Z[:500]) - exact(TRUTH, Z[:500])[1]).mean() < 0.02


def test_rows_of_a_sample_have_the_moments_of_the_network(fitted):
    model = fitted[1.0]
    drawn = model.sample(40_000, random_state=0)
    assert drawn.shape == (40_000, J) and set(np.unique(drawn)) == {0, 1}
    p = expit(STATES @ model.components_ + model.intercept_visible_)
    weight = np.exp(
        (STATES * model.intercept_hidden_ - np.logaddexp(0, model.intercept_hidden_)).sum(axis=1)
    )
    np.testing.assert_allclose(drawn.mean(axis=0), weight @ p, atol=0.012)
    both = (drawn.T.astype(float) @ drawn / len(drawn))[0, 2]
    assert both == pytest.approx(weight @ (p[:, 0] * p[:, 2]), abs=0.012)
    np.testing.assert_array_equal(drawn, model.sample(40_000, random_state=0))


def test_reconstructions_go_by_the_hidden_units(fitted):
    model = fitted[1.0]
    hidden = model.transform(Z[:50])
    assert hidden.shape == (50, K) and ((hidden > 0) & (hidden < 1)).all()
    want = expit(hidden @ model.components_ + model.intercept_visible_)
    np.testing.assert_allclose(model.inverse_transform(hidden), want)
    np.testing.assert_allclose(model.reconstruct(Z[:50]), want)
    assert model.inverse_transform([[0, 1, 0]]).shape == (1, J)


# The posterior


def test_draws_are_shaped_as_the_attributes_and_about_them(fitted):
    model = fitted[1.0]
    draws, fresh = model.posterior_samples_, model.sample_posterior(2000, random_state=1)
    assert {name: x.shape for name, x in draws.items()} == {
        "components": (100, K, J),
        "intercept_visible": (100, J),
    }
    for name, values in fresh.items():
        spread = values.std(axis=0)
        assert (np.abs(values.mean(axis=0) - getattr(model, f"{name}_")) < 0.15 * spread).all()
    np.testing.assert_array_equal(draws["components"], model.posterior_samples_["components"])


def test_noise_widens_the_intervals(fitted):
    wide, narrow = (
        fitted[epsilon].posterior_samples_["components"].std(axis=0).mean()
        for epsilon in (1.0, np.inf)
    )
    assert wide > 1.2 * narrow


def test_single_weights_have_no_intervals_and_visible_units_have(fitted):
    """What two fits disagree on is withheld; 90% intervals of means hold about that often."""
    model = fitted[1.0]
    with pytest.raises(AttributeError, match="other optima"):
        _ = model.posterior_.std
    assert not hasattr(model, "summary")
    hidden = np.exp((STATES * HIDDEN - np.logaddexp(0, HIDDEN)).sum(axis=1))
    truth = hidden @ expit(STATES @ WEIGHTS + VISIBLE)
    covered = []
    for seed in range(40):
        one = estimator(random_state=seed, n_steps=2).fit(rows(seed + 10))
        low, high = one.visible_interval()
        covered.append(np.mean((low < truth) & (truth < high)))
    assert 0.82 < np.mean(covered) < 0.97  # units of one hidden unit err together


# Gradient solvers


@pytest.mark.parametrize("solver", slow_but(["dpvi", "na-dpvi", "sgld"]))
def test_gradient_solvers_find_the_planted_network(solver, fitted):
    """Without noise as good as vips; at epsilon 1 far above independent pixels."""
    found = estimator(np.inf, solver=solver).fit(X)
    assert fitted[np.inf].score(Z) - found.score(Z) < 0.05
    private = estimator(1.0, solver=solver).fit(X)
    assert private.score(Z) > pixels_alone(Z) + 1.5
    assert private.diagnostics_["noise_std"]["visible"] > 0
    draws = private.sample_posterior(50, random_state=1)["components"]
    assert draws.shape == (50, K, J) and (draws.std(axis=0) > 0).all()


# Rows and conventions


def test_scikit_learns_conventions(fitted):
    model = fitted[1.0]
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.score_samples(Z[:20]), model.score_samples(Z[:20]))
    assert list(model.get_feature_names_out()) == [f"dpsigmoidbeliefnet{k}" for k in range(K)]
    with pytest.raises(NotFittedError):
        clone(model).sample()
    labels = Z[:, 1] > Z[:, 0]
    pipeline = make_pipeline(estimator(), LogisticRegression()).fit(X, X[:, 1] > X[:, 0])
    assert pipeline.score(Z, labels) > 0.7
    with pytest.raises(TypeError, match="positional"):
        DPSigmoidBeliefNet(3, 1.0)


def test_sparse_rows_are_as_dense_ones(fitted):
    model = estimator().fit(sparse.csr_array(X))
    np.testing.assert_array_equal(model.components_, fitted[1.0].components_)
    np.testing.assert_array_equal(
        model.transform(sparse.csr_array(Z[:20])), fitted[1.0].transform(Z[:20])
    )
    np.testing.assert_array_equal(
        estimator().fit(X.astype(bool)).components_, fitted[1.0].components_
    )


def test_values_outside_of_zero_and_one_are_cut(fitted):
    model = estimator().fit(np.where(X == 1, 7.0, -1e30))
    np.testing.assert_array_equal(model.components_, fitted[1.0].components_)
    np.testing.assert_array_equal(model.score_samples(3 * Z[:20] - 1), model.score_samples(Z[:20]))


def test_a_row_that_holds_nan_is_warned_of_after_the_fit(fitted):
    model = fitted[1.0]
    bad = Z[:3].copy()
    bad[0, 0], bad[1, 1] = np.nan, np.inf
    with pytest.warns(UserWarning, match="2 of these rows"):
        hidden = model.transform(bad)
    np.testing.assert_allclose(hidden[:2], expit(np.tile(model.intercept_hidden_, (2, 1))))
    with pytest.warns(UserWarning):
        assert list(np.isnan(model.score_samples(bad))) == [True, True, False]


REFUSED = [
    ({"n_components": 0}, r"n_components must be an integer in \[1, 10000\], got 0"),
    ({"n_components": 2.5}, "n_components must be an integer"),
    ({"epsilon": 0}, "epsilon must be"),
    ({"delta": 1}, "delta must be"),
    ({"solver": "nuts"}, "solver must be one of 'dpvi', 'na-dpvi', 'sgld', 'vips', got 'nuts'"),
    ({"adjacency": "rows"}, "adjacency must be one of"),
    ({"sampling_rate": 0}, "sampling_rate must be"),
    ({"n_steps": 1}, "n_steps=1 is too few: one release goes into the start. Take at least 2"),
    ({"n_posterior_samples": 0}, "n_posterior_samples must be"),
    ({"adjacency": "add_remove"}, "sampling_rate=None takes the number of records from X"),
]


@pytest.mark.parametrize(("parameters", "message"), REFUSED, ids=str)
def test_what_makes_no_sense_is_refused_before_anything_is_spent(parameters, message):
    model = estimator(**parameters)
    with pytest.raises(ValueError, match=message):
        model.fit(X)
    assert not hasattr(model, "privacy_spent_")


@pytest.mark.parametrize("epsilon", [1.0, np.inf])
def test_few_rows_and_constant_columns_give_numbers(epsilon, monkeypatch):
    padded = records.padded_size(N)
    monkeypatch.setattr(records, "padded_size", lambda n: padded)  # one program
    blank = X.copy()
    blank[:, :5], blank[:, 5:9] = 0, 1
    for table in (blank, blank[:3], np.zeros_like(X), np.full_like(X, np.nan)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # delta is large for few rows
            model = estimator(epsilon).fit(table)
        for name in ("components_", "intercept_visible_", "intercept_hidden_"):
            assert np.isfinite(getattr(model, name)).all(), name
        assert np.isfinite(model.visible_interval()).all() and np.isfinite(model.score(Z[:50]))
        assert np.isfinite(model.sample_posterior(3, 0)["components"]).all()


@pytest.mark.slow
def test_there_may_be_more_hidden_units_than_visible_ones():
    model = estimator(n_components=6).fit(X[:, :4])
    assert model.components_.shape == (6, 4) and np.isfinite(model.score(Z[:, :4]))


# Privacy


@pytest.mark.slow
@pytest.mark.parametrize("solver", ["vips", "dpvi", "na-dpvi", "sgld"])
def test_the_fit_follows_from_the_releases_and_the_solver_key(solver, fits, compiled_as_users_do):
    """So nothing else of the records is in it."""
    model = estimator(solver=solver).fit(X)
    again = estimator(solver=solver)
    again.n_features_in_ = J
    plan, solver_keys = again.plan(N, J), fit_keys(0).solver
    example = {"y": np.zeros(J, np.float32), "known": np.float32(0)}
    state = jax.device_get(
        inference.replay(fits[-1][-1], solver_keys, plan.model, plan.solver, plan.spec, example)
    )
    again._adopt(plan, Outcome(state, draws_rng(solver_keys), model.usable_records_))
    assert_replayed(model, again, without=())


CELLS = [np.nan, None, np.inf, -np.inf, 1e300, -1e300, 1e-320, "text", [1], 2**70, 1j, 0.0, 1.0]


def test_one_row_moves_each_release_by_at_most_the_noise_unit(fits):
    """Of a round at the same parameters: 1 for a row that becomes null, 2 for another row, whatever the row."""
    table, out = X.astype(object), []
    for cell in [*CELLS, np.ones(J), np.zeros(J), np.arange(J) % 2]:
        table[17] = 0.0
        if np.ndim(cell) == 1 and len(cell) == J:
            table[17] = cell
        else:
            table[17, 0] = cell
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            estimator(2.0, n_steps=2).fit(table)
        out.append(np.float64(fits[-1][-1])[0, : J + 1])
    out = np.array(out)
    moved = np.linalg.norm(out - out[0], axis=1)
    assert np.isfinite(out).all() and moved[:4].max() == 0, "a null row contributes"
    assert 0.9 < moved.max() <= 1.004 + 1e-3
    assert np.linalg.norm(out[:, None] - out, axis=2).max() <= 2.008 + 1e-3


def test_the_noise_of_a_round_is_what_the_report_says(fits):
    """Of null rows every release is noise alone; and the posterior's scales are those of the last average."""
    model = estimator(n_steps=MOST).fit(np.full_like(X, np.nan))
    blocks, spent = model.plan(N, J).model.blocks(), model.privacy_spent_
    sizes = [J * (K + 1), (K + 1) ** 2]
    # Blocks lie in a release by name: the hidden units' first.
    unit = np.repeat(
        [blocks[n].clipping_norm / blocks[n].share ** 0.5 for n in ("hidden", "visible")],
        sizes[::-1],
    )
    noise = np.float64(fits[-1][-1])[1:, : sum(sizes)] / unit / spent.steps[-1].noise_multiplier
    assert 1e-6 < stats.chi2(noise.size).cdf(np.square(noise).sum()) < 1 - 1e-6
    assert stats.kstest(noise.ravel(), "norm").pvalue > 1e-6
    weights = 2 / (np.arange(MOST - 1) + 2)
    share = weights * np.append(np.cumprod((1 - weights[1:])[::-1])[::-1], 1)
    for name in ("visible", "hidden"):
        own = blocks[name].clipping_norm / blocks[name].share ** 0.5
        want = spent.steps[-1].noise_multiplier * own * np.sqrt(np.sum(share**2))
        assert model.diagnostics_["noise_std"][name] == pytest.approx(want, rel=1e-2), name


def test_a_null_row_is_as_no_row(fits):
    table = X.copy()
    table[-3:, :2] = [[np.nan, 0], [0, np.inf], [np.nan, np.nan]]
    hidden = {"adjacency": "add_remove", "sampling_rate": 1.0}
    models = [estimator(**hidden).fit(table), estimator(**hidden).fit(table[:-3])]
    np.testing.assert_array_equal(*(fit[-1] for fit in fits))
    assert pickle.dumps(models[0]) == pickle.dumps(models[1])
    assert "n_samples" not in models[0].privacy_spent_.public
    assert models[0].score(Z) > pixels_alone(Z) + 1


@pytest.mark.parametrize("adjacency", ["zero_out", "replace_one", "add_remove"])
def test_no_more_is_spent_than_asked_for_and_what_is_reported_ran(adjacency, fits):
    for rate in (1.0, 0.5):
        spent = estimator(adjacency=adjacency, sampling_rate=rate).fit(X).privacy_spent_
        assert (
            0.99 < spent.epsilon <= 1
            and spent.releases == fits[-1][2].composed()
            and spent.sampling_rate == rate
        )
        assert compose(spent.releases, adjacency).epsilon(spent.delta) == pytest.approx(
            spent.epsilon
        )


def test_a_refit_that_is_interrupted_leaves_nothing_of_the_fit_before():
    model, blank = estimator().fit(X), estimator()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inference, "run", lambda *given, **how: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            model.fit(X)
    assert set(vars(model)) - set(vars(blank)) <= {"privacy_spent_", "n_features_in_"}
    with pytest.raises(NotFittedError):
        model.score(X)
