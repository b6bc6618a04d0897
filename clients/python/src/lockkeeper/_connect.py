"""The connections of a service: the addresses of its name are tried side by side (RFC 8305)."""

import base64
import http.client
import itertools
import os
import selectors
import socket
import ssl
import time
import urllib.parse
from typing import Any, Callable, Dict, List, Optional, Tuple

# All in seconds.
CONNECT = 5.0  # for a connection
NEXT = 0.25  # from one address to the next
EACH = 2.0  # for each address at least
LOOK = 0.5  # between looks whether the caller has given up

Address = Tuple[Any, ...]  # family, type, protocol, name and socket address, as of `getaddrinfo`


class Addresses:
    """The addresses of a name. The one that has answered is tried first from then on."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._good: Optional[Address] = None

    def connect(self, is_over: Callable[[], bool]) -> socket.socket:
        todo = self._in_order()
        end = time.monotonic() + max(CONNECT, NEXT * (len(todo) - 1) + EACH)
        open_: Dict[socket.socket, Address] = {}
        error: OSError = TimeoutError("no connection in time")
        with selectors.DefaultSelector() as selector:
            try:
                due = 0.0
                while (todo or open_) and time.monotonic() < end and not is_over():
                    if todo and (not open_ or time.monotonic() >= due):
                        address, due = todo.pop(0), time.monotonic() + NEXT
                        try:
                            sock = self._begin(address)
                        except OSError as failure:
                            error = failure
                            continue
                        open_[sock] = address
                        selector.register(sock, selectors.EVENT_WRITE)
                    moment = min([end, time.monotonic() + LOOK] + [due] * bool(todo))
                    for key, _ in selector.select(max(0.0, moment - time.monotonic())):
                        sock = next(one for one in open_ if one is key.fileobj)
                        selector.unregister(sock)
                        address, code = open_.pop(sock), sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                        if code == 0:
                            self._good = address
                            return sock
                        sock.close()
                        error, due = OSError(code, os.strerror(code)), 0.0
            finally:
                for sock in open_:
                    sock.close()
        raise error

    def _in_order(self) -> List[Address]:
        found = list(dict.fromkeys(socket.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)))
        first = [one for one in found if one[0] == found[0][0]]
        rest = [one for one in found if one[0] != found[0][0]]
        pairs = itertools.zip_longest(first, rest)
        ordered = [one for pair in pairs for one in pair if one]
        return sorted(ordered, key=lambda one: one != self._good)

    def _begin(self, address: Address) -> socket.socket:
        sock = socket.socket(*address[:3])
        try:
            sock.setblocking(False)
            try:
                sock.connect(address[4])
            except BlockingIOError:
                pass
            return sock
        except BaseException:
            sock.close()
            raise


class ProxyRefusal(OSError):
    """A proxy that makes no connection to the service, and will make none when it is asked again."""


class Proxy:
    """A proxy of `HTTPS_PROXY` and its kin, or of an argument."""

    def __init__(self, url: str) -> None:
        shown = "...@" + url.rsplit("@", 1)[1] if "@" in url else url
        wrong = "`%s` is not the URL of a proxy: write it like http://proxy:3128" % shown
        try:
            parts = urllib.parse.urlsplit(url if "://" in url else "http://" + url)
            port = parts.port or 80
        except ValueError:
            raise ValueError(wrong) from None
        if parts.scheme != "http" or not parts.hostname:
            raise ValueError(wrong)
        self.url, self.addresses = shown, Addresses(parts.hostname, port)
        self.has_secret = parts.username is not None
        user = ":".join(urllib.parse.unquote(part or "") for part in (parts.username, parts.password))
        credentials = base64.b64encode(user.encode()).decode()

        def headers() -> Dict[str, str]:
            return {"Proxy-Authorization": "Basic " + credentials} if self.has_secret else {}

        self.headers = headers  # No attribute has the credentials, so none shows them.

    def tunnel(self, sock: socket.socket, host: str, port: int) -> None:
        """Has it connect to the service."""
        name = "[%s]:%d" % (host, port) if ":" in host else "%s:%d" % (host, port)
        lines = ["CONNECT %s HTTP/1.1" % name, "Host: " + name]
        lines += ["%s: %s" % pair for pair in self.headers().items()]
        sock.sendall(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"))
        answer = http.client.HTTPResponse(sock, method="CONNECT")
        answer.begin()
        if answer.status != 200:
            text = "the proxy %s makes no connection to %s: it answers %d %s" % (
                self.url, name, answer.status, answer.reason)
            is_final = 400 <= answer.status < 500 and answer.status not in (408, 425, 429)
            raise ProxyRefusal(text) if is_final else OSError(text)


def proxy_of_environment(scheme: str, host: str, port: int) -> Optional[str]:
    """The URL of the proxy for a service; none for this machine, as in other programs."""
    if host == "localhost" or host.startswith("127.") or host == "::1":
        return None
    import urllib.request  # takes long, and is seldom needed

    found = urllib.request.getproxies_environment()
    name = host if ":" in host else "%s:%d" % (host, port)
    if not found or urllib.request.proxy_bypass_environment(name, found):  # type: ignore[attr-defined]
        return None
    return found.get(scheme) or found.get("all")


class Connection(http.client.HTTPConnection):
    """A connection to a service; `is_over` tells that its caller has given up."""

    def __init__(self, host: str, port: int, addresses: Addresses, tls: Optional[ssl.SSLContext],
                 proxy: Optional[Proxy], is_over: Callable[[], bool]) -> None:
        super().__init__(host, port, timeout=CONNECT)
        self._addresses, self._tls, self._proxy, self._is_over = addresses, tls, proxy, is_over
        self.default_port = 443 if tls else 80

    def connect(self) -> None:
        self.sock = (self._proxy.addresses if self._proxy else self._addresses).connect(self._is_over)
        self.sock.settimeout(CONNECT)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._tls:
            if self._proxy:
                self._proxy.tunnel(self.sock, self.host, self.port)
            self.sock = self._tls.wrap_socket(self.sock, server_hostname=self.host)


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, file: str) -> None:
        super().__init__("localhost")
        self._file = file

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(CONNECT)
        self.sock.connect(self._file)
