"""Base of the estimators whose model is a NumPyro program."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from skdpbayes.checks import warn_user
from skdpbayes.estimators._base import Outcome
from skdpbayes.estimators._posterior import PosteriorEstimator
from skdpbayes.facts import Facts
from skdpbayes.intake.fields import typed
from skdpbayes.plans.settings import Bounds, Defaults, Settings, Task

if TYPE_CHECKING:
    from skdpbayes.models.numpyro.amortised import Amortised
    from skdpbayes.models.numpyro.model import NumPyroModel
    from skdpbayes.models.score_unit import WithScoreUnit
    from skdpbayes.plans.plan import Plan

_MANY = 100  # records; a table of groups is shorter
# Clipping norms over the median norm, rounded up to a power of two.
_CLIPPED_POINTS = 2**-4  # under noise, of amortised guides: all gradients have about one length
_FIRST = 2.0  # most before rounds have led near the optimum, by na-dpvi
_UNCLIPPED = 64.0  # without noise


def with_short_first(model: WithScoreUnit) -> WithScoreUnit:
    """The model, whose scores are bounded more closely before rounds have led near the optimum."""
    return replace(model, first_factor=np.float32(min(float(model.first_factor), _FIRST)))


class ProgramEstimator(PosteriorEstimator):
    """Base of the estimators whose model is a NumPyro program."""

    _model: NumPyroModel

    _defaults = Defaults(
        opening_shares=(0.05,),  # for the release that finds the clipping norm, or the second one
        opening_words="releases of the norms of scores go",
        full_rank_up_to=100,
        curvature_up_to=300,
        learning_rate=0.1,  # for a guide of the user's
        # Unlike in a regression, it is unknown how many records inform a parameter. Steps are so
        # small that noise spreads the iterates by at most about the prior, even where only the
        # prior holds them.
        calm=80.0,
        fast=0.6,  # steps as short take longer to arrive
    )
    _fitted = (*PosteriorEstimator._fitted, "posterior_samples_", "_model", "_quiet")

    @classmethod
    def _model_types(cls) -> tuple[type, ...]:
        from skdpbayes.models.score_unit import WithScoreUnit

        return (WithScoreUnit,)

    def _program(self, facts: Facts) -> tuple[Callable[..., Any], dict[str, Any]]:
        """The model function, and its public arguments."""
        raise NotImplementedError

    def _programmed(self, facts: Facts) -> tuple[NumPyroModel | Amortised, Sequence[np.ndarray]]:
        """Model of the program, and the arrays that the program closes over."""
        from skdpbayes.models.numpyro.program import Program
        from skdpbayes.models.numpyro.reading import read_model
        from skdpbayes.plans.gradients import own_copy

        function, public = self._program(facts)
        constants, arrays = _separated(public)
        shapes = tuple((own.name, own.shape, own.dtype) for own in facts.shape.fields)
        program = Program(function, shapes, tuple(constants.items()))
        guide = self._parameters()["guide"]
        guide = own_copy(guide, program) if callable(guide) else None
        model, held = read_model(program, arrays, guide)
        for name, size in model.program.declared:
            if not self._by_person and facts.n_rows not in (None, size):
                raise ValueError(
                    f"Plate {name!r} is of {size} records, but there are {facts.n_rows}. Pass that "
                    f"number, or write {model.program.plate_line(name)}."
                )
        return model, held

    def _task(self, facts: Facts) -> Task:
        from skdpbayes.models.numpyro.amortised import Amortised
        from skdpbayes.models.numpyro.reduced import reduced
        from skdpbayes.models.score_unit import AmortisedStart, WithScoreUnit
        from skdpbayes.plans.gradients import CLIPPED, clipped_share, n_parameters

        model, held = self._programmed(facts)
        private, factor = math.isfinite(self.epsilon), CLIPPED
        found = self.clipping_norm is None
        norm = float(self.clipping_norm or 1.0)
        voided_by = self._seem_to_hold_records(facts, held)
        if isinstance(model, Amortised):
            factor = _CLIPPED_POINTS if private else _UNCLIPPED
            start = AmortisedStart(model, found, np.float32(factor))
            return Task(start, Bounds(clip=norm), voided_by, costly=True)
        if not private:  # nothing is clipped: the likelihood as it is
            model = replace(model, program=replace(model.program, weighed=False, censored=False))
        whole = callable(self._parameters()["guide"])
        learnt = model if whole else reduced(model, hyper=self.solver != "sgld")
        if not private:
            factor = _UNCLIPPED
        elif found and model.program.weighed and not whole and self.solver != "sgld":
            settings = Settings.of(self._parameters(), self._defaults)
            factor = clipped_share(settings, n_parameters(learnt), facts.n_rows)
        # The Fisher information of scores of this norm replaces the curvature that limits steps.
        # The curvature of a score that is not clipped does not grow with the norm.
        longer = max(factor / CLIPPED, 1.0) if private else 1.0
        bounds = Bounds(
            typical=(norm, norm**2),
            longer=longer,
            clip=norm,
            mean_curvature=(norm / factor) ** 2,
        )
        kept = whole or self.solver == "sgld" or not private
        coordinates = "given" if kept else self._coordinates_of_scores(n_parameters(learnt))
        opened = WithScoreUnit(learnt, found, np.float32(factor), np.float32(factor), coordinates)
        if self.solver == "na-dpvi" and private:
            opened = with_short_first(opened)
        return Task(opened, bounds, voided_by)

    def _coordinates_of_scores(self, size: int) -> Literal["given", "scaled", "whitened"]:
        """Those in which scores of so many parameters are clipped, by solvers with matrices."""
        if self.solver == "na-dpvi":
            return "whitened" if size <= self._defaults.curvature_up_to else "given"
        return "scaled" if size <= self._defaults.full_rank_up_to else "given"

    def _seem_to_hold_records(
        self, facts: Facts, constants: Sequence[np.ndarray]
    ) -> tuple[str, ...]:
        """Signs that the public arguments, the model or the guide hold records."""
        n, found = facts.n_rows, []
        for name, array in self._held(constants).items():
            as_long = n is not None and n >= _MANY and array.ndim > 0 and len(array) == n
            if as_long or facts.shares(array):
                found.append(
                    f"{name} seems to hold records: it is as long as the data, or a part of them"
                )
        return tuple(found)

    def _held(self, constants: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
        """Arrays among the public arguments, and those that the program closes over, by name."""
        public = self._parameters().get("public") or {}
        held = {f"public[{name!r}]": np.asarray(x) for name, x in public.items() if _is_array(x)}
        given = [typed(x) for x in held.values()]  # of which a traced model seems to hold copies
        return held | {
            f"an array that the model closes over (shape {x.shape})": np.asarray(x)
            for x in constants
            if not any(np.array_equal(x, own) for own in given)
        }

    def _long_arrays(self, facts: Facts) -> tuple[str, ...]:
        """Names of the arrays that the program holds and that are as long as tables of records."""
        held = self._held(self._programmed(facts)[1])
        return tuple(name for name, x in held.items() if x.ndim > 0 and len(x) >= _MANY)

    def _finish(self, plan: Plan, outcome: Outcome) -> None:
        from skdpbayes.models.numpyro.amortised import Amortised
        from skdpbayes.models.numpyro.model import NumPyroModel

        self._warn_of_bias(plan)
        draws, quiet = self._draws_and_quiet_ones(plan, outcome)
        learnt = plan.model.model
        if isinstance(learnt, Amortised):
            learnt = self._set_points(learnt)
        self._model = learnt if isinstance(learnt, NumPyroModel) else learnt.model
        self.posterior_samples_ = self._model.constrained(draws)
        own = {} if quiet is None else self._model.constrained(quiet)
        self._quiet = {name: np.std(values, axis=0) for name, values in own.items()}

    def _set_points(self, learnt: Amortised) -> Amortised:
        """The model at the fitted parameters, where they are points."""
        raise NotImplementedError

    def _warn_of_bias(self, plan: Plan) -> None:
        """Warn where clipping moves the fit: a function of the model, not of records."""
        program = plan.model.model.program
        # Points have no intervals.
        if math.isfinite(self.epsilon) and program.sites and not program.unbiased:
            warn_user(
                f"The law of {', '.join(program.observed)} is not one of which skdpbayes can say "
                "what clipping removes: estimates are biased, and intervals are those of the "
                "clipped fit. Up to 16 numbers of a record have no such bias if their laws are of "
                "single numbers, independent given the rest of the record, with a known mean and "
                "variance or few values (docs/numpyro-clipping.md).",
                UserWarning,
            )

    def sample_posterior(
        self, n_samples: int = 1000, random_state: int | np.random.Generator | None = None
    ) -> dict[str, np.ndarray]:
        """Fresh posterior draws, a dict like `posterior_samples_`.

        Parameters
        ----------
        n_samples : int, default=1000
        random_state : None, int or numpy.random.Generator
        """
        return self._model.constrained(self._fresh_draws(n_samples, random_state))


def _separated(public: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Arguments that shape the model, and numeric ones, which are traced."""
    constants, arrays = {}, {}
    for name, value in public.items():
        if isinstance(value, np.integer):  # shapes may depend on it
            constants[name] = int(value)
        elif isinstance(value, float) or _is_array(value):
            arrays[name] = typed(np.asarray(value))
        else:
            constants[name] = value
    return constants, arrays


def _is_array(value: object) -> bool:
    """Whether `value` is a list, or an array of any library."""
    return isinstance(value, list) or hasattr(value, "__array__")


def name_of(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", type(function).__name__)
