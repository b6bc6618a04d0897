"""The service's address, and single requests to it."""

import _thread
import http.client
import json
import os
import pathlib
import random
import re
import selectors
import socket
import ssl
import threading
import time
import urllib.parse
from datetime import timedelta
from typing import Any, Callable, Dict, List, Optional, Protocol, Tuple, Union

from ._connect import (CONNECT, Addresses, Connection, Proxy, ProxyRefusal, UnixConnection,
                       proxy_of_environment)
from ._errors import RequestRefused, ServiceUnavailable

Duration = Union[int, float, str, timedelta]
Path = Union[str, "os.PathLike[str]"]

MOST_BYTES = 8 << 20  # of an answer: more than the largest page of a list
TICK = 0.5  # seconds between looks at the clock: timers stand still while the machine is suspended
CLOCK: Optional[int] = getattr(time, "CLOCK_BOOTTIME", None)
# The reasons of OpenSSL for a first answer that is no TLS and for a missing client certificate, and its codes for
# an unknown authority.
NO_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE")
NEEDS_CERTIFICATE = ("TLSV13_ALERT_CERTIFICATE_REQUIRED", "SSLV3_ALERT_HANDSHAKE_FAILURE")
NO_AUTHORITY = (2, 7, 18, 19, 20, 21)
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


def in_words(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        if getattr(error, "verify_code", 0) in NO_AUTHORITY:
            return ("its certificate is not signed by an authority that is trusted here: name the file of that "
                    "authority (`ca`, LOCKKEEPER_CA)")
        return "its certificate is not accepted: %s" % str(getattr(error, "verify_message", error)).rstrip(".")
    if getattr(error, "reason", None) in NO_TLS:
        return "no TLS is spoken there: is it http://?"
    if getattr(error, "reason", None) in NEEDS_CERTIFICATE:
        return "it wants another client certificate: set `cert` and `cert_key`, LOCKKEEPER_CERT and LOCKKEEPER_CERT_KEY"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


class Answer:
    """An answer, or what came instead of one."""

    def __init__(self, status: int = 0, body: Any = None, failure: str = "") -> None:
        self.status, self.failure = status, failure
        self.was_sent, self.is_final, self.has_api_key = True, False, False
        self.body: Dict[str, Any] = body if isinstance(body, dict) else {}
        # A problem without a type of the service is from a gateway.
        is_problem = str(self.body.get("type", "")).startswith("urn:lockkeeper:")
        self.code = str(self.body.get("code", "")) if is_problem else ""
        # The leases that the token has, if they are not those that the request is about: numbers by key, and the key
        # is empty if it is the only one of the request. Of several keys `lost` has those that were lost.
        self.lost: List[Dict[str, Any]] = self.body.get("lost", []) if self.code == "lock_lost" else []
        found = [self.body] if self.code == "lock_lost" or self.code and self.body.get("mine") else []
        self.others: Dict[str, int] = {one.get("key", ""): one["fencing_token"] for one in found + self.lost
                                       if one.get("fencing_token")}
        self.retry_after = 0.0  # seconds; of `superseded` alone

    def __str__(self) -> str:
        if self.code:
            return "%s (%d %s)" % (self.body.get("detail"), self.status, self.code)
        return self.failure or "the answer is %d and not from lockkeeper" % self.status

    def is_no(self) -> bool:
        """Whether nothing was granted for sure, and nothing under way will be."""
        if self.code in ("", "superseded") or self.others:  # Another request has the place, or a lease.
            return False
        return self.status < 500 or self.code == "draining" or self.body.get("outcome") == "not_acquired"

    def may_pass(self) -> bool:
        """Whether another request may be answered otherwise."""
        return not self.is_final and (not 300 <= self.status < 500 or self.status in (408, 409, 425, 429))

    def refuse(self) -> None:
        """Raises if the answer stays the same however often one asks."""
        if not self.may_pass():
            if self.code == "unauthenticated" and self.has_api_key:
                text = "unknown API key: look at `api_key`, LOCKKEEPER_API_KEY or LOCKKEEPER_API_KEY_FILE"
            elif self.code == "unauthenticated":
                text = "the service asks for an API key: set `api_key`, LOCKKEEPER_API_KEY or LOCKKEEPER_API_KEY_FILE"
            elif self.code == "forbidden":
                text = "%s; use an API key with this permission and prefix" % self
            else:
                hint = "; correct the request" if self.code else "" if self.is_final else "; check the URL"
                text = str(self) + hint
            raise RequestRefused(text, self.status, self.body)


class Starter(Protocol):
    def put(self, call: "Call", is_urgent: bool) -> None: ...


class Call:
    """A request in another thread: no name server and no slow answer keeps the caller longer than it wants.

    Without `starter` it has a thread and a connection of its own, so no restart, fork or abandoned request can spoil
    another one. `starter` may run it on a connection that was used before, unless `is_fresh`: only requests that may
    be repeated, and a repeat is fresh. `timeout` is counted from the sending; with `limit` only once there is a
    connection, and up to that moment."""

    def __init__(self, service: "Service", method: str, path: str, token: Optional[str], body: Any,
                 timeout: float, changed: threading.Condition, limit: Optional[float] = None,
                 starter: Optional[Starter] = None, is_urgent: bool = True, is_fresh: bool = False) -> None:
        self._service, self._request, self._changed = service, (method, path, token, body), changed
        self._connection: Optional[http.client.HTTPConnection] = None
        self._timeout, self._limit, self._is_aborted, self._was_sent = timeout, limit, False, False
        self._connected: Optional[float] = None
        self._may_keep, self.is_fresh = starter is not None, is_fresh
        self.answer: Optional[Answer] = None
        self.sent = now()
        self.patient_until = self.sent + min(1.0, timeout / 10)  # in a queue for a thread
        if starter:
            starter.put(self, is_urgent)
            return
        try:
            _thread.start_new_thread(self.run, ())
        except RuntimeError:  # The interpreter ends, or has too many threads.
            self.run()

    def wait(self, until: float = 1e12, is_over: Callable[[], bool] = lambda: False) -> Optional[Answer]:
        """Returns the answer; None at `until`, or when `is_over`."""
        while True:
            deadline = self._deadline()
            with self._changed:
                wait_on(self._changed, min(until, deadline), lambda: self.answer is not None or is_over())
                if self.answer is None and not is_over() and now() >= deadline:
                    if now() < self._deadline():
                        continue
                    self.abort()
                    self.answer = self._failed("timeout after %.1f s" % (now() - self.sent))
                if self.answer or is_over() or now() >= until:
                    return self.answer

    def _deadline(self) -> float:
        if self._limit is None:
            return self.sent + self._timeout
        # Until there is a connection, it may take as long as one may.
        begin = self.sent + CONNECT if self._connected is None else self._connected
        return min(begin + self._timeout, self._limit)

    def abort(self) -> None:
        with self._changed:  # Otherwise the connection might be another call's by now.
            self._is_aborted = True
            try:
                if self._connection and self._connection.sock:
                    self._connection.sock.shutdown(socket.SHUT_RDWR)  # `close` wakes no reader.
            except (OSError, AttributeError):
                pass

    def run(self, kept: Optional[http.client.HTTPConnection] = None) -> Optional[http.client.HTTPConnection]:
        """Asks, on that connection if it is still good, and returns one that may be kept."""
        answer, has_connection = Answer(failure="the request failed"), False
        try:
            if kept and (self.is_fresh or not _is_open(kept)):
                kept.close()
                kept = None
            answer = self._ask(kept)
        except (OSError, ValueError, http.client.HTTPException) as error:
            has_connection = self._connection is not None
            answer = self._failed(in_words(error)) if has_connection else Answer(failure=str(error))
            answer.was_sent = self._was_sent
            reason = getattr(error, "reason", None)
            is_no_tls = reason in NO_TLS and not self._was_sent
            answer.is_final = (not has_connection or is_no_tls or reason in NEEDS_CERTIFICATE
                               or isinstance(error, (ssl.SSLCertVerificationError, ProxyRefusal)))
        finally:
            with self._changed:
                connection, self._connection = self._connection, None
                self.answer = self.answer or answer
                self._changed.notify_all()
        if connection and self._is_aborted:
            connection.close()
        return connection if connection and connection.sock else None

    def fail(self, why: str) -> None:
        with self._changed:
            self.answer = self._failed(why)
            self.answer.was_sent = False
            self._changed.notify_all()

    def _failed(self, why: str) -> Answer:
        return Answer(failure="no answer from %s: %s" % (self._service.url, why))

    def _ask(self, kept: Optional[http.client.HTTPConnection]) -> Answer:
        method, path, token, body = self._request
        headers = self._service.headers()
        if token:
            headers["Lock-Token"] = token  # Never in a URL: logs keep those.
        if not self._may_keep:
            headers["Connection"] = "close"
        self._connection = connection = kept or self._service.connection(lambda: self._is_aborted)
        is_whole = False
        try:
            if not kept:
                connection.connect()
            self._connected = now()
            connection.sock.settimeout(max(0.1, self._deadline() - now()))
            if self._is_aborted:
                raise OSError("given up")
            self._was_sent = True
            connection.request(method, self._service.target + path, body and json.dumps(body).encode(), headers)
            response = connection.getresponse()
            text = response.read(MOST_BYTES)
            if response.length or len(text) == MOST_BYTES:
                raise OSError("the answer was cut, or is too long")
            is_whole = response.isclosed()
        finally:
            if not is_whole or not self._may_keep:
                connection.close()
        try:
            answer = Answer(response.status, json.loads(text) if text else None)
            answer.has_api_key = "Authorization" in headers
            if answer.code == "superseded":
                answer.retry_after = float(response.headers.get("Retry-After", 0))
        except ValueError:
            return Answer(response.status)
        return answer


def _is_open(connection: http.client.HTTPConnection) -> bool:
    """Whether the other side has neither closed a connection that waits for its next request, nor sent anything."""
    try:
        with selectors.DefaultSelector() as selector:
            selector.register(connection.sock, selectors.EVENT_READ)
            return not selector.select(0)
    except (OSError, ValueError):
        return False


def reader_of(api_key: Optional[Path]) -> Callable[[], str]:
    """A call that reads the API key. No attribute has it, so none shows it."""
    def one(text: Path) -> str:
        if isinstance(text, os.PathLike):
            try:
                text = pathlib.Path(text).read_text("utf-8")
            except (OSError, ValueError) as error:
                raise ValueError("the API key in %s cannot be read: %s" % (api_key, in_words(error))) from None
            if not text.rstrip("\r\n"):
                raise ValueError("%s has no API key" % api_key)
        text = text.rstrip("\r\n")
        if "\n" in text or "\r" in text:
            raise ValueError("the API key has a line break: set `api_key`, LOCKKEEPER_API_KEY or the file to one line")
        if not re.fullmatch("[ -~]*", text):
            raise ValueError("the API key has characters besides visible ASCII")
        return text

    last = ""  # of a file

    def read() -> str:
        nonlocal last
        if not isinstance(api_key, os.PathLike):
            return one(api_key or "")
        try:  # Each time: a new key needs no restart.
            last = one(api_key)
        except ValueError:
            if not last:
                raise
        return last  # While the file has none, as it is being rewritten.

    return read


def _context(ca: Optional[Path], cert: Optional[Path], cert_key: Optional[Path]) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=ca)
    except ssl.SSLError as error:
        raise ValueError("`ca`: %s has no certificate: it needs a part -----BEGIN CERTIFICATE-----" % ca) from error
    except OSError as error:
        text = "`ca`: cannot read %s: %s; name a PEM file that this user may read"
        raise ValueError(text % (ca, in_words(error))) from error
    if cert:
        try:
            # An empty password: OpenSSL would ask for one on the terminal.
            context.load_cert_chain(cert, cert_key, password="")
        except ssl.SSLError as error:
            text = "`cert`: %s and %s are no certificate and its key, in PEM and without a password: %s"
            raise ValueError(text % (cert, cert_key, in_words(error))) from error
        except OSError as error:
            text = "`cert`: cannot read %s or %s: %s; name PEM files that this user may read"
            raise ValueError(text % (cert, cert_key, in_words(error))) from error
    return context


class Service:
    """The address of a service, from arguments or the environment, read as the command line does."""

    def __init__(self, url: Optional[str], api_key: Optional[Path], ca: Optional[Path],
                 cert: Optional[Path] = None, cert_key: Optional[Path] = None, proxy: Optional[str] = None,
                 token_prefix: Optional[str] = None, timeout: Optional[Duration] = None) -> None:
        env = os.environ
        file = env.get("LOCKKEEPER_API_KEY_FILE") if api_key is None else None
        given = pathlib.Path(file) if file else api_key
        self._read_api_key = reader_of(env.get("LOCKKEEPER_API_KEY") if given is None else given)
        self.keepers: Dict[int, Any] = {}  # by process: a forked child has no thread of its parent
        self.url = url or env.get("LOCKKEEPER_URL") or "http://127.0.0.1:8080"
        self._file = self.url[len("unix:"):] if self.url.startswith("unix:") else ""
        parts = self._parse("http://localhost" if self._file else self.url)
        self._host, self.base = parts.hostname or "", parts.path.rstrip("/")
        # Without a port http.client takes the end of an IPv6 address for one.
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._addresses = Addresses(self._host, self._port)
        self.token_prefix = env.get("LOCKKEEPER_TOKEN_PREFIX", "") if token_prefix is None else token_prefix
        if not re.fullmatch("[!-~]*", self.token_prefix):
            raise ValueError("`token_prefix`: %r has characters besides visible ASCII" % self.token_prefix)
        # Of an answer besides its wait, and of retries without a wait; None: the usual times.
        self.timeout = None if timeout is None else max(0.1, seconds(timeout))
        found = proxy
        if proxy is None and not self._file:
            found = proxy_of_environment(parts.scheme, self._host, self._port)
        self._proxy = Proxy(found) if found else None
        self.target = self.base
        if self._proxy and parts.scheme == "http":
            name = "[%s]" % self._host if ":" in self._host else self._host
            self.target = "http://%s:%d%s" % (name, self._port, self.base)
        self._tls: Optional[ssl.SSLContext] = None
        trusted, cert = ca or env.get("LOCKKEEPER_CA") or None, cert or env.get("LOCKKEEPER_CERT") or None
        cert_key = cert_key or env.get("LOCKKEEPER_CERT_KEY") or None
        if bool(cert) != bool(cert_key):
            raise ValueError("`cert` and `cert_key` (LOCKKEEPER_CERT, LOCKKEEPER_CERT_KEY) are set together")
        # What a copy in another process is made with; a key of the environment is read there.
        self._arguments = (self.url, None if isinstance(given, str) else given, trusted)
        self._more = (cert, cert_key, proxy, self.token_prefix, self.timeout)
        self._has_given_key = isinstance(given, str)
        if proxy and self._proxy and self._proxy.has_secret:
            self._has_given_key, self._more = True, (cert, cert_key, None, self.token_prefix, self.timeout)
        if parts.scheme == "https":
            self._tls = _context(trusted, cert, cert_key)

    def _parse(self, url: str) -> urllib.parse.SplitResult:
        def wrong(reason: str) -> ValueError:
            shown = "...@" + self.url.rsplit("@", 1)[1] if "@" in self.url else self.url
            return ValueError("`%s` is not the URL of a service: %s" % (shown, reason))

        if url == "unix:":
            raise wrong("name a file, as in unix:/run/lockkeeper/lockkeeper.sock")
        try:
            parts = urllib.parse.urlsplit(url)
            is_whole = parts.port != 0 and not re.search(r"[\x00-\x20\x7f]", url)
        except ValueError:
            raise wrong("write it like http://host:8080") from None
        if parts.scheme not in ("http", "https"):
            raise wrong("use http:// or https://, or unix:FILE")
        if not parts.hostname or not is_whole:
            raise wrong("write it like http://host:8080")
        if parts.username is not None or parts.query or parts.fragment:
            raise wrong("only a host, a port and a path are allowed")
        if parts.path.rstrip("/").endswith("/locks"):  # It would work, but with other keys than every other client's.
            raise wrong("leave out /locks, as in http://host:8080")
        return parts

    def arguments(self, owner: Optional[str]) -> Tuple[Any, ...]:
        if self._has_given_key:
            raise TypeError("no pickle has an API key: give it by LOCKKEEPER_API_KEY, or as the pathlib.Path of a "
                            "file; nor the password of a proxy: give that by HTTPS_PROXY or HTTP_PROXY")
        return (*self._arguments, owner, *self._more)

    def connection(self, is_over: Callable[[], bool] = lambda: False) -> http.client.HTTPConnection:
        if self._file:
            return UnixConnection(self._file)
        return Connection(self._host, self._port, self._addresses, self._tls, self._proxy, is_over)

    def headers(self) -> Dict[str, str]:
        headers = {"Accept": "application/json", "Content-Type": "application/json"}
        if self._proxy and self.target != self.base:
            headers.update(self._proxy.headers())
        api_key = self._read_api_key()
        if api_key:
            headers["Authorization"] = "Bearer " + api_key
        return headers

    def ask(self, method: str, path: str, is_good: Callable[[Dict[str, Any]], bool], allowed: str = "") -> Answer:
        """Asks about no lease of ours. A read is repeated for 5 seconds, a change only if it was not sent.
        Gateways answer 200 as well: `is_good` knows the body of the service."""
        over, attempt, limit = now() + (self.timeout or 5.0), 0, self.timeout or 10.0
        while True:
            answer = Call(self, method, path, None, None, limit, threading.Condition()).wait() or Answer()
            if answer.status == 200 and is_good(answer.body) or allowed and answer.code == allowed:
                return answer
            answer.refuse()
            if now() > over or answer.was_sent and method != "GET":
                raise ServiceUnavailable("%s; retry later" % answer)
            time.sleep(pause(attempt))
            attempt += 1
