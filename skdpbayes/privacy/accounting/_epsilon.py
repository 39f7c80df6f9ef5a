"""Epsilon of a composition by a named accountant."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from skdpbayes.privacy.accounting._curve import compose
from skdpbayes.privacy.accounting._steps import GaussianSteps, check_delta


class EpsilonValue(float):
    """An epsilon, and how it was obtained. Behaves as a float in every way.

    Attributes
    ----------
    method : str
    is_upper_bound : bool
        False for ``method="fourier"``, which is a guarded estimate without an error term.
    """

    method: str
    is_upper_bound: bool

    def __new__(cls, value: float, method: str, is_upper_bound: bool = True) -> EpsilonValue:
        """Create the float and attach how it was obtained."""
        self = super().__new__(cls, value)
        self.method, self.is_upper_bound = method, is_upper_bound
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return EpsilonValue, (float(self), self.method, self.is_upper_bound)


METHODS = ("pld", "rdp", "fourier", "moments", "zcdp", "advanced", "linear")


def epsilon(
    steps: GaussianSteps | Iterable[GaussianSteps],
    delta: float,
    adjacency: str = "zero_out",
    method: str = "pld",
) -> EpsilonValue:
    """Return epsilon at `delta` of a composition.

    Parameters
    ----------
    steps : GaussianSteps or iterable of GaussianSteps
    delta : float
        In (0, 1).
    adjacency : {"zero_out", "add_remove", "replace_one"}
    method : {"pld", "rdp", "fourier", "moments", "zcdp", "advanced", "linear"}
        ``"pld"`` is the answer to report: the smaller of PLD and RDP, RDP alone for delta below
        1e-10, closed form without sampling. ``"rdp"``: RDP alone. ``"fourier"``: fourier-accountant
        behind the guards of `crosscheck`. The others are the accountants of earlier papers, see
        `baselines`.

    Returns
    -------
    EpsilonValue
        A float with the attributes ``method`` and ``is_upper_bound`` (False for ``"fourier"``).

    Raises
    ------
    ValueError
        For unknown names or values out of range, and for ``"fourier"`` where its result cannot be
        trusted.

    Examples
    --------
    >>> from skdpbayes.privacy import GaussianSteps, epsilon
    >>> round(epsilon(GaussianSteps(2.0, 0.01, 10_000), 1e-5), 2)
    2.16
    >>> round(epsilon(GaussianSteps(2.0, 0.01, 10_000), 1e-5, method="rdp"), 2)
    2.35
    """
    curve = compose(steps, adjacency)
    delta = check_delta(delta)
    if method == "pld":
        return EpsilonValue(curve.epsilon(delta), method)
    if method == "rdp":
        return EpsilonValue(curve.rdp_epsilon(delta), method)
    if method == "fourier":
        from skdpbayes.privacy.accounting._crosscheck import fourier_epsilon

        return EpsilonValue(
            fourier_epsilon(curve.steps, delta, adjacency), method, is_upper_bound=False
        )
    if method in METHODS:
        from skdpbayes.privacy.accounting import _baselines

        function = getattr(_baselines, f"{method}_epsilon")
        return EpsilonValue(function(curve.steps, delta, adjacency), method)
    raise ValueError(f"method must be one of {', '.join(map(repr, METHODS))}, got {method!r}.")
