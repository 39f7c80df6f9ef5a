"""Coordinates from released second moments: the same model and prior, and a bounded release."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import mapped
from scipy.special import expit

from skdpbayes import DPBayesianLogisticRegression
from skdpbayes.mechanism.contributions import contribution_norm
from skdpbayes.models.base import prior_common_scale, prior_matrix
from skdpbayes.models.logistic import LogisticRegression
from skdpbayes.models.normal_rows import NormalRows
from skdpbayes.models.standard_rows import standard_rows
from skdpbayes.models.whitened import (
    InCoordinates,
    WhitenedLogistic,
    likeliest_axes,
    whitening_axes,
)
from skdpbayes.posteriors import GaussianPosterior
from skdpbayes.solvers.normal_posterior import normal_given, within_reach

RNG = np.random.default_rng(0)
D = 4
AXES = RNG.normal(size=(D, D)) + 2 * np.eye(D)


def model_of(n_classes=2, **parameters):
    scale = np.linspace(0.5, 2, D).astype(np.float32)
    return LogisticRegression(D, n_classes, scale, **parameters)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_it_is_the_same_model_in_other_coordinates(n_classes):
    model = model_of(n_classes)
    seen = InCoordinates(model, AXES.astype(np.float32))
    t = jnp.asarray(RNG.normal(size=model.init().shape), jnp.float32)
    w = t @ AXES.T.astype(np.float32)
    record = {"x": jnp.asarray(RNG.normal(size=D), jnp.float32), "y": 1}
    same = model.log_likelihood(w, record)
    assert seen.log_likelihood(t, record) == pytest.approx(float(same), rel=1e-5)
    assert seen.log_prior(t) == pytest.approx(float(model.log_prior(w)), rel=1e-5)
    np.testing.assert_allclose(
        seen.score(t, record).left[:, None] * seen.score(t, record).right,
        jax.grad(seen.log_likelihood)(t, record),
        rtol=1e-4,
        atol=1e-5,
    )
    bound = float(seen.score_bound(t, record))
    assert float(contribution_norm(seen.score(t, record))) <= bound * (1 + 1e-5)


def test_second_moments_are_those_of_the_axes_and_the_constant_column_tells_their_scale():
    rows = np.random.default_rng(5).normal(size=(500, D)) @ np.diag(np.arange(1.0, D + 1))
    rows[:, -1] = 1
    moments = rows.T @ rows / len(rows)
    values, vectors = np.linalg.eigh(3 * moments)  # axes are known up to a factor
    axes = (vectors / np.sqrt(values)).astype(np.float32)
    for n_classes in (2, 3):
        model = model_of(n_classes)
        whole = np.kron(np.eye(model.n_rows), moments)
        own = InCoordinates(replace(model, constant=True), axes).moments()
        np.testing.assert_allclose(own, whole, rtol=1e-4, atol=1e-4)
        own = InCoordinates(model, axes).moments()
        np.testing.assert_allclose(own, 3 * whole, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_logits_that_are_unknown_differ_less_between_rows(n_classes):
    model = replace(model_of(n_classes), constant=True)
    k, n = model.n_rows, 40_000
    with jax.enable_x64(True):
        seen = InCoordinates(model, AXES)
        rows = NormalRows(standard_rows(D), float(n)).of(seen)
        rng = np.random.default_rng(1)
        mean, root = 2 * rng.normal(size=k * D), rng.normal(size=(k * D, k * D)) / 2
        covariance = root @ root.T
        near, same = (
            seen.with_shrunk_logits(jnp.asarray(mean), jnp.asarray(covariance), shrinkage)
            for shrinkage in (0.5, 0.0)
        )
    np.testing.assert_allclose(same, mean, rtol=1e-9)
    z = np.asarray(rows.rows)
    before, after = (z @ np.asarray(x).reshape(k, D).T for x in (mean, near))
    spread, less = before - before.mean(axis=0), after - after.mean(axis=0)
    # The variance of a logit beside that of the mean logit, of three classes without what they
    # have in common.
    blocks, about = covariance.reshape(k, D, k, D), z - z.mean(axis=0)
    own = np.einsum("iajb,na,nb->ij", blocks, about, about) / len(z)
    rest = np.eye(k) - (1 / k if k > 1 else 0)
    unknown = np.trace(rest @ own @ rest) / max(k - 1, 1)
    np.testing.assert_allclose(less, spread / np.sqrt(1 + 0.5 * unknown), atol=1e-3)
    if k == 1:
        bend = np.pi / 8 * spread.var()
        short = 1 / np.sqrt(1 + 0.5 * unknown)
        ratio = np.sqrt((1 + short**2 * bend) / (1 + bend))
        np.testing.assert_allclose(after.mean(), ratio * before.mean(), rtol=1e-2)
        assert ratio < 0.95
    # The mean probability of a class remains, about, as it would not with the same mean logit.
    chances = [
        np.asarray(model.probabilities(x)).mean(axis=0)
        for x in (before, after, less + before.mean(axis=0))
    ]
    moved = np.abs(chances[2] - chances[0]).max()
    assert np.abs(chances[1] - chances[0]).max() < 0.6 * moved


@pytest.mark.parametrize("prior_df", [None, np.full(D, 4.0)])
def test_the_prior_stays_that_of_the_weights(prior_df):
    """The normal posterior given a quadratic likelihood does not depend on the coordinates."""
    with jax.enable_x64(True):
        model = model_of(prior_df=prior_df)
        seen = InCoordinates(model, AXES)
        information, linear = np.diag([3.0, 1.0, 0.1, 0.0]), np.array([2.0, -1.0, 0.3, 0.0])
        before = np.array([0.5, -1.0, 2.0, 0.0]), np.eye(D)
        back = np.linalg.inv(AXES)
        inside = back @ before[0], back @ before[1] @ back.T
        mean, precision = normal_given(model, information, linear, before)
        other, its = normal_given(seen, AXES.T @ information @ AXES, AXES.T @ linear, inside)
        np.testing.assert_allclose(AXES @ other, mean, rtol=1e-6, atol=1e-12)
        np.testing.assert_allclose(back.T @ its @ back, precision, rtol=1e-6, atol=1e-9)
        np.testing.assert_allclose(
            prior_matrix(seen), AXES.T @ np.diag(model.prior_scale.astype(float) ** -2) @ AXES
        )
        wide = 1 if prior_df is None else 5
        far = back @ np.array([100.0, 0.1, -100.0, 0.2])
        near = [3.0 * wide, 0.1, -9.0 * wide, 0.2]
        np.testing.assert_allclose(AXES @ within_reach(seen, far, 6.0), near, rtol=1e-6)


def test_a_posterior_is_mapped_with_its_covariance():
    factor = RNG.normal(size=(D, D))
    mapped = GaussianPosterior(np.arange(4.0), factor).mapped(AXES)
    np.testing.assert_allclose(mapped.covariance, AXES @ factor @ factor.T @ AXES.T)
    np.testing.assert_allclose(mapped.mean, AXES @ np.arange(4.0))
    diagonal = GaussianPosterior(np.zeros(4), np.arange(1.0, 5)).mapped(AXES)
    np.testing.assert_allclose(diagonal.covariance, AXES @ np.diag(np.arange(1.0, 5) ** 2) @ AXES.T)


def moments(x, y, norm):
    (opening,) = WhitenedLogistic(model_of(), np.float32(norm), np.float32(1000)).openings()
    return opening, opening.statistics(None)(
        {"x": jnp.asarray(x, jnp.float32), "y": jnp.asarray(y)}
    )


@pytest.mark.parametrize("n_records", [4000.0, np.inf])
@pytest.mark.parametrize("counted", [False, True])
def test_rows_far_shorter_than_their_norm_have_their_own_length(n_records, counted):
    """Where their number is known: public, or released and of records."""
    rows = 0.1 * RNG.normal(size=(4000, D)).astype(np.float32)
    model = WhitenedLogistic(model_of(), np.float32(3), np.float32(n_records), counted)
    (opening,) = model.openings()
    parts = jax.vmap(opening.statistics(model.init()))({"x": rows, "y": np.zeros(4000, int)})
    sums = {"moments": parts["moments"].total()}
    scales = {"moments": jnp.asarray(0.5)}
    if counted:
        sums |= {"count": parts["count"].sum(axis=0)}
        scales |= {"count": jnp.asarray(1.0)}
    with jax.enable_x64(True):
        axes = np.asarray(opening.update(model.init(), sums, scales, None)["axes"])
    second = np.trace((rows @ axes).T @ (rows @ axes)) / 4000 / D
    # The number of rows of persons, which is counted beside a public bound, is not that of moments.
    known = np.isfinite(n_records) != counted
    assert (0.7 < second < 1.05) if known else second == pytest.approx(0.04 / 9, rel=0.05)


@pytest.mark.parametrize(("square", "found"), [(0.2, 0.2), (0.3, 1.0)])
def test_rows_are_short_below_a_quarter_of_the_square_of_the_norm(square, found):
    with jax.enable_x64(True):
        moments = 1000 * square * 9 / D * jnp.eye(D)
        axes = np.asarray(whitening_axes(moments, jnp.asarray(1e-6), jnp.float32(3), 1000.0))
    np.testing.assert_allclose(np.linalg.inv(axes @ axes.T).trace(), 9 * found, rtol=1e-3)


def test_moments_that_noise_hides_are_at_most_two_standard_errors():
    n, variance = 1e6, 2500.0
    with jax.enable_x64(True):
        moments = -10 * jnp.eye(D)  # below zero
        axes = np.asarray(whitening_axes(moments, jnp.asarray(variance), jnp.float32(3), n))
    expected = 2 * np.sqrt(2 * D * variance) / n
    np.testing.assert_allclose(np.linalg.inv(axes @ axes.T).trace(), expected, rtol=1e-4)


def test_a_column_that_noise_nearly_hides_is_as_rare_as_it_is_released():
    """Axes are drawn to the identity: by them rare categories would be twice as frequent."""
    true = np.array([1000.0] * 4 + [600.0, 320.0, 210.0, 150.0] * 4 + [3000.0])
    rng, p, n, sd = np.random.default_rng(0), len(true), 3000.0, 100.0

    def relative(axes):
        own = jnp.diag(jnp.linalg.inv(axes @ axes.T))
        return own / own[-1]

    @jax.jit
    def both(noise):
        released = jnp.diag(true) + sd * (noise + noise.T) / 2**0.5
        axes, error = likeliest_axes(released, jnp.asarray(sd**2), n)
        drawn = whitening_axes(released, jnp.asarray(sd**2), jnp.float32(2), n)
        return relative(axes), relative(drawn), error

    with jax.enable_x64(True):
        found, drawn, errors = (np.array(x) for x in mapped(both)(rng.standard_normal((50, p, p))))
    ratio, before = (x.mean(axis=0) * n / true for x in (found, drawn))
    rare = true == 150
    np.testing.assert_allclose(ratio[true > 300], 1, atol=0.25)
    assert ratio[rare].max() < 2 and before[rare].min() > 2.5
    # The error that is said is that of a column's moment.
    away = np.mean(np.square(found - true / n)[:, :-1])
    assert np.mean(errors) == pytest.approx(away, rel=0.4)
    assert np.mean(errors) < 2 * sd**2 / n**2  # that of the noise


def test_a_fit_simulates_rows_of_the_likeliest_moments():
    true = np.diag([1000.0] * 4 + [150.0] * 8 + [3000.0])
    p, sd = len(true), 100.0
    own = LogisticRegression(p, 2, np.ones(p, np.float32), row_norm=np.float32(3), constant=True)
    model = WhitenedLogistic(own, np.float32(3), np.float32(3000))
    noise = np.random.default_rng(0).standard_normal((p, p))
    sums = {"moments": jnp.asarray(true + sd * (noise + noise.T) / 2**0.5)[None, :, None]}
    scales = {"moments": jnp.asarray(sd * 2**0.5)}
    with jax.enable_x64(True):
        params = model.openings()[0].update(model.init(), sums, scales, None)
        seen = model.marginal(params)
        by_axes = replace(seen, row_axes=None)
    rare = slice(4, 12)
    means = [np.diag(own.moments())[rare].mean() * 3000 / 150 for own in (seen, by_axes)]
    assert means[0] < 1.6 and means[1] > 1.3 * means[0]
    assert 0.2 * 2 * sd**2 / 3000**2 < seen.moment_error < 2 * sd**2 / 3000**2


def test_the_constant_columns_moment_is_drawn_to_the_others_and_is_no_more_than_the_number():
    n, noise = 1000.0, 200.0**2
    with jax.enable_x64(True):
        for constant, low, high in ((100.0, 0.6, 1.3), (4000.0, 0.4, 0.6)):
            # Of equal columns that noise nearly hides; and of more records than there are.
            squares = jnp.array([500.0, 520.0, 480.0, 510.0, 490.0, 505.0, constant])
            axes, _ = likeliest_axes(jnp.diag(squares), jnp.asarray(noise / 2), n)
            own = np.linalg.inv(np.asarray(axes, float) @ np.asarray(axes, float).T)
            ratio = np.diag(own)[:-1].mean() / own[-1, -1]
            assert low < ratio < high, (constant, ratio)


def test_without_noise_rows_have_the_moments_released():
    rows = np.random.default_rng(5).normal(size=(500, D)) @ np.diag(np.arange(1.0, D + 1))
    rows[:, -1] = 1
    moments = rows.T @ rows
    with jax.enable_x64(True):
        axes, error = likeliest_axes(jnp.asarray(moments), jnp.asarray(1e-9), np.inf)
    own = np.linalg.inv(np.asarray(axes, float) @ np.asarray(axes, float).T)
    np.testing.assert_allclose(own / own[-1, -1], moments / 500, rtol=1e-3, atol=1e-3)
    assert error < 1e-12


def test_errors_of_moments_are_relative_to_those_along_a_direction():
    model = replace(model_of(3), constant=True)
    second = np.diag([4.0, 1.0, 0.25, 1.0])[-D:, -D:]
    seen = InCoordinates(
        model, AXES, row_axes=np.diag(np.diag(second) ** -0.5), moment_error=np.float32(0.01)
    )
    one = np.random.default_rng(2).normal(size=D)
    # Of classes that are alike.
    direction = np.concatenate([one, 0.8 * one + 0.1, one - 0.2])[:, None]
    weights = direction.reshape(model.n_rows, D) @ AXES.T
    noise = 0.1 * np.random.default_rng(3).normal(size=(20_000, D, D))
    noise = (noise + np.swapaxes(noise, 1, 2)) / 2**0.5 / 2**0.5  # variance on the diagonal: 0.01
    along = np.einsum("ai,tij,aj->t", weights, noise, weights)
    expected = (
        np.var(along) / np.einsum("ai,ij,aj->", weights, second / second[-1, -1], weights) ** 2
    )
    with jax.enable_x64(True):
        assert seen.error_along(jnp.asarray(direction))[0] == pytest.approx(expected, rel=0.03)


def test_no_row_adds_more_than_the_block_allows_and_none_is_clipped_there():
    for length in (1e-3, 1.0, 3.0, 1e4):
        x = RNG.normal(size=D)
        x *= length / np.linalg.norm(x)
        opening, own = moments(x, 1, 3.0)
        norm = float(contribution_norm(own["moments"]))
        assert norm <= float(opening.blocks["moments"].clipping_norm)
        assert norm == pytest.approx(min(length, 3.0) ** 2, rel=1e-3)
    for label in (0, 1):  # the weight does not depend on it
        weight = moments(x, label, 3.0)[1]["moments"].weight.item()
        assert weight == pytest.approx(9e-8, rel=1e-5)
    assert float(contribution_norm(moments(x, -1, 3.0)[1]["moments"])) == 0  # a null record


@pytest.mark.parametrize("noise", [0.0, 30.0])
def test_second_moments_become_one(noise):
    n = 5000
    root = np.linalg.cholesky(0.9 ** np.abs(np.subtract.outer(np.arange(D), np.arange(D))))
    rows = RNG.normal(size=(n, D)) @ root.T
    opening, _ = moments(rows[0], 0, 2.0)
    weights = np.minimum(1, 4 / np.sum(rows**2, axis=1))
    with jax.enable_x64(True):
        own = jnp.asarray((rows * weights[:, None]).T @ rows + noise * RNG.normal(size=(D, D)))
        axes = opening.update(
            None, {"moments": own[None, :, None, :]}, {"moments": jnp.asarray(noise)}, None
        )["axes"]
    whitened = rows @ np.asarray(axes)
    second = (whitened * weights[:, None]).T @ whitened / n
    assert np.linalg.cond(second) < (1.01 if noise == 0 else 1.4) < np.linalg.cond(rows.T @ rows)
    assert 0.4 < np.trace(second) / D < 1.3  # below one as far as rows are short


def test_noise_alone_gives_no_axes():
    """Where noise hides the differences between columns, the coordinates stay as they are."""
    opening, _ = moments(np.ones(D), 0, 2.0)
    scale, found = 5000.0, []
    with jax.enable_x64(True):
        for _ in range(20):
            noise = scale * RNG.normal(size=(D, D))
            sums = {"moments": jnp.asarray(1000 * np.eye(D) + noise)[None, :, None, :]}
            axes = opening.update(None, sums, {"moments": jnp.asarray(scale)}, None)["axes"]
            found.append(np.linalg.cond(axes) ** 2)
    assert np.isfinite(found).all() and np.median(found) < 2.5


def test_public_facts_decide():
    def plan(n, d=5, **parameters):
        estimator = DPBayesianLogisticRegression(classes=[0, 1], **parameters)
        return estimator.plan(n_rows=n, n_features=d)

    def whitened(planned):
        return type(planned.model).__name__ == "WhitenedLogistic"

    assert whitened(plan(2000)) and whitened(plan(200, 50))
    assert not whitened(plan(2000, epsilon=np.inf)) and not whitened(plan(2000, solver="dpvi"))
    first, rest, last = plan(2000).spec.steps
    assert first.steps == last.steps == 1 and first.noise_multiplier < rest.noise_multiplier
    shares = np.array([own.steps * own.noise_multiplier**-2 for own in (first, rest, last)])
    np.testing.assert_allclose(shares / shares.sum(), [0.05, 0.88, 0.07], rtol=1e-3)
    first, rest = plan(2000, n_steps=15).spec.steps  # too few rounds for the last release
    assert (first.steps, rest.steps) == (1, 14)
    private = {"adjacency": "add_remove", "sampling_rate": 0.1, "classes": [0, 1]}
    private_size = DPBayesianLogisticRegression(**private).plan(n_features=5)
    assert whitened(private_size) and private_size.model.counted and not plan(2000).model.counted


def test_a_private_number_of_records_is_released_beside_the_moments():
    """Simulated rows stand for as many records, and their curvature is doubted as it is."""
    model = WhitenedLogistic(model_of(constant=True), np.float32(3), np.float32(np.inf), True)
    (opening,) = model.openings()
    assert sum(block.share for block in opening.blocks.values()) == pytest.approx(1)
    one = opening.statistics(model.init())
    rows = RNG.normal(size=(300, D)).astype(np.float32)
    labels = np.where(np.arange(300) % 3, 1, -1)  # a third has no label
    parts = jax.vmap(one)({"x": rows, "y": labels})
    sums = {"count": parts["count"].sum(axis=0), "moments": parts["moments"].total()}
    assert np.abs(parts["count"]).max() == 1

    def learnt(noise):
        with jax.enable_x64(True):
            scales = {"count": jnp.asarray(noise), "moments": jnp.asarray(1.0)}
            return model.marginal(opening.update(model.init(), sums, scales, None))

    found = learnt(20.0)
    assert (found.n_records, found.count_variance) == (200, pytest.approx(0.01))
    hidden = learnt(500.0)  # at least twice the noise
    assert (hidden.n_records, hidden.count_variance) == (1000, pytest.approx(0.25))
    expected = NormalRows(standard_rows(D), np.inf).of(found)
    assert expected.share * len(expected.rows) == pytest.approx(200)
    assert NormalRows(standard_rows(D), 50.0).of(found).share * len(expected.rows) == 50


def test_noise_decides_how_far_logits_are_shrunk():
    def shrinkage(n, **parameters):
        estimator = DPBayesianLogisticRegression(classes=[0, 1], **parameters)
        plan = estimator.plan(n_rows=n, n_features=5)
        solver = getattr(plan.solver, "solver", plan.solver)
        return solver.logit_shrinkage, solver.clipping_norm

    few, many = shrinkage(500), shrinkage(2000)
    assert few[0] == pytest.approx(4 * many[0], rel=1e-5) and many[0] > 0
    # The clipping norm is .55 noise**-.25 typical rows.
    assert many[0] == pytest.approx(0.1 * (many[1] / (0.55 * 6**0.5)) ** -4, rel=1e-3)
    assert shrinkage(500, fit_intercept=False)[0] == shrinkage(500, epsilon=np.inf)[0] == 0


def test_default_priors():
    """Student t for coefficients by na-dpvi, normal for intercepts and other solvers."""

    def model_by(**parameters):
        estimator = DPBayesianLogisticRegression(**{"classes": [0, 1]} | parameters)
        plan = estimator.plan(n_rows=500, n_features=2)
        return getattr(plan.model, "model", plan.model)

    def degrees(**parameters):
        df = model_by(**parameters).prior_df
        return df if df is None else df.tolist()

    def common(**parameters):
        mask = model_by(**parameters).common_scale
        return mask if mask is None else mask.tolist()

    assert common() == common(epsilon=np.inf, classes=[0, 1, 2]) == [1, 1, 0]
    assert common(fit_intercept=False) == [1, 1]
    with jax.enable_x64(True):
        mask = prior_common_scale(InCoordinates(model_by(classes=[0, 1, 2]), np.eye(3)))
    assert mask.tolist() == [1, 1, 0] * 3
    for own in ({"prior_df": 4}, {"prior_df": None}, {"solver": "dpvi"}, {"solver": "vips"}):
        assert common(**own) is None
    assert degrees() == degrees(epsilon=np.inf) == degrees(prior_df=4) == [4, 4, 1e6]
    assert degrees(fit_intercept=False) == [4, 4]
    assert degrees(prior_df=None) is degrees(solver="dpvi") is degrees(solver="vips") is None
    assert degrees(solver="vips", prior_df=7) == [7, 7, 1e6]
    assert degrees(solver="dpvi", prior_df=None) is None


@pytest.mark.slow
def test_correlated_columns_gain():
    """Ten columns, neighbours correlated .9: without axes the median error is 1.25."""
    n, d = 3000, 10
    root = np.linalg.cholesky(0.9 ** np.abs(np.subtract.outer(np.arange(d), np.arange(d))))
    errors = []
    for seed in range(15):
        rng = np.random.default_rng(seed)
        X, w = rng.normal(size=(n, d)) @ root.T, rng.normal(size=d)
        y = (rng.random(n) < expit(X @ w)).astype(int)
        fits = (
            DPBayesianLogisticRegression(
                0.5, classes=[0, 1], solver="na-dpvi", random_state=seed, **parameters
            ).fit(X, y)
            for parameters in ({}, {"adjacency": "add_remove", "sampling_rate": 1.0})
        )
        errors.append([np.sum((fit.coef_[0] - w) ** 2) for fit in fits])
    public, private = np.median(errors, axis=0)
    assert public < 0.8 and private < 0.9


def test_two_columns_of_noise_have_axes():
    """With two columns both eigenvalues often stand out, and one may be negative."""
    opening, _ = moments(np.ones(D), 0, 2.0)
    with jax.enable_x64(True):

        def axes(own):
            own = own[None, :, None, :]
            return opening.update(None, {"moments": own}, {"moments": jnp.asarray(1.0)}, None)

        found = jax.jit(jax.vmap(axes))(jnp.asarray(RNG.normal(size=(2000, 2, 2))))
        assert np.isfinite(found["axes"]).all()
