"""Does an estimator keep its promise? White-box checks of what it runs, and attacks."""

from skdpbayes.audit.auditing import AuditReport, audit

__all__ = ["AuditReport", "audit"]
