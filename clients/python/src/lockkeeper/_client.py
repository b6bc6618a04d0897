"""The client, its context managers and its leases."""

import asyncio
import functools
import inspect
import os
import socket
import sys
import threading
import urllib.parse
import weakref
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Callable, Dict, List, Optional, Type, TypeVar, Union

from ._claim import Claim, path_of
from ._errors import LeaseLost, LockBusy
from ._service import Duration, Service, seconds

F = TypeVar("F", bound=Callable[..., Any])
Path = Union[str, "os.PathLike[str]"]


@dataclass(frozen=True)
class LockState:
    """What the service says of a key. Times are seconds; `raw` has all members of the answer."""

    key: str
    held: bool
    owner: Optional[str]
    fencing_token: Optional[int]
    ttl: Optional[float]
    held_for: Optional[float]
    waiters: int
    holders: Optional[int]
    slots: Optional[int]
    raw: Dict[str, Any]

    @classmethod
    def _of(cls, raw: Dict[str, Any]) -> "LockState":
        ttl, held = (raw[name] / 1000 if name in raw else None for name in ("ttl_ms", "held_ms"))
        return cls(raw["key"], raw["held"], raw.get("owner"), raw.get("fencing_token"), ttl, held,
                   raw.get("waiters", 0), raw.get("holders"), raw.get("slots"), raw)


class Lease:
    """The right to a key, renewed until it is released or lost. Keep it: it is released when it is collected.

    `lost` is set before the lease ends; then stop. It is a context manager, which releases it.
    """

    def __init__(self, claim: Claim, on_lost: Optional[Callable[["Lease"], object]]) -> None:
        self._claim = claim
        self.key, self.lost = claim.key, claim.lost
        if on_lost:
            itself = weakref.ref(self)

            def tell() -> None:
                lease = itself()
                if lease is not None:
                    on_lost(lease)

            claim.listeners.append(tell)

    @property
    def fencing_token(self) -> int:
        """Rises with every lease of the key: let what the lock guards refuse a smaller one."""
        return self._claim.fencing_token

    @property
    def token(self) -> str:
        """The secret that proves the lease."""
        return self._claim.token

    @property
    def slot(self) -> Optional[int]:
        """With `slots`: the number, from 1, that no other lease of the key has."""
        return self._claim.slot

    def remaining(self) -> float:
        """Seconds that the lease lasts at least, if it is not renewed."""
        return self._claim.remaining()

    def still_mine(self, for_seconds: Duration = 0) -> bool:
        """Whether the lease lasts for so long, as far as this process knows. Asks nobody."""
        return not self.lost.is_set() and self.remaining() > seconds(for_seconds)

    def release(self) -> bool:
        """Releases the lease; False if the service could not be told, and the lease ends by its TTL.

        Raises LeaseLost if it had ended before. In a forked child it does nothing.
        """
        if not self._claim.is_own():
            return False
        self._claim.end()
        self._claim.join()
        loss = self._claim.loss()
        if loss:
            raise loss
        return self._claim.was_released

    def __enter__(self) -> "Lease":
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException],
                 trace: Optional[TracebackType]) -> None:
        self._claim.end()
        self._claim.join()
        self._judge(error)

    def _judge(self, error: Optional[BaseException]) -> None:
        """Nothing that lost its lease ends as a success; an error of the work is chained."""
        loss = self._claim.loss()
        if loss and (error is None or isinstance(error, Exception) and not isinstance(error, LeaseLost)):
            raise loss from error

    def __del__(self) -> None:
        claim = getattr(self, "_claim", None)
        if claim is not None:
            claim.end()

    def __repr__(self) -> str:
        return "<Lease %r, fencing token %d, %.1f s left>" % (self.key, self.fencing_token, self.remaining())


class Lock:
    """Acquires in `with`, `async with`, or as a decorator; each time with a new claim."""

    def __init__(self, make: Callable[[], Claim], on_lost: Optional[Callable[[Lease], object]]) -> None:
        self._make, self._on_lost = make, on_lost
        self._lease: Optional[Lease] = None

    def _start(self) -> Lease:
        if self._lease is not None:
            raise RuntimeError("this lock is in use: make one for each `with`")
        self._lease = Lease(self._make(), self._on_lost)
        self._lease._claim.start()
        return self._lease

    def __enter__(self) -> Lease:
        lease = self._start()
        try:
            lease._claim.granted.result()
            return lease
        except BaseException:
            self._lease = None
            lease._claim.end()
            lease._claim.join()
            raise

    def __exit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException],
                 trace: Optional[TracebackType]) -> None:
        lease, self._lease = self._lease, None
        if lease is not None:
            lease.__exit__(kind, error, trace)

    async def __aenter__(self) -> Lease:
        lease = self._start()
        claim = lease._claim
        try:
            await asyncio.shield(asyncio.wrap_future(claim.granted))
        except BaseException:
            self._lease = None
            claim.end()
            await asyncio.shield(asyncio.wrap_future(claim.finished))
            raise
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        self._is_in_block, self._was_told = True, False
        self._cancelling = self._task.cancelling() if self._task and sys.version_info >= (3, 11) else 0
        itself = weakref.ref(self)
        claim.listeners.append(lambda: Lock._tell(itself))
        if claim.lost.is_set():
            self._cancel()
        return lease

    @staticmethod
    def _tell(reference: "weakref.ref[Lock]") -> None:
        lock = reference()
        if lock is not None:
            lock._loop.call_soon_threadsafe(lock._cancel)

    def _cancel(self) -> None:
        """Cancels the block of `async with` before the lease ends."""
        if self._is_in_block and not self._was_told and self._task is not None:
            self._was_told = True
            self._task.cancel()

    async def __aexit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException],
                        trace: Optional[TracebackType]) -> None:
        self._is_in_block = False
        lease, self._lease = self._lease, None
        if lease is None:
            return
        if self._was_told and self._task is not None:
            is_only_ours = True
            if sys.version_info >= (3, 11):
                is_only_ours = self._task.uncancel() <= self._cancelling
            if isinstance(error, asyncio.CancelledError) and is_only_ours:
                error = None
        lease._claim.end()
        await asyncio.shield(asyncio.wrap_future(lease._claim.finished))
        lease._judge(error)

    def __call__(self, function: F) -> F:
        """Decorates a function or a coroutine function: each call has a lease of its own."""
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError("a generator goes on after its call: use `with` in it")
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def wrapped(*args: Any, **named: Any) -> Any:
                async with Lock(self._make, self._on_lost):
                    return await function(*args, **named)
        else:

            @functools.wraps(function)
            def wrapped(*args: Any, **named: Any) -> Any:
                with Lock(self._make, self._on_lost):
                    return function(*args, **named)

        return wrapped  # type: ignore[return-value]


class LockClient:
    """A client of one service. It may be shared by threads, and is whole in a forked child.

    `url`, `api_key` (a path: the file that has it) and `ca` are those of LOCKKEEPER_URL,
    LOCKKEEPER_API_KEY or LOCKKEEPER_API_KEY_FILE, and LOCKKEEPER_CA if they are left out.
    """

    def __init__(self, url: Optional[str] = None, api_key: Optional[Path] = None, ca: Optional[Path] = None,
                 owner: Optional[str] = None) -> None:
        self._service, self._owner = Service(url, api_key, ca), owner

    def lock(self, key: str, ttl: Duration = 30, wait: Optional[Duration] = 0, slots: Optional[int] = None,
             shared: bool = False, owner: Optional[str] = None,
             on_lost: Optional[Callable[[Lease], object]] = None) -> Lock:
        """A lock for `with`, `async with`, or a decorator; `wait=None` waits for ever.

        Raises LockBusy, ServiceUnavailable, RequestRefused or WaitCancelled instead of entering the block, and
        LeaseLost at its end. `on_lost` is called in another thread, before the lease ends.
        """
        length, patience = seconds(ttl), float("inf") if wait is None else seconds(wait)
        path_of(key)
        options = {"slots": slots, "shared": shared or None}

        def make() -> Claim:
            name = owner or self._owner or "%s:%d" % (socket.gethostname(), os.getpid())
            return Claim(self._service, key, length, patience, dict(options, owner=name))

        return Lock(make, on_lost)

    def try_lock(self, key: str, ttl: Duration = 30, slots: Optional[int] = None, shared: bool = False,
                 owner: Optional[str] = None,
                 on_lost: Optional[Callable[[Lease], object]] = None) -> Optional[Lease]:
        """A lease, or None if another client holds the key. Release it, or use it in `with`."""
        lock = self.lock(key, ttl, 0, slots, shared, owner, on_lost)
        try:
            return lock.__enter__()
        except LockBusy:
            return None

    def get(self, key: str) -> LockState:
        """The state of a key, held or not."""
        return LockState._of(self._service.ask("GET", path_of(key)).body)

    def list(self, prefix: str = "") -> List[LockState]:
        """The held keys with a prefix."""
        found: List[LockState] = []
        cursor: Optional[str] = ""
        while cursor is not None:
            query = {"prefix": prefix, "limit": "1000"}
            if cursor:
                query["cursor"] = cursor
            path = "/locks?" + urllib.parse.urlencode(query, quote_via=urllib.parse.quote)
            body = self._service.ask("GET", path).body
            found += [LockState._of(one) for one in body["locks"]]
            cursor = body.get("cursor")
        return found

    def force_release(self, key: str, reason: Optional[str] = None) -> bool:
        """Ends all leases of a key, whoever holds them; False if it was not held. Needs `admin`.

        It is not repeated after a lost answer, because it could end the next lease.
        """
        query = "?reason=" + urllib.parse.quote(reason, safe="") if reason else ""
        path = path_of(key, "/admin/locks/") + query
        return self._service.ask("DELETE", path, "lock_lost", is_repeated=False).code != "lock_lost"
