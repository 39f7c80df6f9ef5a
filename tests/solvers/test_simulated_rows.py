"""What simulated rows tell is taken where the records are like them, and helps where scores bend."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import mapped, slow_but
from scipy.special import expit

from skdpbayes import DPBayesianLogisticRegression
from skdpbayes.mechanism.spec import Mechanism
from skdpbayes.models.base import prior_matrix
from skdpbayes.models.denoising import cautious_curvature, share_told
from skdpbayes.models.logistic import LogisticRegression
from skdpbayes.models.normal_rows import NormalRows
from skdpbayes.models.standard_rows import standard_rows
from skdpbayes.models.whitened import InCoordinates
from skdpbayes.plans import gradients
from skdpbayes.solvers import simulated_rows
from skdpbayes.solvers.averages import Averages
from skdpbayes.solvers.na_dpvi import NADPVI, _denoised
from skdpbayes.solvers.normal_posterior import gained
from skdpbayes.solvers.released_curvature import Curvature, Foreseen, curvature_blocks
from skdpbayes.solvers.simulated_rows import (
    Likeness,
    Start,
    bent,
    found_with,
    likeness,
    likeness_of,
    relative,
    reported_spectrum,
    spectrum,
    step_curvature,
)

P = 6


def known(matrix, sd, seed=1):
    """Curvature released with noise of standard deviation `sd`, where 100 I is foreseen."""
    noise = np.tril(np.random.default_rng(seed).normal(size=(P, P)), -1)
    noise = sd * (
        noise + noise.T + np.diag(np.random.default_rng(seed + 1).normal(size=P) * 2**0.5)
    )
    return Curvature.none(P)._replace(
        kept_matrix=jnp.asarray(matrix + noise),
        kept_variance=jnp.asarray(sd**2),
        foreseen=Foreseen(100 * jnp.eye(P), jnp.ones(1 + P), 100 * jnp.eye(P)),
    )


@pytest.fixture(autouse=True)
def double_precision():
    with jax.enable_x64(True):
        yield


def test_records_like_simulated_rows_differ_by_a_factor():
    like = likeness(known(130 * np.eye(P), 1.0))
    assert float(like.factor) == pytest.approx(1.3, abs=0.02)
    assert float(like.alike) > 0.95
    # Of a difference that is noise less than half is told, with the doubled prior two thirds.
    assert float(like.noise_along(np.eye(P))[1].max()) < 2 / 3
    assert float(like.factor_variance) < 1e-3
    # A factor that noise hides is not believed.
    hidden = likeness(known(100 * np.eye(P), 150.0))
    assert abs(float(hidden.factor) - 1) < 0.15
    assert 0.004 < float(hidden.factor_variance) < 0.01
    # Records without curvature, such as those that count for nothing, have no negative one.
    assert float(likeness(known(-5 * np.eye(P), 1.0)).factor) == 0


def test_records_unlike_simulated_rows_are_told_from_them():
    values = np.array([30.0, 40.0, 60.0, 100.0, 160.0, 210.0])
    like = likeness(known(np.diag(values), 1.0))
    assert float(like.alike) < 0.2
    assert float(like.noise_along(np.eye(P))[1].min()) > 0.95
    np.testing.assert_allclose(100 * like.believed, np.diag(values), atol=6)
    hidden = likeness(known(np.diag(values), 200.0))
    assert float(hidden.noise_along(np.eye(P))[1].max()) < 0.6  # by noise


def test_noise_hides_differences_in_directions_of_little_curvature():
    """Along the others they are kept, and errors of scores are those of what is left."""
    sizes, sd = np.array([1.0, 100, 100, 100, 100, 100]), 4.0
    turn = np.linalg.qr(np.random.default_rng(2).normal(size=(P, P)))[0]
    foreseen, ones = turn @ np.diag(sizes) @ turn.T, jnp.ones(1 + P)
    more = turn @ np.diag([30.0, 40, -30, 20, -40, 30]) @ turn.T  # 30 is noise, where 1 is foreseen
    seen = known(foreseen + more, 0.0)._replace(
        kept_variance=jnp.asarray(sd**2), foreseen=Foreseen(jnp.asarray(foreseen), ones, foreseen)
    )
    like = likeness(seen)
    root = turn @ np.diag(sizes**0.5) @ turn.T
    kept = np.diag(turn.T @ (root @ like.difference @ root) @ turn)
    off = (float(like.factor) - 1) * sizes
    assert abs(kept[0]) < 0.5
    np.testing.assert_allclose(kept[1:], np.array([40, -30, 20, -40, 30]) - off[1:], atol=6)
    noise, told = like.noise_along(turn)
    np.testing.assert_allclose(noise, 2 * sd**2)
    longer = like.noise_along(2 * turn)
    np.testing.assert_allclose(longer[0], 32 * sd**2)
    np.testing.assert_allclose(longer[1], told)
    assert told[0] < 0.01 and (told[1:] > 0.8).all()
    # Of the first entry the whole spread is left, of others nearly all of the noise.
    spread = float(like.spread)
    for own in range(2):
        error = turn[:, own] @ like.error_of_scores(3.0 * turn[:, own]) @ turn[:, own]
        signal = 2 * spread * sizes[own] ** 2
        assert error == pytest.approx(9 * signal * 2 * sd**2 / (signal + 2 * sd**2), rel=1e-6)
    away = np.random.default_rng(0).normal(size=P)
    drawn = np.random.default_rng(1).normal(size=(20_000, P, P))
    drawn = np.tril(drawn, -1) + np.tril(drawn, -1).transpose(0, 2, 1)
    drawn += np.eye(P) * np.random.default_rng(2).normal(size=(20_000, P))[:, None] * 2**0.5
    signal = spread * np.outer(sizes, sizes)
    scale = np.sqrt(signal * sd**2 / (signal + sd**2))
    errors = (drawn * scale) @ (turn.T @ away) @ turn.T
    wanted = np.cov(errors.T)
    np.testing.assert_allclose(
        like.error_of_scores(away), wanted, atol=0.05 * np.diag(wanted).max()
    )


def test_curvature_is_in_proportion_to_that_of_simulated_rows_elsewhere():
    """Where less of it is left, as farther out, so much less is left of the records'."""
    like = likeness(known(130 * np.eye(P), 0.01))
    far = np.diag([1.0, 5, 25, 50, 75, 100])
    values, vectors = spectrum(like._replace(alike=1.0), far, np.eye(P))
    np.testing.assert_allclose((vectors * values) @ vectors.T, 1.3 * far, atol=2e-2)
    units = jnp.linalg.inv(jnp.sqrt(far))
    found = relative(jnp.asarray(2 * far), units)  # twice as much as simulated rows have
    values, vectors = spectrum(like._replace(alike=0.0), far @ far, found)
    np.testing.assert_allclose((vectors * values) @ vectors.T, 2 * far @ far, rtol=1e-6, atol=1e-6)
    # A part of the released curvature by itself stays where simulated rows have none.
    held, nothing = jnp.asarray(10 * far), 1e-9 * far
    values, vectors = spectrum(like._replace(alike=0.0), nothing, found, held)
    np.testing.assert_allclose((vectors * values) @ vectors.T, 3 * far, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("sd", [20.0, 60.0])
def test_noise_rarely_passes_for_a_difference(sd):
    """By itself the share told is above zero in half of cases, and in a fifth it is by much."""
    alike = np.array([likeness(known(100 * np.eye(P), sd, seed)).alike for seed in range(100)])
    assert 0.7 < (alike == 1).mean() < 0.85


def squared_difference(seen, like):
    """Relative square of the difference of curvatures, without its noise."""
    difference = seen.kept_matrix - like.factor * 100 * np.eye(P)
    told = share_told(difference, seen.kept_variance)
    return float(told * jnp.sum(difference**2) / (P * 100.0**2))


def test_noise_that_hides_everything_leaves_the_simulated_rows_believed():
    """A difference many times as large as the curvature is noise, not a difference."""
    hidden = [likeness(known(100 * np.eye(P), 2000.0, seed)).alike for seed in range(50)]
    assert np.mean(hidden) > 0.99
    # With error e of the square of a difference a, the mode is a - e^2.
    seen = known(200 * np.diag([1.0, 0, 0, 0, 0, -1.0]) + 100 * np.eye(P), 70.0)
    like = likeness(seen)
    error = 2 * (P * (P + 1)) ** 0.5 * 70.0**2 / (P * 100.0**2)
    apart = squared_difference(seen, like) - error**2
    assert error > 1 and apart > 0.1
    # The released curvature by itself is not worse than that, as large noise is taken off it.
    assert float(like.alike) == pytest.approx(0.5**2 / (0.5**2 + apart), rel=1e-6)


@pytest.mark.parametrize(
    ("noise", "alone"), [(3.0, 0.25**2), (15.0, (P + 1) * 0.15**2), (20.0, 0.5**2)]
)
def test_rows_are_believed_by_their_difference_beside_the_noise_of_the_release(noise, alone):
    seen = known(np.diag([90.0, 70, 50, -50, -70, -90]) + 100 * np.eye(P), noise)
    like = likeness(seen)
    error = 2 * (P * (P + 1)) ** 0.5 * noise**2 / (P * 100.0**2)
    apart = squared_difference(seen, like) - error * 0.7
    assert error < 0.7 and apart > 0.3
    assert float(like.alike) == pytest.approx(alone / (alone + apart), rel=1e-6)
    assert float(like.alike_reported) == pytest.approx(0.25**2 / (0.25**2 + apart), rel=1e-6)


def apart(difference):
    """Rows whose curvature is twice that of simulated ones, and a difference in its units."""
    one, nothing, axes = jnp.ones(2), jnp.zeros(()), jnp.eye(2)
    return Likeness(2.0, jnp.asarray(difference), one, axes, nothing, nothing, axes, 0.0, 1.0, 0.25)


def test_curvatures_are_mixed_as_they_are_believed():
    simulated, alone = np.diag([1.0, 2.0]), np.diag([9.0, 2.5])
    like = apart(np.diag([1.5, 0.0]))
    for alike, expected in ((1.0, [3.5, 4.0]), (0.0, [9.0, 5.0]), (0.5, [6.25, 4.5])):
        values, vectors = spectrum(like._replace(alike=alike), simulated, alone)
        np.testing.assert_allclose(
            (vectors * values) @ vectors.T, np.diag(expected), rtol=1e-9, atol=1e-8
        )
    values, _ = spectrum(like._replace(alike=1.0), -simulated, alone)
    assert (values > 0).all() and (values < 1e-8).all()


def test_reported_covariances_are_mixed_and_not_curvatures():
    """A curvature that may be small leaves much of the covariance."""
    turn = np.linalg.qr(np.random.default_rng(0).normal(size=(2, 2)))[0]
    simulated, alone = (turn @ np.diag(x) @ turn.T for x in ([0.5, 2.0], [18.0, 2.0]))
    like = apart(np.zeros((2, 2)))
    values, vectors = reported_spectrum(like, simulated, alone)
    covariance = turn @ np.diag([0.25 / 1 + 0.75 / 9, 0.25 / 4 + 0.75 / 4]) @ turn.T
    np.testing.assert_allclose((vectors / values) @ vectors.T, covariance, rtol=1e-9)
    # Where they have other eigenvectors, along those of their mean.
    other = np.array([[20.0, 6.0], [6.0, 3.0]])
    values, vectors = reported_spectrum(like, np.eye(2), other)
    along = np.linalg.eigh(0.25 * 2 * np.eye(2) + 0.75 * other)[1]
    inverse = 0.25 / 2 + 0.75 / np.diag(along.T @ other @ along)
    np.testing.assert_allclose(
        (vectors / values) @ vectors.T, (along * inverse) @ along.T, rtol=1e-9
    )
    # What is told of a difference is believed.
    told = apart(turn @ np.diag([2.0, -1.0]) @ turn.T)
    values, vectors = reported_spectrum(told, simulated, alone)
    covariance = turn @ np.diag([0.25 / 2 + 0.75 / 9, 0.25 / 2 + 0.75 / 4]) @ turn.T
    np.testing.assert_allclose((vectors / values) @ vectors.T, covariance, rtol=1e-9)
    # Of a negative curvature nothing is known.
    values, _ = reported_spectrum(like, -simulated, alone)
    assert (values > 0).all() and (values < 1e-7).all()


def test_an_empty_column_makes_no_other_coefficient_uncertain():
    """Both curvatures are zero along it, but for noise, in directions that differ by noise."""
    angle = 0.03
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    alone = turn @ np.diag([1.1, 0.0]) @ turn.T
    like = apart(np.diag([-1.0, -2.001]))  # believed: diag(1, -.001)
    values, vectors = reported_spectrum(like, np.diag([500.0, 300.0]), alone)
    precision = (vectors * values) @ vectors.T
    assert precision[1, 1] < 1  # less than a prior says
    assert precision[0, 0] == pytest.approx(500 * 1.1 / (0.25 * 1.1 + 0.75), rel=0.01)


@pytest.mark.slow
def test_normal_records_are_like_simulated_rows(monkeypatch):
    """The curvature that a fit foresees is the released one."""
    seen, found = [], NADPVI._found

    def kept(solver, model, state):
        seen.append(state.known)
        return found(solver, model, state)

    monkeypatch.setattr(NADPVI, "_found", kept)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(20_000, 2))
    y = (rng.uniform(size=20_000) < expit(X @ [1.0, -0.5] + 0.5)).astype(int)
    DPBayesianLogisticRegression(
        3.0, classes=[0, 1], solver="na-dpvi", data_norm=2.0, clipping_norm=0.6, random_state=0
    ).fit(X, y)  # a norm at which most curvatures are clipped
    like = likeness(jax.device_get(seen[0]))
    assert float(like.factor) == pytest.approx(1, abs=0.06)
    assert float(like.alike) > 0.8


@pytest.mark.slow
def test_intercepts_of_rare_outcomes_are_moved_less(monkeypatch):
    """Scores released about the estimate bend; their average alone moves the intercept by a sd."""
    z = {}
    for simulated in (True, False):
        if not simulated:
            monkeypatch.setattr(gradients, "NormalRows", lambda *arguments: None)
        z[simulated] = []
        for seed in range(14):
            rng = np.random.default_rng(seed)
            X = np.clip(rng.normal(size=(3000, 10)), -2, 2)
            y = (rng.uniform(size=3000) < expit(X @ (0.4 * rng.normal(size=10)) - 4.2)).astype(int)
            how = {"classes": [0, 1], "intercept_scale": 1.0, "random_state": seed}
            model = DPBayesianLogisticRegression(2.0, solver="na-dpvi", **how).fit(X, y)
            sd = model.posterior_samples_["intercept"].std()
            z[simulated].append((model.intercept_.item() + 4.2) / sd)
    with_rows, without = (np.array(z[key]) for key in (True, False))
    assert np.mean(without - with_rows) > 0.5
    assert (with_rows**2).mean() < 0.5 * (without**2).mean()
    assert np.mean(np.abs(with_rows) < 1.645) > 0.7


def test_scores_that_bend_and_clipped_curvatures_are_undone(monkeypatch):
    """Scores and curvature of the simulated rows themselves give their truth, and its precision."""
    p, clip, longest = 3, 1.2, 0.2
    scales = np.ones(p, np.float32)
    model = InCoordinates(LogisticRegression(p, 2, scales, row_norm=np.float32(9)), np.eye(p))
    rows = NormalRows(standard_rows(p), 5000.0).of(model)
    truth = jnp.array([[0.8, -0.5, -1.5]])
    points = truth.ravel() + 0.4 * np.random.default_rng(0).normal(size=(32, p)) + 0.2
    parts = points[:, None, :]
    scores = rows.scores(
        mapped(lambda at: rows.weights(at, clip))(parts),
        mapped(rows.probabilities)(parts),
        rows.probabilities(truth),
    )
    noise = jnp.full((32, p), 1.0)
    scores = 1.3 * scores  # as if there were more records
    whole, foreseen = rows.curvature(truth, clip), rows.curvature(truth, clip, longest)
    whole, kept = 1.3 * whole, 1.3 * foreseen
    blocks = Averages(1 / noise, scores, jnp.asarray(points), noise, jnp.zeros(32))
    assert jnp.trace(kept) < 0.7 * jnp.trace(whole)
    spread = 1.3 * rows.variances(truth, clip)
    short = rows.variances(truth, clip, 0.3)
    assert short[0] < 0.8 * spread[0] / 1.3
    known = Curvature.none(p)._replace(
        kept_matrix=kept,
        kept_variance=jnp.asarray(1e-6),
        variances=1.3 * short,
        foreseen=Foreseen(foreseen, short, whole),
    )
    start = Start(truth.ravel() + 0.3, 1e-4 * jnp.eye(p), kept, kept)
    find = jax.jit(lambda start, known: found_with(model, rows, clip, start, blocks, known))
    found = find(start, known)
    assert found.alike > 0.99  # by which a fit's likelihood remembers the common scale
    sd = jnp.sqrt(jnp.diag(jnp.linalg.inv(found.precision)))
    prior = prior_matrix(model)
    # The prior pulls a little.
    pulled = jnp.linalg.solve(found.precision, prior @ truth.ravel())
    np.testing.assert_allclose(found.mean, truth.ravel() - pulled, atol=0.1 * sd.min())
    root = jnp.sqrt(spread[1:] / jnp.diag(whole))  # of the mean weights of coordinates
    sampling = root[:, None] * whole * root + jnp.eye(p) / 32
    expected = whole @ jnp.linalg.inv(sampling) @ whole + prior
    np.testing.assert_allclose(found.precision, expected, atol=0.02 * jnp.trace(expected))
    # Errors of the rows' second moments are errors of the curvature: its square counts for less.
    wrong = replace(rows, model=replace(model, row_axes=np.eye(p), moment_error=np.float32(0.1)))
    known_worse = jax.jit(lambda *given: found_with(model, wrong, clip, *given))
    doubted = known_worse(start, blocks, known)
    np.testing.assert_allclose(doubted.mean, found.mean, atol=0.01 * sd.min())
    counted = 1 / (1 + rows.logit_variance(start.covariance) ** 2)
    # Directions of unit length, with unit moments.
    less = 1 + 3 * counted * likeness(known).alike_reported * 0.1 / 1.1
    fell = jnp.diag(found.precision - prior) / jnp.diag(doubted.precision - prior)
    np.testing.assert_allclose(fell, less, rtol=0.08)
    # However little logits were known before, scores bend as the rows say.
    unsure = find(start._replace(covariance=5 * jnp.eye(p)), known)
    np.testing.assert_allclose(unsure.mean, found.mean, atol=0.01 * sd.min())
    # Where records are unlike the rows, a released curvature that is much larger adds little to the
    # reported precision, and one that is much smaller takes much away.
    unlike = known._replace(
        kept_matrix=kept + 0.2 * jnp.trace(kept) / p * jnp.diag(jnp.array([1.0, -1.0, 0.0]))
    )
    assert 0.1 < likeness(unlike).alike < 0.9
    size = [
        jnp.trace(find(start._replace(reported_curvature=x * kept), unlike).precision)
        for x in (1.0, 1e3, 1e-2)
    ]
    assert size[0] < size[1] < 8 * size[0] and size[2] < 0.1 * size[0]
    # What is unknown of the difference is an error of scores at a distance from the estimate.
    doubtful = unlike._replace(kept_variance=jnp.asarray((0.1 * jnp.trace(kept) / p) ** 2))
    unsure = find(start, doubtful)
    error = likeness(doubtful).error_of_scores(blocks.point.mean(axis=0) - unsure.mean)
    assert error.trace() > 0.05 * spread[0]
    monkeypatch.setattr(Likeness, "error_of_scores", lambda self, away: jnp.zeros((p, p)))
    sure = jax.jit(lambda *given: found_with(model, rows, clip, *given))(start, blocks, doubtful)
    assert jnp.linalg.det(unsure.likelihood.information) < 0.995 * jnp.linalg.det(
        sure.likelihood.information
    )


def test_steps_are_by_a_curvature_that_no_clip_has_shortened():
    """By that of simulated rows where records are like them, else by the released one, enlarged."""
    p, clip, norm = 3, 1.2, 0.2
    scales = np.ones(p, np.float32)
    model = InCoordinates(LogisticRegression(p, 2, scales, row_norm=np.float32(9)), np.eye(p))
    simulated = NormalRows(standard_rows(p), 5000.0)
    solver = NADPVI(np.float32(clip), np.float32(norm), simulated=simulated)
    one = np.ones(1)
    curvature = solver.rounds(model, Mechanism(one[0], 0 * one, one, np.int32(9), one[0]))[1]
    learn, theta = jax.jit(curvature.update), jnp.array([0.8, -0.5, -1.5])
    rows, at = simulated.of(model), theta[None]
    longest = curvature_blocks(norm, clip, False)["curvature"].clipping_norm
    whole, kept, variances = jax.jit(
        lambda at: (
            rows.curvature(at, clip),
            rows.curvature(at, clip, longest),
            rows.variances(at, clip),
        )
    )(at)
    assert jnp.trace(kept) < 0.7 * jnp.trace(whole)
    other = 0.3 * kept[::-1, ::-1]
    noise = {"curvature": jnp.asarray(1e-3), "variances": jnp.asarray(1e-3)}
    start = solver.init(model, jax.random.key(0))._replace(theta=theta)
    for released, expected, tolerance in (
        (kept, whole, 0.005),
        (other, other * jnp.trace(whole) / jnp.trace(kept), 0.05),
    ):
        estimate = {"curvature": released.ravel(), "variances": variances / 2**0.5}
        new = learn(start, theta, jnp.int32(0), jax.tree.map(jnp.float32, estimate), noise)
        np.testing.assert_allclose(new.curvature, expected, atol=tolerance * jnp.trace(whole))
        # Far outside no curvature is left: the earlier one counts, and there is a least one.
        nothing = jax.tree.map(jnp.zeros_like, estimate)
        outside = new._replace(theta=jnp.array([0.0, 0.0, 60.0]))
        nothing = jax.tree.map(jnp.float32, nothing)
        last = learn(outside, outside.theta, jnp.int32(1), nothing, noise)
        assert np.linalg.eigvalsh(last.curvature).min() > 0.01 * np.linalg.eigvalsh(whole).min()


def test_logits_of_scores_are_shrunk_as_far_as_rows_are_believed():
    p, clip, norm = 3, 1.2, 0.2
    model = InCoordinates(
        LogisticRegression(p, 2, np.ones(p, np.float32), row_norm=np.float32(9)), np.eye(p)
    )
    simulated = NormalRows(standard_rows(p), 5000.0)
    solver = NADPVI(np.float32(clip), np.float32(norm), simulated=simulated, logit_shrinkage=0.5)
    one = np.ones(1)
    spec = Mechanism(one[0], 0 * one, one, np.int32(9), one[0])
    score, curvature = solver.rounds(model, spec)
    learn, ask, learn_score = map(jax.jit, (curvature.update, score.point, score.update))
    theta, covariance = jnp.array([0.8, -0.5, -1.5]), 2 * jnp.eye(p)
    start = solver.init(model, jax.random.key(0))._replace(theta=theta, covariance=covariance)
    rows = simulated.of(model)
    longest = curvature_blocks(norm, clip, False)["curvature"].clipping_norm
    kept, variances = jax.jit(
        lambda at: (rows.curvature(at, clip, longest), rows.variances(at, clip))
    )(theta[None])
    noise = {"curvature": jnp.asarray(1e-3), "variances": jnp.asarray(1e-3)}
    near = model.with_shrunk_logits(theta, covariance, 0.5)
    assert jnp.abs(near - theta).max() > 0.3
    unlike = jnp.trace(kept) * jnp.diag(jnp.array([0.9, 0.1, 0.0]))
    for released, believed in ((kept, 1.0), (0.7 * kept + 0.3 * unlike, None), (unlike, 0.0)):
        estimate = {"curvature": released.ravel(), "variances": variances}
        state = learn(start, theta, jnp.int32(0), jax.tree.map(jnp.float32, estimate), noise)
        asked, view = ask(state, jax.random.key(1))
        if believed is None:
            alike = likeness(state.known).alike
            assert 0.2 < alike < 0.8
            wanted = model.with_shrunk_logits(theta, covariance, 0.5 * alike**2)
            np.testing.assert_allclose(asked, wanted, rtol=1e-5)
        else:
            np.testing.assert_allclose(asked, believed * near + (1 - believed) * theta, atol=0.03)
        # The averages keep where it was released.
        given = {"score": jnp.ones((1, p), jnp.float32)}
        new = learn_score(state, (asked, view), jnp.int32(0), given, {"score": jnp.asarray(1.0)})
        np.testing.assert_allclose(new.blocks.point[0], asked, atol=1e-6)


@pytest.mark.slow
def test_hardly_any_rows_of_a_class_move_the_intercept_no_further_than_they_tell():
    """Past the optimum there is no curvature, and steps by the present one would not end."""
    for seed in range(3):
        rng = np.random.default_rng(seed)
        X, y = rng.normal(size=(20_000, 2)), (rng.uniform(size=20_000) > 0.001).astype(int)
        model = DPBayesianLogisticRegression(
            1.0,
            classes=[0, 1],
            solver="na-dpvi",
            intercept_scale=10.0,
            n_steps=100,
            random_state=seed,
        ).fit(X, y)
        assert 5.5 < model.intercept_.item() < 8


@pytest.mark.slow
def test_many_coefficients_are_not_too_large():
    """Steps by a shortened curvature went too far, and the estimate with them."""
    slopes = []
    for seed in range(4):
        rng = np.random.default_rng(seed)
        X, truth = rng.normal(size=(6000, 100)), 0.2 * rng.normal(size=100)
        y = (rng.uniform(size=6000) < expit(X @ truth)).astype(int)
        model = DPBayesianLogisticRegression(
            2.0, classes=[0, 1], solver="na-dpvi", random_state=seed
        ).fit(X, y)
        slopes.append(model.coef_.ravel() @ truth / (truth @ truth))
    assert np.mean(slopes) < 1.17  # 1.10; 1.25 with steps by the released curvature


def test_noise_along_what_classes_share_counts_for_nothing():
    """A vector that is added to the weights of all classes changes no probability."""
    scales = np.ones(2, np.float32)
    model = InCoordinates(LogisticRegression(2, 3, scales, row_norm=np.float32(9)), np.eye(2))
    basis, shared = np.asarray(model.identified()), np.kron(np.ones(3), np.eye(2)[0])
    inside = basis @ basis.T
    assert basis.shape == (P, 4) and np.abs(inside @ shared).max() < 1e-9

    # Of a difference as large as the noise half is told: noise has the entries of contrasts only.
    told, difference = [], basis @ np.diag([1.0, -1, 1, -1]) @ basis.T * 5.0 * 5**0.5
    for seed in range(0, 40, 2):
        noise = np.asarray(known(0 * inside, 5.0, seed).matrix)
        one = known(inside, 0.0)._replace(
            kept_matrix=jnp.asarray(100 * inside + difference + inside @ noise @ inside),
            kept_variance=jnp.asarray(25.0),
            foreseen=Foreseen(*(100 * jnp.asarray(x) for x in (inside, np.ones(1 + P), inside))),
        )
        told.append(float(likeness_of(model, one).noise_along(basis)[1].mean()))
    assert np.mean(told) == pytest.approx(0.5, abs=0.12)

    steps = step_curvature(model, one, one.matrix)
    whole = _denoised(cautious_curvature, model, known(100 * inside, 5.0))
    for matrix in (steps, whole):
        assert np.abs(matrix @ shared).max() < 1e-6 and float(jnp.trace(matrix)) > 300


def test_what_classes_share_is_left_to_the_prior():
    """Coefficients of all classes may move together; contrasts are as sure as the scores are."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(30_000, 2))
    y = (X[:, :1] + rng.gumbel(size=(30_000, 3))).argmax(axis=1)
    model = DPBayesianLogisticRegression(
        1.0, classes=[0, 1, 2], solver="na-dpvi", prior_scale=30.0, prior_df=None, random_state=0
    ).fit(X, y)
    coef = model.posterior_samples_["coef"]
    np.testing.assert_allclose(coef.mean(axis=1).std(axis=0), 30 / 3**0.5, rtol=0.1)
    contrasts = coef[:, 1:] - coef[:, :1]
    # .02, of which noise is a fifth; it was .12 while noise counted as curvature of what is shared.
    assert (contrasts.std(axis=0) < 0.03).all()
    np.testing.assert_allclose(contrasts.mean(axis=0), 0, atol=0.1)


@pytest.mark.filterwarnings("ignore:The guarantee is void")  # by an epsilon that hides no row
@pytest.mark.parametrize(
    "kind", slow_but(["zero", "equal", "separable", "one class"], "zero", "separable")
)
def test_no_release_is_too_odd_for_them(kind):
    """The posterior is finite, with little noise and with much, whatever the records are."""
    rng = np.random.default_rng(0)
    X = {"zero": np.zeros((40, 2)), "equal": np.ones((40, 2))}.get(kind, rng.normal(size=(40, 2)))
    y = np.zeros(40, int) if kind == "one class" else (X[:, 0] > np.median(X[:, 0])).astype(int)
    for epsilon in (0.01, 1.0, 100.0):
        model = DPBayesianLogisticRegression(
            epsilon, classes=[0, 1], solver="na-dpvi", random_state=0
        ).fit(X, y)
        assert np.isfinite(model.posterior_.mean).all()
        assert (model.posterior_.std < 5).all()
        assert (model.posterior_.std > 0).all()


def test_a_release_that_knows_no_curvature_leaves_the_prior():
    """Without usable records the released curvature may be negative, and that of the rows zero."""
    X, unknown = np.random.default_rng(0).uniform(-1, 1, size=(2000, 3)), np.full(2000, 2)
    for seed in (19, 21):  # by which it is
        model = DPBayesianLogisticRegression(
            1.0, classes=[0, 1], solver="na-dpvi", random_state=seed
        ).fit(X, unknown)
        assert np.isfinite(model.posterior_.mean).all() and (model.posterior_.std > 0.5).all()


def test_they_take_part_where_they_can():
    """With an intercept; a record may be a person of several rows."""

    def simulated(**parameters):
        plan = DPBayesianLogisticRegression(classes=[0, 1], solver="na-dpvi", **parameters).plan(
            3000, 2
        )
        return getattr(plan.solver, "solver", plan.solver).simulated is not None

    assert simulated()
    assert not simulated(fit_intercept=False)
    assert simulated(max_rows_per_person=2)
    assert simulated(adjacency="add_remove", sampling_rate=1.0)
    assert not simulated(epsilon=np.inf)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_a_normal_posterior_has_the_mean_slope_and_curvature_of_scores_that_bend(n_classes):
    """As over draws of the parameters, of the log likelihood of a noisy average score."""
    p, n, k = 2, 4000.0, 1 if n_classes == 2 else n_classes
    scales, rng = np.ones(p, np.float32), np.random.default_rng(0)
    model = InCoordinates(
        LogisticRegression(p, n_classes, scales, row_norm=np.float32(9)), np.eye(p)
    )
    with jax.enable_x64(True):
        rows = NormalRows(standard_rows(p), n).of(model)
        zero = jnp.zeros((k, p))
        weights, asked = rows.weights(zero, 0.9), rows.probabilities(zero)
        mean, truth = jnp.array([[0.9, -0.6], [0.1, 0.4], [-0.7, 0]])[:k], jnp.zeros((k, p))
        truth = truth.at[0].set([1.3, -0.8])
        root = jnp.kron(jnp.eye(k), jnp.array([[0.5, 0.0], [-0.1, 0.4]]))
        covariance = root @ root.T
        spread = 1e4 * jnp.kron(jnp.eye(k), jnp.array([[2.0, 0.3], [0.3, 1.0]]))

        def sums(at):  # expected at these parameters
            labels = rows.probabilities(at.reshape(k, p))
            return rows.scores(weights[None], asked[None], labels)[0]

        seen = sums(truth)

        def log_likelihood(at):
            missed = seen - sums(at)
            return -missed @ jnp.linalg.solve(spread, missed) / 2

        half = rng.normal(size=(3_000, k * p))
        draws = mean.ravel() + np.concatenate([half, -half]) @ root.T
        slope = jnp.mean(jax.lax.map(jax.grad(log_likelihood), draws, batch_size=500), axis=0)
        turn = jnp.mean(jax.lax.map(jax.hessian(log_likelihood), draws, batch_size=500), axis=0)
        nodes = rows.at_nodes(mean, covariance)
        labels = nodes.mean
        score = seen - rows.scores(weights[None], asked[None], labels)[0]
        at, z = rows.probabilities(mean), rows.rows
        one = jnp.eye(k) * at[:, :, None] - at[:, :, None] * at[:, None, :]
        h = jnp.einsum("n,nij,na,nb->iajb", rows.share * weights, one, z, z)
        h = h.reshape(k * p, k * p)
        bends = rows.bends(mean, nodes, weights)
        information, linear = bent(bends, covariance, h, spread, score, mean.ravel())
        found = linear - information @ mean.ravel()
        plain = h @ jnp.linalg.solve(spread, score)
    error, size = np.linalg.norm(found - slope), np.linalg.norm(slope)
    assert error < min(0.1 * size, 0.4 * np.linalg.norm(plain - slope))
    whole = np.linalg.norm(turn)
    assert np.linalg.norm(information + turn) < 0.08 * whole
    assert np.linalg.norm(h @ np.linalg.solve(spread, h) + turn) > 0.15 * whole
    assert np.linalg.eigvalsh(information).min() >= -1e-9 * whole


@pytest.mark.slow
def test_the_fixed_point_is_that_of_scores_that_bend(monkeypatch):
    """At the result the likelihood is `bent`'s, which is far from that of slopes at the mean."""
    p, clip = 2, 1.2
    scales = np.ones(p, np.float32)
    model = InCoordinates(LogisticRegression(p, 2, scales, row_norm=np.float32(9)), np.eye(p))
    with jax.enable_x64(True):
        rows = NormalRows(standard_rows(p), 300.0).of(model)
        truth, points = jnp.array([[1.2, -0.8]]), jnp.asarray([[[0.5, -0.5]], [[1.0, 0.2]]])
        weights = mapped(lambda at: rows.weights(at, clip))(points)
        asked = mapped(rows.probabilities)(points)
        scores = rows.scores(weights, asked, rows.probabilities(truth))
        noise = jnp.array([[150.0], [600.0]]) * jnp.ones((2, p))
        averages = Averages(1 / noise, scores, points[:, 0], noise, jnp.zeros(2))
        whole, spread = rows.curvature(truth, clip), rows.variances(truth, clip)
        known = Curvature.none(p)._replace(
            kept_matrix=whole,
            kept_variance=jnp.asarray(1e-6),
            variances=spread,
            foreseen=Foreseen(whole, spread, whole),
        )
        start = Start(truth.ravel(), 0.02 * jnp.eye(p), whole, whole)

        made = []

        def kept(*arguments):
            made.append(arguments)
            return bent(*arguments)

        monkeypatch.setattr(simulated_rows, "bent", kept)
        with jax.disable_jit():
            result = found_with(model, rows, clip, start, averages, known)
        bends, covariance, h, spread, _, mean = made[-2]  # of the last sweep
        information, _ = bent(*made[-2])
        plain = gained(h, spread)[1]
    np.testing.assert_allclose(result.likelihood.information, information, rtol=0.02, atol=1e-3)
    np.testing.assert_allclose(result.mean, mean, atol=1e-3)
    assert len(made) > 3 and covariance.shape == (p, p)
    assert np.linalg.norm(plain - information) > 0.05 * np.linalg.norm(plain)
    # Weights of rows are those of the blocks, by what these tell.
    expected = rows.share * (jnp.array([0.8, 0.2]) @ weights)
    np.testing.assert_allclose(jnp.sum(bends.weights), jnp.sum(expected), rtol=0.1)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_scores_of_all_classes_bend(n_classes, monkeypatch):
    """Sweeps and the reported information are by `bent`."""
    model = InCoordinates(
        LogisticRegression(2, n_classes, np.ones(2, np.float32), row_norm=np.float32(9)), np.eye(2)
    )
    made, size = [], 2 * model.model.n_rows

    def noted(*arguments):
        made.append(arguments)
        return bent(*arguments)

    monkeypatch.setattr(simulated_rows, "bent", noted)
    with jax.enable_x64(True):
        rows = NormalRows(standard_rows(2), 300.0).of(model)
        square, noise, parts = jnp.eye(size), jnp.ones((2, size)), jnp.ones(1 + size)
        averages = Averages(noise, noise, noise, noise, jnp.zeros(2))
        known = Curvature.none(size)._replace(foreseen=Foreseen(square, parts, square))
        start = Start(jnp.zeros(size), square, square, square)
        jax.eval_shape(lambda start: found_with(model, rows, 1.2, start, averages, known), start)
    assert len(made) == 2


def test_information_is_never_below_zero():
    """A score far beyond what any parameter explains bends the log likelihood upwards."""
    model = InCoordinates(LogisticRegression(2, 2, np.ones(2, np.float32)), np.eye(2))
    with jax.enable_x64(True):
        rows = NormalRows(standard_rows(2), 300.0).of(model)
        mean, covariance = jnp.array([2.0, -1.0]), 0.1 * jnp.eye(2)
        bends = rows.bends(
            mean[None], rows.at_nodes(mean[None], covariance), rows.weights(mean[None], 2.0)
        )
        h = rows.curvature(mean[None], 2.0)
        far = jnp.array([-500.0, 400.0])
        information, _ = bent(bends, covariance, h, 10 * jnp.eye(2), far, mean)
    assert np.linalg.eigvalsh(information).min() > -1e-9
