"""Preparation of columns that learns nothing from the rows, or spends budget when it does.

A scaler that is fitted to the data before a private model tells of the data without noise. What is here takes public
bounds and categories, or is private itself; `check_pipeline` names every step of a pipeline that is neither.
`check_data` is not private, and says what a private fit must not.
"""

from __future__ import annotations

from ._check_data import DataReport, check_data
from ._pipelines import PipelineReport, PrivatePipeline, StepReport, check_pipeline, make_private_pipeline
from ._public import BoundedScaler, CategoryEncoder, NormClipper
from ._scaler import DPStandardScaler

__all__ = [
    "BoundedScaler",
    "CategoryEncoder",
    "DPStandardScaler",
    "DataReport",
    "NormClipper",
    "PipelineReport",
    "PrivatePipeline",
    "StepReport",
    "check_data",
    "check_pipeline",
    "make_private_pipeline",
]
