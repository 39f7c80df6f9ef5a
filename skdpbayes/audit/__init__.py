"""Audit of an estimator: white-box checks of its fit, and an attack."""

from skdpbayes.audit.auditing import AuditReport, audit

__all__ = ["AuditReport", "audit"]
