"""What can go wrong, and what to do about it."""

from typing import Any, Dict, Optional


class LockkeeperError(Exception):
    """The base of all errors of this package."""


class LockBusy(LockkeeperError):
    """Another client holds the key, also after the wait. Retry later; its lease lasts for `retry_after`
    seconds, unless it is renewed. `problem` is the answer of the service."""

    def __init__(self, key: str, problem: Dict[str, Any]) -> None:
        super().__init__("%s; retry later, or wait longer" % problem.get("detail"))
        self.key, self.problem, left = key, problem, problem.get("retry_after_ms")
        self.owner: Optional[str] = problem.get("owner")
        self.retry_after: Optional[float] = None if left is None else left / 1000


class LeaseLost(LockkeeperError):
    """The lease ended, or was about to, before the work did: stop, other work may overlap with yours. Or before
    the work began: then nothing ran. Of several keys `key` is the first one whose lease was lost."""

    def __init__(self, key: str, fencing_token: int, reason: str, has_begun: bool = True, name: str = "") -> None:
        text = "ended: %s; other work may overlap with yours" if has_begun else "began: %s; nothing ran"
        super().__init__("the lease on %s was lost before the work %s" % (name or repr(key), text % reason))
        self.key, self.fencing_token, self.reason = key, fencing_token, reason


class WaitCancelled(LockkeeperError):
    """The claim ended while it waited: it was released elsewhere, its token was used elsewhere, or the process
    ends. Nothing is held."""


class ServiceUnavailable(LockkeeperError):
    """The service did not answer in time, or the quota is used up. Retry later; nothing is held that was not before."""


class RequestRefused(LockkeeperError):
    """The key, an option, the API key, the URL or `ca` is wrong. Correct it: a retry gets the same answer."""

    def __init__(self, message: str, status: int = 0, problem: Optional[Dict[str, Any]] = None) -> None:
        super().__init__(message)
        self.status, self.problem = status, problem or {}
