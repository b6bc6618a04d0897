"""A lease that is renewed while the work goes on, for the generated client; Python 3.11.

    with KeepAlive(locks, "report") as lease:  # raises LeaseLost at the end, too
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
from lockkeeper import Grant
from lockkeeper import LocksApi
from lockkeeper import RefreshRequest
from lockkeeper.exceptions import ConflictException

# The part of the TTL after which work without a renewal is stopped. The rest is for it to stop.
USABLE = 0.8

# The least time between two requests of one wait, which a service may cut (25 s).
PAUSE = 0.2


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
        try:
            sent, grant = self._acquire()
        except ConflictException:
            raise
        except BaseException:  # KeyboardInterrupt as well
            self._release()  # It may have been granted.
            raise
        if self._over.is_set():  # nobody waits for it any more
            self._release()
            return self
        self.fencing_token: int = grant.fencing_token
        # The lease began no earlier than after the wait.
        self._end = sent + (grant.waited_ms + USABLE * grant.ttl_ms) / 1000
        for task in (self._renew, self._watch):
            threading.Thread(target=task, daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._over.set()
        # Work that was busy all the time may have kept everybody from noticing.
        is_over = self.lost.is_set() or time.monotonic() >= self._end
        if (is_over or not self._release()) and kind is None:
            raise LeaseLost(self._key)

    def check(self) -> None:
        """Call it between two steps of the work."""
        if self.lost.is_set() or time.monotonic() >= self._end:
            raise LeaseLost(self._key)

    def _acquire(self) -> tuple[float, Grant]:
        """The moment of the last request, and its answer: with the same token it is one claim."""
        until = time.monotonic() + self._wait
        while True:
            sent = time.monotonic()
            left = max(0.0, until - sent)
            request = AcquireRequest(
                ttl_ms=int(self._ttl * 1000), wait_ms=int(left * 1000), token=self._token
            )
            try:
                return sent, self._locks.acquire_lock(self._key, request, _request_timeout=left + 10)
            except ConflictException as held:
                if getattr(held.data, "code", "") != "lock_held" or time.monotonic() >= until:
                    raise
            if self._over.wait(sent + PAUSE - time.monotonic()):
                raise LeaseLost(self._key)

    def _give_up(self) -> None:
        """Nobody waits for the grant: what there is goes now, what comes goes when it is there."""
        self._over.set()
        threading.Thread(target=self._release).start()

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

    def _release(self) -> bool:
        """Returns false if the lease was gone."""
        try:
            self._locks.release_lock(self._key, self._token, _request_timeout=5)
        except ConflictException:
            return False
        except Exception:
            pass  # Free after its TTL.
        return True


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
            self._lease._give_up()
            raise

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._over = True
        if self._cancelled:
            self._task.uncancel()
            kind = None  # The cancellation was ours.
        await asyncio.to_thread(self._lease.__exit__, kind)

    def _on_lost(self) -> None:
        self._loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        if not self._over:
            self._cancelled = True
            self._task.cancel()
