"""The client, its context managers and its leases."""

import _thread
import asyncio
import contextlib
import functools
import inspect
import os
import socket
import sys
import threading
import urllib.parse
import weakref
from concurrent import futures
from types import AsyncGeneratorType, GeneratorType
from typing import Any, Awaitable, Callable, Dict, List, NamedTuple, Optional, Sequence, TypeVar, Union, cast

from ._claim import LONGEST, MOMENT, Claim
from ._errors import LeaseLost, LockBusy, LockkeeperError
from ._keys import Key, keys_of, path_of
from ._service import Duration, Path, Service, seconds
from ._wait import Wait

F = TypeVar("F", bound=Callable[..., Any])
L = TypeVar("L", "Lease", "AsyncLease")
T = TypeVar("T")


class LockState(NamedTuple):
    """What the service says of a key; `ttl` is in seconds, and `raw` has all members of the answer."""

    key: str
    held: bool
    owner: Optional[str]
    fencing_token: Optional[int]
    ttl: Optional[float]
    waiters: int
    raw: Dict[str, Any]


def _state(raw: Dict[str, Any]) -> LockState:
    ttl = raw["ttl_ms"] / 1000 if "ttl_ms" in raw else None
    waiters, number = raw.get("waiters", 0), raw.get("fencing_token")
    return LockState(raw["key"], raw["held"], raw.get("owner"), number, ttl, waiters, raw)


class _Held:
    """What the leases of both kinds have."""

    def __init__(self, claim: Claim) -> None:
        self._claim, self.token, self.lost = claim, claim.token, claim.lost
        self.keys, self.fencing_tokens, self.slots = list(claim.keys.keys), claim.fencing_tokens, claim.slots

    @property
    def key(self) -> str:
        return self._only("key", "keys")

    @property
    def fencing_token(self) -> int:
        return self.fencing_tokens[self._only("fencing_token", "fencing_tokens")]

    @property
    def slot(self) -> Optional[int]:
        return self.slots[self._only("slot", "slots")]

    def _only(self, name: str, names: str) -> str:
        if self._claim.keys.is_several:
            raise AttributeError("a lease of several keys has no `%s`: use `%s`" % (name, names))
        return self.keys[0]

    def remaining(self) -> float:
        """Seconds that the lease lasts at least, if it is not renewed."""
        return self._claim.remaining()

    def still_mine(self, for_seconds: Duration = 0) -> bool:
        """Whether the lease lasts for so long, as far as this process knows. Asks nobody."""
        return not self.lost.is_set() and self.remaining() > seconds(for_seconds)

    def _begin(self) -> None:
        """No block begins without a lease."""
        try:
            self._claim.begin()
        except LockkeeperError:
            self._claim.end()
            raise

    def _judge(self, error: Optional[BaseException]) -> None:
        """Nothing that lost its lease ends as a success; an error of the work is chained."""
        loss = self._claim.loss()
        is_success = error is None or isinstance(error, SystemExit) and error.code in (None, 0)
        if loss and (is_success or isinstance(error, Exception) and not isinstance(error, LeaseLost)):
            raise loss from error

    def __del__(self) -> None:
        self._claim.forget()


class Lease(_Held):
    """The right to a key, or to several, renewed until it is released or lost; a context manager that releases it.

    `fencing_token` rises with every lease of the key: let what the lock guards refuse a smaller one. `lost`
    is set before the lease ends: then stop. `slot` is a number that no other lease has, with `slots`. Of several
    keys there are `keys`, and by key `fencing_tokens` and `slots`.
    Keep the object: the lease is released when it is collected, and at the end of the process. While the lease lasts,
    `on_lost` is kept, and what it belongs to.
    """

    def release(self) -> bool:
        """Releases the lease; False if the service could not be told: then it ends by its TTL.

        Raises LeaseLost if it had ended before. Does nothing in a forked child.
        """
        if self._claim.is_own():
            self.__exit__(None, None, None)
        return self._claim.is_own() and self._claim.was_released

    def __enter__(self) -> "Lease":
        self._begin()
        return self

    def __exit__(self, kind: Any, error: Optional[BaseException], trace: Any) -> None:
        self._claim.end()
        self._claim.join(_patience(error, LONGEST))
        self._judge(error)


class AsyncLease(_Held):
    """A Lease of asyncio: `async with` releases it, and cancels its block before the lease ends."""

    _block: Optional["_Block"] = None

    async def release(self) -> bool:
        """Releases the lease; False if the service could not be told: then it ends by its TTL.

        Raises LeaseLost if it had ended before. Does nothing in a forked child.
        """
        if self._claim.is_own():
            await _end(self._claim, None, LONGEST)
            self._judge(None)
        return self._claim.is_own() and self._claim.was_released

    async def __aenter__(self) -> "AsyncLease":
        self._begin()
        self._block = _Block(self._claim)
        return self

    async def __aexit__(self, kind: Any, error: Optional[BaseException], trace: Any) -> None:
        block, self._block = self._block, None
        error = block.end(error) if block else error
        await _end(self._claim, error, _patience(error, LONGEST))
        self._judge(error)


class _Block:
    """Cancels the task of an `async with` before its lease ends."""

    def __init__(self, claim: Claim) -> None:
        loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        self._was_told, self._is_open = False, True
        self._cancelling = self._task.cancelling() if self._task and sys.version_info >= (3, 11) else 0
        cancel = weakref.WeakMethod(self._cancel)  # The claim keeps no block alive.
        claim.listeners.insert(0, lambda: loop.call_soon_threadsafe(lambda: (cancel() or bool)()))
        if claim.lost.is_set():
            loop.call_soon(self._cancel)

    def _cancel(self) -> None:
        if self._is_open and not self._was_told and self._task:
            self._was_told = True
            self._task.cancel()

    def end(self, error: Optional[BaseException]) -> Optional[BaseException]:
        """The error of the block, unless that is our cancellation."""
        self._is_open = False
        if self._was_told and self._task:
            is_ours = sys.version_info < (3, 11) or self._task.uncancel() <= self._cancelling
            return None if is_ours and isinstance(error, asyncio.CancelledError) else error
        return error


def _patience(error: Optional[BaseException], usual: float) -> float:
    """The time for an end after this error: a caller does not wait for what it has cancelled."""
    if error is None or isinstance(error, (SystemExit, KeyboardInterrupt)):  # No process may wait for it later.
        return LONGEST
    return usual if isinstance(error, Exception) else MOMENT


async def _settled(future: "futures.Future[Any]", longest: Optional[float] = None) -> None:
    """Waits for the claim's thread, which may go on after the loop."""
    loop = asyncio.get_running_loop()
    settled: "asyncio.Future[None]" = loop.create_future()

    def tell(_: Any) -> None:
        with contextlib.suppress(RuntimeError):  # The loop is closed.
            loop.call_soon_threadsafe(settled.cancel)

    future.add_done_callback(tell)
    await asyncio.wait([settled], timeout=longest)


async def _end(claim: Claim, error: Optional[BaseException], longest: float) -> None:
    claim.end()
    if claim.is_running() and not isinstance(error, GeneratorExit):  # A closed coroutine may not wait.
        try:
            await _settled(claim.finished, longest)
        except asyncio.CancelledError:
            await _settled(claim.finished, MOMENT)
            raise


async def _in_thread(function: Callable[[], T]) -> T:
    """Calls it in a thread of its own. If the caller is cancelled, that goes on behind it."""
    future: "futures.Future[T]" = futures.Future()

    def run() -> None:
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)

    _thread.start_new_thread(run, ())
    await _settled(future)
    return future.result()


GOES_ON = "it goes on after its call: use `with` or `async with` in it"
# What is left to do when its call has ended. A context manager of another kind, as a file, is a usual result.
UNDONE = (Awaitable, GeneratorType, AsyncGeneratorType, contextlib._GeneratorContextManager,
          contextlib._AsyncGeneratorContextManager)


def _whole(result: T) -> T:
    """The result of a decorated call, unless its work is still to come, and would have no lease."""
    if isinstance(result, UNDONE):
        if inspect.iscoroutine(result):
            result.close()
        raise TypeError(GOES_ON)
    return result


class Lock:
    """Acquires in `with`, in `async with`, or as a decorator; each time with a claim of its own."""

    def __init__(self, make: Callable[[], Claim]) -> None:
        self._make, self._use = make, threading.Lock()
        self._lease: Union[Lease, AsyncLease, None] = None

    def _new(self) -> Claim:
        claim = self._make()
        if not self._use.acquire(blocking=False):  # Two threads would end each other's leases.
            raise RuntimeError("this lock is in use: make one for each `with`")
        return claim

    def _ready(self, claim: Claim, error: Optional[BaseException], kind: Callable[[Claim], L]) -> L:
        if error:
            raise error
        claim.begin()
        lease = kind(claim)
        self._lease = lease
        return lease

    def __enter__(self) -> Lease:
        claim = self._new()
        try:
            claim.start()
            return self._ready(claim, claim.decided.result(), Lease)
        except BaseException as error:
            self._use.release()
            claim.end()
            claim.join(_patience(error, MOMENT))
            raise

    def __exit__(self, kind: Any, error: Optional[BaseException], trace: Any) -> None:
        lease = self._lease
        try:
            if isinstance(lease, Lease):
                self._lease = None
                self._use.release()
                lease.__exit__(kind, error, trace)
        finally:  # A signal handler may have raised.
            if lease:
                lease._claim.forget()

    async def _acquire(self) -> AsyncLease:
        claim = self._new()
        try:
            claim.start()
            await _settled(claim.decided)
            return self._ready(claim, claim.decided.result(), AsyncLease)
        except BaseException as error:
            self._use.release()
            await _end(claim, error, _patience(error, MOMENT))
            raise

    async def __aenter__(self) -> AsyncLease:
        lease = await self._acquire()
        lease._block = _Block(lease._claim)
        return lease

    async def __aexit__(self, kind: Any, error: Optional[BaseException], trace: Any) -> None:
        lease = self._lease
        try:
            if isinstance(lease, AsyncLease):
                self._lease = None
                self._use.release()
                await lease.__aexit__(kind, error, trace)
        finally:
            if lease:
                lease._claim.forget()

    def _detach(self, lease: L) -> L:
        """The lease, for a caller that ends it without this object."""
        self._lease = None
        return lease

    def __del__(self) -> None:
        """Ends a lease whose block has ended without `__exit__`: a signal handler may raise just before that, and
        the variable of the lease may live for long."""
        if self._lease:
            self._lease._claim.forget()

    def _recreate_cm(self) -> "Lock":
        return Lock(self._make)

    def __call__(self, func: F) -> F:
        """Decorates a function or a coroutine function: each call has a lease of its own."""
        for is_kind in (inspect.isgeneratorfunction, inspect.isasyncgenfunction):
            if is_kind(func):
                raise TypeError(GOES_ON)

        @functools.wraps(func)
        def run(*args: Any, **kwargs: Any) -> Any:
            with self._recreate_cm():
                return _whole(func(*args, **kwargs))

        @functools.wraps(func)
        async def run_async(*args: Any, **kwargs: Any) -> Any:
            async with self._recreate_cm():
                return _whole(await func(*args, **kwargs))

        return cast(F, run_async if inspect.iscoroutinefunction(func) else run)


class _Client:
    """A client of one service, for any number of threads and forked children.

    `url`, `api_key` (a `pathlib.Path`: the file that has it), `ca`, `cert` with `cert_key`, and `token_prefix`
    are those of LOCKKEEPER_URL, LOCKKEEPER_API_KEY_FILE or LOCKKEEPER_API_KEY, LOCKKEEPER_CA, LOCKKEEPER_CERT with
    LOCKKEEPER_CERT_KEY, and LOCKKEEPER_TOKEN_PREFIX if they are left out. `proxy` is by default that of HTTPS_PROXY
    or HTTP_PROXY; "" is none. `timeout` is the time for an answer, besides its wait, and for retries without a wait.
    """

    def __init__(self, url: Optional[str] = None, api_key: Optional[Path] = None, ca: Optional[Path] = None,
                 owner: Optional[str] = None, cert: Optional[Path] = None, cert_key: Optional[Path] = None,
                 proxy: Optional[str] = None, token_prefix: Optional[str] = None,
                 timeout: Optional[Duration] = None) -> None:
        self._service = Service(url, api_key, ca, cert, cert_key, proxy, token_prefix, timeout)
        self._owner = owner

    def __reduce__(self) -> Any:
        return type(self), self._service.arguments(self._owner)

    def __deepcopy__(self, _: Any) -> "_Client":
        return self  # It never changes.

    def lock(self, key: Union[str, Sequence[Key]], ttl: Duration = 30, wait: Optional[Duration] = 0,
             slots: Optional[int] = None, shared: bool = False, owner: Optional[str] = None,
             on_lost: Optional[Callable[[], object]] = None,
             on_wait: Optional[Callable[[Wait], object]] = None, units: Optional[int] = None) -> Lock:
        """A lock for `with`, for `async with`, or as a decorator; `wait=None` waits for ever.

        A list of keys is all of them, or none; `{"key": "gpu", "slots": 8, "units": 3}` is one with its share.

        Raises LockBusy, ServiceUnavailable, RequestRefused or WaitCancelled before the block, and LeaseLost
        at its end, or before it if no lease is left by then. `on_lost` is called before the lease ends, and
        `on_wait` when a wait in line has begun and once a minute, each in another thread.
        """
        length, patience = seconds(ttl), float("inf") if wait is None else seconds(wait)
        keys = keys_of(key)
        share = {"slots": slots, "units": units, "shared": shared or None}
        if keys.is_several and any(value is not None for value in share.values()):
            raise ValueError('each of several keys has its own share, as in {"key": "gpu", "slots": 8}')

        def make() -> Claim:
            name = owner or self._owner or "%s:%d" % (socket.gethostname(), os.getpid())
            return Claim(self._service, keys, length, patience, dict(share, owner=name), on_lost, on_wait)

        return Lock(make)

    def _get(self, key: str) -> LockState:
        return _state(self._service.ask("GET", path_of(key), lambda body: body.get("key") == key).body)

    def _list(self, prefix: str) -> List[LockState]:
        found: List[LockState] = []
        query = {"prefix": prefix, "limit": "1000"}
        while True:
            text = urllib.parse.urlencode(query, quote_via=urllib.parse.quote)
            body = self._service.ask("GET", "/locks?" + text, lambda body: isinstance(body.get("locks"), list)).body
            found += [_state(one) for one in body["locks"]]
            if not body.get("cursor"):
                return found
            query["cursor"] = body["cursor"]

    def _force_release(self, key: str, reason: Optional[str]) -> bool:
        path = path_of(key, "/admin/locks/") + ("?reason=" + urllib.parse.quote(reason, safe="") if reason else "")
        answer = self._service.ask("DELETE", path, lambda body: body.get("key") == key, "lock_lost")
        return answer.code != "lock_lost"


class LockClient(_Client):
    __doc__ = _Client.__doc__

    def try_lock(self, key: Union[str, Sequence[Key]], ttl: Duration = 30, slots: Optional[int] = None,
                 shared: bool = False, owner: Optional[str] = None,
                 on_lost: Optional[Callable[[], object]] = None, units: Optional[int] = None) -> Optional[Lease]:
        """A lease, or None if another client holds the key. Use it in `with`, or release it."""
        try:
            lock = self.lock(key, ttl, 0, slots, shared, owner, on_lost, units=units)
            return lock._detach(lock.__enter__())
        except LockBusy:
            return None

    def get(self, key: str) -> LockState:
        """The state of a key, held or not."""
        return self._get(key)

    def list(self, prefix: str = "") -> List[LockState]:
        """The held keys with a prefix."""
        return self._list(prefix)

    def force_release(self, key: str, reason: Optional[str] = None) -> bool:
        """Ends all leases of a key, whoever holds them; False if it was not held. Needs `admin`.

        A lost answer is not repeated, because that could end the next lease.
        """
        return self._force_release(key, reason)


class AsyncLockClient(_Client):
    """A LockClient whose `try_lock`, `get`, `list` and `force_release` are coroutines. The threads of the package
    make the requests, so a blocked event loop loses no lease, and a client may be used in several loops."""

    async def try_lock(self, key: Union[str, Sequence[Key]], ttl: Duration = 30, slots: Optional[int] = None,
                       shared: bool = False, owner: Optional[str] = None,
                       on_lost: Optional[Callable[[], object]] = None,
                       units: Optional[int] = None) -> Optional[AsyncLease]:
        """A lease, or None if another client holds the key. Use it in `async with`, or release it."""
        try:
            lock = self.lock(key, ttl, 0, slots, shared, owner, on_lost, units=units)
            return lock._detach(await lock._acquire())
        except LockBusy:
            return None

    async def get(self, key: str) -> LockState:
        """The state of a key, held or not."""
        return await _in_thread(lambda: self._get(key))

    async def list(self, prefix: str = "") -> List[LockState]:
        """The held keys with a prefix."""
        return await _in_thread(lambda: self._list(prefix))

    async def force_release(self, key: str, reason: Optional[str] = None) -> bool:
        """Ends all leases of a key, whoever holds them; False if it was not held. Needs `admin`.

        A lost answer is not repeated, because that could end the next lease. A cancelled call may still do so.
        """
        return await _in_thread(lambda: self._force_release(key, reason))
