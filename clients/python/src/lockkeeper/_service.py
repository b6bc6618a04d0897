"""The service's address, and single requests to it."""

import _thread
import http.client
import json
import os
import pathlib
import random
import re
import socket
import ssl
import threading
import time
import urllib.parse
from datetime import timedelta
from typing import Any, Callable, Dict, Optional, Union

from ._errors import RequestRefused, ServiceUnavailable

Duration = Union[int, float, str, timedelta]
Path = Union[str, "os.PathLike[str]"]

MOST_BYTES = 8 << 20  # of an answer: more than the largest page of a list
CONNECT = 5.0  # seconds for a connection
TICK = 0.5  # seconds between looks at the clock: timers stand still while the machine is suspended
CLOCK: Optional[int] = getattr(time, "CLOCK_BOOTTIME", None)
UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "": 1.0}


def now() -> float:
    """Seconds on the clock that goes on while the machine is suspended, where there is one."""
    return time.monotonic() if CLOCK is None else float(time.clock_gettime(CLOCK))


def seconds(duration: Duration) -> float:
    """Reads a number of seconds, a timedelta, or a text such as "30s", "1.5m" or "1h30m"."""
    if isinstance(duration, str):
        found = re.fullmatch(r"(?:[0-9]+(?:\.[0-9]+)?(?:ms|s|m|h|d))+|[0-9]+(?:\.[0-9]+)?", duration)
        parts = re.findall(r"([0-9.]+)([a-z]*)", duration)
        value = sum(float(number) * UNITS[unit] for number, unit in parts) if found else -1.0
    elif isinstance(duration, bool) or not isinstance(duration, (int, float, timedelta)):
        raise TypeError("a duration is a number of seconds, a timedelta or a text: %r" % (duration,))
    else:
        value = duration.total_seconds() if isinstance(duration, timedelta) else float(duration)
    if not 0 <= value < 1e9:
        raise ValueError("expected seconds, or a number and ms, s, m, h or d, as in 30s or 1h30m: %r" % (duration,))
    return value


def wait_on(changed: threading.Condition, moment: float, is_enough: Callable[[], bool]) -> None:
    """Waits for a moment of `now`, or until it is enough."""
    with changed:
        while not is_enough() and now() < moment:
            changed.wait(max(0.0, min(TICK, moment - now())))


def pause(attempt: int, longest: float = 2.0) -> float:
    return min(0.1 * 2.0 ** min(attempt, 9), longest) * random.uniform(0.5, 1.0)


class Answer:
    """An answer, or what came instead of one."""

    def __init__(self, status: int = 0, body: Any = None, failure: str = "") -> None:
        self.status, self.failure = status, failure
        self.was_sent, self.is_final = True, False
        self.body: Dict[str, Any] = body if isinstance(body, dict) else {}
        # A problem without a type of the service is from a gateway.
        is_problem = str(self.body.get("type", "")).startswith("urn:lockkeeper:")
        self.code = str(self.body.get("code", "")) if is_problem else ""
        # The number of the lease that the token has, if it is not the one that the request is about.
        is_named = self.code == "lock_lost" or self.code and self.body.get("mine")
        self.other: Optional[int] = self.body.get("fencing_token") if is_named else None
        self.retry_after = 0.0  # seconds; of `superseded` alone

    def __str__(self) -> str:
        if self.code:
            return "%s (%d %s)" % (self.body.get("detail"), self.status, self.code)
        return self.failure or "answer %d, which is not from lockkeeper" % self.status

    def is_no(self) -> bool:
        """Whether nothing was granted for sure, and nothing under way will be."""
        if self.code in ("", "superseded") or self.other:  # Another request has the place, or a lease.
            return False
        return self.status < 500 or self.code == "draining" or self.body.get("outcome") == "not_acquired"

    def may_pass(self) -> bool:
        """Whether another request may be answered otherwise."""
        return not self.is_final and (not 300 <= self.status < 500 or self.status in (408, 409, 425, 429))

    def refuse(self) -> None:
        """Raises if the answer stays the same however often one asks."""
        if not self.may_pass():
            hints = {0: "check `api_key` and `ca`", 403: "use an API key with this permission and prefix",
                     401: "set `api_key`, LOCKKEEPER_API_KEY or LOCKKEEPER_API_KEY_FILE"}
            is_known = self.code or self.is_final
            hint = hints.get(self.status, "correct the request") if is_known else "check the URL"
            raise RequestRefused("%s; %s" % (self, hint), self.status, self.body)


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, file: str) -> None:
        super().__init__("localhost")
        self._file = file

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(CONNECT)
        self.sock.connect(self._file)


class Call:
    """A request in a thread of its own: no name server and no slow answer keeps the caller longer than it
    wants. Each has its own connection, so no restart, fork or abandoned request can spoil another one."""

    def __init__(self, service: "Service", method: str, path: str, token: Optional[str], body: Any,
                 timeout: float, changed: threading.Condition) -> None:
        self._service, self._request, self._changed = service, (method, path, token, body), changed
        self._connection: Optional[http.client.HTTPConnection] = None
        self._timeout, self._is_aborted, self._was_sent = timeout, False, False
        self.answer: Optional[Answer] = None
        self.sent = now()
        try:
            _thread.start_new_thread(self._run, ())
        except RuntimeError:  # The interpreter ends, or has too many threads.
            self._run()

    def wait(self, until: float = 1e12, is_over: Callable[[], bool] = lambda: False) -> Optional[Answer]:
        """Returns the answer; None at `until`, or when `is_over`."""
        deadline = self.sent + self._timeout
        with self._changed:
            wait_on(self._changed, min(until, deadline), lambda: self.answer is not None or is_over())
            if self.answer is None and not is_over() and now() >= deadline:
                self.abort()
                self.answer = Answer(failure="no answer within %.3g s" % self._timeout)
            return self.answer

    def abort(self) -> None:
        self._is_aborted = True
        try:
            if self._connection and self._connection.sock:
                self._connection.sock.shutdown(socket.SHUT_RDWR)  # `close` wakes no reader.
        except (OSError, AttributeError):
            pass

    def _run(self) -> None:
        answer = Answer(failure="the request failed")
        try:
            answer = self._ask()
        except (OSError, ValueError, http.client.HTTPException) as error:
            answer = Answer(failure="%s: %s" % (self._service.url, error or type(error).__name__))
            answer.was_sent = self._was_sent
            answer.is_final = self._connection is None or isinstance(error, ssl.SSLCertVerificationError)
        finally:
            with self._changed:
                self.answer = self.answer or answer
                self._changed.notify_all()

    def _ask(self) -> Answer:
        method, path, token, body = self._request
        headers = self._service.headers()
        if token:
            headers["Lock-Token"] = token  # Never in a URL: logs keep those.
        self._connection = connection = self._service.connection()
        try:
            connection.connect()
            connection.sock.settimeout(self._timeout)
            if self._is_aborted:
                raise OSError("given up")
            self._was_sent = True
            connection.request(method, self._service.base + path, body and json.dumps(body).encode(), headers)
            response = connection.getresponse()
            text = response.read(MOST_BYTES)
            if response.length or len(text) == MOST_BYTES:
                raise OSError("the answer was cut, or is too long")
        finally:
            connection.close()
        try:
            answer = Answer(response.status, json.loads(text) if text else None)
            if answer.code == "superseded":
                answer.retry_after = float(response.headers.get("Retry-After", 0))
        except ValueError:
            return Answer(response.status)
        return answer


class Service:
    """The address of a service, from arguments or the environment, read as the command line does."""

    def __init__(self, url: Optional[str], api_key: Optional[Path], ca: Optional[Path]) -> None:
        env = os.environ
        if api_key is None:
            file = env.get("LOCKKEEPER_API_KEY_FILE")
            api_key = pathlib.Path(file) if file else env.get("LOCKKEEPER_API_KEY")
        self._api_key = api_key
        self.url = url or env.get("LOCKKEEPER_URL") or "http://127.0.0.1:8080"
        self._file = self.url[len("unix:"):] if self.url.startswith("unix:") else ""
        parts = urllib.parse.urlsplit("http://localhost" if self._file else self.url)
        if parts.username is not None:
            raise ValueError("a URL without a user: the API key is given by `api_key`")
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise ValueError("not a URL such as http://localhost:8080 or unix:/path: %r" % self.url)
        self._host, self.base = parts.hostname, parts.path.rstrip("/")
        # Without a port http.client takes the end of an IPv6 address for one.
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._tls: Optional[ssl.SSLContext] = None
        if parts.scheme == "https":
            file = ca or env.get("LOCKKEEPER_CA") or None
            try:
                self._tls = ssl.create_default_context(cafile=file)
            except OSError as error:  # which names no file
                raise ValueError("no authorities to trust in %r: %s" % (file, error)) from error

    def connection(self) -> http.client.HTTPConnection:
        if self._file:
            return UnixConnection(self._file)
        if self._tls:
            return http.client.HTTPSConnection(self._host, self._port, timeout=CONNECT, context=self._tls)
        return http.client.HTTPConnection(self._host, self._port, timeout=CONNECT)

    def headers(self) -> Dict[str, str]:
        headers = {"Connection": "close", "Accept": "application/json", "Content-Type": "application/json"}
        api_key = self._api_key
        if isinstance(api_key, os.PathLike):  # Read each time: a new key needs no restart.
            api_key = pathlib.Path(api_key).read_text("utf-8")
        api_key = (api_key or "").rstrip("\r\n")
        if not re.fullmatch("[ -~]*", api_key):
            raise ValueError("the API key has characters besides visible ASCII")
        if api_key:
            headers["Authorization"] = "Bearer " + api_key
        return headers

    def ask(self, method: str, path: str, is_good: Callable[[Dict[str, Any]], bool], allowed: str = "") -> Answer:
        """Asks about no lease of ours. A read is repeated for 5 seconds, a change only if it was not sent.
        Gateways answer 200 as well: `is_good` knows the body of the service."""
        over = now() + 5
        for attempt in range(1000):
            answer = Call(self, method, path, None, None, 10, threading.Condition()).wait() or Answer()
            if answer.status == 200 and is_good(answer.body) or allowed and answer.code == allowed:
                return answer
            answer.refuse()
            if now() > over or answer.was_sent and method != "GET":
                break
            time.sleep(pause(attempt))
        raise ServiceUnavailable("no answer of the service: %s; retry later" % answer)
