"""The belief network's statistics: bounds, centring, local step, M-step, and what takes noise off."""

import dataclasses
import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from scipy.special import expit, logit

from skdpbayes.models.base import NORM
from skdpbayes.models.belief_net import _ONE, SigmoidBeliefNet, cleared, local_step, towards_round
from skdpbayes.posteriors.belief_net import WeightsPosterior

f32 = np.float32
quick = partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
J, K = 6, 3
NET = SigmoidBeliefNet(J, K, f32(1))
EXACT = dataclasses.replace(NET, private=f32(0))


def params_of(seed, weight=1.0, active=None):
    rng = np.random.default_rng(seed)
    return NET.init()._replace(
        mean=f32(rng.uniform(0.05, 0.95, J)), weights=f32(weight * rng.normal(size=(J, K))),
        intercept=f32(rng.normal(size=J)), active=f32(rng.uniform(0.1, 0.9, K) if active is None else active),
        tangent=f32(rng.uniform(0.05, 0.25, J)),
    )  # fmt: skip


def dense(part):
    return jnp.einsum("ni,nj->nij", part.left, part.right)


@quick
def statistics(net, params, y, known):
    parts = jax.vmap(net.statistics(params))({"y": y, "known": known})
    opening = jax.vmap(net.openings()[0].statistics(params))({"y": y, "known": known})
    return {name: dense(part) for name, part in parts.items()} | opening


def norms(block):
    return np.linalg.norm(np.float64(block).reshape(len(block), -1), axis=1)


# What a record contributes


def test_no_record_exceeds_norm_one_in_any_block():
    """Whatever it holds and whatever the parameters are; and some are nearly as long as that."""
    rng = np.random.default_rng(0)
    longest = {"visible": 0, "hidden": 0, "all": 0}
    for seed in range(12):
        size = 10 ** rng.uniform(-3, 8, (400, 1))
        p = params_of(seed, 10 ** rng.uniform(-2, 2))
        y = np.where(
            rng.random((400, 1)) < 0.5,
            rng.integers(0, 2, (400, J)),
            size * rng.normal(size=(400, J)),
        )
        y[:100] = p.mean + 1e-3 * rng.normal(
            size=(100, J)
        )  # short residuals, and hidden units that are not
        for name, block in statistics(NET, p, f32(y), np.ones(400, f32)).items():
            longest[name] = max(longest[name], norms(block).max())
    assert all(0.85 < norm < 1 + 1e-5 < NORM for norm in longest.values()), longest


@pytest.mark.parametrize("private", [0, 1])
def test_binary_rows_keep_within_the_norm_without_noise_too(private):
    net = dataclasses.replace(NET, private=f32(private))
    corners = f32(list(itertools.product([0, 1], repeat=J)))
    for seed in range(6):
        for name, block in statistics(
            net, params_of(seed, 5.0), corners, np.ones(len(corners), f32)
        ).items():
            assert norms(block).max() < NORM, name


def test_the_shares_of_a_round_sum_to_one_and_blocks_have_the_shapes_of_zeros():
    blocks = NET.blocks()
    assert sum(block.share for block in blocks.values()) == pytest.approx(1)
    sums = statistics(NET, params_of(0), np.ones((2, J), f32), np.ones(2, f32))
    assert {name: zero.shape for name, zero in NET.zeros().items()} == {
        name: sums[name].shape[1:] for name in blocks
    }


def test_shortening_keeps_the_ratio_of_the_two_blocks():
    rng = np.random.default_rng(1)
    params, y = params_of(1, 2.0), f32(rng.random((200, J)) < 0.5)
    of_visible, of_hidden = map(float, NET._lengths(params))
    sums = statistics(NET, params, y, np.ones(200, f32))
    visible, hidden = (
        np.float64(sums["visible"]) * of_visible,
        np.float64(sums["hidden"]) * of_hidden,
    )
    weight = hidden[:, 0, 0]
    assert (weight < 0.99).any() and (weight > 0).all(), "no record is shortened"
    left = np.concatenate([np.full((200, 1), _ONE), hidden[:, 0, 1:] / weight[:, None]], axis=1)
    np.testing.assert_allclose(
        visible / weight[:, None, None], (y - params.mean)[:, :, None] * left[:, None], atol=1e-5
    )
    exact = statistics(EXACT, params, y, np.ones(200, f32))["hidden"][:, 0]
    np.testing.assert_allclose(exact[:, 1:] / exact[:, :1], left[:, 1:], atol=1e-5)
    np.testing.assert_allclose(exact[:, 0], exact[0, 0])  # without noise none is


def test_a_record_that_is_not_known_contributes_exactly_nothing():
    for net in (NET, EXACT):
        for block in statistics(
            net, params_of(2), np.zeros((3, J), f32), np.zeros(3, f32)
        ).values():
            assert (np.asarray(block) == 0).all()


def test_the_local_step_ascends_the_mean_field_bound():
    """Three sweeps and a last step for all, by enumeration of the hidden states under the quadratic bound."""
    params = jax.tree.map(np.float64, params_of(3))
    states = np.array(list(itertools.product([0, 1], repeat=K)), float)
    logits = params.intercept + (states - params.active) @ params.weights.T
    rng = np.random.default_rng(3)
    y = f32(rng.random((20, J)) < 0.5)
    found = (
        statistics(EXACT, params_of(3), y, np.ones(20, f32))["hidden"][:, 0]
        * EXACT._lengths(params)[1]
    )
    for row, hidden in zip(y, np.float64(found[:, 1:]) + params.active, strict=True):
        log = ((row - 0.5) * logits - params.tangent * logits**2 / 2).sum(axis=1) + states @ logit(
            params.active
        )

        def best(k, h, log=log):
            """Of unit k given the others: the bound is linear in its probability, plus its entropy."""
            others = np.delete(np.where(states == 1, h, 1 - h), k, axis=1).prod(axis=1)
            on = states[:, k] == 1
            return expit((others[on] * log[on]).sum() - (others[~on] * log[~on]).sum())

        h = params.active.copy()
        for _ in range(3):
            for k in range(K):
                h[k] = best(k, h)
        np.testing.assert_allclose(hidden, [best(k, h) for k in range(K)], atol=2e-5)


def test_units_that_do_not_interact_are_exact():
    field = f32([-2, 0.5, 3])
    np.testing.assert_allclose(
        local_step(jnp.asarray(field), jnp.zeros((3, 3)), f32(0.5)), expit(field), rtol=1e-6
    )


# Sums and parameters


def sums_about(net, params, y, h):
    """Exact sums of given hidden probabilities, in units of the blocks."""
    of_visible, of_hidden = map(float, net._lengths(params))
    right = np.concatenate([np.ones((len(h), 1)), h - np.float64(params.active)], axis=1)
    left = right * np.append(_ONE, np.ones(K))
    return {
        "visible": (y - np.float64(params.mean)).T @ left / of_visible,
        "hidden": right.T @ right / of_hidden,
    }


def rows(n=400, seed=4):
    """Hidden probabilities and visible rows that follow them."""
    rng = np.random.default_rng(seed)
    h = expit(2 * rng.normal(size=(n, K)) + [0.5, 0, -0.5])
    logits = h @ rng.normal(size=(K, J)) * 2 - 1
    return (rng.random((n, J)) < expit(logits)).astype(float), h


def test_sums_are_carried_to_new_probabilities():
    y, h = rows()
    old = params_of(4)
    new = old._replace(active=f32([0.2, 0.5, 0.8]))
    carried = NET.carry(jax.tree.map(jnp.asarray, sums_about(NET, old, y, h)), old, new)
    for name, want in sums_about(NET, new, y, h).items():
        np.testing.assert_allclose(
            carried[name], want, atol=1e-5 * np.abs(want).max(), err_msg=name
        )


m_step = quick(lambda net, *rest: net.m_step(*rest))
NO_NOISE = {"visible": 0.0, "hidden": 0.0}


@jax.enable_x64(True)
def test_without_noise_the_m_step_is_where_the_bound_has_no_slope():
    """In weights, intercepts and tangent, averaged over hidden units that are not known."""
    y, h = rows()
    old = params_of(4)._replace(mean=y.mean(axis=0))
    new = jax.tree.map(np.float64, m_step(EXACT, old, sums_about(EXACT, old, y, h), NO_NOISE))
    np.testing.assert_allclose(new.active, h.mean(axis=0), atol=1e-6)
    centred = h - h.mean(axis=0)
    unknown = (h * (1 - h)).mean(axis=0)
    np.testing.assert_allclose(
        new.spread, centred.T @ centred / len(h) + np.diag(unknown), atol=1e-6
    )
    assert new.weight == pytest.approx(len(h))

    def bound(weights, intercept, xi):
        logits = intercept + centred @ weights.T
        t = jnp.tanh(xi / 2) / (2 * xi)
        square = logits**2 + weights**2 @ unknown
        at = (y - 0.5) * logits - t * (square - xi**2) / 2 - jnp.logaddexp(xi / 2, -xi / 2)
        return at.sum(axis=1).mean()

    logits = new.intercept + centred @ new.weights.T
    xi = np.sqrt((logits**2).mean(axis=0) + new.weights**2 @ unknown)
    np.testing.assert_allclose(new.tangent, np.tanh(xi / 2) / (2 * xi), rtol=1e-5)
    for slope in jax.grad(bound, (0, 1, 2))(new.weights, new.intercept, xi):
        np.testing.assert_allclose(slope, 0, atol=1e-6)
    exact = bound(new.weights, new.intercept, xi)
    assert exact <= (y * logits - np.logaddexp(0, logits)).sum(axis=1).mean(), "not a bound"
    assert exact > bound(1.02 * new.weights, new.intercept, xi) and exact > bound(
        0.98 * new.weights, new.intercept, xi
    )


def test_where_noise_is_all_there_is_the_weights_are_zero():
    rng = np.random.default_rng(5)
    scales = {"visible": 100.0, "hidden": 100.0}
    sums = {name: 100 * rng.normal(size=zero.shape) for name, zero in NET.zeros().items()}
    net = dataclasses.replace(NET, n_visible=60)
    wide = net.init()
    sums["visible"] = 100 * rng.normal(size=(60, K + 1))
    new = m_step(net, wide, sums, scales)
    assert all(np.isfinite(x).all() for x in new)
    strong = m_step(net, wide, sums | {"visible": sums["visible"] + 1e4}, scales)
    assert np.abs(new.weights).max() < 0.1 * np.abs(strong.weights).max()
    assert np.linalg.eigvalsh(new.spread).min() > 0


def test_the_first_release_gives_means_and_a_start():
    y, _ = rows()
    sums = {"all": statistics(EXACT, EXACT.init(), f32(y), np.ones(len(y), f32))["all"].sum(axis=0)}
    # Without noise a statistic is divided by a bound, which the mean is free of: both parts are.
    (opening,) = EXACT.openings()
    started = opening.update(EXACT.init(), sums, {"all": jnp.float32(0)}, jax.random.key(0))
    np.testing.assert_allclose(started.mean, y.mean(axis=0), atol=1e-5)
    np.testing.assert_allclose(expit(np.float64(started.intercept)), started.mean, atol=1e-5)
    assert np.std(started.weights) > 0.1
    noisy = opening.update(EXACT.init(), sums, {"all": jnp.float32(1e4)}, jax.random.key(0))
    assert np.isfinite(noisy.weights).all() and (np.abs(noisy.mean - 0.5) < 0.5).all()
    # Of many units, the noise may exceed the range: then nothing is known of a mean.
    wide = SigmoidBeliefNet(400, 2, np.float32(1))
    noise = {"all": jnp.zeros(401)}, {"all": jnp.float32(1)}
    (opening,) = wide.openings()
    unknown = opening.update(wide.init(), *noise, jax.random.key(0))
    np.testing.assert_array_equal(unknown.mean, 0.5)
    assert np.isfinite(unknown.weights).all()


# Noise


@pytest.mark.parametrize("shape", [(80, 12), (12, 80)], ids=["tall", "wide"])
def test_singular_values_of_noise_are_cleared(shape):
    rng = np.random.default_rng(6)
    clear = quick(cleared)
    for _ in range(5):
        noise = 0.1 * rng.normal(size=shape)
        assert np.linalg.norm(clear(noise, 0.1)) < 0.2 * np.linalg.norm(noise)
        signal = 30 * rng.normal(size=(shape[0], 2)) @ rng.normal(size=(2, shape[1]))
        np.testing.assert_allclose(clear(signal + noise, 0.1), signal, atol=0.5)
        error = clear(signal + noise, 0.1) - signal
        assert np.linalg.norm(error) < 0.7 * np.linalg.norm(noise), (
            "noise beside the signal is kept"
        )
        np.testing.assert_array_equal(clear(f32(noise), 0.0), f32(noise))
    np.testing.assert_allclose(
        clear((signal + noise).T, 0.1), clear(signal + noise, 0.1).T, atol=1e-3
    )


def test_a_covariance_goes_to_a_round_one_by_how_much_of_it_is_noise():
    rng = np.random.default_rng(7)
    root = rng.normal(size=(5, 5))
    matrix = f32(root @ root.T)
    round_ = np.trace(matrix) / 5 * np.eye(5)
    np.testing.assert_allclose(towards_round(matrix, 0.0), matrix, rtol=1e-5)
    np.testing.assert_allclose(towards_round(matrix, 100.0), round_, atol=1e-4)
    some = np.asarray(towards_round(matrix, 0.3))
    assert np.trace(some) == pytest.approx(np.trace(matrix), rel=1e-5)
    assert 0 < np.linalg.norm(some - round_) < np.linalg.norm(matrix - round_)
    # Of a round truth it is nearer to that, on average, than what was measured.
    errors = rng.normal(size=(50, 8, 8)) * 0.1
    seen = 0.25 * np.eye(8) + (errors + np.swapaxes(errors, 1, 2)) / 2**0.5
    shrunk = np.array([towards_round(f32(x), 0.1) for x in seen])
    assert (
        np.square(shrunk - 0.25 * np.eye(8)).mean()
        < 0.3 * np.square(seen - 0.25 * np.eye(8)).mean()
    )


@pytest.mark.parametrize("size", [0.1, 1.0, 2.0, 5.0])
@pytest.mark.parametrize("intercept", [0.0, -1.5])
def test_weights_are_enlarged_by_the_mean_slope_of_normal_logits(size, intercept):
    """So much that the covariance which the bound fits is the likelihood's: by quadrature, up to 7% (small logits)."""
    spread = np.full((1, 1), 0.2)
    logits = stats.norm(intercept, size)
    xi = np.sqrt(intercept**2 + size**2)
    tangent = np.tanh(xi / 2) / (2 * xi)
    params = SigmoidBeliefNet(1, 1, f32(1)).init()._replace(
        weights=np.full((1, 1), size / 0.2**0.5), intercept=np.full(1, intercept), tangent=np.full(1, tangent),
        spread=spread, weight=100.0, noise=0.0,
    )  # fmt: skip
    posterior = NET.posterior(params)
    larger = posterior.weights[0, 0] / params.weights[0, 0]
    assert 1 - 1e-6 <= larger <= np.sqrt(np.pi / 2) + 1e-6
    slope = logits.expect(
        lambda x: expit(x) * expit(-x), lb=intercept - 12 * size, ub=intercept + 12 * size
    )
    assert larger == pytest.approx(np.clip(tangent / slope, 1, np.sqrt(np.pi / 2)), rel=0.01)
    at = posterior.intercept + posterior.weights[0, 0] * np.array([-0.5, 0.5])
    assert expit(at).mean() == pytest.approx(float(params.mean[0]), abs=1e-3)  # the released mean
    assert posterior.slope[0] * larger == pytest.approx(tangent, rel=1e-5)


def test_draws_have_the_spread_that_is_reported_and_noise_widens_it():
    rng = np.random.default_rng(8)
    root = rng.normal(size=(K, K))
    given = (
        rng.normal(size=(J, K)),
        rng.normal(size=J),
        np.full(K, 0.4),
        rng.uniform(0.1, 0.25, J),
        root @ root.T,
    )
    rest = 1e4, np.full(J, 0.5), np.zeros(J)
    quiet, noisy = WeightsPosterior(*given, 0.0, *rest), WeightsPosterior(*given, 0.01, *rest)
    draws = noisy.sample(np.random.default_rng(0), 4000)
    np.testing.assert_allclose(draws.std(axis=0), noisy.local_std, rtol=0.08)
    assert (np.abs(draws.mean(axis=0) - noisy.mean) < 5 * noisy.local_std / 4000**0.5).all()
    wider = (noisy.local_std > quiet.local_std).reshape(J, K + 1)
    assert wider[:, :K].all() and not wider[:, K].any(), (
        "intercepts come of the opening, whose noise is not counted"
    )
    # Without noise it is the inverse curvature of the bound.
    curvature = 1e4 * given[3][:, None, None] * given[4]
    want = np.sqrt(np.array([np.diag(np.linalg.inv(c)) for c in curvature]))
    np.testing.assert_allclose(quiet.local_std.reshape(J, K + 1)[:, :K], want, rtol=1e-6)


def test_noise_in_the_sums_scatters_weights_as_the_posterior_says():
    """At given hidden probabilities and with a signal that is not shrunk; the rounds before are not in it."""
    y, h = rows(20_000)
    net = dataclasses.replace(NET, private=f32(1))
    old = params_of(4)._replace(mean=f32(y.mean(axis=0)))
    sums, scales, rng = (
        sums_about(net, old, y, h),
        {"visible": 40.0, "hidden": 1.0},
        np.random.default_rng(9),
    )
    found = []
    for _ in range(200):
        noise = {name: scales[name] * rng.normal(size=np.shape(x)) for name, x in sums.items()}
        found.append(
            net.posterior(
                m_step(net, old, {name: sums[name] + noise[name] for name in sums}, scales)
            )
        )
    scatter = np.std([posterior.weights for posterior in found], axis=0)
    said = np.mean([posterior.local_std for posterior in found], axis=0).reshape(J, K + 1)[:, :K]
    exact = net.posterior(m_step(net, old, sums, NO_NOISE))
    of_rows = exact.local_std.reshape(J, K + 1)[:, :K]
    assert (said > 1.3 * of_rows).all(), "the noise hardly counts here"
    ratio = scatter / np.sqrt(said**2 - of_rows**2)
    assert 0.6 < np.median(ratio) < 1.3 and ratio.min() > 0.3 and ratio.max() < 2.5, ratio


# Scores


@quick
def scores(net, params, y, known):
    parts = jax.vmap(net.scores(params))({"y": y, "known": known})
    own = jax.vmap(net.scores(params, own=True))({"y": y, "known": known})
    return {name: dense(part) for name, part in parts.items()}, dense(own["visible"])


def test_no_score_exceeds_norm_one_and_a_null_record_has_none():
    rng = np.random.default_rng(10)
    for seed in range(6):
        y = f32(10 ** rng.uniform(-2, 6, (200, 1)) * rng.normal(size=(200, J)))
        params = params_of(seed, 10 ** rng.uniform(-2, 1))
        found, own = scores(NET, params, y, np.append(np.zeros(5, f32), np.ones(195, f32)))
        for block in (*found.values(), own):
            assert norms(block).max() < 1 + 1e-5 < NORM and norms(block)[:5].max() == 0


def test_scores_of_weights_are_the_slope_of_the_bound_at_the_optimal_hidden_units():
    """Envelope theorem: hidden probabilities do not move. Both kinds of tangents."""
    params, rng = params_of(11, 0.5), np.random.default_rng(11)
    params = params._replace(intercept=(params.mean - 0.5) / params.tangent)
    y = f32(rng.random((20, J)) < 0.5)
    found, own = scores(EXACT, params, y, np.ones(20, f32))
    of_visible, of_hidden = map(float, EXACT.score_lengths(params))
    away = np.float64(found["hidden"])[:, 0, 1:] * of_hidden
    logits = params.intercept + away @ params.weights.T
    inside = (away + params.active) * (1 - away - params.active)
    root = np.sqrt(logits**2 + inside @ (params.weights**2).T)
    for block, tangent in ((found["visible"], params.tangent), (own, np.tanh(root / 2) / 2 / root)):
        residual = y - 0.5 - tangent * logits
        want = residual[:, :, None] * np.insert(away, 0, _ONE, axis=1)[:, None]
        np.testing.assert_allclose(np.float64(block) * of_visible, want, atol=2e-4)


def test_a_score_and_the_moments_give_the_covariance_that_vips_releases():
    """Without noise: G / n + t w S is the covariance of visible and hidden units."""
    params, rng = params_of(12, 0.5), np.random.default_rng(12)
    y, known = f32(rng.random((300, J)) < 0.5), np.ones(300, f32)
    sums = {name: block.sum(axis=0) for name, block in scores(EXACT, params, y, known)[0].items()}
    none = {"visible": 0.0, "hidden": 0.0}
    seen = EXACT.observed(sums, none, EXACT.score_lengths(params))
    away = np.float64(
        statistics(EXACT, params, y, known)["hidden"][:, 0, 1:] * EXACT._lengths(params)[1]
    )
    covariance = (y - params.mean - (y - params.mean).mean(axis=0)).T @ away / 300
    about = np.cov(away, rowvar=False, bias=True)
    found = seen.score + params.tangent[:, None] * (params.weights @ about)
    np.testing.assert_allclose(found, covariance, atol=1e-4)
