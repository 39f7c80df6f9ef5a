"""What every estimator on private gradients does, once: plan the noise, run the solver, set the posterior."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
from sklearn.callback import with_callbacks
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import column_or_1d, validate_data

from skdpbayes.checks import check_choice, check_number
from skdpbayes.declarations import schema_of, width_of
from skdpbayes.estimators._arviz import ArvizMixin
from skdpbayes.estimators._base import PrivateEstimator
from skdpbayes.estimators._progress import Progress, WatchedMixin
from skdpbayes.intake.columns import numbers
from skdpbayes.intake.labels import as_labels
from skdpbayes.intake.rows import refuse_text_columns


class Bounds(NamedTuple):
    """What one record may do to the log-likelihood, and the prior; public, and infinity where there is no bound."""

    score: float  # norm of the gradient
    curvature: float  # norm of the Hessian
    prior_precision: float
    typical: tuple[float, float] | None = (
        None  # the first two, of records that are not at the bounds
    )
    clip: float | None = None  # clipping norm to take; None: what the solver makes of the bounds
    mean_curvature: float | None = (
        None  # of all records, over their number; None: no more than `curvature`
    )


class GradientEstimator(ArvizMixin, WatchedMixin, PrivateEstimator):
    """Base of the estimators whose model has a likelihood that factorises over records."""

    _solvers: tuple[str, ...] = ("dpvi", "sgld")
    # Rounds, and expected batch.
    _schedules: ClassVar = {"dpvi": (500, 2**12), "na-dpvi": (200, 2**17), "sgld": (2000, 2**16)}
    _curvature_every = 10  # rounds of na-dpvi
    _chains_mix = True  # whether parameters can; those of a network that is the same when units change places cannot
    _costly_records = False  # whether empty slots of a batch cost much: then programs differ with the batch's size
    _full_rank_up_to, _curvature_up_to = 300, 1000  # parameters: of `guide="auto"`, and at most
    _learning_rates = 0.4, 0.2  # of dpvi, full rank and mean field
    _fitted: tuple[str, ...] = (
        "posterior_",
        "diagnostics_",
        "n_iter_",
        "usable_records_",
        "_chains",
    )

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.sparse = True
        tags.input_tags.string = True
        return tags

    def __sklearn_is_fitted__(self):
        return hasattr(self, "posterior_")  # `privacy_spent_` is there before: it is charged first

    def _numeric(self, X, *, reset):
        """X as numbers, with feature names and their number checked (or remembered)."""
        declared = self._declared_columns()
        schema = schema_of(declared)
        if schema is None:
            refuse_text_columns(X)
        # Of a list: what is declared, or what an earlier fit of this object was told.
        numeric = numbers(X, schema, width_of(declared) or getattr(self, "n_features_in_", None))
        validate_data(
            self, X if hasattr(X, "columns") else numeric, skip_check_array=True, reset=reset
        )
        return numeric

    def _declared_columns(self):
        """What parameters declare of the columns of X: bounds or a schema; None if nothing."""
        return None

    def _response(self, y, n, *, one_by_one):
        """The response, checked by its public shape; a list is taken item by item if so asked."""
        if y is None:
            raise ValueError(
                f"This {type(self).__name__} estimator requires y to be passed, but the target y is None."
            )
        y = column_or_1d(as_labels(y) if one_by_one else y, warn=True)
        if len(y) != n:
            raise ValueError(
                "Found input variables with inconsistent numbers of samples: X and y differ in length."
            )
        return y

    def _public_facts(self, n, **facts):
        """What the report names as public: `facts`, shapes where the adjacency allows, parameters."""
        columns = (
            {"n_features": int(self.n_features_in_)} if hasattr(self, "n_features_in_") else {}
        )
        public = columns | facts
        if self.adjacency != "add_remove":
            public["n_samples"] = int(n)
        return public | {"hyper-parameters": "all constructor parameters"}

    def _check_solver_parameters(self):
        self._check_privacy_parameters()
        check_choice("solver", self.solver, self._solvers)
        check_number(
            "n_posterior_samples", self.n_posterior_samples, 1, 10**7, integral=True, closed=True
        )
        if not hasattr(self, "guide"):  # an estimator without solvers of these parameters
            return
        self._check_guide()
        check_choice("step_schedule", self.step_schedule, ("constant", "decreasing"))
        check_number("learning_rate", self.learning_rate, 0, none=True)
        check_number("n_chains", getattr(self, "n_chains", 1), 1, 1024, integral=True, closed=True)
        for solvers, name, default in _OF_SOME_SOLVERS:
            value = getattr(self, name, default)
            if self.solver not in solvers and not np.array_equal(value, default):
                needed = " or ".join(map(repr, solvers))
                raise ValueError(
                    f"{name}={value!r} needs solver={needed}; {self.solver!r} has no such thing."
                )

    def _check_guide(self):
        check_choice("guide", self.guide, ("auto", "full_rank", "mean_field"))

    def _fit_posterior(self, model, bounds, n, pack, *, public, voided_by=()):
        """Charge, run and set the fitted attributes; returns posterior draws, (n_posterior_samples, n_parameters).

        Parameters
        ----------
        model : Model
        bounds : Bounds
        n : int
            Number of records.
        pack : callable
            Makes the `Records`; called once the fit has been charged.
        public, voided_by
            What the report says.
        """
        solver, spec = self._plan_solver(model, bounds, n)
        if self.adjacency != "add_remove":
            spec.check_records(n)
        report = self._report(
            spec, self._report_clipping_norm(solver), public=public, voided_by=voided_by
        )
        self._charge(report)
        self._warn_if_seeded()
        self._warn_if_delta_is_large(n)
        if self.verbose:
            print(f"[{type(self).__name__}] {self.solver}: {report!r}")
        for name in (
            self._fitted
        ):  # an interrupted refit must not leave an old posterior beside a new report
            self.__dict__.pop(name, None)
        self.privacy_spent_ = report  # before the first noise: a fit that is interrupted counts
        state, rng, self.usable_records_ = self._run(model, solver, spec, pack)
        self._warn_if_few_are_usable(self.usable_records_, n)
        self.n_iter_ = spec.n_steps
        return self._set_posterior(model, solver, state, rng)

    def _report_clipping_norm(self, solver):
        """Clipping norm of the report; None if it adapts to releases."""
        return (
            None
            if getattr(solver, "clip_fraction", None) is not None
            else float(solver.clipping_norm)
        )

    @with_callbacks
    def _run(self, model, solver, spec, pack):
        """Final state, a generator of posterior draws by the solver key, and the noisy number of usable records."""
        import jax

        from skdpbayes.inference import run
        from skdpbayes.mechanism.keys import fit_keys
        from skdpbayes.mechanism.private_sum import noisy_count

        keys, records = fit_keys(self.random_state, spec.n_chains), pack()
        usable = noisy_count(keys.counting, records.usable, spec)
        if self._costly_records and self.adjacency != "add_remove":
            batch = 1.2 * spec.sampling_rate * int(records.n_records)
            records = replace(
                records, slots=next((slots for slots in (64, 128, 256) if slots >= batch), None)
            )
        progress = Progress(self, spec.n_chains * spec.n_steps)
        state, _ = run(keys, model, solver, spec, records, watch=progress)
        progress.finish()
        return jax.device_get(state), self._draws_rng(keys), usable

    @staticmethod
    def _draws_rng(keys):
        """Generator of the posterior draws: a function of the solver key, which may be released."""
        import jax

        return np.random.default_rng(np.asarray(jax.random.key_data(keys.solver)).ravel())

    def _set_posterior(self, model, solver, state, rng):
        self.posterior_ = solver.posterior(model, state)
        self.diagnostics_ = solver.diagnostics(state, self.posterior_)
        worst, least = (
            np.max(self.diagnostics_.get("r_hat", 1.0)),
            np.min(self.diagnostics_.get("ess", np.inf)),
        )
        if self._chains_mix and not (worst <= 1.1 and least >= 100):
            warnings.warn(
                f"The chains have not mixed: the largest R-hat is {worst:.2f} (should be below 1.1), the least "
                f"effective sample size {least:.0f} (should be above 100). The draws do not represent the posterior. "
                "Take solver='dpvi', more n_steps or, under privacy, a larger epsilon; a smaller clipping_norm allows "
                "larger steps too, at the price of information.",
                ConvergenceWarning,
                stacklevel=4,
            )
        n, posterior = self.n_posterior_samples, self.posterior_
        self._chains = getattr(posterior, "n_chains", 1)
        return posterior.in_order(n) if hasattr(posterior, "in_order") else posterior.sample(rng, n)

    def _plan_solver(self, model, bounds, n):
        """Solver and mechanism: functions of public quantities."""
        if self.solver != "vips" and self.clipping_norm is None and not math.isfinite(bounds.score):
            raise ValueError("The score of this model has no bound: pass clipping_norm.")
        return PLANS[self.solver](self, model, bounds, n)

    def _n_rounds(self, openings):
        """Rounds of the solver, and their expected batch; `n_steps` counts the openings too."""
        rounds, batch = self._schedules[self.solver]
        return (rounds if self.n_steps is None else self.n_steps - len(openings)), batch

    def _plan_round_noise(self, openings, n_steps, rate, schedule=None):
        """Steps of the openings, steps of the rounds, and the multiplier that `schedule` is relative to."""
        if not openings:
            noise = self._plan_noise(n_steps, rate, schedule)
            return (), noise.steps, noise.noise_multiplier
        rounds = schedule or [(1.0, n_steps)]
        factor = (sum(count / size**2 for size, count in rounds) / (1 - sum(openings))) ** 0.5
        schedule = [(share**-0.5, 1) for share in openings] + [
            (factor * size, count) for size, count in rounds
        ]
        noise = self._plan_noise(n_steps + len(openings), rate, schedule)
        opened = len(openings)
        return noise.steps[:opened], noise.steps[opened:], factor * noise.noise_multiplier

    def _refuse_for_vips(self, *names):
        """Raise if one of the parameters is set, or if the number of records is private."""
        self._refuse_parameters(*names)
        if self.adjacency == "add_remove":
            raise ValueError(
                "solver='vips' takes the number of records as known, which adjacency='add_remove' keeps private. Use "
                "adjacency='zero_out' if it may be known, or another solver, with a sampling_rate."
            )

    def _refuse_parameters(self, *names):
        """Raise if one of the parameters is set, which `solver="vips"` has no use for."""
        for name in names:
            if getattr(self, name, None) is not None:
                raise ValueError(
                    f"{name}={getattr(self, name)!r} needs another solver: solver='vips' releases bounded statistics "
                    "of all records."
                )


def n_parameters(model):
    """Number of a model's parameters."""
    import jax

    return sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(model.init)))


def refuse_many_parameters(estimator, model):
    """Raise if there are more than solvers that release a matrix can do with."""
    size, most = n_parameters(model), estimator._curvature_up_to
    if size > most:
        raise ValueError(
            f"solver={estimator.solver!r} releases a matrix of all pairs of parameters, here {size}, and takes "
            f"at most {most}: noise would hide it. Use solver='dpvi'."
        )


def _plan_dpvi(estimator, model, bounds, n, openings=()):
    from skdpbayes.solvers.dpvi import DPVI, FullRank, MeanField

    n_steps, batch = estimator._n_rounds(openings)
    rate = estimator._sampling_rate(n, batch)
    n_guess = n if estimator.adjacency != "add_remove" else batch / rate
    size = n_parameters(model)
    full_rank = estimator.guide == "full_rank" or (
        estimator.guide == "auto" and size <= estimator._full_rank_up_to
    )
    if full_rank and n_steps < 2:
        raise ValueError(
            f"n_steps={n_steps} is too few: the first round releases curvature, not a gradient."
        )
    opening, steps, _ = estimator._plan_round_noise(openings, n_steps, rate)

    clip, fraction = estimator.clipping_norm or bounds.clip, None
    if clip is None:
        # Variance of the averaged score's noise without shortening, over the curvature that the
        # bounds let expect: where there is more noise than signal, shortening scores costs less
        # information than it saves.
        variance = (steps[0].noise_multiplier * bounds.score / rate) ** 2 / n_steps
        ratio = variance * size / (0.8 * n_guess * bounds.curvature)
        if ratio > 0:
            clip, fraction = (
                bounds.score * min(max(ratio**-0.25 / 4, 0.25), 1),
                min(math.sqrt(ratio), 1) / 2,
            )
        else:
            clip = 1.01 * bounds.score
    solver = DPVI(
        guide=FullRank(np.float32(1.01 * bounds.curvature)) if full_rank else MeanField(),
        learning_rate=np.float32(
            estimator.learning_rate or estimator._learning_rates[not full_rank]
        ),
        clipping_norm=np.float32(clip),
        n_records=np.float32(n_guess),
        clip_fraction=None if fraction is None else np.float32(fraction),
    )
    return solver, estimator._spec(opening + steps)


def _plan_sgld(estimator, model, bounds, n, openings=()):
    from skdpbayes.mechanism.spec import MAX_SCHEDULE
    from skdpbayes.privacy.accounting import (
        GaussianSteps,
        decreasing_blocks,
        noise_multiplier,
        step_size,
    )
    from skdpbayes.solvers.sgld import SGLD

    del model
    n_steps, batch = estimator._n_rounds(openings)
    rate, n_chains = estimator._sampling_rate(n, batch), getattr(estimator, "n_chains", 1)
    sampler = getattr(estimator, "sampler", "sgld")
    friction = 1.0 if sampler == "sgld" else float(estimator.friction)
    private = math.isfinite(estimator.epsilon)
    clip = estimator.clipping_norm or bounds.clip or bounds.score * (0.25 if private else 1.01)
    if openings and n_chains > 1:
        raise ValueError("Openings are made once: n_chains must be 1.")
    most = MAX_SCHEDULE - len(openings)
    blocks = (
        [(1.0, n_steps)]
        if estimator.step_schedule == "constant"
        else decreasing_blocks(n_steps, most)
    )
    schedule = [(size**-0.5, count * n_chains) for size, count in blocks]
    opening, _, noise = estimator._plan_round_noise(openings, n_steps * n_chains, rate, schedule)
    largest = step_size(noise, rate, clip, friction)
    if estimator.learning_rate is not None:
        first = float(estimator.learning_rate)
        if first > largest * (1 + 1e-9):
            raise ValueError(
                f"learning_rate={first:g} is too large for epsilon={estimator.epsilon:g}: the noise that makes the "
                f"chain sample the posterior would not be private enough. At most {largest:g} is allowed with "
                "this clipping norm, sampling rate and number of steps; fewer steps or a smaller clipping_norm "
                "allow more."
            )
    else:
        if estimator.adjacency == "add_remove":
            raise ValueError(
                "learning_rate=None takes the number of records from X, which adjacency='add_remove' keeps "
                "private. Pass learning_rate, or use adjacency='zero_out'."
            )
        curvature = bounds.curvature if bounds.mean_curvature is None else bounds.mean_curvature
        first = min(largest, 1 / (n * curvature + bounds.prior_precision))
    steps = tuple(
        GaussianSteps(noise_multiplier(first * size, rate, clip, friction), rate, count)
        for size, count in blocks
    )
    solver = SGLD(
        n_draws=-(-estimator.n_posterior_samples // n_chains),
        clipping_norm=np.float32(clip),
        friction=np.float32(friction),
        sampler=sampler,
    )
    return solver, estimator._spec(opening + steps, n_chains)


def _plan_na_dpvi(estimator, model, bounds, n, openings=()):
    from skdpbayes.solvers.na_dpvi import NADPVI

    if getattr(estimator, "learning_rate", None) is not None:
        raise ValueError(
            "learning_rate needs solver='dpvi' or 'sgld'; 'na-dpvi' has no such thing."
        )
    refuse_many_parameters(estimator, model)
    n_steps, batch = estimator._n_rounds(
        openings
    )  # by default all records, where there are not too many
    rate = estimator._sampling_rate(n, batch)
    if n_steps < 2:
        raise ValueError(
            f"n_steps={n_steps} is too few: the first round releases curvature, not a gradient."
        )
    opening, steps, _ = estimator._plan_round_noise(openings, n_steps, rate)
    # Scores shortened to nearly equal norms waste little of the noise; without noise nothing is
    # shortened.
    private = math.isfinite(estimator.epsilon)
    bounded = math.isfinite(bounds.score)
    score, curvature = bounds.typical if bounds.typical and (private or not bounded) else bounds[:2]
    clip = estimator.clipping_norm or bounds.clip or score * (0.2 if private else 1.01)
    norm = 1.01 * curvature * min(1, clip / score)  # of a curvature with the weight of its score
    solver = NADPVI(np.float32(clip), np.float32(norm), np.int32(estimator._curvature_every))
    return solver, estimator._spec(opening + steps)


def _plan_vips(estimator, model, bounds, n):
    from skdpbayes.solvers.vips import one_release

    del bounds
    estimator._refuse_for_vips("clipping_norm", "sampling_rate", "n_steps", "learning_rate")
    return one_release(model, n), estimator._spec(estimator._plan_noise(1, 1.0).steps)


# Those of gradient solvers take `openings` too: shares of the budget of releases that are made
# before the solver's.
PLANS: dict[str, Any] = {
    "dpvi": _plan_dpvi,
    "na-dpvi": _plan_na_dpvi,
    "sgld": _plan_sgld,
    "vips": _plan_vips,
}
_OF_SOME_SOLVERS: list[tuple[tuple[str, ...], str, Any]] = [
    (("dpvi",), "guide", "auto"),
    (("sgld",), "step_schedule", "constant"),
    (("sgld",), "n_chains", 1),
    (("sgld",), "sampler", "sgld"),
    (("na-dpvi", "vips"), "prior_df", None),
]
