"""New hyper-parameters and folds of nearly equal size run the program that is already compiled."""

import jax
import numpy as np
import pytest
from sklearn.model_selection import cross_val_score

from skdpbayes import DPBayesianLogisticRegression, DPGaussianMixture

COMPILED: list[str] = []
jax.monitoring.register_event_duration_secs_listener(
    lambda event, seconds, **kwargs: COMPILED.append(event) if "backend_compile" in event else None
)

rng = np.random.default_rng(0)
X = rng.normal(size=(500, 3))
y = (rng.random(500) < 0.5).astype(int)


def estimator(**parameters):
    return DPBayesianLogisticRegression(
        **({"classes": [0, 1], "n_steps": 20, "n_posterior_samples": 20, "random_state": 0} | parameters)
    )


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("solver", ["dpvi", "na-dpvi", "sgld"])
def test_new_values_compile_nothing(solver):
    COMPILED.clear()
    estimator(solver=solver).fit(X, y)
    assert COMPILED, "compilations are not counted"
    estimator(solver=solver, random_state=None).fit(X, y)
    COMPILED.clear()
    changes = [
        {"epsilon": 0.5},
        {"delta": 1e-6},
        {"n_steps": 33},
        {"sampling_rate": 0.21},
        {"sampling_rate": 1.0},
        {"prior_scale": 3.0},
        {"data_norm": 7.0},
        {"adjacency": "replace_one"},
    ]
    if solver != "na-dpvi":
        changes.append({"learning_rate": 0.1 if solver == "dpvi" else 1e-5})
    if solver == "sgld":
        changes.append({"step_schedule": "decreasing"})
    for change in changes:
        estimator(solver=solver, **change).fit(X, y)
        assert not COMPILED, f"{change} compiled {len(COMPILED)} programs"
    estimator(solver=solver).fit(X[:450], y[:450])
    assert not COMPILED, "another number of records of the same padded size compiled"


def test_folds_share_one_program():
    folds = np.array_split(np.arange(500), 5)
    splits = [(np.setdiff1d(np.arange(500), fold), fold) for fold in folds]
    splits[0] = (splits[0][0][:-3], splits[0][1])
    estimator(n_steps=21).fit(X[splits[0][0]], y[splits[0][0]])
    COMPILED.clear()
    cross_val_score(estimator(n_steps=21), X, y, cv=splits)
    assert not COMPILED


def test_new_values_of_a_mixture_compile_nothing():
    def fit(n=500, **parameters):
        given = {"n_components": 2, "bounds": (-4, 4), "means_init": [[0, 0, 0], [1, 1, 1]], "n_posterior_samples": 20}
        return DPGaussianMixture(**({"random_state": 0} | given | parameters)).fit(X[:n])

    fit()
    fit(random_state=None)
    COMPILED.clear()
    fit(n=450)
    for change in (
        {"epsilon": 0.5}, {"n_steps": 12}, {"sampling_rate": 0.4}, {"bounds": (-3, 5)}, {"adjacency": "replace_one"},
        {"weight_concentration_prior": 0.1}, {"mean_precision_prior": 2.0}, {"degrees_of_freedom_prior": 7.0},
        {"reg_covar": 0.1}, {"means_init": np.ones((2, 3))}, {"weights_init": [0.1, 0.9]}, {"epsilon": np.inf},
    ):  # fmt: skip
        fit(**change)
        assert not COMPILED, f"{change} compiled {len(COMPILED)} programs"
