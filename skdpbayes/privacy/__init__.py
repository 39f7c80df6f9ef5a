"""Differential privacy: accounting, calibration and reports.

Importing this module loads neither JAX nor SciPy nor any accountant; names are resolved on first
use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from skdpbayes.privacy.accounting import (
        AccountingError,
        Calibration,
        CrossCheck,
        GaussianSteps,
        PrivacyCurve,
        Selection,
        baselines,
        bucket_schedule,
        calibrate_noise,
        compose,
        crosscheck,
        epsilon,
        selection_epsilon,
        smallest_batch_bound,
        step_size_bound,
        truncation_delta,
        wang_step_size_bound,
    )
    from skdpbayes.privacy.count import NoisyCount
    from skdpbayes.privacy.ledger import BudgetError, PrivacyLedger
    from skdpbayes.privacy.page import statement_page
    from skdpbayes.privacy.report import PrivacyLeakWarning, PrivacySpent
    from skdpbayes.privacy.selection import SelectionSpent
    from skdpbayes.privacy.statements import Verdict, statement, verify_statement

__all__ = [
    "AccountingError",
    "BudgetError",
    "Calibration",
    "CrossCheck",
    "GaussianSteps",
    "NoisyCount",
    "PrivacyCurve",
    "PrivacyLeakWarning",
    "PrivacyLedger",
    "PrivacySpent",
    "Selection",
    "SelectionSpent",
    "Verdict",
    "baselines",
    "bucket_schedule",
    "calibrate_noise",
    "compose",
    "crosscheck",
    "epsilon",
    "selection_epsilon",
    "smallest_batch_bound",
    "statement",
    "statement_page",
    "step_size_bound",
    "truncation_delta",
    "verify_statement",
    "wang_step_size_bound",
]

_HOMES = {
    "BudgetError": "ledger",
    "NoisyCount": "count",
    "PrivacyLeakWarning": "report",
    "PrivacyLedger": "ledger",
    "PrivacySpent": "report",
    "SelectionSpent": "selection",
    "Verdict": "statements",
    "statement": "statements",
    "statement_page": "page",
    "verify_statement": "statements",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOMES.get(name, 'accounting')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
