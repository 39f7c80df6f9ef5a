"""Plans of the solvers that release sufficient statistics (``solver="vips"``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from skdpbayes.models.base import NORM
from skdpbayes.plans.gradients import refuse_many_parameters
from skdpbayes.plans.settings import Bounds, Planned, Settings
from skdpbayes.solvers.net_scores import RESCALED, NetScores
from skdpbayes.solvers.vips import one_release
from skdpbayes.solvers.vips_logistic import (
    FITTED_ROUNDS,
    LEAST_WEIGHT,
    MOST_ROUNDS,
    ONCE,
    LogisticVIPS,
)
from skdpbayes.solvers.vips_rounds import StatisticsRounds

if TYPE_CHECKING:
    from skdpbayes.models.base import ConjugateModel, StatisticsModel
    from skdpbayes.models.belief_net import SigmoidBeliefNet
    from skdpbayes.models.logistic import LogisticRegression
    from skdpbayes.models.moments import ColumnMoments


def plan_one_release(
    settings: Settings, model: ConjugateModel, bounds: Bounds, n: int | None
) -> Planned:
    """One release of a conjugate model's summed statistics."""
    del bounds
    settings.refuse("clipping_norm", "sampling_rate", "n_steps", "learning_rate")
    settings.refuse_private_n()
    assert n is not None
    return _released_once(settings, model, n)


def plan_moments(
    settings: Settings, model: ColumnMoments, bounds: Bounds, n: int | None
) -> Planned:
    """One release of the moments of columns, which also counts the records."""
    del bounds, n
    return _released_once(settings, model, 0)


def _released_once(settings: Settings, model: Any, n: int) -> Planned:
    solver = one_release(model, n)
    spec = settings.spec(settings.noise(1, 1.0).steps)
    return Planned(solver, spec, float(solver.clipping_norm))


def opening_shares(settings: Settings, n_openings: int) -> tuple[float, ...]:
    """Budget shares of a model's openings.

    Raises
    ------
    ValueError
        If `n_steps` leaves no other release.
    """
    if settings.n_steps is not None and settings.n_steps <= n_openings:
        words = settings.defaults.opening_words.format(n_openings)
        raise ValueError(
            f"n_steps={settings.n_steps} is too few: {words} into the start. "
            f"Take at least {n_openings + 1}."
        )
    return settings.defaults.opening_shares[:n_openings]


def plan_rounds(
    settings: Settings, model: StatisticsModel, bounds: Bounds, n: int | None
) -> Planned:
    """Openings of a model, and rounds of its expected statistics."""
    del bounds
    settings.refuse("clipping_norm", "learning_rate")
    openings = opening_shares(settings, len(model.openings()))
    default = settings.defaults.rounds[not settings.private]
    rounds = default if settings.n_steps is None else settings.n_steps - len(openings)
    rate = settings.rate(n, n or 1)
    opening, steps, _ = settings.round_noise(openings, rounds, rate)
    least = 0.0 if settings.private else 1.0  # without noise, the last round alone counts
    norm = max(float(np.asarray(own.clipping_norm)) for own in model.blocks().values())
    solver = StatisticsRounds(np.int32(len(openings)), np.float32(least), np.float32(norm))
    return Planned(solver, settings.spec(opening + steps), norm)


def plan_net_scores(
    settings: Settings, model: SigmoidBeliefNet, bounds: Bounds, n: int | None
) -> Planned:
    """Openings of a belief network, and rounds of its scores."""
    del bounds
    openings = opening_shares(settings, len(model.openings()))
    rounds = settings.defaults.net_rounds[settings.solver][not settings.private]
    if settings.n_steps is not None:
        rounds = settings.n_steps - len(openings)
    if rounds <= RESCALED:
        least = len(openings) + RESCALED + 1
        raise ValueError(
            f"n_steps={settings.n_steps} is too few: one release goes into the start and "
            f"{RESCALED} scale the weights. Take at least {least}."
        )
    opening, steps, _ = settings.round_noise(openings, rounds, settings.rate(n, n or 1))
    norm = max(float(np.asarray(own.clipping_norm)) for own in model.blocks().values())
    solver = NetScores(
        kind=settings.solver,
        n_draws=settings.n_posterior_samples if settings.solver == "sgld" else 0,
        n_openings=np.int32(len(openings)),
        n_rounds=np.int32(rounds),
        least_weight=np.float32(0 if settings.private else 1),
        clipping_norm=np.float32(norm),
    )
    return Planned(solver, settings.spec(opening + steps), norm)


def plan_logistic(
    settings: Settings, model: LogisticRegression, bounds: Bounds, n: int | None
) -> Planned:
    """Statistics of logistic regression: some are released once, the others in each round."""
    settings.refuse("clipping_norm", "sampling_rate", "learning_rate")
    settings.refuse_private_n()
    refuse_many_parameters(settings, model)
    default = 1 + FITTED_ROUNDS if settings.private else MOST_ROUNDS
    rounds = settings.n_steps or default
    if rounds > MOST_ROUNDS:
        raise ValueError(
            f"n_steps={rounds} is too many: solver='vips' takes at most {MOST_ROUNDS}."
        )
    more = rounds - 1
    schedule = [(1.0, 1)]
    if more:
        schedule = [(ONCE**-0.5, 1), (((1 - ONCE) / more) ** -0.5, more)]
    least = LEAST_WEIGHT if settings.private else 1.0
    row_norm = bounds.score / model.bounds(1.0)[0]
    solver = LogisticVIPS(
        np.float32(least * row_norm),
        np.float32(row_norm),
        NORM * np.float32(least * model.parts_bound(row_norm)),
        NORM * np.float32(least * row_norm**2),
        NORM * np.float32(least * bounds.curvature),
        np.float64(n),
        intercept=bounds.constant_column,
    )
    spec = settings.spec(settings.noise(rounds, 1.0, schedule).steps)
    return Planned(solver, spec, float(solver.clipping_norm))
