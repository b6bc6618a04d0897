"""The progress of a wait in line, from a look at the key beside the waiting request, as the command line does."""

import logging
import threading
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence

from ._absence import ANSWER
from ._keys import path_of
from ._service import Answer, Call, Service, now, wait_on

log = logging.getLogger("lockkeeper")

# All in seconds.
FIRST = 1.0  # before the first look: most leases are granted before
RETRY = 5.0  # until the next one, if nobody was in line
NEXT = 60.0  # from one report to the next
PLACES = 100  # that a look asks for: as many as the service allows


class Wait(NamedTuple):
    """A wait in line: the `key`, of several that which is awaited; the `owner` of its lease, the claims `ahead`, the
    seconds that were `waited`. `owner` and `ahead` are None if they are not known, as with several holders, or
    several claims with one owner; `raw` has all members of the answer."""

    key: str
    owner: Optional[str]
    ahead: Optional[int]
    waited: float
    raw: Dict[str, Any]


def report(service: Service, keys: Sequence[str], owner: str, over: float, is_over: Callable[[], bool],
           changed: threading.Condition, listener: Callable[[Wait], object]) -> None:
    """Tells of a wait when it has begun and once a minute, until it is over."""
    began, pause = now(), FIRST
    while True:
        wait_on(changed, min(now() + pause, over), is_over)
        if is_over() or now() >= over:
            return
        body: Dict[str, Any] = {}
        ours: List[int] = []
        pause = RETRY
        for key in keys:
            look = Call(service, "GET", "%s?waiters=%d" % (path_of(key), PLACES), None, None, ANSWER, changed)
            found = (look.wait(is_over=is_over) or Answer()).body
            # Nobody is in line: the claim has not arrived yet, or was granted meanwhile.
            if not found.get("held") or not found.get("waiters"):
                continue
            body = body or found
            # Others may have given the same name.
            ours = [place for place, one in enumerate(found.get("queue", [])) if one.get("owner") == owner]
            if ours:
                body = found
                break
        if is_over() or not body:
            continue
        pause = NEXT
        ahead = ours[0] if len(ours) == 1 else None
        try:
            listener(Wait(body["key"], body.get("owner"), ahead, now() - began, body))
        except BaseException:
            log.exception("lock %r: the callback for its wait failed", body["key"])
