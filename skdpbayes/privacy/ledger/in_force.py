"""Which ledger a fit charges.

Its own, if it has one; else the ledger that this context opened last. A fit never escapes a ledger
that is open: if the ledger cannot be charged from here, the fit is refused.
"""

from __future__ import annotations

from collections.abc import Iterable

from skdpbayes.privacy.accounting._selection import Selection
from skdpbayes.privacy.accounting._steps import GaussianSteps
from skdpbayes.privacy.ledger import open_ledgers
from skdpbayes.privacy.ledger.budget import opened_again
from skdpbayes.privacy.ledger.filters import BudgetError
from skdpbayes.privacy.ledger.open_ledgers import Ledger


class Prepaid:
    """Stands in for a ledger in the fits of a private search, whose cost was charged as a whole."""

    def __repr__(self) -> str:
        return "Prepaid()"

    def charge(
        self,
        steps: GaussianSteps | Iterable[GaussianSteps] | Selection,
        *,
        adjacency: str = "zero_out",
        unit: str = "row",
        label: str = "",
        voided_by: Iterable[str] = (),
    ) -> None:
        """Nothing more to record."""


def ledger_in_force(own: Ledger | None = None) -> Ledger | None:
    """Ledger that a fit has to charge; None if it has none of its own and none is open.

    Raises
    ------
    BudgetError
        If ledgers are open in other threads, or in processes above, and which of them to charge is
        not clear.
    """
    if own is not None:
        return own
    found = open_ledgers.innermost()
    if found is None:
        return None
    if isinstance(found, open_ledgers.Opened):
        return found.ledger
    if not found.processes:
        raise BudgetError(
            "A ledger is open in another thread, and this one has none: which budget the fit "
            "belongs to is not clear. Give the estimator ledger=..., open a ledger in this thread, "
            "or start the thread with contextvars.copy_context().run."
        )
    one, *others = found.descriptions
    if one["path"] is None or any(other["path"] != one["path"] for other in others):
        raise BudgetError(
            "This process was started by one in which a ledger is open that it cannot charge: it "
            "is kept in memory, or there are several. Give the estimator a ledger with a path, "
            "which processes can share."
        )
    return opened_again(one["parameters"], one["path"])


def ledger_to_take_along() -> Ledger | None:
    """Ledger of this context, for an estimator that leaves for another process; or None."""
    found = open_ledgers.innermost()
    return found.ledger if isinstance(found, open_ledgers.Opened) else None
