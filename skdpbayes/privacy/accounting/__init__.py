"""From what a mechanism does (steps, sampling rate, noise) to what it promises (epsilon, delta).

`GaussianSteps` describes the releases, `compose` bounds them, `calibrate_noise` inverts the bound.
Host only: NumPy and SciPy, loaded on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from skdpbayes.privacy.accounting._steps import ADJACENCIES, GaussianSteps

if TYPE_CHECKING:
    from skdpbayes.privacy.accounting._baselines import (
        baselines,
        smallest_batch_bound,
        truncation_delta,
    )
    from skdpbayes.privacy.accounting._calibration import (
        Calibration,
        bucket_schedule,
        calibrate_noise,
    )
    from skdpbayes.privacy.accounting._crosscheck import AccountingError, CrossCheck, crosscheck
    from skdpbayes.privacy.accounting._curve import PrivacyCurve, compose
    from skdpbayes.privacy.accounting._epsilon import EpsilonValue, epsilon
    from skdpbayes.privacy.accounting._langevin import (
        decreasing_blocks,
        noise_multiplier,
        step_size,
        step_size_bound,
        wang_step_size_bound,
    )
    from skdpbayes.privacy.accounting._selection import Selection, selection_epsilon

__all__ = [
    "ADJACENCIES",
    "AccountingError",
    "Calibration",
    "CrossCheck",
    "EpsilonValue",
    "GaussianSteps",
    "PrivacyCurve",
    "Selection",
    "baselines",
    "bucket_schedule",
    "calibrate_noise",
    "compose",
    "crosscheck",
    "decreasing_blocks",
    "epsilon",
    "noise_multiplier",
    "selection_epsilon",
    "smallest_batch_bound",
    "step_size",
    "step_size_bound",
    "truncation_delta",
    "wang_step_size_bound",
]

_HOME = {
    "AccountingError": "_crosscheck",
    "Calibration": "_calibration",
    "CrossCheck": "_crosscheck",
    "EpsilonValue": "_epsilon",
    "PrivacyCurve": "_curve",
    "Selection": "_selection",
    "baselines": "_baselines",
    "bucket_schedule": "_calibration",
    "calibrate_noise": "_calibration",
    "compose": "_curve",
    "crosscheck": "_crosscheck",
    "decreasing_blocks": "_langevin",
    "epsilon": "_epsilon",
    "noise_multiplier": "_langevin",
    "selection_epsilon": "_selection",
    "smallest_batch_bound": "_baselines",
    "step_size": "_langevin",
    "step_size_bound": "_langevin",
    "truncation_delta": "_baselines",
    "wang_step_size_bound": "_langevin",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
