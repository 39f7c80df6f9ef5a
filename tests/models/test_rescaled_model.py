"""Linear regression in coordinates that openings find: their sums, and the model in them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import mapped

from skdpbayes.mechanism.contributions import contribution_norm
from skdpbayes.models.base import prior_matrix, unbiased_weight
from skdpbayes.models.columns import _variance, sizes_of_columns, waves
from skdpbayes.models.linear import Huber, LinearRegression, normal_prior
from skdpbayes.models.rescaled import COLUMN_WAVES, RescaledLinear
from skdpbayes.plans.gradients import clipped_share, rescaling_shares, residual_cut, row_reach
from skdpbayes.plans.settings import Settings
from skdpbayes.posteriors import GaussianPosterior

N, SCALES = 20_000, np.array([0.5, 0.03, 0.002])
AXES = np.random.default_rng(1).normal(size=(4, 4)).astype(np.float32)
f32 = np.float32


def rescaled(**changes):
    hyper = {"precision": f32(0.1), "shape": f32(1), "scale": f32(0.02), "unit": f32(1.4)}
    model = LinearRegression(4, **hyper, normal=normal_prior(0.1, 1, 0.02), huber=Huber.at(2))
    own = {"intercept": True, "whitened": True, "row_norm": f32(2.2), "n_records": f32(N)}
    own["reach"] = f32(1)
    return RescaledLinear(model, **(own | changes))


def marginal(response=np.inf, model=None):
    """At any axes; the prior is that of the weights."""
    model = rescaled() if model is None else model
    params = model.init()
    own = AXES.T @ params["own"] @ AXES
    axes = {"axes": jnp.asarray(AXES), "own": own, "response": jnp.float32(response)}
    return model.marginal({**params, **axes})


@pytest.fixture(scope="module")
def records():
    rng = np.random.default_rng(0)
    x = np.c_[rng.normal(size=(N, 3)) * SCALES, np.ones(N)]
    x[:, 2] += 0.8 * x[:, 1]
    return {"x": x.astype(f32), "y": (0.1 * rng.normal(size=N)).astype(f32)}


def opened(number, params, records, noise=0.0, model=None):
    """Parameters after an opening of sums with noise of a given standard deviation."""
    opening = (rescaled() if model is None else model).openings()[number]
    parts = mapped(opening.statistics(params))(records)
    sums, rng = {}, np.random.default_rng(2)
    for name, part in parts.items():
        sums[name] = part.total() if hasattr(part, "total") else part.sum(axis=0)
        sums[name] = sums[name] + noise * rng.normal(size=sums[name].shape)
    with jax.enable_x64(True):  # as in a run
        scales = {name: jnp.float32(noise) for name in sums}
        return jax.jit(opening.update)(params, sums, scales, None)


_SIZES = jax.jit(sizes_of_columns)


def sizes(x, error):
    """Of columns, from waves whose amplitudes have noise of a given standard deviation."""
    with jax.enable_x64(True):
        value = sum(jax.vmap(lambda row: waves(row, COLUMN_WAVES))(x.astype(f32)))
        noise = error * len(x) / np.sqrt(x.shape[1] * COLUMN_WAVES)
        value = value + noise * np.random.default_rng(5).normal(size=value.shape)
        found = _SIZES(value, float(len(x)), noise)
        return type(found)(*(np.asarray(x) for x in found))


def test_columns_are_centred_and_scaled_whatever_the_bounds(records):
    x = records["x"].copy()
    x[:, 1] += 0.7
    y = 0.6 + 0.01 * records["x"][:, 0]
    found = opened(0, rescaled().init(), {"x": x, "y": y})
    rows = x @ np.asarray(found["axes"])
    np.testing.assert_allclose(np.mean(rows, axis=0), [0, 0, 0, 1], atol=0.1)
    np.testing.assert_allclose(np.sqrt(np.mean(rows**2, axis=0)), 1, atol=0.3)
    # Bounds on the root mean squares of what varies, and of all.
    assert 1 < found["response"] / y.std() < 4 and 0.6 < found["constant"] < 0.65
    assert found["n"] == N
    own = rescaled(intercept=False)
    found = opened(0, own.init(), {"x": x, "y": y}, model=own)
    assert not found["axes"][-1, :3].any() and found["response"] == found["constant"]


def test_without_an_intercept_columns_far_from_zero_are_as_large_as_they_are(records):
    own = rescaled(intercept=False)
    x = records["x"] * 0.1 + np.array([0.9, 0, 0, 0], np.float32)
    found = opened(0, own.init(), {**records, "x": x}, model=own)
    rows = x @ np.asarray(found["axes"])
    np.testing.assert_allclose(np.sqrt(np.mean(rows**2, axis=0))[:3], 1, atol=0.3)


def test_waves_are_over_rows_and_moments_over_persons(records):
    """A person's waves are longer than one, and so is the count beside them, in their ratio."""
    many = opened(0, rescaled(n_records=f32(N / 20)).init(), records, model=rescaled())
    own = rescaled(n_records=f32(N / 20))
    found = opened(0, own.init(), records, model=own)
    np.testing.assert_array_equal(found["axes"], many["axes"])
    assert found["n"] == N / 20
    blocks = own.openings()[0].blocks
    assert {k: b.together for k, b in blocks.items()} == {
        "count": "weight", "rows": "statistic", "response": "statistic",
    }  # fmt: skip


def test_a_rare_category_has_the_size_of_all_its_entries(records):
    """Its bulk has none, and in units of that the others would be as far as they can."""
    x = records["x"].copy()
    x[:, 1] = np.where(np.arange(N) % 50, -1, 1)
    found = opened(0, rescaled().init(), {**records, "x": x})
    assert 1 / found["axes"][1, 1] == pytest.approx(0.3, abs=0.01)  # 0.28 is not resolved
    # Its second moment may be far smaller than the square of that.
    bound = np.diagonal(found["bound"])[:3] * found["response"] ** 2
    assert 0.01 < bound[1] < 0.3 and min(bound[0], bound[2]) > 0.6


def test_columns_may_be_far_narrower_than_their_bounds():
    """Of many values and of few; the middle of one is not that of the bounds."""
    rng = np.random.default_rng(3)
    widths = np.array([0.3, 0.01, 1e-3, 3e-4, 1e-4])
    counts, categories = rng.poisson(1.5, (N, 2)) - 1.5, (rng.uniform(size=(N, 2)) < 0.3) - 0.3
    own = [0.6 + widths * rng.normal(size=(N, 5)), [0.1, 1e-3] * counts, [0.03, 0.01] * categories]
    x = np.column_stack(own)
    found = sizes(x, error=0.05)
    np.testing.assert_allclose(found.size / x.std(axis=0), 1, atol=0.45)
    assert (abs(found.centre - x.mean(axis=0))[:5] < widths / 2).all()
    assert (found.least <= 1).all()


def test_columns_of_few_values_are_told_from_narrow_ones_in_noise():
    """In units that are a hundred times too large nothing would show the error.

    In units that are as much too small, rows would lose their weight.
    """
    narrow = np.tile(0.01 * np.random.default_rng(3).normal(size=(2000, 1)), 400)
    found = sizes(narrow, error=0.35)
    assert np.mean(found.size > 0.2) < 0.025 and 0.5 < np.median(found.size) / 0.01 < 2
    for share, error, missed in ((3, 0.35, 0.25), (10, 0.2, 0.02)):
        category = np.where(np.arange(2000) % share, -1.0, 1.0)
        assert np.mean(sizes(np.tile(category[:, None], 400), error).size < 0.2) < missed


@pytest.mark.parametrize("share, error", [(0.18, 0.1), (0.3, 0.15)])
def test_two_values_are_not_taken_for_near_ones(share, error):
    """Their power rises and falls with the frequency: noise makes the shortest waves lose most."""
    amplitude = share + (1 - share) * np.exp(1.4j * 2.0 ** np.arange(COLUMN_WAVES))
    noise = error * np.random.default_rng(0).normal(size=(2, 10_000, COLUMN_WAVES))
    power = np.abs(amplitude + noise[0] + 1j * noise[1]) ** 2 - 2 * error**2
    variance, _ = mapped(lambda own: _variance(own, error))(power)
    assert np.mean(variance < 0.01) < 0.004  # .01 and .03 by least squares alone


def test_zeros_and_heavy_tails_are_not_taken_for_a_narrow_column():
    """Their size is that of most entries that are not zero."""
    rng = np.random.default_rng(3)
    entries = rng.lognormal(size=(2000, 1)) * (rng.uniform(size=(2000, 1)) < 0.4)
    found = sizes(np.tile(entries / 30, 100), error=0.1).size * 30
    assert np.quantile(found, 0.05) > 0.4 and np.quantile(found, 0.95) < 3


def test_waves_that_noise_hides_leave_the_coordinates_of_the_bounds(records):
    """Rows that are uniform on their bounds are as long as rows in units that were found.

    Coefficients may be twice as large as they would be there.
    """
    model = rescaled(n_records=f32(np.inf))
    blind = opened(0, model.init(), records, 20.0 * N, model=model)
    np.testing.assert_allclose(blind["axes"], np.diag([3**0.5] * 3 + [1]), rtol=1e-6)
    assert not blind["bound"].any() and blind["response"] == np.inf
    own = np.asarray(blind["axes"]) @ np.asarray(model.init()["own"]) @ np.asarray(blind["axes"])
    np.testing.assert_allclose(blind["own"], own / [[4], [4], [4], [1]], rtol=1e-6)
    assert opened(0, model.init(), records, 0.02 * N, model=model)["response"] < 1


@pytest.mark.parametrize("known", [N, np.inf])
def test_the_number_of_records_may_be_private(records, known):
    half = {"x": records["x"], "y": np.where(np.arange(N) % 2, np.nan, records["y"]).astype(f32)}
    own = rescaled(n_records=f32(known))
    params = opened(0, own.init(), half, model=own)
    assert params["n"] == pytest.approx(N / 2)
    std = records["x"].std(axis=0)[:3]
    np.testing.assert_allclose(np.diagonal(params["axes"])[:3] * std, 1, atol=0.3)
    # Noise does not make it zero, nor larger than it can be.
    noisy = opened(0, own.init(), half, noise=3.0 * N, model=own)
    assert 0 < noisy["n"] <= known


def test_the_prior_is_as_wide_as_in_the_units_found(records):
    """Loose bounds would make the prior of coefficients too narrow, in units of half a range."""
    x, y = records["x"].copy(), records["y"] * 5
    found = opened(0, rescaled().init(), {"x": x, "y": y})
    own = np.linalg.inv(np.asarray(found["own"], float))
    before = 1 / np.asarray(rescaled().model.prior_precision()["w"])
    response = float(found["response"])
    np.testing.assert_allclose(np.diag(own)[1:3], before[1:3] * response**2, rtol=0.01)
    assert np.diag(own)[3] == pytest.approx(before[3], rel=1e-5)  # where columns have their centres
    wide = np.diag(own)[0] / (before[0] * max(response, 1 / found["axes"][0, 0]) ** 2)
    assert wide == pytest.approx(1, rel=0.01)


def test_null_records_say_nothing(records):
    model = rescaled()
    one = model.openings()[0].statistics(model.init())
    for bad in ({"y": jnp.float32(np.nan)}, {"x": jnp.array([np.inf, 0, 0, 1], jnp.float32)}):
        null = one({"x": records["x"][0], "y": jnp.float32(0)} | bad)
        assert not any(np.any(part) for part in null.values())
    moments = model.openings()[1].statistics(model.init())
    assert not np.any(moments({"x": records["x"][0], "y": jnp.float32(np.inf)})["moments"].weight)


def test_second_moments_are_about_one_in_the_axes(records):
    model = rescaled(row_norm=f32(20))
    first = opened(0, model.init(), records, model=model)
    found = opened(1, first, records, model=model)
    rows = records["x"] @ np.asarray(found["axes"])
    np.testing.assert_allclose(rows.T @ rows / N, np.eye(4), atol=0.02)
    assert found["response"] == first["response"]
    # The same prior in other coordinates; what responses bound is the same in each but one.
    back = np.linalg.solve(np.asarray(first["axes"], float), np.asarray(found["axes"], float))
    own = back.T @ np.asarray(first["own"], float) @ back
    np.testing.assert_allclose(found["own"], own, rtol=1e-3, atol=1e-3 * own.max())
    bound = np.linalg.eigvalsh(np.asarray(found["bound"], float))
    np.testing.assert_allclose(bound[1:], float(first["response"]) ** -2, rtol=1e-3)
    assert bound[0] == pytest.approx(float(first["constant"]) ** -2, rel=1e-2)


@pytest.mark.parametrize("whitened", [False, True])
def test_many_columns_share_the_variance_of_responses(whitened):
    """Eight have twice the precision that one would have by itself: four parts, not one each."""
    hyper = {"precision": f32(0.1), "shape": f32(1), "scale": f32(0.02), "unit": f32(1.4)}
    model = RescaledLinear(
        LinearRegression(9, **hyper, normal=normal_prior(0.1, 1, 0.02), huber=Huber.at(2)),
        intercept=True, whitened=True, row_norm=f32(20), reach=f32(1), n_records=f32(N),
    )  # fmt: skip
    rng = np.random.default_rng(4)
    x = np.c_[0.1 * rng.normal(size=(N, 8)), np.ones(N)].astype(f32)
    records = {"x": x, "y": (0.1 * rng.normal(size=N)).astype(f32)}
    found = opened(0, model.init(), records, model=model)
    if whitened:
        found = opened(1, found, records, model=model)
    bound = np.linalg.eigvalsh(np.asarray(found["bound"], float)) * float(found["response"]) ** 2
    # Widths by waves are in doubt, and the columns may be narrower.
    np.testing.assert_allclose(bound[1:], 2 if whitened else 1.8, rtol=0.1)


def test_second_moments_that_noise_hides_are_not_used(records):
    model = rescaled()
    first = opened(0, model.init(), records, model=model)
    np.testing.assert_array_equal(
        opened(1, first, records, noise=0.5 * N, model=model)["axes"], first["axes"]
    )
    assert (opened(1, first, records, noise=0.01 * N, model=model)["axes"] != first["axes"]).any()


def test_scores_and_curvatures_are_those_of_the_weights(records):
    own, coordinates = rescaled().model, marginal(model=rescaled(row_norm=f32(20)))
    t = {"u": jnp.float32(-1), "w": jnp.asarray([0.3, -0.1, 0.2, 0.5], jnp.float32)}
    w = t | {"w": AXES @ t["w"]}
    record = {"x": records["x"][5] * 10, "y": records["y"][5]}
    score, inside = own.score(w, record), coordinates.score(t, record)
    np.testing.assert_allclose(inside["w"], AXES.T @ score["w"], rtol=1e-4)
    assert inside["u"] == pytest.approx(float(score["u"]), rel=1e-5)
    map_ = np.eye(5)
    map_[1:, 1:] = AXES
    expected = map_.T @ np.asarray(own.curvature(w, record)) @ map_
    np.testing.assert_allclose(coordinates.curvature(t, record), expected, rtol=1e-3, atol=1e-4)
    for name in ("log_prior", "log_likelihood"):
        rest = (record,) if name == "log_likelihood" else ()
        ours = float(getattr(coordinates, name)(t, *rest))
        assert ours == pytest.approx(float(getattr(own, name)(w, *rest)), rel=1e-4)


@pytest.mark.parametrize("length", [0.5, 1.5, 6.0])
def test_residuals_of_long_rows_are_cut_farther_out(length):
    """As far as the weight that the curvature needs leaves room for."""
    model = marginal()
    x = np.linalg.solve(AXES.T, length * 2.2 * np.array([0.6, 0, -0.8, 0])).astype(f32)
    responses = np.linspace(-40, 40, 2001).astype(f32)
    params = {**model.init(), "u": jnp.float32(0)}
    scores = mapped(lambda y: model.score(params, {"x": x, "y": y})["w"])(responses)
    size = np.asarray(scores) @ np.array([0.6, 0, -0.8, 0])
    own = Huber.at(2 * max(1, length))
    assert responses[np.abs(size) < 0.999 * size.max()].max() == pytest.approx(own.cut, abs=0.05)
    # Its variance equals its slope, as that of a log-likelihood does.
    z = np.random.default_rng(0).normal(size=200_000).astype(f32)
    weights = np.interp(z, responses, size) / (length * 2.2)
    slope = model.curvature(params, {"x": x, "y": f32(0)})[1:, 1:]
    assert np.trace(slope) == pytest.approx(weights.var() * (length * 2.2) ** 2, rel=0.01)


def test_no_row_has_a_long_score_or_a_long_curvature():
    model = marginal()
    clip, most = 0.2 * model.bounds(2.2)[0], 0.2 * model.bounds(2.2)[1]
    params = model.init()
    for size in 10.0 ** np.arange(-3, 6):
        x = (size * np.random.default_rng(3).normal(size=4)).astype(f32)
        for y in (0.0, 1e20, -1e20):
            record = {"x": jnp.asarray(x), "y": jnp.float32(y)}
            weight = unbiased_weight(model, params, record, jnp.float32(clip))
            score = contribution_norm(model.score(params, record))
            curvature = contribution_norm(model.curvature(params, record))
            assert weight * score <= clip * (1 + 1e-4)
            assert weight * curvature <= most * (1 + 1e-4)


def test_the_prior_is_that_of_the_weights_and_of_the_size_of_responses():
    model, bound = rescaled(), 4 * np.eye(4, dtype=f32)
    with jax.enable_x64(True):
        own, free = (np.array(prior_matrix(one)) for one in (model.model, marginal()))
        axes = np.eye(5)
        axes[1:, 1:] = AXES
        own[0, 0] /= 4  # that of the log variance is twice as wide
        np.testing.assert_allclose(free, axes.T @ own @ axes, rtol=1e-4, atol=1e-5)
        both = model.marginal({**model.init(), "bound": bound})
        np.testing.assert_allclose(np.diag(prior_matrix(both))[1:], np.diag(own)[1:] + 4, rtol=1e-5)
    assert marginal(0.01).init()["u"] == pytest.approx(2 * np.log(0.01) / 1.4, rel=1e-5)
    assert marginal(1e3).init()["u"] == model.model.init()["u"]


def test_a_posterior_is_mapped_to_the_weights():
    own = GaussianPosterior(np.arange(5.0), np.eye(5))
    found = marginal().natural(own)
    assert found.mean[0] == 0
    np.testing.assert_allclose(found.mean[1:], AXES @ np.arange(1.0, 5), rtol=1e-5)
    np.testing.assert_allclose(found.covariance[1:, 1:], AXES @ AXES.T, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("epsilon", "n", "d", "releases"),
    [
        (np.inf, 2000, 4, 0),
        (1, 2000, 4, 2),
        (0.1, 4000, 6, 1),
        (0.1, 2000, 4, 0),
        (0.1, 200, 3, 0),
        (8, 1000, 50, 1),
        (1, None, 4, 2),
    ],
)
def test_what_is_released_follows_from_public_numbers(epsilon, n, d, releases):
    settings = Settings(epsilon, 1e-5, "zero_out", "secure")
    shares = rescaling_shares(settings, d, True, n)
    assert len(shares) == releases and sum(shares) <= 0.2


def test_long_rows_keep_their_weight_where_there_is_little_noise():
    def reach(epsilon, n):
        return row_reach(Settings(epsilon, 1e-5, "zero_out", "secure"), 5, n)

    assert reach(0.1, 2000) == 1 < reach(1, 4000) < reach(8, 100_000) == 3


@pytest.mark.parametrize(
    ("rule", "least", "most", "noise"), [(residual_cut, 2, 10, 0.15), (clipped_share, 0.5, 6, 0.1)]
)
def test_scores_are_cut_farther_out_where_noise_is_small(rule, least, most, noise):
    """So far that the noise of the whole budget has a given share of the sampling variance."""

    def cut(epsilon, n):
        settings = Settings(epsilon, 1e-5, "zero_out", "secure")
        return rule(settings, 5, n), settings.least_noise()

    assert cut(1.0, 100)[0] == least == cut(8.0, None)[0] and cut(8.0, 10**6)[0] == most
    assert cut(np.inf, 100)[0] == most
    (one, of_one), (other, of_other) = cut(1.0, 4000), cut(2.0, 4000)
    assert (one * of_one) ** 2 * 5 / 4000 == pytest.approx(noise)
    assert (other * of_other) ** 2 * 5 / 4000 == pytest.approx(noise) and other > one > least
