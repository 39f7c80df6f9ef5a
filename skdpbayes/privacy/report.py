"""What a fit has spent: the object behind ``privacy_spent_``.

Everything here is public by construction: it is computed from parameters and public metadata, never
from records, so that changing a record leaves a report equal byte for byte.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from skdpbayes.privacy.accounting._steps import (
    GaussianSteps,
    as_steps,
    check_adjacency,
    check_delta,
    check_epsilon,
)
from skdpbayes.privacy.card import rounded
from skdpbayes.privacy.json_values import finite, in_words, positive, pure, texts
from skdpbayes.privacy.spent import Spent, Total, all_voids, least_secure
from skdpbayes.privacy.steps_spent import StepsSpent

if TYPE_CHECKING:
    from skdpbayes.privacy.accounting import Calibration, PrivacyCurve

BEFORE_THE_MODEL = (
    "steps before the model that learn from the records, such as scalers, encoders, imputers and "
    "selectors of columns (`check_pipeline` names them)"
)
_NOT_COVERED = (
    BEFORE_THE_MODEL,
    "choosing a model, its parameters or its features by scores on the records, as GridSearchCV "
    "does",
    "scoring or validating on the records",
    "more than one record of the same person",
    "timing and other side channels",
)
_ONE_PERSON = "a person who goes by several names in `groups`"


def not_covered(unit: str) -> tuple[str, ...]:
    """What a guarantee for this unit does not cover."""
    *others, several, timing = _NOT_COVERED
    return (*others, _ONE_PERSON if unit == "person" else several, timing)


_NEGLIGIBLE = 1e-6  # share of an overhead in epsilon or delta


class PrivacyLeakWarning(UserWarning):
    """Something read from the records is about to be treated as public, which voids the guarantee.

    Examples
    --------
    >>> import warnings
    >>> from skdpbayes import DPDirichletCategorical
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     # Categories are not declared: they are taken from the rows.
    ...     model = DPDirichletCategorical().fit([["a"], ["b"], ["a"]])
    >>> caught[0].category.__name__, model.privacy_spent_.guarantee_holds
    ('PrivacyLeakWarning', False)
    """


def now() -> str:
    """Date and time of this second, UTC (ISO 8601)."""
    return datetime.now(UTC).isoformat(timespec="seconds")


@dataclass(frozen=True, repr=False)
class PrivacySpent(StepsSpent):
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
        for name in ("clipping_norm", "grid"):
            value = getattr(self, name)
            put(name, None if value is None else positive(value, name))
        if self.numerics not in ("fast", "secure"):
            raise ValueError(f"numerics must be 'fast' or 'secure', got {self.numerics!r}.")
        if not 0.0 <= self.delta_overhead < self.delta:
            raise ValueError(
                f"delta_overhead must be in [0, delta={self.delta}), got {self.delta_overhead!r}."
            )
        if not 0.0 <= self.epsilon_overhead <= self.epsilon:
            raise ValueError(
                f"epsilon_overhead must be in [0, epsilon={self.epsilon}], "
                f"got {self.epsilon_overhead!r}."
            )
        put("epsilon_overhead", float(self.epsilon_overhead))
        put("delta_overhead", float(self.delta_overhead))
        put("seeded", bool(self.seeded))
        for name in ("unit", "accountant", "random_source", "estimator", "version", "date"):
            put(name, str(getattr(self, name)))
        put("crosscheck", pure(self.crosscheck, "crosscheck"))
        put("public", pure(dict(self.public), "public"))
        put("schema", None if self.schema is None else pure(dict(self.schema), "schema"))
        put("voided_by", texts(self.voided_by, "voided_by"))
        put("not_covered", texts(self.not_covered, "not_covered"))

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

    @classmethod
    def composed(
        cls,
        reports: Mapping[str, Spent],
        earlier: Sequence[Spent] = (),
        *,
        public: Mapping[str, Any] | None = None,
        covered: Collection[str] = (),
    ) -> PrivacySpent:
        """Report of several fits; see `Spent.composed`.

        Epsilon is that of `Total.composed`, earlier fits included. Fields that have no common value
        are those of the last fit.

        Raises
        ------
        ValueError
            If one of them is no fit, or adjacencies or units differ.
        """
        own = {name: one for name, one in reports.items() if isinstance(one, cls)}
        before = [one for one in earlier if isinstance(one, cls)]
        if len(own) < len(reports) or len(before) < len(earlier) or not own:
            raise ValueError("A private search has to be the last of several steps.")
        each, every = list(own.values()), [*own.values(), *before]
        total = Total.composed([one.total for one in every])
        grids = [one.grid for one in every if one.grid is not None]
        taken = {name: dict(one.public) for name, one in own.items()}
        for name, one in list(own.items())[:-1]:  # that of the last is the whole's
            taken[name] |= {} if one.schema is None else {"schema": one.schema}
        return replace(
            each[-1],
            epsilon=total.epsilon,
            delta=total.delta,
            epsilon_overhead=min(total.epsilon_overhead, total.epsilon),
            delta_overhead=total.delta_overhead,
            steps=tuple(block for one in each for block in one.steps),
            along=tuple(block for one in each for block in one.along),
            cumulative=(
                *(block for one in each for block in one.cumulative),
                *(block for one in before for block in one.cumulative + one.releases),
            ),
            clipping_norm=each[0].clipping_norm if len(each) == 1 else None,
            grid=max(grids, default=None),
            numerics=least_secure(every),
            seeded=any(one.seeded for one in every),
            estimator=" + ".join(one.estimator for one in each),
            public=dict(public or {}) | taken,
            crosscheck="; ".join(f"{name}: {one.crosscheck}" for name, one in own.items()),
            voided_by=all_voids(each, before),
            not_covered=tuple(why for why in each[-1].not_covered if why not in covered),
        )

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
        wrong = [f"it lacks {missing}"] * bool(missing)
        wrong += [f"it has the unknown fields {unknown}"] * bool(unknown)
        if wrong:
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
        rate, sigma = self.sampling_rate, self.noise_multiplier
        text = (
            f"PrivacySpent(epsilon={rounded(self.epsilon)}, delta={rounded(self.delta, 3)}, "
            f"{self.adjacency} per {self.unit}, {self.n_steps} steps, "
            f"sampling_rate={rate if isinstance(rate, float) else 'varying'}, "
            f"noise_multiplier={f'{sigma:.4g}' if isinstance(sigma, float) else 'varying'}, "
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
        clip = "adaptive" if self.clipping_norm is None else f"{self.clipping_norm:.6g}"
        idealised = " (idealised)" if self.numerics == "fast" else f", grid {self.grid}"
        source = (self.random_source or "not stated") + (", seeded" if self.seeded else "")
        told = (f"{name}={in_words(value)}" for name, value in self.public.items())
        public = ", ".join(told) or "nothing"
        counts = [
            f"number of usable {self.unit}s, noise {c.noise_multiplier:.4g}" for c in self.along
        ]
        rows = [
            ("adjacency", f"{self.adjacency}, per {self.unit}"),
            ("noise multiplier", _words(self.noise_multiplier)),
            ("sampling rate", _words(self.sampling_rate)),
            ("steps", f"{self.n_steps}"),
            *(("beside them", count) for count in counts),
            ("clipping norm", clip),
            ("accountant", self.accountant),
            ("cross-check", str(self.crosscheck)),
            ("numerics", self.numerics + idealised),
            ("randomness", source),
            ("taken as public", public),
            ("not covered", "; ".join(self.not_covered) or "nothing listed"),
        ]
        if self.estimator:
            rows.insert(0, ("fitted", f"{self.estimator}, skdpbayes {self.version}, {self.date}"))
        if self.cumulative:
            rows.insert(0, ("with earlier fits", f"epsilon {rounded(self.cumulative_epsilon)}"))
        return rows


def _words(summary: float | tuple[tuple[float, int], ...]) -> str:
    if isinstance(summary, float):
        return f"{summary:.6g}"
    shown = ", ".join(
        f"{value:.4g} ({count} step{'s' * (count != 1)})" for value, count in summary[:4]
    )
    return shown + (f" and {len(summary) - 4} more blocks" if len(summary) > 4 else "")
