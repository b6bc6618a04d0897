"""What can go wrong, and what to do about it."""

from typing import Any, Dict, Optional


class LockkeeperError(Exception):
    """The base of all errors of this package."""


class LockBusy(LockkeeperError):
    """Another client holds the key, also after the wait. Give up, or retry after `retry_after` seconds."""

    def __init__(self, key: str, problem: Dict[str, Any]) -> None:
        detail = str(problem.get("detail") or "%r is held by another client" % key)
        super().__init__(detail + "; retry later, or wait longer")
        self.key = key
        self.owner: Optional[str] = problem.get("owner")
        self.waiters: Optional[int] = problem.get("waiters")
        self.holders: Optional[int] = problem.get("holders")
        self.slots: Optional[int] = problem.get("slots")
        left = problem.get("retry_after_ms")
        self.retry_after: Optional[float] = left / 1000 if isinstance(left, int) else None


class LeaseLost(LockkeeperError):
    """The lease ended, or was about to, before the work did. Stop: the work may overlap with another client's."""

    def __init__(self, key: str, fencing_token: int, reason: str) -> None:
        message = "the lease on %r was lost before the work ended: %s; the work may overlap with another client's"
        super().__init__(message % (key, reason))
        self.key, self.fencing_token, self.reason = key, fencing_token, reason


class WaitCancelled(LockkeeperError):
    """The claim was released while it waited, elsewhere or at the end of the process. Nothing is held."""


class ServiceUnavailable(LockkeeperError):
    """The service, or its store, did not answer in time. Retry later; a lease of yours lasts for `remaining()`.

    `outcome` is `not_acquired` if nothing has happened, and `unknown` if the request may have been carried out.
    """

    def __init__(self, message: str, outcome: str = "unknown") -> None:
        super().__init__(message)
        self.outcome = outcome


class RequestRefused(LockkeeperError):
    """The key, an option, the API key or the URL is wrong. Correct it: a retry gets the same answer."""

    def __init__(self, message: str, status: int = 0, code: str = "", field: Optional[str] = None) -> None:
        super().__init__(message)
        self.status, self.code, self.field = status, code, field
