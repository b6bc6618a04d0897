"""The service's address, and single requests to it."""

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

CONNECT = 5.0  # seconds for a connection
UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "": 1.0}


def now() -> float:
    """Seconds on the clock that goes on while the machine is suspended, where there is one."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


def seconds(duration: Duration) -> float:
    """A duration in seconds, from a number of seconds, a timedelta, or a text such as "30s" or "1.5m"."""
    if isinstance(duration, timedelta):
        value = duration.total_seconds()
    elif isinstance(duration, str):
        found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d|)", duration.strip(), re.ASCII)
        if not found:
            raise ValueError("expected a number and ms, s, m, h or d, as in 30s or 0.5: %r" % duration)
        value = float(found[1]) * UNITS[found[2]]
    elif isinstance(duration, (int, float)) and not isinstance(duration, bool):
        value = float(duration)
    else:
        raise TypeError("a duration is a number of seconds, a timedelta or a text: %r" % (duration,))
    if not 0 <= value < 1e9:
        raise ValueError("not a duration: %r" % (duration,))
    return value


class Pause:
    """Growing pauses between attempts, with jitter."""

    def __init__(self, longest: float = 2.0) -> None:
        self._next, self._longest = 0.1, longest

    def next(self) -> float:
        length, self._next = min(self._next, self._longest), self._next * 2
        return length * random.uniform(0.5, 1.0)


class Answer:
    """An answer, or what came instead of one."""

    def __init__(self, status: int = 0, body: Any = None, failure: str = "") -> None:
        self.status = status
        self.body: Dict[str, Any] = body if isinstance(body, dict) else {}
        self.failure = failure
        self.was_sent, self.is_final = True, False
        # An answer of a gateway or a page of a portal is none of the service.
        is_problem = str(self.body.get("type", "")).startswith("urn:lockkeeper:")
        self.code = str(self.body.get("code", "")) if is_problem else ""

    def __str__(self) -> str:
        if self.code:
            return "%s (%d %s)" % (self.body.get("detail", "no detail"), self.status, self.code)
        return self.failure or "answer %d, which is not from lockkeeper" % self.status


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=CONNECT)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(CONNECT)
        self.sock.connect(self._path)


class Call:
    """A request in a thread of its own: neither a name server nor a slow answer keeps its caller longer than it
    wants. Every request has a connection of its own, which a fork, a restart or an end cannot confuse."""

    def __init__(self, service: "Service", method: str, path: str, headers: Dict[str, str],
                 body: Optional[bytes], timeout: float, changed: threading.Condition) -> None:
        self._service, self._request, self._timeout = service, (method, path, body, headers), timeout
        self._connection: Optional[http.client.HTTPConnection] = None
        self._changed, self._is_aborted, self._was_connected = changed, False, False
        self.answer: Optional[Answer] = None
        self.sent = now()
        self.deadline = self.sent + timeout
        try:
            threading.Thread(target=self._run, name="lockkeeper request", daemon=True).start()
        except RuntimeError:  # The interpreter ends, or has too many threads.
            self._run()

    def wait(self, until: float, is_over: Callable[[], bool] = lambda: False) -> Optional[Answer]:
        """The answer; None at `until`, or when `is_over`."""
        with self._changed:
            while self.answer is None and not is_over() and now() < until:
                if now() >= self.deadline:
                    self.abort()
                    self.answer = Answer(failure="no answer within %.3g s" % self._timeout)
                    break
                self._changed.wait(max(0.0, min(0.5, until - now(), self.deadline - now())))
            return self.answer

    def abort(self) -> None:
        self._is_aborted = True
        sock = getattr(self._connection, "sock", None)
        try:
            sock and sock.shutdown(socket.SHUT_RDWR)  # `close` would not wake the thread that reads.
        except OSError:
            pass

    def _run(self) -> None:
        answer = Answer(failure="the request failed")
        try:
            answer = self._ask()
        except (OSError, ValueError, http.client.HTTPException) as error:
            answer = Answer(failure="%s: %s" % (self._service.url, error or type(error).__name__))
            answer.was_sent = self._was_connected
            answer.is_final = isinstance(error, ssl.SSLCertVerificationError)
        finally:
            with self._changed:
                self.answer = self.answer or answer
                self._changed.notify_all()

    def _ask(self) -> Answer:
        method, path, body, headers = self._request
        self._connection = connection = self._service.connection()
        try:
            connection.connect()
            connection.sock.settimeout(self._timeout)
            if self._is_aborted:
                raise OSError("given up")
            self._was_connected = True
            connection.request(method, self._service.base + path, body, headers)
            response = connection.getresponse()
            content = response.read()
            try:
                return Answer(response.status, json.loads(content) if content else None)
            except ValueError:
                return Answer(response.status)
        finally:
            connection.close()


class Service:
    """The address of a service, from arguments or the environment, read as the command line does."""

    def __init__(self, url: Optional[str], api_key: Union[str, "os.PathLike[str]", None],
                 ca: Union[str, "os.PathLike[str]", None]) -> None:
        env = os.environ
        self.url = url or env.get("LOCKKEEPER_URL") or "http://127.0.0.1:8080"
        self._api_key: Union[str, "os.PathLike[str]", None] = api_key
        if api_key is None:
            file = env.get("LOCKKEEPER_API_KEY_FILE")
            self._api_key = pathlib.Path(file) if file else env.get("LOCKKEEPER_API_KEY")
        parts = urllib.parse.urlsplit(self.url)
        self._unix = self.url[5:] if self.url.startswith("unix:") else ""
        if not self._unix and (parts.scheme not in ("http", "https") or not parts.hostname or parts.query):
            raise ValueError("not the URL of a service, such as http://localhost:8080 or unix:/path: %r" % self.url)
        self._host, self._port = parts.hostname or "", parts.port
        self.base = "" if self._unix else parts.path.rstrip("/")
        self._tls: Optional[ssl.SSLContext] = None
        if parts.scheme == "https":
            self._tls = ssl.create_default_context(cafile=ca or env.get("LOCKKEEPER_CA") or None)
            if env.get("LOCKKEEPER_CERT"):
                self._tls.load_cert_chain(env["LOCKKEEPER_CERT"], env.get("LOCKKEEPER_CERT_KEY") or None)

    def connection(self) -> http.client.HTTPConnection:
        if self._unix:
            return UnixConnection(self._unix)
        if self._tls:
            return http.client.HTTPSConnection(self._host, self._port, timeout=CONNECT, context=self._tls)
        return http.client.HTTPConnection(self._host, self._port, timeout=CONNECT)

    def call(self, method: str, path: str, timeout: float, body: Optional[Dict[str, Any]] = None,
             token: Optional[str] = None, changed: Optional[threading.Condition] = None) -> Call:
        headers = {"Connection": "close", "Accept": "application/json"}
        content = None
        if body is not None:
            content, headers["Content-Type"] = json.dumps(body).encode(), "application/json"
        if token:
            headers["Lock-Token"] = token  # Never in a URL: logs keep those.
        api_key = self._api_key
        if isinstance(api_key, os.PathLike):  # Read each time: a new key needs no restart.
            try:
                with open(api_key, encoding="utf-8") as file:
                    api_key = file.read().rstrip("\r\n")
            except OSError as error:
                raise RequestRefused("the API key cannot be read: %s" % error) from error
        if api_key:
            headers["Authorization"] = "Bearer " + api_key
        return Call(self, method, path, headers, content, timeout, changed or threading.Condition())

    def ask(self, method: str, path: str, allowed: str = "", is_repeated: bool = True) -> Answer:
        """A request about no lease of ours, repeated for 5 seconds if it changes nothing."""
        over, pause = now() + 5, Pause()
        while True:
            call = self.call(method, path, 10)
            answer = call.wait(call.deadline + 1) or Answer(failure="no answer")
            if 200 <= answer.status < 300 and answer.body or allowed and answer.code == allowed:
                return answer
            self.refuse(answer)
            wait = pause.next()
            if now() + wait > over or answer.was_sent and not is_repeated:
                raise ServiceUnavailable("no answer of the service: %s; retry later" % answer,
                                         "unknown" if answer.was_sent else "not_acquired")
            time.sleep(wait)

    def refuse(self, answer: Answer) -> None:
        """Raises for an answer that stays the same however often one asks."""
        if answer.is_final:
            raise RequestRefused("%s; name the authority to trust by `ca` or LOCKKEEPER_CA" % answer)
        if 300 <= answer.status < 500 and answer.status not in (408, 409, 425, 429):
            hint = {401: "set `api_key`, LOCKKEEPER_API_KEY or LOCKKEEPER_API_KEY_FILE",
                    403: "use an API key with this permission and prefix"}
            todo = hint.get(answer.status, "correct the request") if answer.code else "check the URL"
            text = "%s; %s" % (answer, todo)
            raise RequestRefused(text, answer.status, answer.code, answer.body.get("field"))

