"""Audit of an estimator: white-box checks of its fit, an attack, and samples for others' tests."""

from skdpbayes.audit.auditing import AuditReport, audit
from skdpbayes.audit.samples import FitMechanism

__all__ = ["AuditReport", "FitMechanism", "audit"]
