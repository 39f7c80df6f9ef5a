"""Several objects and one seed: no two fits share noise while both report a guarantee that holds."""

import itertools

import numpy as np
import pytest
from cases import public_estimators
from sklearn.base import clone
from sklearn.model_selection import cross_validate
from sklearn.pipeline import make_pipeline

import skdpbayes
from skdpbayes import DPBetaBernoulli, DPGammaExponential
from skdpbayes.mechanism import keys as random
from skdpbayes.pipelines import check_pipeline
from skdpbayes.preprocessing import DPStandardScaler
from skdpbayes.privacy import PrivacyLeakWarning

X = np.random.default_rng(0).random((80, 1))
BITS = (X < 0.3).astype(float)
SEEDS = [0, 2**63 + 5, np.int64(3), np.random.RandomState(0), np.random.default_rng(0)]
MODEL = DPBetaBernoulli(epsilon=0.5, delta=1e-3, solver="vips")


def holds(model):
    return model.privacy_spent_.guarantee_holds


@pytest.mark.parametrize("seed", SEEDS, ids=lambda seed: type(seed).__name__)
def test_a_fit_with_any_seed_is_void_and_says_so_everywhere(seed):
    model = clone(MODEL).set_params(random_state=seed)
    assert "random_state is set" in check_pipeline(model).leaks[0].reason
    model.fit(BITS)
    spent = model.privacy_spent_
    assert (
        spent.seeded and not spent.guarantee_holds and "random_state is set" in spent.voided_by[0]
    )
    assert "GUARANTEE VOID" in repr(spent) and "guarantee void" in model._repr_html_()
    assert not check_pipeline(model).passed
    unseeded = model.set_params(random_state=None).fit(BITS)
    assert any("an earlier fit: random_state" in why for why in unseeded.privacy_spent_.voided_by)
    assert holds(clone(model).fit(BITS))


def noise(model, rows):
    """Noise of a conjugate update: what is released, less what the rows add to the prior."""
    return (
        model.posterior_.mean[0]
        - clone(model).set_params(epsilon=np.inf).fit(rows).posterior_.mean[0]
    )


def test_the_attacks_of_one_seed_void_every_fit_that_takes_part():
    """Folds of a cross-validation, clones on neighbouring tables, a scaler and a model."""
    seeded = clone(MODEL).set_params(random_state=0)
    folds = cross_validate(
        seeded, BITS, cv=4, return_estimator=True, error_score="raise", scoring=lambda *a: 0.0
    )
    assert not any(map(holds, folds["estimator"]))
    neighbours = [clone(seeded).fit(rows) for rows in (BITS, np.vstack([BITS[:-1], [[np.nan]]]))]
    assert not any(map(holds, neighbours))
    counts = [model.usable_records_.estimate for model in neighbours]
    assert counts[0] - counts[1] == pytest.approx(1, abs=1e-6), "noise does not cancel any more"
    rng = np.random.default_rng(7)
    copies = [
        clone(MODEL).set_params(random_state=clone(rng, safe=False)).fit(BITS) for _ in range(2)
    ]
    assert not any(map(holds, copies))
    scaler = DPStandardScaler((0, 1), 0.5, 1e-3, random_state=2**60 + 1)
    pipeline = make_pipeline(scaler, DPGammaExponential(0.5, 1e-3, random_state=2**60 + 1)).fit(X)
    assert not any(map(holds, pipeline)) and not check_pipeline(pipeline).passed


def test_fits_that_hold_share_no_key(monkeypatch):
    """Whatever is cloned or fitted again: each fit takes keys of its own from the operating system."""
    taken, original = [], random.keys_of
    monkeypatch.setattr(random, "keys_of", lambda *how: taken.append(original(*how)) or taken[-1])
    model = clone(MODEL).fit(BITS)
    models = [model, clone(model).fit(BITS), clone(model).fit(BITS), model.fit(BITS)]
    scaler = DPStandardScaler((0, 1), 0.5, 1e-3).fit(X)
    assert all(map(holds, [*models, scaler]))
    secrets = list(
        itertools.chain(*((*keys.sampling, *keys.noise, keys.counting) for keys in taken))
    )
    assert len(taken) == 5 and len(set(secrets)) == len(secrets) == 15


def test_every_estimator_takes_its_word_from_one_place():
    """No estimator has a report, keys or a seed's reasons of its own."""
    base = skdpbayes.estimators._base.PrivateEstimator
    for estimator in public_estimators():
        for method in ("_planned", "_plan_of", "_prepared", "_fit", "_adopt", "_charge", "_run"):
            assert getattr(estimator, method) is getattr(base, method), (estimator, method)


def test_the_warning_names_the_reason(monkeypatch):
    monkeypatch.setattr(skdpbayes.estimators._base, "_warned", [])
    with pytest.warns(
        PrivacyLeakWarning, match="random_state is set: other fits may share the noise"
    ):
        clone(MODEL).set_params(random_state=1).fit(BITS)
