"""Differential privacy: accounting, calibration and reports.

Importing this module loads neither JAX nor SciPy nor any accountant; names are resolved on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._displays import LedgerDisplay, PrivacyProfileDisplay, TradeOffDisplay
    from .accounting import (
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
    from .auditing import AuditDisplay, AuditReport, audit
    from .ledger import BudgetError, PrivacyLedger
    from .report import NoisyCount, PrivacyLeakWarning, PrivacySpent

__all__ = [
    "AccountingError",
    "AuditDisplay",
    "AuditReport",
    "BudgetError",
    "Calibration",
    "CrossCheck",
    "GaussianSteps",
    "LedgerDisplay",
    "NoisyCount",
    "PrivacyCurve",
    "PrivacyLeakWarning",
    "PrivacyLedger",
    "PrivacyProfileDisplay",
    "PrivacySpent",
    "Selection",
    "TradeOffDisplay",
    "audit",
    "baselines",
    "bucket_schedule",
    "calibrate_noise",
    "compose",
    "crosscheck",
    "epsilon",
    "selection_epsilon",
    "smallest_batch_bound",
    "step_size_bound",
    "truncation_delta",
    "wang_step_size_bound",
]

_HOMES = {
    "AuditDisplay": "auditing",
    "AuditReport": "auditing",
    "BudgetError": "ledger",
    "LedgerDisplay": "_displays",
    "NoisyCount": "report",
    "PrivacyLeakWarning": "report",
    "PrivacyLedger": "ledger",
    "PrivacyProfileDisplay": "_displays",
    "PrivacySpent": "report",
    "TradeOffDisplay": "_displays",
    "audit": "auditing",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOMES.get(name, 'accounting')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
