"""What simulated rows tell is taken where the records are like them, and helps where scores bend."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import expit

from skdpbayes import DPBayesianLogisticRegression
from skdpbayes.plans import gradients
from skdpbayes.solvers.released_curvature import Curvature
from skdpbayes.solvers.simulated_rows import likeness

P = 6


def known(matrix, sd):
    """Curvature released with noise of standard deviation `sd`, where 100 I is foreseen."""
    noise = np.tril(np.random.default_rng(1).normal(size=(P, P)), -1)
    noise = sd * (noise + noise.T + np.diag(np.random.default_rng(2).normal(size=P) * 2**0.5))
    return Curvature.none(P)._replace(
        kept_matrix=jnp.asarray(matrix + noise),
        kept_variance=jnp.asarray(sd**2),
        foreseen=100 * jnp.eye(P),
    )


@pytest.fixture(autouse=True)
def double_precision():
    with jax.enable_x64(True):
        yield


def test_records_like_simulated_rows_differ_by_a_factor():
    like = likeness(known(130 * np.eye(P), 1.0), 0.0)
    assert float(like.factor) == pytest.approx(1.3, abs=0.02)
    assert float(like.alike) > 0.95
    assert float(like.told) < 0.5
    assert float(like.doubt) < 1e-3
    # A factor that noise hides is not believed.
    hidden = likeness(known(100 * np.eye(P), 150.0), 0.0)
    assert abs(float(hidden.factor) - 1) < 0.15
    assert 0.004 < float(hidden.doubt) < 0.01


def test_records_unlike_simulated_rows_are_told_from_them():
    values = np.array([30.0, 40.0, 60.0, 100.0, 160.0, 210.0])
    like = likeness(known(np.diag(values), 1.0), 0.0)
    assert float(like.alike) < 0.2
    assert float(like.told) > 0.95
    np.testing.assert_allclose(
        like.factor * 100 * np.eye(P) + like.difference, np.diag(values), atol=6
    )
    assert float(likeness(known(np.diag(values), 200.0), 0.0).told) < 0.6  # noise hides it


def test_simulated_rows_are_not_believed_where_logits_are_unknown():
    likes = [likeness(known(100 * np.eye(P), 1.0), unknown) for unknown in (0.0, 1.0, 5.0)]
    assert [float(like.clear) for like in likes] == pytest.approx([1, 1 / 2, 1 / 26])
    assert float(likes[2].alike) < 0.05


def test_intercepts_of_rare_outcomes_are_moved_less(monkeypatch):
    """Scores released about the estimate bend; their average alone moves the intercept by a sd."""
    z = {}
    for simulated in (True, False):
        if not simulated:
            monkeypatch.setattr(gradients, "NormalRows", lambda *arguments: None)
        z[simulated] = []
        for seed in range(20):
            rng = np.random.default_rng(seed)
            X = np.clip(rng.normal(size=(3000, 10)), -2, 2)
            y = (rng.uniform(size=3000) < expit(X @ (0.4 * rng.normal(size=10)) - 4.2)).astype(int)
            model = DPBayesianLogisticRegression(
                2.0, classes=[0, 1], solver="na-dpvi", intercept_scale=10.0, random_state=seed
            ).fit(X, y)
            sd = model.posterior_samples_["intercept"].std()
            z[simulated].append((model.intercept_.item() + 4.2) / sd)
    with_rows, without = (np.array(z[key]) for key in (True, False))
    assert np.mean(with_rows - without) > 0.2
    assert (with_rows**2).mean() < 0.8 * (without**2).mean()
    assert np.mean(np.abs(with_rows) < 1.645) > 0.7
