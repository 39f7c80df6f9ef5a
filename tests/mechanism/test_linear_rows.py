"""Linear regression, through its estimator: nothing but the private sum looks at rows."""

import jax
import numpy as np
import pytest
from cases import solvers_of
from whitebox import fitted_attributes, recorded

from skdpbayes import DPBayesianLinearRegression, inference
from skdpbayes.estimators._base import Outcome, draws_rng
from skdpbayes.mechanism.keys import fit_keys

N = 300
RNG = np.random.default_rng(0)
X, Y = RNG.uniform(-1, 1, (N, 2)), RNG.uniform(-1, 1, N)
solvers = pytest.mark.parametrize("solver", solvers_of(DPBayesianLinearRegression))
replayed = pytest.mark.parametrize(
    "solver", [pytest.param("na-dpvi", marks=pytest.mark.slow), "vips"]
)


def estimator(solver, **parameters):
    return DPBayesianLinearRegression(
        1.0,
        bounds=((-1, 1), (-1, 1)),
        solver=solver,
        random_state=0,
        n_posterior_samples=20,
        **parameters,
    )


def tables():
    """Tables of one shape: ordinary, half null, all null, with impossible responses, and far beyond the bounds."""
    half = X.copy()
    half[::2] = np.nan
    others = (
        (half, Y),
        (np.full_like(X, np.nan), Y),
        (X, np.full(N, np.inf)),
        (1e3 * X, 1e3 * Y),
        (1e300 * X, Y),
    )
    return (X, Y), *others


@replayed
def test_plans_reports_and_what_is_fitted_do_not_look_at_rows(
    monkeypatch, solver, compiled_quickly
):
    seen, said, original = set(), set(), inference.run

    def run(keys, model, solver, spec, records, **options):
        kinds = jax.tree.map(lambda a: (np.shape(a), np.asarray(a).dtype), records)
        seen.add(
            repr(
                (
                    model,
                    solver,
                    spec,
                    jax.tree.leaves(kinds, is_leaf=lambda a: isinstance(a, tuple)),
                )
            )
        )
        seen.add(repr((model, solver, spec, kinds.slots, kinds.widths, records.n_records)))
        return original(keys, model, solver, spec, records, **options)

    monkeypatch.setattr(inference, "run", run)
    for rows, responses in tables():
        fit = estimator(solver).fit(rows, responses)
        names = sorted(vars(fit)), sorted(fit.diagnostics_), type(fit.posterior_)
        said.add(repr((fit.privacy_spent_.to_json(), names)))
    assert len(seen) == 2 and len(said) == 1


@replayed
def test_all_that_is_fitted_follows_from_the_releases(solver, compiled_as_users_do):
    rows = X.copy()
    rows[:3] = np.nan  # a number of valid rows would show
    with recorded() as kept:
        fit = estimator(solver).fit(rows, Y)
    again = estimator(solver)
    again.n_features_in_, plan = 2, again.plan(N, 2)
    example = {"x": np.zeros(3, np.float32), "y": np.float32(0)}
    keys = fit_keys(0)
    how = keys.solver, plan.model, plan.solver, plan.spec
    state = jax.device_get(inference.replay(kept[-1], *how, example))
    usable = fit.usable_records_  # a release itself
    again._adopt(plan, Outcome(state, draws_rng(keys.solver), usable))
    want, got = fitted_attributes(fit), fitted_attributes(again)
    assert want.keys() == got.keys()
    for name in want:
        assert want[name] == got[name], f"{name} is not a function of the releases"


@pytest.mark.parametrize("intercept", [True, False])
def test_each_row_is_packed_by_itself(intercept):
    model = estimator("vips", fit_intercept=intercept)
    for rows, responses in tables():
        packed = model._reader().read(model, rows, responses).pack()
        for i in (0, 1, 17):
            one = slice(i, i + 1)
            alone = model._reader().read(model, rows[one], responses[one]).pack()
            for name in packed.fields:
                np.testing.assert_array_equal(packed.fields[name][i], alone.fields[name][0])
        null = ~(np.isfinite(rows).all(axis=1) & np.isfinite(responses))
        assert int(packed.n_records) == N
        assert (
            not packed.fields["x"][:N][null].any() and np.isnan(packed.fields["y"][:N][null]).all()
        )
