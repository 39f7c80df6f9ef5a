"""Preparation of columns from public facts, or under differential privacy.

A scaler that is fitted before a private model reveals rows without noise. The transformers here
take public bounds and categories, or are private; `skdpbayes.pipelines.check_pipeline` names every
step that is neither. `check_data` is not private: it reports what a private fit must not.
"""

from __future__ import annotations

from skdpbayes.preprocessing._check_data import DataReport, check_data
from skdpbayes.preprocessing._of_schema import make_preprocessor
from skdpbayes.preprocessing._public import BoundedScaler, CategoryEncoder, NormClipper
from skdpbayes.preprocessing._scaler import DPStandardScaler

__all__ = [
    "BoundedScaler",
    "CategoryEncoder",
    "DPStandardScaler",
    "DataReport",
    "NormClipper",
    "check_data",
    "make_preprocessor",
]
