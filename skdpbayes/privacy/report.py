"""What a fit has spent: the object behind ``privacy_spent_``.

Everything here is public by construction: it is computed from parameters and public metadata, never
from records, so that changing a record leaves a report equal byte for byte.
"""

from __future__ import annotations

import json
import math
import numbers
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from skdpbayes.privacy.accounting._steps import (
    GaussianSteps,
    as_steps,
    check_adjacency,
    check_delta,
    check_epsilon,
)
from skdpbayes.privacy.card import guarantee, rounded

if TYPE_CHECKING:
    from skdpbayes.privacy.accounting import Calibration, PrivacyCurve

BEFORE_THE_MODEL = (
    "steps before the model that learn from the records, such as scalers, encoders, imputers and selectors of columns "
    "(`check_pipeline` names them)"
)
_NOT_COVERED = (
    BEFORE_THE_MODEL,
    "choosing a model, its parameters or its features by scores on the records, as GridSearchCV does",
    "scoring or validating on the records",
    "more than one record of the same person",
    "timing and other side channels",
)


_NEGLIGIBLE = 1e-6  # share of an overhead in epsilon or delta


class PrivacyLeakWarning(UserWarning):
    """Something read from the records is about to be treated as public: the guarantee no longer holds.

    Examples
    --------
    >>> import warnings
    >>> from skdpbayes import DPDirichletCategorical
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     model = DPDirichletCategorical().fit([["a"], ["b"], ["a"]])  # takes the categories from the rows
    >>> caught[0].category.__name__, model.privacy_spent_.guarantee_holds
    ('PrivacyLeakWarning', False)
    """


def now() -> str:
    """Date and time of this second, UTC (ISO 8601)."""
    return datetime.now(UTC).isoformat(timespec="seconds")


class NoisyCount(NamedTuple):
    """A number of records, released with noise.

    Attributes
    ----------
    estimate : float
        May be negative, or above the number of rows.
    std : float
        Standard deviation of its noise.

    Examples
    --------
    >>> from skdpbayes.privacy import NoisyCount
    >>> print(NoisyCount(1987.4, 37.3))
    1987 +- 37
    """

    estimate: float
    std: float

    def __str__(self) -> str:
        return f"{self.estimate:.0f} +- {self.std:.0f}"


@dataclass(frozen=True, repr=False)
class PrivacySpent:
    """The privacy guarantee of one fit, and the conditions under which it holds.

    Parameters
    ----------
    epsilon : float
        Upper bound at `delta`, overheads included. Infinity when there was no noise.
    delta : float
        In (0, 1), overheads included.
    adjacency : {"zero_out", "add_remove", "replace_one"}
    steps : sequence of GaussianSteps
        What the rounds released.
    along : sequence of GaussianSteps
        What was released beside them: the number of usable records.
    clipping_norm : float or None
        C, the bound on the norm of one record's contribution; None when it was adapted to earlier
        releases.
    unit : str
        What one record is: ``"row"``, ``"document"``.
    grid : float or None
        Spacing of the integer grid of secure numerics, in standard deviations of the noise; None
        for plain floats.
    accountant : str
        As `PrivacyCurve.accountant`.
    crosscheck : str or mapping
        Result of the independent accountant.
    cumulative : sequence of GaussianSteps
        What **earlier** fits of the same instance released.
    numerics : {"fast", "secure"}
        ``"fast"`` is idealised: real-number Gaussian noise is assumed where floats are used.
    random_source : str
        Where keys and noise come from.
    seeded : bool
        Whether the keys follow from a seed somebody may know.
    public : mapping
        What was taken as public (number of records, classes, bounds, hyper-parameters).
    voided_by : sequence of str
        Reasons why the guarantee does not hold; empty when it does.
    not_covered : sequence of str
        What the guarantee does not speak of.
    estimator, version : str
        Class that was fitted, and version of this package.
    date : str
        When, in UTC (ISO 8601). Reports that differ in it alone are equal.
    schema : mapping or None
        Public schema of the table, as `Schema.to_dict` gives it, if one was declared.
    epsilon_overhead, delta_overhead : float
        Share of `epsilon` and `delta` that does not come from the steps: finite arithmetic,
        truncated batches. `delta_overhead` is the share at `epsilon`; elsewhere it is taken to grow
        as ``1 + exp(epsilon)``.

    Raises
    ------
    ValueError
        If a value is out of range or is not made of JSON's types.

    Examples
    --------
    >>> import numpy as np
    >>> from skdpbayes import DPBetaBernoulli
    >>> from skdpbayes.privacy import PrivacySpent
    >>> X = np.random.default_rng(0).random((1000, 1)) < 0.3
    >>> spent = DPBetaBernoulli(epsilon=0.5).fit(X).privacy_spent_
    >>> spent.guarantee_holds, bool(spent.epsilon <= 0.5)
    (True, True)
    >>> spent.epsilon_at(1e-8) > spent.epsilon
    True
    >>> PrivacySpent.from_json(spent.to_json()) == spent
    True
    """

    epsilon: float
    delta: float
    adjacency: str
    steps: tuple[GaussianSteps, ...]
    clipping_norm: float | None
    along: tuple[GaussianSteps, ...] = ()
    unit: str = "row"
    grid: float | None = None
    accountant: str = "pld"
    crosscheck: Any = "not run"
    cumulative: tuple[GaussianSteps, ...] = ()
    numerics: str = "fast"
    random_source: str = ""
    seeded: bool = False
    public: Mapping[str, Any] = field(default_factory=dict)
    voided_by: tuple[str, ...] = ()
    not_covered: tuple[str, ...] = _NOT_COVERED
    estimator: str = ""
    version: str = ""
    date: str = field(default="", compare=False)
    schema: Mapping[str, Any] | None = None
    epsilon_overhead: float = 0.0
    delta_overhead: float = 0.0

    def __post_init__(self) -> None:
        put = lambda name, value: object.__setattr__(self, name, value)  # noqa: E731
        put("epsilon", check_epsilon(self.epsilon))
        put("delta", check_delta(self.delta))
        put("adjacency", check_adjacency(self.adjacency))
        put("steps", as_steps(self.steps))
        put("along", as_steps(self.along) if self.along else ())
        put("cumulative", as_steps(self.cumulative) if self.cumulative else ())
        put(
            "clipping_norm",
            None if self.clipping_norm is None else _positive(self.clipping_norm, "clipping_norm"),
        )
        put("grid", None if self.grid is None else _positive(self.grid, "grid"))
        if self.numerics not in ("fast", "secure"):
            raise ValueError(f"numerics must be 'fast' or 'secure', got {self.numerics!r}.")
        if not 0.0 <= self.delta_overhead < self.delta:
            raise ValueError(
                f"delta_overhead must be in [0, delta={self.delta}), got {self.delta_overhead!r}."
            )
        if not 0.0 <= self.epsilon_overhead <= self.epsilon:
            raise ValueError(
                f"epsilon_overhead must be in [0, epsilon={self.epsilon}], got {self.epsilon_overhead!r}."
            )
        put("epsilon_overhead", float(self.epsilon_overhead))
        put("delta_overhead", float(self.delta_overhead))
        put("seeded", bool(self.seeded))
        for name in ("unit", "accountant", "random_source", "estimator", "version", "date"):
            put(name, str(getattr(self, name)))
        put("crosscheck", _pure(self.crosscheck, "crosscheck"))
        put("public", _pure(dict(self.public), "public"))
        put("schema", None if self.schema is None else _pure(dict(self.schema), "schema"))
        put("voided_by", _texts(self.voided_by, "voided_by"))
        put("not_covered", _texts(self.not_covered, "not_covered"))

    # What follows from the steps is derived, so that it cannot disagree with them.

    @property
    def sampling_rate(self) -> float | tuple[tuple[float, int], ...]:
        """The sampling rate, or pairs (rate, number of rounds) when it varies."""
        return _summary([(block.sampling_rate, block.steps) for block in self.steps])

    @property
    def noise_multiplier(self) -> float | tuple[tuple[float, int], ...]:
        """Standard deviation over C, or pairs (multiplier, number of rounds) when it varies."""
        return _summary([(block.noise_multiplier, block.steps) for block in self.steps])

    @property
    def n_steps(self) -> int:
        """Number of rounds."""
        return sum(block.steps for block in self.steps)

    @property
    def releases(self) -> tuple[GaussianSteps, ...]:
        """All that was released: `steps` and `along`."""
        return self.steps + self.along

    @property
    def guarantee_holds(self) -> bool:
        """Whether nothing in `voided_by` voids the guarantee."""
        return not self.voided_by

    @property
    def curve(self) -> PrivacyCurve:
        """The `PrivacyCurve` of all releases (overheads not included)."""
        from skdpbayes.privacy.accounting import compose

        return compose(self.releases, self.adjacency)

    def delta_at(self, epsilon: float) -> float:
        """Return an upper bound on delta at `epsilon`, overheads included (1 below `epsilon_overhead`)."""
        epsilon = check_epsilon(epsilon)
        if epsilon < self.epsilon_overhead:
            return 1.0
        growth = 1.0
        if self.delta_overhead > 0.0 and epsilon > self.epsilon:
            growth = math.exp(
                min(epsilon - self.epsilon, 700.0)
            )  # at least (1 + e^a) / (1 + e^b) for a > b
        return min(
            self.curve.delta(epsilon - self.epsilon_overhead) + growth * self.delta_overhead, 1.0
        )

    def epsilon_at(self, delta: float) -> float:
        """Return an upper bound on epsilon at `delta`, overheads included; infinity when there is none."""
        delta = check_delta(delta)
        if self.delta_overhead == 0.0:
            return self.curve.epsilon(delta) + self.epsilon_overhead
        if delta <= self.delta_overhead:
            return math.inf
        remaining = delta - self.delta_overhead
        simple = self.curve.epsilon(remaining) + self.epsilon_overhead
        if simple <= self.epsilon:
            return simple
        # Above the reported epsilon the overhead grows: halve what is left until it suffices.
        for share in (0.9, 0.5, 0.1):
            candidate = self.curve.epsilon(share * remaining) + self.epsilon_overhead
            if self.delta_at(candidate) <= delta:
                return candidate
        return math.inf

    def compose(self, *others: PrivacySpent) -> PrivacyCurve:
        """Return the joint `PrivacyCurve` of this fit and `others`.

        Valid for fits that were all fixed in advance. If a later fit was chosen after seeing an
        earlier result, a ledger (a privacy filter) is needed instead.

        Raises
        ------
        ValueError
            If adjacencies or units differ, or if a fit has overheads of more than a millionth,
            which a curve of steps cannot carry. (Those of integer arithmetic are far smaller, and
            are left out.)
        """
        from skdpbayes.privacy.accounting import compose

        for other in (self, *others):
            if not isinstance(other, PrivacySpent):
                raise ValueError(f"compose takes PrivacySpent objects, got {other!r}.")
            if (other.adjacency, other.unit) != (self.adjacency, self.unit):
                raise ValueError(
                    f"only fits of one adjacency and one unit compose, got {self.adjacency!r} per "
                    f"{self.unit} and {other.adjacency!r} per {other.unit}."
                )
            if (
                other.epsilon_overhead > _NEGLIGIBLE * other.epsilon
                or other.delta_overhead > _NEGLIGIBLE * other.delta
            ):
                raise ValueError(
                    "a fit with overheads does not reduce to its steps; add its overheads by hand."
                )
        return compose(
            [block for spent in (self, *others) for block in spent.releases], self.adjacency
        )

    @property
    def cumulative_epsilon(self) -> float:
        """Epsilon at `delta` of this fit and all earlier fits of the instance, as a plan fixed in advance.

        Overheads are this fit's, once for every fit is the caller's to add.
        """
        from skdpbayes.privacy.accounting import compose

        if not self.cumulative:
            return self.epsilon
        curve = compose(self.cumulative + self.releases, self.adjacency)
        return curve.epsilon(self.delta - self.delta_overhead) + self.epsilon_overhead

    @classmethod
    def from_calibration(
        cls, calibration: Calibration, clipping_norm: float, **others: Any
    ) -> PrivacySpent:
        """Report a run with the noise of a `Calibration`.

        Parameters
        ----------
        calibration : Calibration
        clipping_norm : float
        **others
            Further fields. Overheads given here are added to the calibrated epsilon and delta.
        """
        return cls(
            epsilon=calibration.epsilon + others.get("epsilon_overhead", 0.0),
            delta=calibration.delta + others.get("delta_overhead", 0.0),
            adjacency=calibration.adjacency,
            steps=calibration.steps,
            along=calibration.along,
            clipping_norm=clipping_norm,
            **{
                "accountant": calibration.curve.accountant,
                "crosscheck": str(calibration.crosscheck),
                **others,
            },
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON's types; infinity becomes the string ``"inf"``."""
        out: dict[str, Any] = {}
        for item in fields(self):
            value = getattr(self, item.name)
            if item.name in ("steps", "along", "cumulative"):
                value = [block.to_dict() for block in value]
            out[item.name] = finite(value)
        return out

    def to_json(self, indent: int | None = None) -> str:
        """Return `to_dict` as strict JSON with sorted keys."""
        return json.dumps(self.to_dict(), sort_keys=True, indent=indent, allow_nan=False)

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> PrivacySpent:
        """Rebuild from `to_dict`.

        Raises
        ------
        ValueError
            If fields are missing or unknown, or values are out of range.
        """
        known = {item.name for item in fields(cls)}
        unknown = sorted(set(record) - known)
        missing = sorted({"epsilon", "delta", "adjacency", "steps", "clipping_norm"} - set(record))
        if unknown or missing:
            wrong = [f"it lacks {missing}"] * bool(missing) + [
                f"it has the unknown fields {unknown}"
            ] * bool(unknown)
            raise ValueError(f"not a PrivacySpent record: {' and '.join(wrong)}.")
        values = dict(record)
        values["epsilon"] = float(values["epsilon"])
        for name in ("steps", "along", "cumulative"):
            values[name] = tuple(GaussianSteps(**block) for block in values.get(name, ()))
        return cls(**values)

    @classmethod
    def from_json(cls, text: str) -> PrivacySpent:
        """Rebuild from `to_json`."""
        return cls.from_dict(json.loads(text))

    def __repr__(self) -> str:
        rate = self.sampling_rate if isinstance(self.sampling_rate, float) else "varying"
        sigma = (
            f"{self.noise_multiplier:.4g}"
            if isinstance(self.noise_multiplier, float)
            else "varying"
        )
        text = (
            f"PrivacySpent(epsilon={rounded(self.epsilon)}, delta={rounded(self.delta, 3)}, {self.adjacency} per "
            f"{self.unit}, {self.n_steps} steps, sampling_rate={rate}, noise_multiplier={sigma}, "
            f"{self.accountant}, {self.numerics}"
        )
        if self.cumulative:
            text += f", epsilon={rounded(self.cumulative_epsilon)} with earlier fits"
        if self.seeded:
            text += ", seeded"
        if not self.guarantee_holds:
            text += f", GUARANTEE VOID: {'; '.join(self.voided_by)}"
        return text.replace("\n", " ") + ")"

    def _rows(self) -> list[tuple[str, str]]:
        rows = [
            ("adjacency", f"{self.adjacency}, per {self.unit}"),
            ("noise multiplier", _words(self.noise_multiplier)),
            ("sampling rate", _words(self.sampling_rate)),
            ("steps", f"{self.n_steps}"),
            *[
                ("beside them", f"number of usable {self.unit}s, noise {c.noise_multiplier:.4g}")
                for c in self.along
            ],
            (
                "clipping norm",
                "adaptive" if self.clipping_norm is None else f"{self.clipping_norm:.6g}",
            ),
            ("accountant", self.accountant),
            ("cross-check", str(self.crosscheck)),
            (
                "numerics",
                self.numerics
                + (" (idealised)" if self.numerics == "fast" else f", grid {self.grid}"),
            ),
            (
                "randomness",
                (self.random_source or "not stated") + (", seeded" if self.seeded else ""),
            ),
            (
                "taken as public",
                ", ".join(f"{name}={value}" for name, value in self.public.items()) or "nothing",
            ),
            ("not covered", "; ".join(self.not_covered) or "nothing listed"),
        ]
        if self.estimator:
            rows.insert(0, ("fitted", f"{self.estimator}, skdpbayes {self.version}, {self.date}"))
        if self.cumulative:
            rows.insert(0, ("with earlier fits", f"epsilon {rounded(self.cumulative_epsilon)}"))
        return rows

    def _repr_html_(self) -> str:
        return guarantee(self.epsilon, self.delta, self.voided_by, self._rows())


def _positive(value: Any, name: str) -> float:
    if (
        isinstance(value, bool)
        or not isinstance(value, numbers.Real)
        or not 0.0 < float(value) < math.inf
    ):
        raise ValueError(f"{name} must be a finite number above 0, got {value!r}.")
    return float(value)


def _texts(values: Iterable[str], name: str) -> tuple[str, ...]:
    if isinstance(values, str):
        raise ValueError(f"{name} must be a sequence of str, got the str {values!r}.")
    return tuple(str(value) for value in values)


def _pure(value: Any, name: str) -> Any:
    """Return `value` rebuilt from JSON's types (NumPy scalars and arrays converted), or raise ValueError."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    if isinstance(value, Mapping):
        return {str(key): _pure(item, name) for key, item in value.items()}
    if hasattr(value, "tolist"):
        return _pure(value.tolist(), name)
    if isinstance(value, (list, tuple, set, frozenset, range)):
        return [_pure(item, name) for item in value]
    raise ValueError(f"{name} must be made of numbers, strings, lists and dicts, got {value!r}.")


def finite(value: Any) -> Any:
    """Return JSON's types with infinities and NaN as strings, which strict JSON has no numbers for."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return value


def _summary(pairs: list[tuple[float, int]]) -> float | tuple[tuple[float, int], ...]:
    return pairs[0][0] if len({value for value, _ in pairs}) == 1 else tuple(pairs)


def _words(summary: float | tuple[tuple[float, int], ...]) -> str:
    if isinstance(summary, float):
        return f"{summary:.6g}"
    shown = ", ".join(
        f"{value:.4g} ({count} step{'s' * (count != 1)})" for value, count in summary[:4]
    )
    return shown + (f" and {len(summary) - 4} more blocks" if len(summary) > 4 else "")
