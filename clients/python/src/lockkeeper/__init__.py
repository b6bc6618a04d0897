"""A client of the lock service lockkeeper: leases that are renewed while the work runs.

    with LockClient("http://localhost:8080").lock("report", ttl=30, wait=60) as lease:
        write(total, fence=lease.fencing_token)
"""

from ._client import AsyncLease, AsyncLockClient, Lease, Lock, LockClient, LockState
from ._errors import (LeaseLost, LockBusy, LockkeeperError, RequestRefused, ServiceUnavailable,
                      WaitCancelled)
from ._keys import ClaimedKey
from ._wait import Wait

__version__ = "1.0.0rc1"
__all__ = [
    "AsyncLease", "AsyncLockClient", "ClaimedKey", "LeaseLost", "Lease", "Lock", "LockBusy", "LockClient", "LockState",
    "LockkeeperError",
    "RequestRefused", "ServiceUnavailable", "Wait", "WaitCancelled",
]
