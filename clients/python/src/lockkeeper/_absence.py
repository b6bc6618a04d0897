"""An absence of the service while a claim is made: for how long it is waited out, as the command line does."""

from typing import Optional

from ._service import Answer, now

# All in seconds.
ANSWER = 5.0  # for an answer, besides the wait: then the connection counts as silent
WITHOUT_WAIT = 5.0  # of a claim whose wait is over, or that does not wait: a restart takes less
BEFORE_LINE = 60.0  # of one that never stood in line: a machine that starts has no network or names for so long
AT_ONCE = 1.0  # of an answer, unless the service has put the claim in line
FIRST, NEXT = 5.0, 60.0  # without an answer until the first warning, and from one to the next


class Absence:
    def __init__(self, timeout: Optional[float] = None) -> None:
        """`timeout` is the caller's limit of an answer, and of an absence without a wait, instead of the usual ones."""
        self._answer, self._without_wait = timeout or ANSWER, timeout or WITHOUT_WAIT
        self._since: Optional[float] = None
        self._told = float("-inf")
        self._stood = False  # in line

    def notes(self, answer: Answer, sent: float, ask: float) -> bool:
        """Takes note of the answer to a request that asked to wait so long; True if it is none of the service."""
        if answer.code and answer.status < 500:
            self._since, self._stood = None, True
            return False
        was_cut = now() < sent + ask
        # A gateway cuts a wait by a 504, and an unreachable service is another status of it.
        self._stood |= answer.was_sent and answer.status in (0, 504) and was_cut and now() >= sent + AT_ONCE
        if self._since is None:
            # Until it was cut, the service was there. A suspension of this process is no absence of the service.
            self._since = now() if was_cut else max(sent, now() - ask - self._answer)
        return True

    def end(self, over: float) -> float:
        """The moment at which a claim is given up whose wait is over at this one."""
        if self._since is None:
            return over
        longest = float("inf") if self._stood else self._since + BEFORE_LINE
        return min(max(over, self._since + self._without_wait), longest)

    def is_due(self) -> bool:
        """Whether to warn now; then not again for a while."""
        if self._since is None or now() < max(self._since + FIRST, self._told + NEXT):
            return False
        self._told = now()
        return True
