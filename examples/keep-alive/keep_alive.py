"""A lease that is renewed while the work goes on, for the generated client; Python 3.11.

    with KeepAlive(locks, "report") as lease:
        for page in pages:
            lease.check()  # raises LeaseLost
            write(page, lease.fencing_token)

    async with AsyncKeepAlive(locks, "report") as lease:  # cancels the task, then raises LeaseLost
        await write_all(lease.fencing_token)

`locks` is a `lockkeeper.LocksApi`. A held key raises its `ConflictException`, with `data.owner`.
"""

import asyncio
import secrets
import threading
import time
from collections.abc import Callable

from lockkeeper import AcquireRequest
from lockkeeper import LocksApi
from lockkeeper import RefreshRequest
from lockkeeper.exceptions import ConflictException

# The part of the TTL after which work without a renewal is stopped. The rest is for it to stop.
USABLE = 0.8


class LeaseLost(Exception):
    """Another client may hold the key by now, or soon."""


class KeepAlive:
    """Holds a key from `with` on. `lost` is set before the lease ends, by this machine's clock."""

    def __init__(
        self,
        locks: LocksApi,
        key: str,
        ttl: float = 30.0,
        wait: float = 0.0,
        on_lost: Callable[[], None] = lambda: None,
    ) -> None:
        self.lost = threading.Event()
        self._locks, self._key, self._ttl, self._wait = locks, key, ttl, wait
        self._on_lost, self._over = on_lost, threading.Event()
        self._token = secrets.token_hex(16)

    def __enter__(self) -> "KeepAlive":
        request = AcquireRequest(
            ttl_ms=int(self._ttl * 1000), wait_ms=int(self._wait * 1000), token=self._token
        )
        sent = time.monotonic()
        try:
            grant = self._locks.acquire_lock(self._key, request, _request_timeout=self._wait + 10)
        except ConflictException:
            raise
        except Exception:
            self._release()  # It may have been granted.
            raise
        if self._over.is_set():  # cancelled meanwhile
            self._release()
        self.fencing_token: int = grant.fencing_token
        # The lease began no earlier than after the wait.
        self._end = sent + (grant.waited_ms + USABLE * grant.ttl_ms) / 1000
        for task in (self._renew, self._watch):
            threading.Thread(target=task, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if not self.lost.is_set():
            self._release()

    def check(self) -> None:
        """Call it between two steps of the work."""
        if self.lost.is_set() or time.monotonic() >= self._end:
            raise LeaseLost(self._key)

    def _renew(self) -> None:
        pause, request = self._ttl / 3, RefreshRequest(fencing_token=self.fencing_token)
        while not self._over.wait(pause) and not self.lost.is_set():
            sent = time.monotonic()
            try:
                grant = self._locks.refresh_lock(
                    self._key, self._token, request, _request_timeout=self._ttl / 3
                )
            except ConflictException:
                self._end = sent
                return self._lose()
            except Exception:
                pause = self._ttl / 20  # No answer, or no good one: again, until the end.
            else:
                self._end = sent + USABLE * grant.ttl_ms / 1000
                pause = self._ttl / 3

    def _watch(self) -> None:
        while (left := self._end - time.monotonic()) > 0:
            if self._over.wait(left):
                return
        self._lose()

    def _lose(self) -> None:
        if not self._over.is_set() and not self.lost.is_set():
            self.lost.set()
            self._on_lost()

    def _release(self) -> None:
        try:
            self._locks.release_lock(self._key, self._token, _request_timeout=5)
        except Exception:
            pass  # Free after its TTL.


class AsyncKeepAlive:
    """The same in a task, which is cancelled if the lease is lost."""

    def __init__(self, locks: LocksApi, key: str, ttl: float = 30.0, wait: float = 0.0) -> None:
        self._lease = KeepAlive(locks, key, ttl, wait, self._on_lost)
        self._over = self._cancelled = False

    async def __aenter__(self) -> KeepAlive:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        try:
            return await asyncio.to_thread(self._lease.__enter__)
        except asyncio.CancelledError:
            self._lease._over.set()
            raise

    async def __aexit__(self, *_: object) -> None:
        self._over = True
        if self._cancelled:
            self._task.uncancel()
        await asyncio.to_thread(self._lease.__exit__)
        if self._cancelled:
            raise LeaseLost(self._lease._key)

    def _on_lost(self) -> None:
        self._loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        if not self._over:
            self._cancelled = True
            self._task.cancel()
