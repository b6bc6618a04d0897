"""A claim on a key, from its first request to its release, in a thread of its own.

The thread acquires, renews, tells of a loss and releases, whatever the thread of the work does: it
may be blocked, interrupted or gone. The rules are stated where they are kept.
"""

import atexit
import logging
import os
import secrets
import threading
import urllib.parse
from concurrent.futures import Future
from typing import Any, Callable, Dict, List, Optional, Set

from ._errors import (LeaseLost, LockBusy, LockkeeperError, RequestRefused, ServiceUnavailable,
                      WaitCancelled)
from ._service import Answer, Call, Pause, Service, now

log = logging.getLogger("lockkeeper")

LONGEST_WAIT = 20.0  # seconds that one request waits; longer waits repeat it in the same place
ANSWER = 10.0  # seconds for an answer, besides the wait: then the connection counts as silent
GRACE = 5.0  # seconds after the wait in which lost answers are repeated
HEAR_OUT = 2.0  # seconds in which an abandoned request may still be answered
RELEASE = 5.0  # seconds in which a release is repeated
TICK = 0.5  # seconds: timers stand still while the machine is suspended, so the clock is looked at


def path_of(key: str, prefix: str = "/locks/") -> str:
    if not isinstance(key, str) or not key:
        raise ValueError("a key is a text that is not empty: %r" % (key,))
    return prefix + urllib.parse.quote(key, safe="/")


class Claim:
    """One claim of this process: nothing, then a lease, then nothing."""

    def __init__(self, service: Service, key: str, ttl: float, wait: float, options: Dict[str, Any]) -> None:
        self.key, self.ttl, self._wait = key, ttl, wait
        self._service, self._path = service, path_of(key)
        self._options = {name: value for name, value in options.items() if value is not None}
        self._options["ttl_ms"] = round(ttl * 1000)
        # A new token for each claim: nothing orders two requests of one token.
        self.token = secrets.token_hex(16)
        self.fencing_token, self.slot = 0, None  # type: int, Optional[int]
        # The lease ends before the work has to be told, on a short one in the middle at the latest.
        self._margin = min(max(0.2, ttl / 10), ttl / 2)
        self._end = self._next = 0.0  # the end of the lease, and the moment of the next refresh
        self._ended_at: Optional[float] = None  # the end of the work
        self._is_gone = False  # the service has said so
        self.was_released = False
        self.reason = ""
        self.lost = threading.Event()
        self.listeners: List[Callable[[], object]] = []
        self.granted: "Future[None]" = Future()
        self.finished: "Future[None]" = Future()
        self.pid = os.getpid()
        self._changed = threading.Condition()

    # For the thread of the work

    def start(self) -> None:
        _open.add(self)
        try:
            threading.Thread(target=self._run, name="lockkeeper " + self.key, daemon=True).start()
        except BaseException:
            _open.discard(self)
            raise

    def is_own(self) -> bool:
        """Not in a forked child, which owns nothing. No lock is taken there: its owner may be missing."""
        return self.pid == os.getpid()

    def remaining(self) -> float:
        """Seconds that the lease lasts at least."""
        if not self.is_own() or self._is_gone or self._ended_at is not None:
            return 0.0
        return max(0.0, self._end - now())

    def end(self) -> None:
        """Ends the work, or the wait: the thread releases what there is, or may be."""
        if self.is_own() and self._ended_at is None:
            with self._changed:
                self._ended_at = now()
                self._changed.notify_all()

    def join(self) -> None:
        if self.is_own():
            try:
                self.finished.result(HEAR_OUT + RELEASE + 1)
            except TimeoutError:
                pass
            except Exception as error:  # `concurrent.futures.TimeoutError` before Python 3.11
                log.warning("lock %r: the release takes too long: %r", self.key, error)

    def loss(self) -> Optional[LeaseLost]:
        """Whether the lease was lost before the work ended, or the work was told so."""
        if not self.is_own():
            reason = "a forked child has no lease of its parent"
        elif self.lost.is_set():
            reason = self.reason
        elif self._ended_at is not None and self._ended_at >= self._end:
            reason = "it expired: it was not renewed in time, or the machine was suspended"
        else:
            return None
        return LeaseLost(self.key, self.fencing_token, reason)

    # The thread

    def _run(self) -> None:
        try:
            try:
                self._acquire()
            except BaseException as error:
                self.granted.set_exception(error)
                return
            self.granted.set_result(None)
            try:
                self._keep()
            except BaseException as error:  # Without its thread nothing renews the lease.
                self._lose("its renewal failed: %r" % error)
                self._wait_until(self._end)
            if not self._is_gone:
                self._release(RELEASE)
        except BaseException:
            log.exception("lock %r: the release failed; the lease ends by its TTL", self.key)
        finally:
            _open.discard(self)
            self.finished.set_result(None)

    def _is_over(self) -> bool:
        return self._ended_at is not None

    def _wait_until(self, moment: float) -> None:
        with self._changed:
            while not self._is_over() and now() < moment:
                self._changed.wait(max(0.0, min(TICK, moment - now())))

    def _call(self, method: str, path: str, timeout: float, body: Optional[Dict[str, Any]] = None) -> Call:
        return self._service.call(method, path, timeout, body, self.token, self._changed)

    def _acquire(self) -> None:
        """Acquires, or raises and leaves nothing behind."""
        call: Optional[Call] = None
        may_hold = False  # whether a request may have been granted, or may be yet
        try:
            over, pause = now() + self._wait, Pause()
            while True:
                ask = max(0.0, min(over - now(), LONGEST_WAIT))
                body = dict(self._options, wait_ms=int(ask * 1000))
                may_hold = True
                call = self._call("POST", self._path, ask + ANSWER, body)
                answer = call.wait(call.deadline + 1, self._is_over)
                if answer is None:
                    raise WaitCancelled("the claim on %r was given up; nothing is held" % self.key)
                if self._take(answer, call.sent):
                    if now() < self._end - self._margin:
                        return
                    # The answer came so late that the lease is nearly over: the same token gets it again.
                    trouble, may_hold = "the answers take as long as the TTL", True
                else:
                    # A no of the service is definite. Everything else is an unknown outcome: it is repeated
                    # with the same token, and receives the lease that was granted, or the old place in line.
                    is_definite = not answer.was_sent or bool(answer.code) and (
                        answer.status < 500 or answer.code == "draining"
                        or answer.body.get("outcome") == "not_acquired")
                    may_hold = may_hold if not answer.was_sent else not is_definite
                    trouble = str(answer)
                    if answer.code == "wait_cancelled":
                        raise WaitCancelled(trouble)
                    if answer.code == "lock_held" and (now() >= over or "mine" in answer.body):
                        raise LockBusy(self.key, answer.body)
                    self._service.refuse(answer)
                    if answer.code == "lock_held" and now() - call.sent > 0.2:
                        continue  # The wait was cut to the cap of the service.
                full = answer.status == 429 and answer.code
                wait = pause.next()
                if now() + wait > over + (0 if full else GRACE):
                    text = "%r could not be acquired: %s; retry later" % (self.key, trouble)
                    raise ServiceUnavailable(text, "unknown" if may_hold else "not_acquired")
                self._wait_until(now() + wait)
                if self._is_over():
                    raise WaitCancelled("the claim on %r was given up; nothing is held" % self.key)
        except BaseException as error:
            if may_hold and call:
                self._withdraw(call)
            if isinstance(error, LockkeeperError) or not isinstance(error, Exception):
                raise
            raise ServiceUnavailable("%r could not be acquired: %r" % (self.key, error)) from error

    def _withdraw(self, call: Call) -> None:
        """Leaves nothing behind a claim that was given up. The release ends a wait, and may overtake the
        request: so that is heard out for a moment, and what it was granted is released as well."""
        until = now() + HEAR_OUT
        if call.answer is None:
            self._call("DELETE", self._path, HEAR_OUT)
            answer = call.wait(until)
            if answer and not self._take(answer, call.sent) and answer.code and answer.status == 409:
                return
            call.abort()
        self._end = now() + RELEASE
        self._release(HEAR_OUT)

    def _take(self, answer: Answer, sent: float) -> bool:
        """Whether an answer is a grant of this claim; then the lease lasts until then."""
        body = answer.body
        number, ttl, waited = body.get("fencing_token"), body.get("ttl_ms"), body.get("waited_ms", 0)
        if answer.status not in (200, 201) or body.get("token") != self.token:
            return False
        if not (isinstance(number, int) and isinstance(ttl, int) and isinstance(waited, int)):
            return False
        if self.fencing_token and number != self.fencing_token and self.granted.done():
            return False
        if body.get("key") != self.key:
            self.fencing_token = number
            raise RequestRefused("a proxy changes the key %r to %r" % (self.key, body.get("key")))
        with self._changed:
            self.fencing_token, self.slot = number, body.get("slot")
            # What the answer says is counted from the sending, because the way back may have taken long.
            self._end = sent + (waited + ttl) / 1000
            self._next = sent + (waited + min(ttl, self.ttl * 1000) / 3) / 1000
            if body.get("capped"):
                self.reason = "the service lets no lease of this key last longer (`max_hold`)"
        return True

    def _keep(self) -> None:
        """Renews at a third of the TTL until the work ends or the lease does."""
        pause = None
        path = "%s/refresh" % self._path
        body = {"ttl_ms": self._options["ttl_ms"], "fencing_token": self.fencing_token}
        while True:
            last = self._end - self._margin
            self._wait_until(min(self._next, last))
            if self._is_over():
                return
            if now() >= last:
                # The work is told before the lease ends, and has the margin to stop. It keeps the lease till then.
                self._lose(self.reason or "it could not be renewed in time")
                self._wait_until(self._end)
                return
            call = self._call("PUT", path, max(0.3, min(ANSWER, (last - now()) / 2)), body)
            answer = call.wait(last, self._is_over)
            if answer is None:
                call.abort()
            elif self._take(answer, call.sent):
                self._next = max(self._next, now() + min(0.1, self.ttl / 10))
                pause = None
            elif answer.code == "lock_lost":
                self._is_gone = True
                self._lose("%s" % answer)
                return
            else:
                log.info("lock %r: not renewed, retrying: %s", self.key, answer)
                pause = pause or Pause(min(2.0, self.ttl / 10))
                self._next = now() + pause.next()

    def _lose(self, reason: str) -> None:
        with self._changed:
            if self._is_over():
                return
            self.reason = reason
            self.lost.set()
        for listener in list(self.listeners):
            try:
                listener()
            except BaseException:
                log.exception("lock %r: a callback for the loss of the lease failed", self.key)

    def _release(self, time: float) -> None:
        """Releases, for so many seconds. One that cannot reach the service is no error of the work."""
        path = self._path + ("?fencing_token=%d" % self.fencing_token if self.fencing_token else "")
        over, pause, may_be_done = now() + time, Pause(1.0), False
        while True:
            call = self._call("DELETE", path, min(2.0, time))
            answer = call.wait(call.deadline + 1) or Answer(failure="no answer")
            if answer.status == 204:
                self.was_released = True
                return
            if answer.code == "lock_lost":
                # After a lost answer this is the release itself.
                self.was_released = may_be_done
                if not may_be_done and not self.lost.is_set() and self.granted.done():
                    self.reason = str(answer)
                    self.lost.set()
                return
            may_be_done = may_be_done or answer.was_sent and answer.status != 429
            wait = pause.next()
            if now() + wait > over or now() > self._end or 400 <= answer.status < 429:
                log.warning("lock %r: not released; the lease ends by its TTL: %s", self.key, answer)
                return
            with self._changed:
                self._changed.wait(wait)


_open: Set[Claim] = set()


def _end_all() -> None:
    """At the end of the process nothing stays behind."""
    claims = list(_open)
    for claim in claims:
        claim.end()
    for claim in claims:
        claim.join()


def _forget() -> None:
    _open.clear()


atexit.register(_end_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
