"""The score of the logits' scale: what it is, what bounds it, and what it tells."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import expit

from skdpbayes import DPBayesianLogisticRegression, DPHierarchicalLogisticRegression
from skdpbayes.mechanism.spec import Mechanism
from skdpbayes.models.logistic import LogisticRegression
from skdpbayes.models.normal_rows import NormalRows
from skdpbayes.models.standard_rows import standard_rows
from skdpbayes.models.whitened import InCoordinates
from skdpbayes.solvers.closing import Closing, closing_norm, closing_round, seen, weights_of
from skdpbayes.solvers.na_dpvi import NADPVI
from skdpbayes.solvers.opened import Opened
from skdpbayes.solvers.simulated_rows import bent

RNG = np.random.default_rng(0)
P, N, CLIP = 4, 5000, 1.2
AXES = np.eye(P) + 0.2 * RNG.normal(size=(P, P))
MODEL = InCoordinates(
    LogisticRegression(P, 2, np.ones(P, np.float32), row_norm=np.float32(9), constant=True),
    AXES.astype(np.float32),
)
THETA = jnp.array([1.5, -2.0, 0.5, 0.8])


@pytest.fixture(autouse=True)
def double_precision():
    with jax.enable_x64(True):
        yield


@pytest.fixture(scope="module")
def rows():
    with jax.enable_x64(True):
        return NormalRows(standard_rows(P), float(N)).of(MODEL)


def mechanism(rate=1.0, most_rows=None):
    one = np.ones(1)
    return Mechanism(rate * one[0], 0 * one, one, np.int32(9), one[0], most_rows)


def round_of(rows, *, n_persons=None, **how):
    return closing_round(
        MODEL,
        mechanism(**how),
        rows,
        np.float32(CLIP),
        n_persons,
        point=lambda state: THETA,
        update=lambda state, closing: closing,
    )


def columns_and_weights(X, sides, at):
    z = X @ AXES @ np.asarray(sides)
    p = expit(z @ np.asarray(at))
    norm = float(closing_norm(CLIP, P))
    longest = np.maximum(p, 1 - p) * np.abs(z[:, 1])
    return z[:, 1], p, np.minimum(1, norm / longest)


def test_it_is_the_score_of_the_scale_no_longer_than_its_norm(rows):
    """With a weight that no label changes, so that expected scores are zero at the truth."""
    closing = round_of(rows)
    sides, at = point = closing.point(None, None)
    # The deviation is that of the logit from its mean, over its root mean square.
    logits = rows.rows @ THETA
    np.testing.assert_allclose(rows.rows @ sides @ at, logits, atol=1e-4)
    columns = rows.rows @ sides
    np.testing.assert_allclose(columns[:, 0], 1, atol=1e-5)
    assert float(columns[:, 1].mean()) == pytest.approx(0, abs=1e-5)
    assert float((columns[:, 1] ** 2).mean()) == pytest.approx(1, abs=0.02)
    X = np.column_stack([RNG.normal(size=(50, P - 1)) * 2, np.ones(50)]).astype(np.float32)
    deviation, p, weight = columns_and_weights(X, sides, at)
    block = closing.blocks(None)["closing"]
    norm, together = float(block.clipping_norm), block.together
    assert (norm, together) == (pytest.approx(CLIP**2 / P), "score")
    longest = np.linalg.norm(X, axis=1).max()
    assert longest < 9  # no row loses weight for its length
    assert 5 < np.sum(weight < 1) < 45
    one = jax.jit(jax.vmap(closing.query(None, point)))
    found = []
    for label in (0, 1):
        y = np.full(50, label)
        score = np.asarray(one({"x": jnp.asarray(X), "y": jnp.asarray(y)})["closing"])[:, 0]
        np.testing.assert_allclose(score, weight * (label - p) * deviation, atol=1e-4)
        found.append(np.abs(score))
    assert np.max(found) <= norm * (1 + 1e-5)
    at_the_norm = np.max(found, axis=0)[weight < 1]
    np.testing.assert_allclose(at_the_norm, norm, rtol=1e-3)
    null = {"x": jnp.asarray(X), "y": jnp.full(50, -1)}
    assert not np.any(one(null)["closing"])


def closed(rows, score, noise=1.0, subsampled=0.0):
    sides, at = (own.astype(float) for own in round_of(rows).point(None, None))
    return Closing(sides, at, jnp.atleast_1d(score), jnp.asarray(noise), subsampled)


def expected(rows, truth):
    """Mean of the score of as many records as simulated rows stand for."""
    sides, at = round_of(rows).point(None, None)
    X = np.asarray(rows.records["x"])
    deviation, p, weight = columns_and_weights(X, sides, at)
    true = expit(np.asarray(rows.rows @ truth))
    return float(np.sum(float(rows.share) * weight * (true - p) * deviation))


def told(rows, closing, mean, covariance=1e-10, sampling=None, alike=1.0, unexplained=0.25):
    nodes = rows.at_nodes(mean[None], covariance * jnp.eye(P))
    how = {
        "relative": jnp.eye(P),
        "before": rows.weights(mean[None], CLIP),
        "sampling": jnp.eye(P) if sampling is None else sampling,
        "alike": jnp.asarray(alike),
        "factor": jnp.ones(()),
        "unexplained": unexplained,
    }
    norm = closing_norm(CLIP, P)

    @jax.jit
    def of(closing):
        weights = weights_of(rows, closing.directions, closing.at, norm)
        return seen(closing, rows, weights, mean, nodes, **how)

    return of(closing)


def test_rows_expect_it_and_its_slope(rows):
    truth = jnp.array([2.0, -2.5, 1.0, 0.5])
    found = told(rows, closed(rows, expected(rows, truth)), truth)
    size = abs(expected(rows, 0.9 * truth) - expected(rows, truth))
    assert abs(float(found.score[0])) < 1e-3 * size
    # Elsewhere it misses what is left.
    near = 0.9 * truth
    missed = told(rows, closed(rows, expected(rows, truth)), near).score[0]
    assert float(missed) == pytest.approx(expected(rows, truth) - expected(rows, near), rel=1e-3)
    slope = (found.side.T @ (found.slope + found.bends.slope))[0]
    steps = 1e-4 * np.eye(P)
    numeric = [(expected(rows, truth + s) - expected(rows, truth - s)) / 2e-4 for s in steps]
    np.testing.assert_allclose(slope, numeric, rtol=1e-3, atol=1e-3 * np.abs(numeric).max())
    # Where rows are not believed, the score is taken for linear, and its distance for doubt.
    plain = told(rows, closed(rows, 0.0), truth, alike=0.0)
    assert float(plain.spread[0, 0]) > float(found.spread[0, 0]) + 100
    # Far away it bends, and a part of that is doubted.
    far = [told(rows, closed(rows, 0.0), 2 * truth, unexplained=own) for own in (0.0, 0.25)]
    line = float((far[0].side.T @ far[0].slope @ (THETA - 2 * truth))[0])
    bend = float(line - far[0].score[0])
    assert abs(bend) > 20
    doubt = float((far[1].spread - far[0].spread)[0, 0])
    assert doubt == pytest.approx(0.25 * bend**2, rel=1e-3)


def test_it_bends_as_the_scores_before_do(rows):
    """Mean slope and curvature of the log likelihood of both, over draws of the parameters."""
    mean, spread, variance = 0.6 * THETA, 4e3 * jnp.eye(P), 0.4**2
    weights, asked = rows.weights(jnp.zeros((1, P)), CLIP), rows.probabilities(jnp.zeros((1, P)))
    closing = closed(rows, 1.3 * expected(rows, mean), 20.0)
    info = told(rows, closing, mean, variance, sampling=jnp.zeros((P, P)), unexplained=0.0)
    nodes = rows.at_nodes(mean[None], variance * jnp.eye(P))
    deviation, norm = rows.rows @ info.side, closing_norm(CLIP, P)
    sides, at = closing.directions, closing.at
    own = columns_and_weights(np.asarray(rows.records["x"]), sides, at)[2]
    aimed = rows.probabilities((sides @ at)[None])
    observed = jnp.append(
        1.2 * rows.scores(weights[None], asked[None], nodes.mean)[0], closing.score
    )

    def log_likelihood(theta):
        p = rows.probabilities(theta[None])
        last = jnp.sum(rows.share * own * (p - aimed)[:, 0] * deviation[:, 0])
        missed = observed - jnp.append(rows.scores(weights[None], asked[None], p)[0], last)
        return -jnp.sum(missed[:P] ** 2) / 4e3 / 2 - missed[P] ** 2 / info.spread[0, 0] / 2

    half = np.random.default_rng(0).normal(size=(1000, P)) * variance**0.5
    draws = mean + np.concatenate([half, -half])
    slope = jnp.mean(jax.lax.map(jax.grad(log_likelihood), draws, batch_size=500), axis=0)
    turn = -jnp.mean(jax.lax.map(jax.hessian(log_likelihood), draws, batch_size=500), axis=0)
    score = observed[:P] - rows.scores(weights[None], asked[None], nodes.mean)[0]
    bends, h = rows.bends(mean[None], nodes, weights), rows.slopes(mean[None], weights)

    def errors(told):
        how = (bends, variance * jnp.eye(P), h, spread, score, mean, told)
        information, linear = jax.jit(bent)(*how)
        found = linear - information @ mean
        return np.linalg.norm(information - turn), np.linalg.norm(found - slope)

    straight = info._replace(bends=rows.bends(mean[None], nodes, 0 * weights))
    (curvature, gradient), (worse, wrong) = errors(info), errors(straight)
    assert norm < 1 and curvature < 0.1 * np.linalg.norm(turn) and curvature < 0.6 * worse
    assert gradient < 0.1 * np.linalg.norm(slope) and gradient < 0.6 * wrong


def test_its_sampling_error_is_shared_with_the_scores_before(rows):
    """Covariances over labels of the same records."""
    truth = THETA
    p = np.asarray(rows.probabilities(truth[None]))[:, 0]
    before = np.asarray(rows.weights(truth[None], CLIP))
    sides, at = round_of(rows).point(None, None)
    deviation, _, weight = columns_and_weights(np.asarray(rows.records["x"]), sides, at)
    both = np.column_stack([before[:, None] * np.asarray(rows.rows), weight * deviation])
    exact = (both * (float(rows.share) * p * (1 - p))[:, None]).T @ both
    found = told(rows, closed(rows, expected(rows, truth), 0.0), truth, sampling=exact[:P, :P])
    np.testing.assert_allclose(found.shared[:, 0], exact[:P, P], rtol=1e-3, atol=1e-2)
    assert float(found.spread[0, 0]) == pytest.approx(exact[P, P], rel=0.01)
    batches = closed(rows, expected(rows, truth), 0.0, subsampled=1.0)
    batches = told(rows, batches, truth, sampling=exact[:P, :P])
    assert float(batches.spread[0, 0]) == pytest.approx(2 * exact[P, P], rel=0.01)
    np.testing.assert_array_equal(batches.shared, found.shared)
    # Without any noise there is one solution.
    never = told(rows, Closing.none(P)._replace(noise=jnp.zeros(())), truth)
    assert float(never.spread[0, 0]) > 0
    assert np.linalg.eigvalsh(exact).min() > 0
    assert 0.2 < exact[:P, P] @ np.linalg.solve(exact[:P, :P], exact[:P, P]) / exact[P, P] < 1


def test_clipped_sums_of_persons_keep_less(rows):
    """The score is divided by what is kept, and its noise with it; batches add their own."""
    scales = {"closing": jnp.asarray(2.0)}
    estimate = {"closing": jnp.asarray([30.0], jnp.float32)}

    def learnt(closing):
        update = jax.jit(closing.update)
        return update(None, closing.point(None, None), jnp.int32(0), estimate, scales)

    plain = learnt(round_of(rows, rate=0.5))
    assert (float(plain.score[0]), float(plain.noise), float(plain.subsampled)) == (30, 4, 1)
    few = learnt(round_of(rows, n_persons=np.float32(N / 40), most_rows=np.float32(20)))
    many = learnt(round_of(rows, n_persons=np.float32(N), most_rows=np.float32(20)))
    kept = 30 / float(few.score[0])
    assert 0.5 < kept < 0.95 and float(few.noise) == pytest.approx(4 / kept**2, rel=1e-5)
    assert kept + 0.04 < 30 / float(many.score[0]) <= 1


def test_public_facts_decide_which_fits_have_one():
    def closes_at(estimator, n=2000, **shape):
        solver = estimator.plan(n_rows=n, n_features=3, **shape).solver
        return getattr(solver.solver, "closes_at", None) if isinstance(solver, Opened) else None

    def logistic(**parameters):
        return DPBayesianLogisticRegression(**{"classes": [0, 1], **parameters})

    assert closes_at(logistic()) == 200 and closes_at(logistic(n_steps=100)) == 98
    assert closes_at(logistic(max_rows_per_person=3)) == 200
    add_remove = {"adjacency": "add_remove", "sampling_rate": 1.0}
    assert closes_at(logistic(**add_remove), n=None) == 200
    assert closes_at(logistic(n_steps=16)) == 14 and closes_at(logistic(), n=10**7) == 20
    # Elsewhere the program is the same, and no round closes it.
    for never in (logistic(n_steps=15), logistic(sampling_rate=0.5)):
        assert closes_at(never) == -1
    # A clipping norm of a user's leaves that of the scale within bounds.
    assert [float(closing_norm(clip, 4)) for clip in (0.1, 1.5, 10)] == [0.25, 0.5625, 2.25]
    for other in (
        logistic(epsilon=np.inf),
        logistic(classes=[0, 1, 2]),
        logistic(fit_intercept=False),
        logistic(solver="sgld"),
        DPHierarchicalLogisticRegression([0, 1, 2], classes=[0, 1]),
    ):
        assert closes_at(other) is None


def test_the_scale_of_large_coefficients_is_better_known():
    """The same releases, with the last and without: only along the coefficients much changes."""
    rng = np.random.default_rng(3)
    X = rng.normal(size=(4000, 5))
    y = (X @ [3, -3, 2, 0, 2] + rng.logistic(size=4000) > 0).astype(int)
    model = DPBayesianLogisticRegression(epsilon=0.5, classes=[0, 1], random_state=0)
    states, found = [], NADPVI.found
    keep = NADPVI.posterior_and_likelihood

    def watched(self, model, state):
        states.append((self, model, state))
        return keep(self, model, state)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(NADPVI, "posterior_and_likelihood", watched)
        with jax.enable_x64(False):
            model.fit(X, y)
    solver, own, state = states[0]
    assert float(state.closing.noise) < 1e6 and np.all(np.asarray(state.closing.at) != 0)
    assert float(solver.quiet(state).closing.noise) == 0
    # Where the next score would be asked for: at smaller logits than the estimate.
    point, asked = state.closing.point, np.asarray(solver._view(own, state).point)
    np.testing.assert_allclose(point, asked, rtol=1e-4, atol=1e-4)
    assert np.linalg.norm(asked - np.asarray(state.theta)) > 0.01
    without = found(replace(solver, closes_at=None), own, state._replace(closing=None))
    # As if it were not there, where it never came.
    with jax.enable_x64(True):
        never = state._replace(closing=Closing.none(state.theta.size))
        np.testing.assert_allclose(found(solver, own, never).mean, without.mean, atol=1e-6)
    closed = found(solver, own, state)
    unit = np.asarray(closed.mean) / np.linalg.norm(closed.mean)

    def deviations(of):
        covariance = np.linalg.inv(np.asarray(of.precision))
        along = unit @ covariance @ unit
        return np.sqrt(along), np.sqrt((np.trace(covariance) - along) / (len(unit) - 1))

    (before, beside), (after, still) = deviations(without), deviations(closed)
    assert after < 0.8 * before and 0.85 < still / beside < 1.05
