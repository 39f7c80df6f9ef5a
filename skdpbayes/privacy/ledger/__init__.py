"""A budget that fits share.

`filters` has the claims and their proofs: how spending adds up, and what is refused. `budget` is
the ledger, `entries` where it keeps charges, `in_force` which ledger a fit charges, and
`open_ledgers` which of them are open in this and other threads and processes.
"""

from __future__ import annotations

from skdpbayes.privacy.ledger.budget import PrivacyLedger
from skdpbayes.privacy.ledger.entries import stored_json
from skdpbayes.privacy.ledger.filters import BudgetError
from skdpbayes.privacy.ledger.in_force import Prepaid, ledger_in_force, ledger_to_take_along

__all__ = [
    "BudgetError",
    "Prepaid",
    "PrivacyLedger",
    "ledger_in_force",
    "ledger_to_take_along",
    "stored_json",
]
