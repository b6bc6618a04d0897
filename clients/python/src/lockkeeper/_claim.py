"""A claim on a key, from its first request to its release, in a thread of its own.

The thread acquires, renews, tells of a loss and releases, whatever the thread of the work does: that may be
blocked, interrupted or gone. The rules are stated where they are kept.
"""

import _thread
import atexit
import logging
import os
import random
import secrets
import sys
import threading
import time
from concurrent import futures
from typing import Any, Callable, Dict, Iterator, List, Optional, Set

from ._absence import ANSWER, Absence
from ._connect import CONNECT
from ._errors import LeaseLost, LockBusy, RequestRefused, ServiceUnavailable, WaitCancelled
from ._keeper import Keeper
from ._keys import Keys, Request, path_of
from ._service import Answer, Call, Service, now, pause, wait_on
from ._wait import Wait, report

log = logging.getLogger("lockkeeper")

# All in seconds.
LONGEST_WAIT = 20.0  # of one request; a longer wait repeats it in the same place
GRACE = 5.0  # after the wait, for the repeats that the service asks for
SUPERSEDED = 3  # answers in a row, after which another program counts as a user of the token
HEAR_OUT = 2.0  # for the answer to an abandoned request
RELEASE = 5.0  # for the repeats of a release
LONGEST = HEAR_OUT + RELEASE + 1  # of all of an end
MOMENT = 0.25  # of an end that its caller does not wait for: a service that answers is told by then

PROGRAM_ENDS = "the program ends"
NEVER = float("inf")  # the end of work that nobody has seen end


class Claim:
    """One claim of this process: nothing yet, then a lease, then nothing any more."""

    def __init__(self, service: Service, keys: Keys, ttl: float, wait: float, options: Dict[str, Any],
                 on_lost: Optional[Callable[[], object]] = None,
                 on_wait: Optional[Callable[[Wait], object]] = None) -> None:
        self.keys, self.name, self._service, self._wait = keys, keys.name, service, wait
        self._ttl_ms = round(ttl * 1000)
        self._options = {name: value for name, value in options.items() if value is not None}
        self._on_wait = on_wait if wait else None
        # A new token for each claim: nothing orders two requests of one token.
        self.token = service.token_prefix + secrets.token_hex(16)
        self.fencing_tokens: Dict[str, int] = {}
        self.slots: Dict[str, Optional[int]] = {}
        self._lost_keys = keys.keys
        self._margin = max(0.2, ttl / 10)  # The work is told so long before the lease ends.
        self._end = self._next = 0.0  # the end of the lease, and the moment of the next refresh
        self._work_ended: Optional[float] = None
        self._is_gone = self.was_released = False
        self._unsure: Optional[Call] = None
        self._reason = ""
        # A Ctrl-C in the Python code of `with self._changed` would leave it locked; `with self._mutex` has none.
        self._mutex = threading.RLock()
        self.lost, self._changed = threading.Event(), threading.Condition(self._mutex)
        self.listeners: List[Callable[[], object]] = []  # They do not block.
        self._on_lost = on_lost
        self._telling: "Optional[futures.Future[None]]" = None
        self._keeper = keeper_of(service)
        self._calls: List[Call] = []  # renewals under way
        self.decided: "futures.Future[Optional[BaseException]]" = futures.Future()  # None if it is granted
        self.finished: "futures.Future[None]" = futures.Future()
        self._pid, self._starter = os.getpid(), 0
        self._runner: Dict[str, str] = {}  # Its `setdefault` decides, in one step, whether the thread runs or not.

    # For the thread of the work

    def start(self) -> None:
        self._starter = threading.get_ident()
        _open.add(self)
        if _ending and self._starter not in _ending:  # The end does not know of this claim.
            _open.discard(self)
            raise WaitCancelled("the program ends; nothing is held")
        _thread.start_new_thread(self._run, ())  # `Thread.start` breaks if a signal handler raises in it.

    def is_own(self) -> bool:
        """False in a forked child, which owns nothing, and takes no lock: its owner may be missing there."""
        return self._pid == os.getpid()

    def remaining(self) -> float:
        is_held = self.is_own() and not self._is_gone and self._work_ended is None
        return max(0.0, self._end - now()) if is_held else 0.0

    def begin(self) -> None:
        """Raises if there is no lease to begin with: this process may have been suspended since the grant."""
        if self._is_over():
            raise WaitCancelled("the claim on %s was given up; nothing is held" % self.name)
        if self.lost.is_set() or not self.remaining():
            raise self._lost_by(self._reason, has_begun=False)

    def end(self) -> None:
        """Ends the work, or the wait: the thread releases what there is, or may be."""
        if self.is_own() and self._work_ended is None:
            with self._mutex:
                self._work_ended = now()
                self._changed.notify_all()
            with self._keeper.mutex:
                self._keeper.changed.notify_all()

    def end_with_program(self, others: Set[int]) -> None:
        """Ends it, unless one of these threads has begun its work: that is told, and keeps the lease while it stops."""
        if self._starter in others:
            self.lose(PROGRAM_ENDS)  # First: if the claim is not granted by now, its work does not begin.
            if self.decided.done():
                return
        if not self._is_over():
            self.end()
            if not self.lost.is_set():
                self._reason = PROGRAM_ENDS
                self.lost.set()

    def forget(self) -> None:
        """Ends it without a lock, for a finalizer, which may run in any thread that has one: it is noticed soon.
        Work that goes on all the same has lost its lease."""
        if self.is_own() and self._work_ended is None:
            self._reason = "its lock object was collected before its end"
            self._work_ended = NEVER

    def is_running(self) -> bool:
        """False if there was no thread for the claim, or an exception came before its start: none runs it later."""
        if self.is_own() and self._runner.setdefault("is", "nobody") == "thread":
            return True
        _open.discard(self)
        return False

    def join(self, longest: float = LONGEST) -> None:
        if self.is_running():
            futures.wait([self.finished], longest)

    def loss(self) -> Optional[LeaseLost]:
        """The error of a lease that was lost before the work ended, or of work that was told so."""
        reason = self._reason if self.is_own() else "a forked child has no lease of its parent"
        is_late = self._work_ended is not None and self._work_ended >= self._end
        if self.is_own() and not is_late and not self.lost.is_set():
            return None
        return self._lost_by(reason)

    def _lost_by(self, reason: str, has_begun: bool = True) -> LeaseLost:
        first, name = self._lost_keys[0], ", ".join(map(repr, self._lost_keys))
        return LeaseLost(first, self.fencing_tokens.get(first, 0), reason, has_begun, name)

    # The thread

    def _run(self) -> None:
        is_kept = False
        try:
            if self._runner.setdefault("is", "thread") != "thread":
                return
            try:
                self._acquire()
            except BaseException as error:
                self.decided.set_result(error)
                if self._unsure:
                    self._withdraw(self._unsure)
                return
            self.decided.set_result(None)
            is_kept = True
            self._keeper.keep(self)
        except BaseException:
            is_kept = False
            log.exception("lock %s: not released; the lease ends by its TTL", self.name)
        finally:
            if not is_kept:
                self._finish()

    def _finish(self) -> None:
        _open.discard(self)
        if not self.decided.done():
            self.decided.set_result(WaitCancelled("the claim on %s ended before its work" % self.name))
        if not self.finished.done():
            self.finished.set_result(None)

    def life(self) -> Iterator[float]:
        """Keeps the lease, in the thread of the keeper, until the work or the lease ends. Yields the moment at which
        there is something to do."""
        try:
            yield from self._keep()
        except BaseException as error:
            self.lose("its renewal failed: %r" % error)
        while self._calls:
            self._calls.pop().abort()
        self._call_on_lost()
        # The work keeps what it has of the lease, or of several, while it stops. Nothing renews them any more.
        while not self._is_over() and (self.keys.is_several or not self._is_gone) and now() < self._end:
            yield self._end
        if self._work_ended == NEVER:
            self.lost.set()

    def has_news(self) -> bool:
        return self._is_over() or self._is_untold() or any(call.answer for call in self._calls)

    def finish(self) -> None:
        """Releases the lease that was kept."""
        try:
            self._release(RELEASE)
            if self._telling:  # Otherwise the program might end before it is told.
                futures.wait([self._telling], HEAR_OUT)
        except BaseException:
            log.exception("lock %s: not released; the lease ends by its TTL", self.name)
        finally:
            self._finish()

    def _is_over(self) -> bool:
        return self._work_ended is not None

    def _sleep_until(self, moment: float, is_enough: Callable[[], bool] = lambda: False) -> None:
        wait_on(self._changed, moment, lambda: self._is_over() or is_enough())

    def _call(self, method: str, request: Request, timeout: float, limit: Optional[float] = None,
              starter: Optional[Keeper] = None, is_fresh: bool = False) -> Call:
        path, body = request
        return Call(self._service, method, path, self.token, body, timeout, self._changed, limit, starter,
                    is_fresh=is_fresh)

    def _report(self, over: float) -> None:
        """Tells of the wait in a thread of its own: a callback that blocks keeps no claim from its answer."""
        if self._on_wait:
            try:
                _thread.start_new_thread(report, (
                    self._service, sorted(self.keys.keys, key=str.encode), self._options["owner"], over,
                    lambda: self._is_over() or self.decided.done(), self._changed, self._on_wait))
            except RuntimeError as error:
                log.warning("lock %s: its wait is not told: %s", self.name, error)

    def _acquire(self) -> None:
        """Acquires, or raises, and notes the call that may have acquired all the same."""
        call, is_unsure, attempt, superseded, over = None, False, 0, 0, now() + self._wait
        named: Dict[str, Any] = {}
        absence, answer_time = Absence(self._service.timeout), self._service.timeout or ANSWER
        self._report(over)
        try:
            while not self._is_over():
                ask = max(0.0, min(over - now(), LONGEST_WAIT, absence.end(float("inf")) - answer_time - now()))
                body = dict(self._options, ttl_ms=self._ttl_ms, wait_ms=int(ask * 1000), **named)
                call = self._call("POST", self.keys.acquire(body), ask + answer_time)
                answer = call.wait(is_over=self._is_over)
                if answer is None or answer.was_sent:
                    # A no of the service is definite, unless an earlier request named a lease. Anything else is
                    # repeated with the same token: it receives the lease that was granted, or its old place in line.
                    # Of several keys a no leaves what an earlier request has got.
                    was_unsure = bool(named) or is_unsure and self.keys.is_several
                    is_unsure = answer is None or not answer.is_no() or was_unsure
                if answer is None or self._is_over():
                    break
                superseded = superseded + 1 if answer.code == "superseded" else 0
                is_absent = absence.notes(answer, call.sent, ask)
                if self._take(answer, call.sent):
                    if not self.keys.are_in(answer.body):
                        raise RequestRefused("a proxy changes the key %s" % self.name, 0, answer.body)
                    if now() < self._end - self._margin:
                        return
                    answer = Answer(failure="the answer came too late for its TTL: it was slow, or this process was "
                                            "suspended")
                elif answer.code == "wait_cancelled" or superseded == SUPERSEDED:
                    raise WaitCancelled("the claim on %s has ended elsewhere: %s; nothing is held"
                                        % (self.name, answer))
                elif self.keys.is_several and answer.others:
                    # An earlier request of this claim has begun a lease that a repeat does not get.
                    self._release_others(answer, now() + HEAR_OUT)
                elif answer.code == "lock_lost" or answer.others:  # The same, of one key: replace it.
                    named = {"fencing_token": answer.others[""]} if answer.others else {}
                elif answer.code == "lock_held" and now() >= over:
                    raise self._busy(answer)
                elif answer.code == "lock_held" and now() - call.sent > 0.2:
                    attempt = 0
                    continue  # The wait was cut to the cap of the service.
                answer.refuse()
                end = absence.end(over) if is_absent else over + (0 if answer.status == 429 else GRACE)
                if now() >= end:
                    if answer.code == "too_many_waiters":  # The key is held, and its line is full.
                        raise self._busy(answer)
                    raise ServiceUnavailable("%s was not acquired: %s; retry later" % (self.name, answer))
                if absence.is_due():
                    more = "%d s more " % (over - now()) if now() + 1 < over < float("inf") else ""
                    log.warning("waiting %sfor %s, retrying: %s", more, self.name, answer)
                next_try, attempt = now() + max(pause(attempt), answer.retry_after), attempt + 1
                self._sleep_until(min(next_try, end))
            raise WaitCancelled("the claim on %s was given up; nothing is held" % self.name)
        except BaseException:
            self._unsure = call if call and (is_unsure or call.answer is None) else None
            raise

    def _busy(self, answer: Answer) -> LockBusy:
        return LockBusy(answer.body.get("key", self.keys.keys[0]), answer.body)

    def _withdraw(self, call: Call) -> None:
        """Leaves nothing behind a claim that was given up. The release ends a wait at once, but may overtake
        the request. So that is heard out for a moment, and what it is granted is released as well."""
        if call.answer is None:
            self._call("DELETE", self.keys.release({}), HEAR_OUT, now() + CONNECT + HEAR_OUT)
            answer = call.wait(now() + HEAR_OUT)
            call.abort()
            if answer and answer.is_no() and not self.keys.is_several:
                return
            if answer:
                self._take(answer, call.sent)
        self._end = now() + HEAR_OUT
        self._release(HEAR_OUT)

    def _take(self, answer: Answer, sent: float) -> bool:
        """Takes a grant to this claim; False for anything else."""
        body = answer.body
        if answer.status not in (200, 201) or body.get("token") != self.token:
            return False
        ttl, waited, leases = body["ttl_ms"], body["waited_ms"], self.keys.leases(body)
        if not self.fencing_tokens:  # In the middle of a short lease, which `max_hold` may have cut, at the latest.
            self._margin = min(self._margin, ttl / 2000)
        # Counted from the sending: the answer may have been under way for long.
        begin = sent + waited / 1000
        # No request shortens a lease, so the later end is the right one.
        self._end = max(self._end, begin + ttl / 1000)
        # Leases that were granted together are not renewed together for long.
        self._next = begin + min(ttl, self._ttl_ms) / 3000 * random.uniform(0.85, 1)
        self.fencing_tokens = {lease["key"]: lease["fencing_token"] for lease in leases}
        self.slots = {lease["key"]: lease.get("slot") for lease in leases}
        capped = [lease["key"] for lease in leases if lease.get("capped")]
        self._lost_keys = capped or self.keys.keys
        self._reason = ("the service lets no lease of this key last longer (`max_hold`)" if capped
                        else "it could not be renewed in time")
        return True

    def _keep(self) -> Iterator[float]:
        """Renews at a third of the TTL, until the work or the lease ends."""
        (path, body), attempt = self.keys.refresh(self.fencing_tokens, self._ttl_ms), 0
        calls = self._calls
        while True:
            last = self._end - self._margin
            if not self.has_news() and now() < min(self._next, last):
                yield min(self._next, last)
            if not self._is_over() and now() >= last:
                self.lose(self._reason)
            if self._is_over() or self.lost.is_set():
                return
            if now() >= self._next:
                # One that is not answered in half of what is left may be on a silent connection: then there is
                # time for another one. It may also be slow, on a busy machine, so it is not given up.
                is_fresh, limit = bool(attempt or calls), max(0.1, last - now())
                calls.append(Call(self._service, "PUT", path, self.token, body, limit, self._keeper.changed, None,
                                  self._keeper, False, is_fresh))
                self._next = now() + max(0.3, min(ANSWER, (last - now()) / 2))
            for call, answer in [(call, call.answer) for call in calls]:
                if answer is None:
                    continue
                calls.remove(call)
                if self._take(answer, call.sent):
                    self._next, attempt = max(self._next, now() + min(0.1, self._margin)), 0
                    while calls:
                        calls.pop().abort()
                    break
                if answer.code == "lock_lost":
                    self._is_gone = True
                    self._lost_keys = [one["key"] for one in answer.lost] or self.keys.keys
                    self.lose(str(answer))
                else:
                    self._reason = "it could not be renewed in time: %s" % answer
                    log.info("lock %s: not renewed; retrying: %s", self.name, answer)
                    self._next, attempt = now() + pause(attempt, max(0.1, self._margin)), attempt + 1

    def lose(self, reason: str) -> None:
        """Tells the work to stop. The keeper calls its `on_lost`, so this does not block."""
        with self._changed:
            if self._is_over() or self.lost.is_set():
                return
            self._reason = reason
            self._telling = futures.Future() if self._on_lost else None
            self.lost.set()
        for listener in list(self.listeners):
            try:
                listener()
            except BaseException:
                log.exception("lock %s: its loss was not told", self.name)
        with self._keeper.mutex:
            self._keeper.changed.notify_all()

    def _is_untold(self) -> bool:
        return self._telling is not None and self._on_lost is not None

    def _call_on_lost(self) -> None:
        if self._telling and self._on_lost:
            on_lost, self._on_lost = self._on_lost, None
            try:
                _thread.start_new_thread(self._tell, (on_lost,))
            except RuntimeError:  # The interpreter ends, or has too many threads.
                self._tell(on_lost)

    def _tell(self, listener: Callable[[], object]) -> None:
        """In a thread of its own: a callback that blocks keeps no other lease from its renewal."""
        try:
            listener()
        except BaseException:
            log.exception("lock %s: the callback for its loss failed", self.name)
        finally:
            if self._telling:
                self._telling.set_result(None)

    def _release(self, limit: float) -> None:
        """Releases, for so many seconds. A service that cannot be reached is no error of the work."""
        over, attempt, may_be_done = min(now() + limit, self._end), 0, False
        while True:
            # A lease that has ended is asked for once: a late request may have begun another one.
            last = max(over, now()) + HEAR_OUT
            request = self.keys.release(self.fencing_tokens)
            answer = self._call("DELETE", request, HEAR_OUT, last, self._keeper, attempt > 0).wait() or Answer()
            self._release_others(answer, last)
            self.was_released = answer.status == 204 or answer.code == "lock_lost" and may_be_done
            if self.was_released:
                return
            if answer.code == "lock_lost":
                if self.decided.done() and not self.lost.is_set():
                    self._lost_keys = [one["key"] for one in answer.lost] or self.keys.keys
                    self._reason = str(answer)
                    self.lost.set()
                return
            may_be_done = may_be_done or answer.was_sent and not answer.is_no()
            wait, attempt = pause(attempt, 1.0), attempt + 1
            if not answer.may_pass() and not self.fencing_tokens:
                return  # The acquire was refused, as this is.
            if now() + wait > over or not answer.may_pass():
                log.warning("lock %s: not released; the lease ends by its TTL: %s", self.name, answer)
                return
            time.sleep(wait)

    def _release_others(self, answer: Answer, limit: float) -> None:
        """Releases leases that a late request of this claim has begun: nobody knows of them."""
        for key, number in answer.others.items():
            path = path_of(key or self.keys.keys[0]) + "?fencing_token=%d" % number
            self._call("DELETE", (path, None), HEAR_OUT, limit).wait()


def keeper_of(service: Service) -> Keeper:
    keeper: Optional[Keeper] = service.keepers.get(os.getpid())
    return keeper or service.keepers.setdefault(os.getpid(), Keeper())  # in one step, for two threads


_open: Set[Claim] = set()
_ending: Set[int] = set()  # the thread that ends the program, once it has begun to


def _end_all() -> None:
    """Leaves nothing behind at the end of the program, whose other threads may still be at work."""
    _ending.add(threading.get_ident())
    claims, limit, others = list(_open), now() + LONGEST, set(sys._current_frames()) - {threading.get_ident()}
    for claim in claims:
        claim.end_with_program(others)
    for claim in claims:
        claim.join(max(0.0, limit - now()))


atexit.register(_end_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_open.clear)
    os.register_at_fork(after_in_child=_ending.clear)
