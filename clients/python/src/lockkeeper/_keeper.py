"""The thread that renews all leases of a client, and the threads that make its requests.

The thread of the leases makes no request itself, calls nothing of the user, and waits for its own clock only: a
request that is not answered delays no other lease, and each is told lost in time.
"""

import _thread
import collections
import http.client
import logging
import os
import threading
import time
from typing import TYPE_CHECKING, Deque, Dict, Iterator, List, Optional

from ._service import TICK, Call, now

if TYPE_CHECKING:
    from ._claim import Claim

log = logging.getLogger("lockkeeper")

# All in seconds.
IDLE = 5.0  # without a request, after which a thread and its connection end: less than any proxy keeps one
GROW = 0.1  # from one growth to the next, while a request waits for too long in the queue: then as many again
SOON = 4  # times of that, in which a queue that moves should be over: then its threads are enough


class Keeper:
    """The threads of one client in one process. `changed` is notified of news of a lease."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.mutex = threading.RLock()
        self.changed, self._ready = threading.Condition(self.mutex), threading.Condition(self.mutex)
        self._lives: "Dict[Claim, Iterator[float]]" = {}
        self._moments: "Dict[Claim, float]" = {}
        self._is_running = False
        self._calls: Deque[Call] = collections.deque()
        self._threads = self._idle = 0
        self._grow_at, self._taken = 0.0, 0  # since the last growth

    # The leases

    def keep(self, claim: "Claim") -> None:
        """Keeps a lease until it ends. The thread of the first one becomes that of all until none is left."""
        with self.mutex:
            self._lives[claim], self._moments[claim] = claim.life(), 0.0
            if self._is_running:
                self.changed.notify_all()
                return
            self._is_running = True
        last: "Optional[Claim]" = None
        while last is None:
            try:
                for one in self._due():
                    last = self._step(one) or last
            except BaseException:  # Whatever it was: there are other leases.
                log.exception("the thread that renews the leases failed; it goes on")
                time.sleep(0.1)
                with self.mutex:
                    if not self._lives:
                        self._is_running = False
                        return
        last.finish()

    def _due(self) -> "List[Claim]":
        """Waits until there is something to do for a lease, and returns these leases."""
        while True:
            self._grow()
            with self.changed:
                moment = now()
                due = [one for one in self._lives if moment >= self._moments[one] or one.has_news()]
                if due:
                    return due
                next_ = min([*self._moments.values(), self._growth() if self._calls else moment + TICK])
                self.changed.wait(max(0.0, min(TICK, next_ - moment)))

    def _step(self, claim: "Claim") -> "Optional[Claim]":
        """Does what there is to do. Returns the last lease if this one was it: its release is left."""
        try:
            self._moments[claim] = next(self._lives[claim])
            return None
        except StopIteration:
            pass
        with self.mutex:
            del self._lives[claim], self._moments[claim]
            if not self._lives:
                self._is_running = False
                return claim
        try:
            _thread.start_new_thread(claim.finish, ())
        except RuntimeError:  # The interpreter ends, or has too many threads.
            claim.finish()
        return None

    # The requests

    def put(self, call: Call, is_urgent: bool) -> None:
        """Makes a request in another thread, at once if it is urgent. An idle one has a connection that it keeps."""
        with self.mutex:
            if is_urgent:
                self._calls.appendleft(call)
            else:
                self._calls.append(call)
            self._ready.notify()
            if self._threads and not is_urgent or len(self._calls) <= self._idle:
                return
        try:
            self._start()
        except RuntimeError as error:
            with self.mutex:
                if self._threads or call not in self._calls:
                    return
                self._calls.remove(call)
            if is_urgent:
                connection = call.run()
                if connection:
                    connection.close()
            else:  # Nothing may hold this thread up; it asks again.
                call.fail(str(error))

    def _grow(self) -> None:
        """Starts as many threads again if a request in the queue has waited for too long."""
        with self.mutex:
            missing = len(self._calls) - self._idle
            if missing <= 0 or now() < self._growth():
                return
            is_soon_over, self._taken = self._taken * SOON >= missing, 0
            self._grow_at = now() + GROW
            missing = 0 if is_soon_over else min(missing, max(1, self._threads))
        for _ in range(missing):
            try:
                self._start()
            except RuntimeError:
                return

    def _growth(self) -> float:
        """The moment of the next growth, if there is a queue."""
        return max(self._grow_at, min(call.patient_until for call in self._calls))

    def _start(self) -> None:
        with self.mutex:
            self._threads += 1
            try:
                _thread.start_new_thread(self._make_requests, ())
            except BaseException:
                self._threads -= 1
                raise

    def _make_requests(self) -> None:
        connection: Optional[http.client.HTTPConnection] = None
        try:
            while True:
                with self._ready:
                    over = now() + IDLE
                    if not self._calls and self._idle:
                        return  # One is enough to wait for more.
                    self._idle += 1
                    try:
                        while not self._calls and now() < over:
                            self._ready.wait(max(0.0, min(TICK, over - now())))
                    finally:
                        self._idle -= 1
                    if not self._calls:
                        return
                    call = self._calls.popleft()
                    self._taken += 1
                # After a suspension it has waited for longer, and the other side has forgotten it.
                is_old = now() >= over
                if connection and (is_old or call.is_fresh):
                    connection.close()
                    connection = None
                connection = call.run(connection)
        finally:
            with self.mutex:
                self._threads -= 1
            if connection:
                connection.close()
