"""Hierarchies in grouped coordinates, beside logistic regression on rows of all groups."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import mapped
from scipy import stats
from scipy.special import expit

from skdpbayes import DPHierarchicalLogisticRegression
from skdpbayes.mechanism.contributions import Quadratic
from skdpbayes.mechanism.spec import Mechanism
from skdpbayes.models.base import prior_matrix
from skdpbayes.models.grouped import GroupedLogistic
from skdpbayes.models.logistic import LogisticRegression
from skdpbayes.models.normal_rows import NormalRows
from skdpbayes.posteriors.evidence import NormalLikelihood
from skdpbayes.solvers import simulated_rows
from skdpbayes.solvers.normal_posterior import normal_given
from skdpbayes.solvers.released_curvature import Curvature, Foreseen
from skdpbayes.solvers.simulated_rows import likeness

FEATURES = np.array([[-1.0], [0.5], [2.0]])
GROUPS, SIZE, P = 3, 2, 6  # groups, weights of a group, and of all
SHARES = np.array([0.5, 0.3, 0.2], np.float32)
AXES = np.array([[0.8, 0.3], [-0.2, 1.1]], np.float32)
RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def double_precision():
    with jax.enable_x64(True):
        yield


def hierarchical(**parameters):
    how = {"groups": GROUPS, "group_features": FEATURES, "classes": [0, 1], "epsilon": 2.0}
    how |= {"prior_scale": 1.0, "group_scale": 1.0}
    return DPHierarchicalLogisticRegression(**how | parameters)


@cache
def planned(group_scale=None):
    """Model of a fit of two thousand rows with one column."""
    return hierarchical(group_scale=group_scale).plan(2000, 2).model


def coordinates(group_scale=None):
    return planned(group_scale).marginal({"axes": AXES, "shares": SHARES})


def placed(group, x):
    row = np.zeros((GROUPS, SIZE))
    row[group] = x
    return row.ravel()


def prior_of_weights(spread):
    """Covariance of all weights: effects are of prior scale one."""
    table = np.column_stack([FEATURES, np.ones(GROUPS)])
    return np.kron(table @ table.T + spread**2 * np.eye(GROUPS), np.eye(SIZE))


def test_scores_and_curvatures_are_those_of_one_regression_on_rows_of_all_groups():
    seen, own = coordinates(), LogisticRegression(P, 2, np.ones(P))
    params, x = RNG.normal(size=(1, P)), RNG.normal(size=SIZE)
    axes = np.asarray(seen.axes, float)
    np.testing.assert_allclose(axes, np.kron(np.diag(SHARES**-0.5), AXES), rtol=1e-5)
    for group in range(GROUPS):
        record = {"x": jnp.asarray(x), "group": jnp.int32(group), "y": jnp.int32(1)}
        whole = {"x": jnp.asarray(placed(group, x)), "y": jnp.int32(1)}
        found, expected = seen.score(params, record), own.score(params @ axes.T, whole)
        np.testing.assert_allclose(
            np.outer(found.left, found.right),
            np.outer(expected.left, expected.right) @ axes,
            atol=1e-6,
        )
        found, expected = seen.curvature(params, record), own.curvature(params @ axes.T, whole)
        np.testing.assert_allclose(found.weight, expected.weight, rtol=1e-5)
        np.testing.assert_allclose(found.vector, expected.vector @ axes, atol=1e-6)
        # No row is of two groups.
        outside = np.delete(np.asarray(found.vector), np.r_[seen.parameter_blocks()[group]])
        assert outside.size == P - SIZE and not outside.any()


@pytest.mark.parametrize("group_scale", [None, 0.7])
def test_priors_are_those_of_the_hierarchy(group_scale):
    prior = planned(group_scale).prior
    own = np.asarray(prior.coordinates, float)
    assert len(prior.precisions) == (1 if group_scale else 24)
    found = []
    for precision in prior.precisions:
        of_weights = own.T @ np.asarray(precision, float) @ own
        found.append(np.linalg.eigvalsh(of_weights)[-1] ** -0.5)
        expected = np.linalg.inv(prior_of_weights(found[-1]))
        np.testing.assert_allclose(of_weights, expected, atol=1e-3 * expected.max())
    roots = [np.linalg.slogdet(np.asarray(x, float))[1] / 2 for x in prior.precisions]
    shares = np.exp(prior.logs - roots)
    if group_scale:
        assert found == [pytest.approx(group_scale, rel=1e-3)]
        return
    # As of a half-normal law.
    assert shares @ found / shares.sum() == pytest.approx(stats.halfnorm.mean(), abs=0.02)
    assert shares @ np.square(found) / shares.sum() == pytest.approx(1, abs=0.05)


def test_the_expected_prior_follows_the_weights():
    """It is that of the spread whose prior the weights look like; all spreads count by theirs."""
    seen = coordinates()
    axes = np.asarray(seen.axes, float)

    def spread_of(precision):
        covariance = axes @ np.linalg.inv(precision) @ axes.T
        return np.sqrt(covariance[0, 0] - covariance[0, 2 * SIZE] - 3)  # 1 + 1 and -2 + 1

    found = []
    for spread in (0.1, 0.5, 1.5):
        root = np.linalg.solve(axes, np.linalg.cholesky(prior_of_weights(spread)))
        mean = root @ np.array([0.3, -1.0, 0.8, 0.2, -1.2, 0.5])
        found.append(spread_of(seen.expected_precision(mean, root @ root.T / 2)))
    assert np.all(np.diff(found) > 0.15)
    # By hand, at the last of them.
    prior = seen.prior
    own = np.asarray(prior.coordinates, float) @ axes
    square = own @ (root @ root.T / 2 + np.outer(mean, mean)) @ own.T
    logs = prior.logs - np.einsum("kij,ij->k", prior.precisions, square) / 2
    weights = np.exp(logs - logs.max())
    expected = own.T @ np.tensordot(weights / weights.sum(), prior.precisions, 1) @ own
    np.testing.assert_allclose(
        seen.expected_precision(mean, root @ root.T / 2), expected, rtol=1e-4, atol=1e-4
    )
    one, other = (RNG.normal(size=(1, P)) for _ in range(2))

    def log_prior(at):
        quadratic = np.einsum("i,kij,j->k", own @ at[0], prior.precisions, own @ at[0])
        return np.log(np.sum(np.exp(prior.logs - prior.logs.max() - quadratic / 2)))

    difference = seen.log_prior(one) - seen.log_prior(other)
    assert float(difference) == pytest.approx(log_prior(one) - log_prior(other), rel=1e-4)
    with pytest.raises(TypeError, match="likelihood alone"):
        seen.natural(None)
    known = coordinates(0.7)
    at = known.expected_precision(mean, root @ root.T)
    covariance = np.asarray(known.axes, float) @ np.linalg.inv(at) @ np.asarray(known.axes).T
    np.testing.assert_allclose(covariance, prior_of_weights(0.7), atol=2e-3)


def test_simulated_rows_have_the_moments_of_the_axes_in_each_group_and_its_share():
    seen, standard = coordinates(), planned().standard_rows()
    assert standard.shape[0] == GROUPS and standard.shape[1] * GROUPS >= 1024
    records, rows, share = seen.simulated(standard)
    assert float(share.sum()) == pytest.approx(1)
    np.testing.assert_allclose(records["x"][:, -1], 1, atol=1e-5)
    np.testing.assert_allclose(rows @ seen.constant(), 1, atol=1e-5)
    second = np.linalg.inv(AXES @ AXES.T)
    second /= second[-1, -1]  # the constant column's is one
    for group in range(GROUPS):
        own = np.asarray(records["group"]) == group
        assert float(share[own].sum()) == pytest.approx(SHARES[group])
        x = np.asarray(records["x"])[own]
        np.testing.assert_allclose(x.T @ x / len(x), second, atol=1e-4)
    some = {name: value[::97] for name, value in records.items()}
    again = mapped(lambda record: seen._seen(record)["x"])(some)
    np.testing.assert_allclose(rows[::97], again, atol=1e-4)
    # In the coordinates second moments are a multiple of the identity, as shrunk logits assume.
    moments = (rows * share[:, None]).T @ rows
    size = seen.constant() @ seen.constant()
    np.testing.assert_allclose(moments, np.eye(P) / size, atol=1e-4)


def test_simulated_sums_weigh_rows_by_the_share_of_their_group():
    """Curvatures, variances, scores and the variance of a logit, beside sums over the records."""
    seen = coordinates()
    rows = NormalRows(planned().standard_rows(), 2000.0).of(seen)
    records, _, share = seen.simulated(planned().standard_rows())
    at, clip = jnp.asarray(RNG.normal(size=(1, P))), 0.9
    weights = rows.weights(at, clip)
    p = rows.probabilities(at)[:, 0]
    own = 2000 * share * weights
    z = np.asarray(rows.rows)
    curvature = (z * (own * p * (1 - p))[:, None]).T @ z
    np.testing.assert_allclose(rows.curvature(at, clip), curvature, rtol=1e-6, atol=1e-6)
    variances = np.sum((own * weights * p * (1 - p))[:, None] * z**2, axis=0)
    np.testing.assert_allclose(rows.variances(at, clip)[1:], variances, rtol=1e-6)
    found = rows.scores(weights[None], rows.probabilities(at)[None], jnp.ones((len(z), 1)))
    np.testing.assert_allclose(found[0], (own * (1 - p)) @ z, rtol=1e-6, atol=1e-6)
    nodes = rows.at_nodes(at, jnp.zeros((P, P)))
    bend, _ = rows.bends(at, nodes, weights).turned(jnp.eye(P), jnp.zeros(P))
    second = own * p * (1 - p) * (1 - 2 * p) * np.sum(z**2, axis=1)
    np.testing.assert_allclose(bend, second @ z, rtol=1e-4, atol=1e-4)
    first = np.zeros(P)
    first[:SIZE] = 1
    group = np.asarray(records["group"]) == 0
    logits = np.sum(z[group, :SIZE] ** 2, axis=1)
    expected = SHARES[0] * logits.mean()
    assert float(rows.logit_variance(jnp.diag(first))) == pytest.approx(expected, rel=1e-5)


def test_the_solver_knows_blocks_records_and_spreads(monkeypatch):
    """What noise has put between groups is dropped, and the prior is the expected one."""
    plan = hierarchical(group_scale=None).plan(2000, 2)
    solver, seen = plan.solver.solver, coordinates()
    assert solver.simulated.n_records == plan.model.n_records == 2000
    assert plan.model.row_norm == pytest.approx(0.7 * 2**0.5)
    assert plan.model.rows.row_norm == pytest.approx(2**0.5)
    one = np.ones(1)
    curvature = solver.rounds(seen, Mechanism(one[0], 0 * one, one, np.int32(9), one[0]))[1]
    start = jax.jit(solver.init)(seen, jax.random.key(0))
    noisy = {
        "curvature": jnp.asarray(50 * np.eye(P) + RNG.normal(size=(P, P)), jnp.float32).ravel(),
        "variances": jnp.ones(1 + P, jnp.float32),
    }
    scales = {"curvature": jnp.asarray(1.0), "variances": jnp.asarray(1.0)}
    state = jax.jit(curvature.update)(start, start.theta, jnp.int32(0), noisy, scales)
    inside = np.kron(np.eye(GROUPS), np.ones((SIZE, SIZE))) > 0
    assert not np.asarray(state.known.matrix)[~inside].any()
    assert np.asarray(state.known.matrix)[inside].all()
    np.testing.assert_allclose(np.asarray(state.curvature)[~inside], 0, atol=1e-3)
    asked = []
    own = simulated_rows.likeness
    monkeypatch.setattr(
        simulated_rows,
        "likeness",
        lambda known, blocks, **how: asked.append(blocks) or own(known, blocks, **how),
    )
    jax.eval_shape(solver.found, seen, state)
    assert asked == [seen.parameter_blocks()] and len(asked[0]) == GROUPS
    information, mean = 2 * jnp.eye(P), jnp.asarray(RNG.normal(size=P))
    precision = jax.jit(normal_given)(seen, information, mean, (mean, 0.1 * jnp.eye(P)))[1]
    expected = information + seen.expected_precision(mean, 0.1 * jnp.eye(P))
    np.testing.assert_allclose(precision, expected, rtol=1e-6)
    assert jnp.abs(precision - information - prior_matrix(seen)).max() > 0.1


def opened(moments, sizes, noise):
    """Coordinates, given the sums that the opening releases."""
    (opening,) = planned().openings()
    sums = {
        "moments": jnp.asarray(moments, jnp.float32)[None, :, None, :],
        "sizes": jnp.asarray(sizes, jnp.float32),
    }
    return opening.update(planned().init(), sums, jax.tree.map(jnp.float32, noise), None)


def test_the_opening_finds_axes_and_shares():
    model = planned()
    (opening,) = model.openings()
    query = opening.statistics(model.init())
    groups = np.repeat(np.arange(GROUPS), [1000, 600, 400])
    x = np.column_stack([RNG.normal(size=2000) * 0.4 + 0.2, np.ones(2000)])

    @jax.jit
    def labelled(x, group, y):
        return query({"x": x, "group": group, "y": y})

    def of(x, group):
        return labelled(x, group, jnp.int32(0))

    def second(part):
        assert isinstance(part, Quadratic)
        return part.weight[0, 0] * jnp.outer(part.vector, part.vector)

    every = mapped(lambda x, group: of(x, group) | {"moments": second(of(x, group)["moments"])})
    sums = jax.tree.map(lambda own: np.asarray(own.sum(axis=0)), every(x, groups))
    moments, sizes = sums["moments"], sums["sizes"]
    np.testing.assert_array_equal(sizes, [1000, 600, 400])
    quiet = {"moments": 1e-3, "sizes": 1e-3}
    found = opened(moments, sizes, quiet)
    np.testing.assert_allclose(found["shares"], [0.5, 0.3, 0.2], atol=1e-4)
    axes = np.asarray(found["axes"], float)
    same = axes.T @ moments @ axes
    np.testing.assert_allclose(same, np.eye(SIZE) * same[0, 0], atol=0.02 * same[0, 0])
    # Noise alone tells of no group.
    unknown = opened(moments, sizes, {"moments": 1e5, "sizes": 1e5})
    np.testing.assert_allclose(unknown["shares"], 1 / GROUPS, atol=0.04)
    half = opened(moments, sizes, quiet | {"sizes": 300.0})["shares"]
    assert 0.35 < float(half[0]) < 0.49
    # Null records are in no group, and contribute no moments.
    for record in (
        of(np.array([np.nan, 1.0]), 0),
        labelled(x[0], 0, jnp.int32(-1)),
    ):
        assert not record["sizes"].any()
    # A longer row counts as one of the norm, which is what a record may add.
    long = np.asarray(second(of(np.array([1e3, 1.0]), 0)["moments"]))
    assert np.trace(long) == pytest.approx(float(model.row_norm) ** 2, rel=1e-3)
    norm = float(opening.blocks["moments"].clipping_norm)
    assert np.linalg.norm(long) < norm < 1.02 * np.linalg.norm(long)
    assert opening.blocks["sizes"].clipping_norm == 1
    assert sum(block.share for block in opening.blocks.values()) == pytest.approx(1)


def test_a_group_without_rows_is_foreseen_as_one():
    """Its axes are bounded, and no rows are simulated in it."""
    marginal = planned().marginal({"axes": AXES, "shares": np.float32([0.6, 0.4, 1e-6])})
    axes = np.asarray(marginal.axes)
    assert axes[-1, -1] == pytest.approx(AXES[-1, -1] / (0.2 / 3) ** 0.5, rel=1e-4)
    _, rows, share = marginal.simulated(planned().standard_rows())
    second = (rows * share[:, None]).T @ rows
    assert np.trace(second[-SIZE:, -SIZE:]) < 1e-4 * np.trace(second)
    np.testing.assert_allclose(rows @ marginal.constant(), 1, atol=1e-4)


def test_the_posterior_is_that_of_the_likelihood_under_the_hierarchy():
    """With a given spread and small logits; the covariance is by the reported information."""
    seen = coordinates(0.7)
    axes = np.asarray(seen.axes, float)
    root = 1e3 * (np.tril(RNG.normal(size=(P, P))) + 2 * np.eye(P))
    information, centre = root @ root.T, 1e-2 * RNG.normal(size=P)
    slope = 1e3 * RNG.normal(size=P)  # of the likelihood at the centre
    reported = 0.5 * information
    linear = slope + information @ centre
    found = seen.integrated(NormalLikelihood(information, linear, reported, centre))
    draws = seen.hierarchy.model.constrained(found.sample(np.random.default_rng(0), 40_000))
    weights = np.asarray(draws["weights"]).reshape(-1, P)
    back, prior = np.linalg.inv(axes), np.linalg.inv(prior_of_weights(0.7))
    mean = np.linalg.solve(back.T @ information @ back + prior, back.T @ linear)
    covariance = np.linalg.inv(back.T @ reported @ back + prior)
    sd = np.sqrt(np.diag(covariance))
    np.testing.assert_allclose(weights.mean(axis=0), mean, atol=0.03 * sd.max())
    np.testing.assert_allclose(np.cov(weights.T), covariance, atol=0.04 * sd.max() ** 2)


def test_mean_scores_are_those_of_normal_rows_and_labels():
    """At the estimate they are the coordinates; slopes are means over all directions.

    Axes are those of rows of another size, and of a fifth of the mean share in the last group.
    """
    seen = planned().marginal({"axes": 0.4 * AXES, "shares": np.float32([0.6, 0.38, 0.02])})
    estimate, mean = 1.5 * RNG.normal(size=P), 2 * RNG.normal(size=P)
    root, averaged = 0.15 * np.tril(RNG.normal(size=(P, P))), np.full(P, 0.1)
    known = NormalLikelihood(np.eye(P), estimate, np.eye(P), estimate, averaged=averaged)
    tell = seen._mean_scores(known)
    np.testing.assert_allclose(tell(estimate, averaged)[0], estimate)
    _, simulated, _ = seen.simulated(planned().standard_rows())
    seconds = simulated.reshape(GROUPS, -1, P)
    standard, draws = (np.random.default_rng(i).normal(size=(400_000, P)) for i in (0, 1))

    def scores(mean, root):
        """Mean scores of rows of a group, centred, and their mean slopes, over their moments."""
        found, slopes = np.empty(P), np.empty(P)
        for group in range(GROUPS):
            own = slice(group * SIZE, (group + 1) * SIZE)
            second = np.mean(np.square(seconds[group][:, own]))
            rows = second**0.5 * standard[:, own]
            p = expit(np.sum(rows * (mean + draws @ root.T)[:, own], axis=1))
            found[own] = np.mean(rows * (p - 0.5)[:, None], axis=0) / second
            slopes[own] = np.mean((p * (1 - p))[:, None] * rows**2) / second
        return found, slopes

    (about, unit), (expected, slopes) = scores(estimate, 0.1**0.5 * np.eye(P)), scores(mean, root)
    value, slope = tell(mean, np.sum(root**2, axis=1))
    np.testing.assert_allclose(slope, slopes / unit, rtol=0.1)
    np.testing.assert_allclose(value, estimate + (expected - about) / unit, atol=0.25)
    # Far out a score hardly depends on the size of the coefficients.
    far, farther = (tell(size * mean, np.zeros(P)) for size in (300, 3000))
    np.testing.assert_allclose(far[0], farther[0], rtol=0.01)
    np.testing.assert_allclose(far[1], 10 * farther[1], rtol=0.01)


def test_noise_outside_of_the_blocks_is_no_difference():
    """Curvatures are compared where a group's weights meet; as many entries have noise."""
    blocks, rng = coordinates().parameter_blocks(), np.random.default_rng(0)
    foreseen, variance = 100 * np.eye(P), 400.0

    def known(entries):
        parts = jnp.asarray(foreseen), jnp.zeros(1 + P), jnp.asarray(foreseen)
        return Curvature.none(P)._replace(
            kept_matrix=jnp.asarray(foreseen + entries),
            kept_variance=jnp.asarray(variance),
            foreseen=Foreseen(*parts),
        )

    noise = np.zeros((P, P))
    for block in blocks:
        own = rng.normal(size=(SIZE, SIZE)) * (2 * variance) ** 0.5
        noise[block, block] = (own + own.T) / 2
    by_chance = likeness(known(noise), blocks)
    twice = likeness(known(4 * noise), blocks)
    assert by_chance.alike > 0.9 > 0.7 > twice.alike

    def told(like):
        return like.noise_along(np.eye(P))[1].mean()

    assert told(by_chance) < 0.6 < told(twice)
    # With the noise of a whole matrix four times as much would pass for chance.
    assert told(likeness(known(4 * noise))) < told(twice) - 0.05
    # A score does not depend on another group's weights, nor does its error.
    errors = twice.error_of_scores(jnp.asarray(np.eye(P)[blocks[0]].sum(axis=0)))
    other = np.ones(P)
    other[blocks[0]] = 0
    assert np.abs(errors @ other).max() == 0 and np.diag(errors)[blocks[0]].min() > 0


ROWS = np.random.default_rng(1)
TRUTH = np.array([[2.0, 0.5], [0.0, -1.0], [-1.5, 0.0]])


def table(n=3000):
    group, x = ROWS.integers(0, GROUPS, n), ROWS.normal(size=n)
    y = ROWS.uniform(size=n) < expit(TRUTH[group, 0] * x + TRUTH[group, 1])
    return np.column_stack([x, group]), y.astype(int)


def test_fits_are_in_grouped_coordinates_and_ignore_what_is_no_record():
    X, y = table()
    model = hierarchical(group_scale=None, random_state=0)
    assert model.get_params()["solver"] == "auto"
    fitted = model.fit(X, y)
    assert fitted.n_iter_ == 201 and "mean_weight" in fitted.diagnostics_
    draws = fitted.posterior_samples_["weights"]
    away = (draws.mean(axis=0) - TRUTH) / draws.std(axis=0)
    assert np.abs(away).max() < 3.5 and draws.std(axis=0).max() < 0.4
    assert fitted.posterior_samples_["group_scale"].std() > 0.1
    # The mechanism is the same with and without such rows: those count as null.
    rest = X.copy()
    rest[:1000, 1] = 7  # no group
    rest[1000:1500, 0] = np.nan
    some = hierarchical(group_scale=None, random_state=0).fit(rest, y)
    y_null = np.where(np.arange(len(y)) < 1500, 5, y)  # no label
    null = hierarchical(group_scale=None, random_state=0).fit(X, y_null)
    np.testing.assert_allclose(null.posterior_.mean, some.posterior_.mean, atol=1e-6)
    assert np.isfinite(some.posterior_.mean).all()
    assert np.abs(some.posterior_.mean - fitted.posterior_.mean).max() > 0.01


@pytest.mark.parametrize(
    ("changes", "n", "solver", "kind"),
    [
        ({}, 2000, "na-dpvi", GroupedLogistic),
        ({"solver": "dpvi"}, 2000, "dpvi", None),
        ({"guide": "mean_field"}, 2000, "dpvi", None),
        ({"learning_rate": 0.1}, 2000, "dpvi", None),
        ({"epsilon": np.inf}, 2000, "dpvi", None),
        ({"fit_intercept": False}, 2000, "dpvi", None),
        ({"adjacency": "add_remove", "sampling_rate": 0.5}, None, "na-dpvi", GroupedLogistic),
        ({"max_rows_per_person": 2}, 2000, "na-dpvi", GroupedLogistic),
        pytest.param(
            {"groups": 200, "group_features": None}, 2000, "dpvi", None, marks=pytest.mark.slow
        ),
        ({"groups": 40, "group_features": np.ones((40, 1000))}, 2000, "dpvi", None),
        ({"group_scale": 1e-5}, 2000, "dpvi", None),
        ({"solver": "na-dpvi", "fit_intercept": False}, 2000, "na-dpvi", None),
    ],
    ids=lambda value: next(iter(value), "default") if isinstance(value, dict) else None,
)
def test_facts_choose_the_solver(changes, n, solver, kind):
    plan = hierarchical(**changes).plan(n, 2)
    inner = type(getattr(plan.solver, "solver", plan.solver)).__name__
    assert inner == {"dpvi": "DPVI", "na-dpvi": "NADPVI"}[solver]
    assert isinstance(plan.model, GroupedLogistic) == (kind is GroupedLogistic)
    if kind is GroupedLogistic:  # rows are counted where their number is not public
        most = changes.get("max_rows_per_person", 1)
        assert plan.model.counted == (n is None or most > 1)
        assert float(plan.model.n_records) == (np.inf if n is None else n * most)


def test_a_released_number_of_rows_stands_for_simulated_ones():
    model = hierarchical(max_rows_per_person=2).plan(2000, 2).model
    (opening,) = model.openings()
    assert sum(block.share for block in opening.blocks.values()) == pytest.approx(1)
    assert opening.blocks["count"].together == "weight"  # a person adds as many as they have
    rows = {"x": jnp.ones((5, 2)).at[0].set(jnp.nan), "y": jnp.ones(5), "group": jnp.zeros(5, int)}
    with jax.enable_x64(True):
        sums = jax.vmap(opening.statistics(model.init()))(rows)
        np.testing.assert_array_equal(sums["count"].ravel(), [0, 1, 1, 1, 1])
        noisy = {
            "moments": jnp.eye(2)[None, :, None],
            "sizes": jnp.full(3, 100.0),
            "count": jnp.array([3000.0]),
        }
        scales = dict.fromkeys(noisy, jnp.asarray(30.0))
        found = model.marginal(opening.update(model.init(), noisy, scales, jax.random.key(0)))
    assert found.n_records == 3000 and found.count_variance == pytest.approx(1e-4)


@pytest.mark.parametrize(("most", "shorter"), [(1, True), (2, False)])
def test_rows_far_shorter_than_their_norm_have_their_own_length(most, shorter):
    """Unless they are those of persons, whose moments are means."""
    model = hierarchical(max_rows_per_person=most, data_norm=50.0).plan(2000, 2).model
    (opening,) = model.openings()
    sums = {"moments": 2000 * jnp.eye(2)[None, :, None], "sizes": jnp.full(3, 700.0)}
    sums |= {"count": jnp.array([2000.0])} if model.counted else {}
    with jax.enable_x64(True):
        scales = dict.fromkeys(sums, jnp.asarray(0.1))
        axes = opening.update(model.init(), sums, scales, jax.random.key(0))["axes"]
    second = np.linalg.inv(np.asarray(axes @ axes.T, np.float64)).trace()
    assert second == pytest.approx(2 if shorter else float(model.row_norm) ** 2, rel=0.01)


def test_parameters_of_other_solvers_are_refused():
    with pytest.raises(ValueError, match="n_chains=2 needs solver='sgld'"):
        hierarchical(n_chains=2).plan(2000, 2)


@pytest.mark.parametrize("group_scale", [None, 0.7])
def test_estimates_are_of_scores_that_bend(group_scale):
    """Of logits of six, beside an importance sample of the likelihood of the mean scores."""
    seen = coordinates(group_scale)
    estimate = np.tile([1.0, -1.0], GROUPS) * np.sqrt(SHARES).repeat(SIZE) * 3
    information = np.diag(0.1 / SHARES.repeat(SIZE))
    known = NormalLikelihood(information, information @ estimate, information, estimate)
    rng, tell = np.random.default_rng(0), seen._mean_scores(known)
    prior = seen.hierarchy.model
    draws = prior.constrained(rng.standard_normal((20_000, len(seen.hierarchy.offset))))
    weights = np.asarray(draws["weights"], float).reshape(-1, P)
    at = np.linalg.solve(np.asarray(seen.axes, float), weights.T).T
    away = np.stack([tell(x, np.zeros(P))[0] for x in at]) - estimate
    logs = -np.einsum("ni,ij,nj->n", away, information, away) / 2
    share = np.exp(logs - logs.max())
    share /= share.sum()
    assert 1 / np.sum(share**2) > 300
    expected = share @ weights

    def mean(posterior):
        found = prior.constrained(posterior.sample(np.random.default_rng(0), 4_000))
        return np.asarray(found["weights"], float).reshape(-1, P).mean(axis=0)

    plain = seen.hierarchy.given_levels(known, seen._levels)
    away, without = (np.linalg.norm(mean(x) - expected) for x in (seen.integrated(known), plain))
    assert away < 0.2 * np.linalg.norm(expected)
    assert away < 0.45 * without
