"""Pictures, in the manner of scikit-learn's displays. matplotlib is loaded when one is drawn."""

from skdpbayes.displays.audit import AuditDisplay
from skdpbayes.displays.calibration import (
    CheckDisplay,
    CoverageDisplay,
    RankDisplay,
    ReliabilityDisplay,
)
from skdpbayes.displays.inspection import PosteriorIntervalDisplay, PrivacyUtilityDisplay
from skdpbayes.displays.privacy import LedgerDisplay, PrivacyProfileDisplay, TradeOffDisplay

__all__ = [
    "AuditDisplay",
    "CheckDisplay",
    "CoverageDisplay",
    "LedgerDisplay",
    "PosteriorIntervalDisplay",
    "PrivacyProfileDisplay",
    "PrivacyUtilityDisplay",
    "RankDisplay",
    "ReliabilityDisplay",
    "TradeOffDisplay",
]
