"""A privacy budget for several fits on the same records."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from skdpbayes._version import __version__
from skdpbayes.privacy.accounting._gaussian import gaussian_epsilon
from skdpbayes.privacy.accounting._selection import Selection
from skdpbayes.privacy.accounting._spending import Spending, as_spending, from_entry
from skdpbayes.privacy.accounting._steps import (
    GaussianSteps,
    as_steps,
    check_adjacency,
    check_delta,
    check_epsilon,
    merge,
)
from skdpbayes.privacy.card import card, percent, rounded
from skdpbayes.privacy.ledger import open_ledgers
from skdpbayes.privacy.ledger.entries import (
    Entry,
    File,
    Memory,
    Store,
    Unreachable,
)
from skdpbayes.privacy.ledger.filters import (
    KEPT,
    BudgetError,
    Charge,
    new_filter,
)
from skdpbayes.privacy.report import now

_MOST = 1e300  # a cost that is written down: JSON has no infinity
# Keys that entries of early versions lack.
_SINCE_FIRST: dict[str, Any] = {"version": None, "when": None, "voided_by": []}


class PrivacyLedger:
    """A privacy budget for several fits on the same records.

    Give it to estimators (``ledger=``), or open it for a block of code (``with ledger:``). Each fit
    is charged before it draws any noise, and is refused with a `BudgetError` if that would exceed
    the budget.

    Parameters
    ----------
    epsilon, delta : float
        Budget of all fits together.
    adjacency : {"zero_out", "add_remove", "replace_one"}, default="zero_out"
        Of every fit: others are refused.
    unit : str, default="row"
        What a record is, in every fit: ``"row"``, ``"document"`` for topics, ``"record"`` for
        NumPyro models, or ``"person"``. One budget over several tables or kinds of model is that of
        persons: in every fit set `max_rows_per_person` (1 where each has one row) and name the
        person of each row by ``groups``.
    composition : {"renyi", "gaussian", "plan"}, default="renyi"
        How spending adds up. ``"renyi"`` takes any fit and any private search; the first can use
        all of epsilon if no other is to follow, and about nine tenths otherwise. ``"gaussian"``
        loses nothing, and takes only fits all of whose releases are of all records
        (``sampling_rate=1``, which is the default for small tables and for `vips`). ``"plan"``: the
        steps of all fits are given by `plan`, and each fit has to be the next of them.
    plan : sequence of sequences of GaussianSteps, default=None
        For each fit, in this order, what it will release: ``privacy_spent_.releases`` of a fit to
        public or simulated rows with the same parameters.
    order : float, default=None
        Renyi order. None takes the one at which the budget buys most of releases of all records;
        releases of small samples may get more from a smaller one.
    path : str or path, default=None
        A file (sqlite3) in which spending is recorded, so that processes can share the budget and
        it outlives them. An existing file must have been made with the same parameters. None keeps
        it in memory: then a copy in another process refuses every fit.

    Raises
    ------
    ValueError
        If a parameter is out of range, or a plan exceeds the budget.

    Notes
    -----
    Copies are the ledger itself: ``clone``, ``deepcopy`` and cross-validation in one process share
    one budget. Parameters are read-only.

    ``with ledger:`` is for the code of the block, in its thread or asyncio task. Threads that are
    started in it do not inherit it, and their fits are refused: give the estimator the ledger, open
    it in the thread, or run the thread in ``contextvars.copy_context()``. Worker processes are
    charged too if one ledger with a `path` is open, and refused otherwise. Workers that are no
    descendants of this process, such as those of a cluster, know nothing of it: give them a ledger
    with a path.

    Examples
    --------
    >>> import numpy as np
    >>> from skdpbayes import DPBetaBernoulli
    >>> from skdpbayes.privacy import PrivacyLedger
    >>> X = np.random.default_rng(0).random((1000, 1)) < 0.3
    >>> ledger = PrivacyLedger(epsilon=1.0, delta=1e-5)
    >>> with ledger:
    ...     model = DPBetaBernoulli(epsilon=0.5).fit(X)
    >>> ledger  # doctest: +ELLIPSIS
    PrivacyLedger(epsilon=1, delta=1e-05, zero_out per row; spent epsilon=0.4998, left 0.7...)
    """

    def __init__(
        self,
        epsilon: float,
        delta: float,
        *,
        adjacency: str = "zero_out",
        unit: str = "row",
        composition: str = "renyi",
        plan: Iterable[Iterable[GaussianSteps]] | None = None,
        order: float | None = None,
        path: str | Path | None = None,
    ) -> None:
        self.epsilon = check_epsilon(epsilon, positive=True)
        self.delta = check_delta(delta)
        self.adjacency = check_adjacency(adjacency)
        self.unit = str(unit)
        self.composition = composition
        self.plan = None if plan is None else tuple(merge(as_steps(steps)) for steps in plan)
        self._filter = new_filter(
            composition, self.epsilon, self.delta, self.adjacency, order=order, plan=self.plan
        )
        self.order = self._filter.order
        self.path = None if path is None else str(Path(path).absolute())
        self._store: Store = Memory() if self.path is None else File(self.path, self._parameters())

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self.__dict__:
            raise AttributeError(f"{name} of a ledger is read-only: open another ledger.")
        super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{name} of a ledger is read-only: open another ledger.")

    def charge(
        self,
        steps: GaussianSteps | Iterable[GaussianSteps] | Selection,
        *,
        adjacency: str = "zero_out",
        unit: str = "row",
        label: str = "",
        voided_by: Iterable[str] = (),
    ) -> None:
        """Record spending, before it happens.

        Parameters
        ----------
        steps : GaussianSteps, sequence of GaussianSteps, or Selection
        adjacency, unit : str
            With respect to which they are private.
        label : str
            Who spends: estimators give the name of their class.
        voided_by : sequence of str
            Reasons for which the guarantee of what spends is void. The budget's is void then, too.

        Raises
        ------
        BudgetError
            If more would be spent than there is, or adjacency and unit are not the ledger's.
            Nothing is recorded then.

        Notes
        -----
        **Formal guarantee.** All spending that was charged is (`epsilon`, `delta`)-private, with
        the ledger's adjacency and unit, if each mechanism is charged before it draws noise and
        releases no more than it was charged for. *Proof.* An entry is added in the same exclusive
        section that has read all earlier ones, so the filter sees every charge, in one order, and
        no two charges take the same remainder; a filter that accepts all entries proves the rest
        (`RenyiFilter`, `GaussianFilter`, `PlanFilter`). A charge whose fit fails stays. QED

        ``tests/privacy/test_ledger.py``: `test_two_charges_at_once_take_turns` dies without the
        exclusive section, `test_adjacency_and_unit_are_the_ledgers` without that check, and
        `test_an_interrupted_fit_stays_charged` if a failed fit is refunded.
        """
        for name, given, own in (
            ("adjacency", adjacency, self.adjacency),
            ("unit", unit, self.unit),
        ):
            if given != own:
                together = ""
                if name == "unit" and own != "person":
                    together = (
                        " One budget over several tables or kinds of model is that of persons: "
                        "PrivacyLedger(unit='person'), and fits with max_rows_per_person (1 where "
                        "each person has one row) and groups."
                    )
                raise BudgetError(
                    f"The ledger counts with {name}={own!r} and cannot take a fit with "
                    f"{name}={given!r}: open another ledger, or change the fit.{together}"
                )
        about = {
            "label": str(label),
            "version": __version__,
            "when": now(),
            "voided_by": [str(why) for why in voided_by],
        }
        self._record(as_spending(steps), about)

    def _record(self, spending: Spending, about: dict[str, Any]) -> None:
        cost, may_take_all = self._filter.price(spending)
        with self._store.exclusive() as entries:
            self._filter.check_turn(spending, len(entries))
            spent = _cost_of(entries)
            fits = math.fsum((spent, cost)) <= self._filter.limit
            if not (fits or (may_take_all and not entries)):
                left = max(0.0, 1 - spent / self._filter.limit)
                raise BudgetError(
                    f"{about['label'] or 'This fit'} would spend more than is left: "
                    f"{percent(cost / self._filter.limit)} of the budget of "
                    f"epsilon={self.epsilon:g}, delta={self.delta:g}, of which "
                    f"{percent(left, up=False)} is left. Nothing was run. {self._advice()}"
                )
            self._store.add(about | {"cost": min(cost, _MOST)} | spending.to_entry())

    def _advice(self) -> str:
        if self.plan is not None:
            return "The plan is complete."
        left = self.affordable_epsilon()
        if not left:
            return "Nothing is left for another fit."
        most = rounded(left, up=False)
        return f"A fit on all rows may take epsilon={most} at delta={self.delta:g}."

    @property
    def entries(self) -> list[Entry]:
        """Charges, one dict each.

        Keys: ``label``, ``version`` (of the package), ``steps`` or the ``selection`` of a private
        search, ``when`` (UTC, ISO 8601), ``cost`` in the ledger's own currency, and ``voided_by``.
        Version and time are None in entries of versions that did not record them.
        """
        return [_SINCE_FIRST | entry for entry in self._store.entries()]

    @property
    def voided_by(self) -> tuple[str, ...]:
        """Reasons why the budget's guarantee is void, each with the label of its entry."""
        given = (
            f"{entry['label'] or 'a fit'}: {why}"
            for entry in self.entries
            for why in entry["voided_by"]
        )
        return tuple(dict.fromkeys(given))

    @property
    def guarantee_holds(self) -> bool:
        """Whether nothing voids the guarantee."""
        return not self.voided_by

    @property
    def shares(self) -> list[tuple[str, float]]:
        """Label of each charge, and the share of the budget that it took, from 0 to 1."""
        limit = self._filter.limit
        return [(entry["label"], min(1.0, entry["cost"] / limit)) for entry in self.entries]

    @property
    def spent(self) -> float:
        """Share of the budget that is spent, from 0 to 1.

        It is 1 if the first fit leaves nothing for others.
        """
        return min(1.0, _cost_of(self.entries) / self._filter.limit)

    @property
    def spent_epsilon(self) -> float:
        """Epsilon, at the ledger's delta, of all that was charged: what may be said now.

        Zero before the first fit. A single charge has the epsilon of its exact composition; several
        have the epsilon that the filter's sum implies.
        """
        charges = [Charge(from_entry(entry), entry["cost"]) for entry in self.entries]
        return self._filter.epsilon(charges) if charges else 0.0

    def affordable_epsilon(self, delta: float | None = None, *, n_fits: int = 1) -> float:
        """Epsilon that a fit whose releases are of all rows may ask for, with what is left.

        Parameters
        ----------
        delta : float, default=None
            Of that fit; None takes the ledger's.
        n_fits : int, default=1
            So many fits share what is left, each with that epsilon.
        """
        if isinstance(n_fits, bool) or n_fits != int(n_fits) or n_fits < 1:
            raise ValueError(f"n_fits must be a whole number, at least 1, got {n_fits!r}.")
        entries = self.entries
        left = max(0.0, self._filter.limit - _cost_of(entries)) * KEPT
        square = self._filter.affordable_square(left, n_fits=n_fits, is_first=not entries)
        if not square:
            return 0.0
        return gaussian_epsilon(
            self.delta if delta is None else check_delta(delta), math.sqrt(square)
        )

    # Where it is in force

    def __enter__(self) -> PrivacyLedger:
        own = open_ledgers.Description(path=self.path, parameters=self._parameters(), key=id(self))
        open_ledgers.enter(self, own)
        return self

    def __exit__(self, *error: object) -> None:
        open_ledgers.leave(self)

    def __copy__(self) -> PrivacyLedger:
        return self

    def __deepcopy__(self, memo: Any) -> PrivacyLedger:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return opened_again, (self._parameters(), self.path)

    # As text

    def _parameters(self) -> dict[str, Any]:
        plan = self.plan and [[step.to_dict() for step in steps] for steps in self.plan]
        names = ("epsilon", "delta", "adjacency", "unit", "composition", "order")
        return {name: getattr(self, name) for name in names} | {"plan": plan}

    def to_json(self) -> str:
        """Parameters and entries as JSON."""
        return json.dumps({"ledger": self._parameters(), "entries": self.entries}, indent=2)

    @classmethod
    def from_json(cls, text: str) -> PrivacyLedger:
        """A ledger in memory that goes on from one that was written by `to_json`.

        Two ledgers from one text do not know of each other: for a budget that is shared, take
        `path`.
        """
        content = json.loads(text)
        ledger = cls(**_given(content["ledger"]))
        for entry in content["entries"]:
            given = _SINCE_FIRST | entry
            ledger._record(
                from_entry(entry), {name: given[name] for name in ("label", *_SINCE_FIRST)}
            )
        return ledger

    def __repr__(self) -> str:
        about = "" if self.composition == "renyi" else f", composition={self.composition!r}"
        about += "" if self.path is None else f", path={self.path!r}"
        state = self._store.where
        if state is None:
            left = (
                rounded(self.affordable_epsilon(), up=False)
                if self.plan is None
                else self._planned_left()
            )
            state = f"spent epsilon={rounded(self.spent_epsilon)}, left {left}"
        void = "" if self.guarantee_holds else f"; GUARANTEE VOID: {'; '.join(self.voided_by)}"
        return (
            f"PrivacyLedger(epsilon={self.epsilon:g}, delta={self.delta:g}, {self.adjacency} per "
            f"{self.unit}{about}; {state}{void})"
        )

    def _planned_left(self) -> str:
        plan = self.plan or ()
        return f"{len(plan) - len(self.entries)} of {len(plan)} planned fits"

    def _repr_html_(self) -> str:
        spent = self.spent
        rows = [(label, percent(share)) for label, share in self.shares]
        rows.append(("left", percent(max(0.0, 1 - spent), up=False)))
        what = f"budget, {self.adjacency} per {self.unit}"
        state = f"{percent(spent)} spent: epsilon {rounded(self.spent_epsilon)}"
        if not self.guarantee_holds:
            state += "; guarantee void: " + "; ".join(self.voided_by)
        return card(self.epsilon, self.delta, what, state, rows, good=self.guarantee_holds)


def opened_again(parameters: dict[str, Any], path: str | None) -> PrivacyLedger:
    """Ledger of another process, from its parameters.

    It refuses all charges if it has no file here. No file is made: a new one would have the whole
    budget once more.
    """
    there = path is not None and Path(path).is_file()
    ledger = PrivacyLedger(**_given(parameters), path=path if there else None)
    if not there:
        ledger.__dict__.update(path=path, _store=Unreachable(path))
    return ledger


def _given(parameters: dict[str, Any]) -> dict[str, Any]:
    plan = parameters["plan"]
    given = plan and [[GaussianSteps(**step) for step in steps] for steps in plan]
    return parameters | {"plan": given}


def _cost_of(entries: Iterable[Entry]) -> float:
    return math.fsum(entry["cost"] for entry in entries)
