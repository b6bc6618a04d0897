#!/usr/bin/env python3
"""The situations of clients/SITUATIONS.md, for the client of one language.

Each row starts a service of its own, a proxy that misbehaves in front of it, and a driver in the
language (`driver MODE KEY name=value...`), and compares what came with the table. The standard
library of Python 3.9 is enough.

    python3 tests/clients/situations.py --bin target/release/lockkeeper --lang py --rounds 5 --jobs 8
"""

import argparse
import concurrent.futures
import ctypes
import errno
import http.client
import json
import os
import queue
import random
import re
import secrets
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import urllib.parse
from hashlib import sha256

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
BUILT = os.path.join(tempfile.gettempdir(), "lockkeeper-driver-%d" % os.getpid())

# For each language: the directory and the command that build its driver, if one does, and the driver.
LANGUAGES = {
    "py": (ROOT, None, [sys.executable, os.path.join(HERE, "driver.py")]),
    "py-asyncio": (ROOT, None, [sys.executable, os.path.join(HERE, "driver.py"), "--asyncio"]),
    "ts": (os.path.join(ROOT, "clients/typescript"), None, ["node", os.path.join(HERE, "driver.mjs")]),
    "go": (os.path.join(HERE, "go"), ["go", "build", "-o", BUILT, "."], [BUILT]),
    "ruby": (ROOT, None, ["ruby", os.path.join(HERE, "driver.rb")]),
    "php": (ROOT, None, ["php", os.path.join(HERE, "driver.php")]),
    "php-lock": (ROOT, None, ["php", os.path.join(HERE, "driver.php"), "--lock"]),
}
# Languages in which an exit of the process runs nothing: what is left ends by its TTL.
EXIT_RUNS_NOTHING = {"go"}
# Languages without fork.
FORKLESS = {"ts", "go"}

LIMIT = 90.0  # seconds that a driver may take in any row
PATIENCE = 20.0  # seconds for what should come at once, on a busy machine
TICK = 0.2  # seconds between looks whether a row is over
API_KEY = "situations"
CONFIG = """
[limits]
max_wait = "2s"
shutdown_time = "2s"

[[prefixes]]
prefix = "capped/"
max_hold = "12s"

[[api_keys]]
name = "situations"
sha256 = "%s"
prefixes = [""]
permissions = ["acquire", "read", "admin"]
""" % sha256(API_KEY.encode()).hexdigest()


class Red(Exception):
    """What came is not what the table says."""


class NotPlayed(Exception):
    """This machine cannot play the row."""


def until(what, seconds, check, pause=0.05):
    """Polls until `check` returns something true, and returns that."""
    end = time.monotonic() + seconds
    while True:
        found = check()
        if found:
            return found
        if time.monotonic() > end:
            raise Red("%s: not within %g s" % (what, seconds))
        time.sleep(pause)


class Service:
    """A lockkeeper with a directory and a port of its own."""

    def __init__(self, binary, directory):
        self.binary, self.directory, self.process = binary, directory, None
        self.port, self.starts = 0, 0  # A free one, which it says in its log.
        with open(os.path.join(directory, "lockkeeper.toml"), "w") as file:
            file.write(CONFIG)
        self.start()

    def start(self):
        self.starts += 1
        command = [self.binary, "serve", "--config", "lockkeeper.toml"]
        command += ["--listen", "127.0.0.1:%d" % self.port, "--store", "embedded:data"]
        clean = {k: v for k, v in os.environ.items() if not k.startswith("LOCKKEEPER")}
        with open(os.path.join(self.directory, "service.log"), "ab") as log:
            self.process = subprocess.Popen(command, cwd=self.directory, stdout=log, stderr=log, env=clean)
        until("the service is ready", PATIENCE, self.is_ready)

    def is_ready(self):
        if self.process.poll() is not None:
            raise Red("the service ended with %s" % self.process.returncode)
        with open(os.path.join(self.directory, "service.log"), errors="replace") as log:
            ports = re.findall(r"serving locks on http://127\.0\.0\.1:(\d+)", log.read())
        if len(ports) < self.starts:
            return False  # Whoever may answer on its port is another program.
        self.port = int(ports[-1])
        try:
            return self.call("GET", "/readyz")[0] == 200
        except OSError:
            return False

    def end(self, number):
        self.process.send_signal(number)
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def call(self, method, path, body=None, token=None, timeout=30):
        """One request past the proxy: the status and the JSON of the answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            headers = {"Authorization": "Bearer " + API_KEY}
            if token:
                headers["Lock-Token"] = token
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            content = answer.read()
            return answer.status, json.loads(content) if content else {}
        finally:
            connection.close()

    def look(self, key):
        return self.call("GET", "/locks/" + urllib.parse.quote(key, safe="/"))[1]


class Rule:
    """What the proxy does to the next `times` requests of a kind."""

    def __init__(self, kind, action, times=1, seconds=0.0, status=503, body="", fields="Content-Type: text/html"):
        self.kind, self.action, self.times, self.seconds = kind, action, times, seconds
        self.status, self.body, self.fields = status, body, fields


ALWAYS = 10**9
KINDS = {"POST": "acquire", "PUT": "refresh", "DELETE": "release", "GET": "look"}
PAGE = "<html><body><h1>%d from the gateway</h1></body></html>"


def gateway(kind, status, times):
    """Answers of a gateway."""
    return Rule(kind, "answer", times, status=status, body=PAGE % status)


def problem(kind, status, times, **members):
    """Problems as the service itself sends them."""
    code = members["code"]
    members.update(detail="by the test", title="By the test", status=status, type="urn:lockkeeper:" + code)
    members["request_id"] = "situations"
    fields = "Content-Type: application/problem+json"
    if members["code"] == "superseded":
        fields += "\r\nRetry-After: 1"
    return Rule(kind, "answer", times, status=status, body=json.dumps(members), fields=fields)


class Gone(Exception):
    """The other side has closed its connection."""


class Proxy:
    """Passes requests on, except as its rules say. A closed connection is passed on, too."""

    def __init__(self, service, rules, is_gateway=False, listener=None):
        self.service, self.rules, self.is_gateway = service, list(rules), is_gateway
        self.lock, self.seen, self.answers, self.open = threading.Lock(), [], [], True
        self.listener = listener or bound("127.0.0.1")  # connections are refused until `listen`
        self.port = self.listener.getsockname()[1]

    def listen(self):
        self.listener.listen(64)
        threading.Thread(target=self.accept, daemon=True).start()

    def close(self):
        self.open = False
        try:
            self.listener.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self.listener.close()

    def accept(self):
        while self.open:
            try:
                client = self.listener.accept()[0]
            except OSError:
                return
            threading.Thread(target=self.serve, args=(client,), daemon=True).start()

    def rule(self, kind):
        with self.lock:
            for rule in self.rules:
                if rule.kind == kind and rule.times > 0:
                    rule.times -= 1
                    return rule
        return None

    def add(self, *rules):
        with self.lock:
            self.rules.extend(rules)

    def serve(self, client):
        kept = b""
        try:
            while True:
                request, kept, kind = self.read(client, kept)
                if not self.answer(client, request, kind):
                    return
        except (OSError, Gone):
            pass
        finally:
            client.close()

    def read(self, client, data):
        """The next request on a connection."""
        while b"\r\n\r\n" not in data:
            more = client.recv(65536)
            if not more:
                raise Gone()
            data += more
        head, data = data.split(b"\r\n\r\n", 1)
        lines = head.split(b"\r\n")
        fields = {}
        for line in lines[1:]:
            name, value = line.split(b":", 1)
            fields[name.strip().lower().decode()] = value.strip().decode()
        if "chunked" in fields.get("transfer-encoding", ""):
            body, raw, data = self.chunks(client, data)
        else:
            length = int(fields.get("content-length", "0"))
            while len(data) < length:
                more = client.recv(65536)
                if not more:
                    raise Gone()
                data += more
            body, data = data[:length], data[length:]
            raw = body
        method, path, _ = lines[0].decode().split(" ", 2)
        kind = "other" if path.startswith(("/admin", "/hold")) else KINDS.get(method, "other")
        with self.lock:
            self.seen.append((time.monotonic(), kind, path, fields, body))
        rest = [line for line in lines[1:] if not line.lower().startswith((b"connection:", b"keep-alive:"))]
        return b"\r\n".join([lines[0]] + rest + [b"Connection: close", b"", b""]) + raw, data, kind

    def chunks(self, client, data):
        body, raw = b"", b""
        while True:
            while b"\r\n" not in data:
                data += client.recv(65536) or b"0\r\n\r\n"
            size, data = data.split(b"\r\n", 1)
            length = int(size.split(b";")[0], 16)
            while len(data) < length + 2:
                data += client.recv(65536) or b"\r\n\r\n"
            raw += size + b"\r\n" + data[: length + 2]
            body, data = body + data[:length], data[length + 2:]
            if length == 0:
                return body, raw, data

    def answer(self, client, request, kind):
        """Returns whether the connection stays open."""
        rule = self.rule(kind)
        action = rule.action if rule else "pass"
        if action == "answer":
            if rule.seconds:
                self.hold(client, rule.seconds)
            head = "HTTP/1.1 %d By the test\r\n%s\r\nContent-Length: %d\r\n\r\n"
            client.sendall((head % (rule.status, rule.fields, len(rule.body)) + rule.body).encode())
            return True
        if action == "swallow":  # never an answer, and nothing is done
            self.hold(client, LIMIT)
            return False
        if action == "behind":  # the client is cut off, and the request is passed on later
            client.close()
            time.sleep(rule.seconds)
            self.forward(None, request)
            return False
        if action == "delay":  # the request is passed on later, whatever the client does meanwhile
            time.sleep(rule.seconds)
            answer = self.forward(None, request)
        else:
            try:
                answer = self.forward(client, request)
            except OSError:
                if self.is_gateway:
                    client.sendall(("HTTP/1.1 502 Bad Gateway\r\nContent-Length: %d\r\n\r\n%s"
                                    % (len(PAGE % 502), PAGE % 502)).encode())
                    return True
                return False
        with self.lock:
            self.answers.append(answer)
        if action == "silent":  # done, and never an answer
            self.hold(client, LIMIT)
            return False
        if action == "lose":
            time.sleep(rule.seconds)
            return False
        if action == "cut":
            client.sendall(answer[: len(answer) - 20])
            return False
        if action == "late":
            time.sleep(rule.seconds)
        client.sendall(answer)
        return True

    def hold(self, client, seconds):
        """Waits while the client is there."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and self.open:
            if select.select([client], [], [], 0.1)[0] and not client.recv(65536, socket.MSG_PEEK):
                raise Gone()

    def forward(self, client, request):
        """The service's answer. Closes the request as soon as the client has gone."""
        with socket.create_connection(("127.0.0.1", self.service.port), 5) as upstream:
            upstream.settimeout(60)
            upstream.sendall(request)
            answer = b""
            while True:
                both = [upstream] + ([client] if client else [])
                ready = select.select(both, [], [], 60)[0]
                if client in ready and client.recv(1, socket.MSG_PEEK) == b"":
                    raise Gone()
                if upstream in ready:
                    more = upstream.recv(65536)
                    if not more:
                        break
                    answer += more
                elif client in ready:
                    time.sleep(0.01)  # the client has sent the next request already
        if b"\r\n\r\n" not in answer:
            raise OSError("the service closed the connection")
        head, body = answer.split(b"\r\n\r\n", 1)
        lines = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"connection:")]
        return b"\r\n".join(lines) + b"\r\n\r\n" + body

    def claims(self):
        """The tokens of all acquires that were seen."""
        tokens = set()
        with self.lock:
            for _, kind, _, fields, body in self.seen:
                if kind == "acquire":
                    token = fields.get("lock-token") or (json.loads(body) if body else {}).get("token")
                    tokens.add(token or "none")
        return tokens

    def count(self, kind):
        with self.lock:
            return sum(1 for one in self.seen if one[1] == kind)

    def told(self, code):
        """How often the service's answer, late ones aside, was this problem."""
        with self.lock:
            return sum(1 for answer in self.answers if b'"urn:lockkeeper:%s"' % code in answer)

    def last(self, kind):
        """When the last request of a kind came."""
        with self.lock:
            return max(one[0] for one in self.seen if one[1] == kind)

    def check(self):
        """What holds in every row: each refresh names the fencing token, and no URL has a token."""
        for _, kind, path, fields, body in self.seen:
            query = urllib.parse.parse_qs(urllib.parse.urlsplit(path).query)
            members = json.loads(body) if body.startswith(b"{") else {}
            leases = members.get("leases", [members])
            if kind == "refresh" and "fencing_token" not in query and any("fencing_token" not in one for one in leases):
                raise Red("a refresh does not name the fencing token")
            token = fields.get("lock-token") or members.get("token")
            if token and token in path:
                raise Red("a token in a URL")


def bound(address, port=0):
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((address, port))
    return listener


class Apart:
    """A thread with a mount namespace of its own, in which NAME has other addresses; the programs and the
    sockets that it makes are there as well. With `is_slow` it has a network of its own, too: its only
    link leads back to it, to a listener on HERE, whose answers come 300 to 600 ms late. SILENT answers nothing.
    With `name_server`, the address of one, that is the only one, and knows what /etc/hosts does not."""

    NAME, HERE, SLOW, SILENT = "service.lockkeeper.test", "10.9.0.1", "10.9.0.2", "10.9.0.3"

    def __init__(self, directory, addresses, is_slow=False, name_server=None):
        self.hosts = os.path.join(directory, "hosts")
        self.thread, self.link, self.parts = concurrent.futures.ThreadPoolExecutor(1), None, []
        self.is_open, self.port, self.answers = True, None, queue.Queue()
        try:
            self.do(self.enter, directory, addresses, is_slow, name_server)
        except (OSError, AttributeError, subprocess.SubprocessError) as error:
            self.close()
            raise NotPlayed("no namespace with an /etc/hosts of its own, which needs root and Linux: %s" % error)

    def do(self, function, *arguments):
        return self.thread.submit(function, *arguments).result()

    def enter(self, directory, addresses, is_slow, name_server):
        with open(self.hosts, "w") as file:
            file.writelines("%s %s\n" % (address, self.NAME) for address in addresses)
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.unshare(0x20000 | (0x40000000 if is_slow else 0)):  # CLONE_NEWNS, CLONE_NEWNET
            raise OSError(ctypes.get_errno(), "unshare: " + os.strerror(ctypes.get_errno()))
        self.run("mount", "--make-rprivate", "/")
        self.run("mount", "--bind", self.hosts, "/etc/hosts")
        if name_server:
            settings = os.path.join(directory, "resolv.conf")
            with open(settings, "w") as file:
                file.write("nameserver %s\n" % name_server)
            self.run("mount", "--bind", settings, "/etc/resolv.conf")
        if is_slow:
            import fcntl  # is not on every system
            self.link = os.open("/dev/net/tun", os.O_RDWR)
            fcntl.ioctl(self.link, 0x400454CA, struct.pack("16sH22x", b"slow", 0x1001))  # IFF_TUN, IFF_NO_PI
            self.run("ip", "link", "set", "lo", "up")
            self.run("ip", "address", "add", self.HERE + "/24", "dev", "slow")
            self.run("ip", "link", "set", "slow", "up")
            self.parts = [threading.Thread(target=part) for part in (self.receive, self.send_late)]
            for part in self.parts:
                part.start()
        found = [one[4][0] for one in socket.getaddrinfo(self.NAME, 1, socket.AF_INET, socket.SOCK_STREAM)]
        if found != addresses:
            raise OSError("%s is %s, not %s" % (self.NAME, found, addresses))

    def run(self, *command):
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)

    def receive(self):
        while self.is_open:
            if not select.select([self.link], [], [], TICK)[0]:
                continue
            packet = os.read(self.link, 65536)
            if packet[0] >> 4 != 4 or packet[16:20] == socket.inet_aton(self.SILENT):
                continue
            if struct.unpack("!H", packet[20:22])[0] == self.port:
                self.answers.put((time.monotonic() + random.uniform(0.3, 0.6), packet))
            else:
                self.send_back(packet)
        self.answers.put(None)

    def send_back(self, packet):
        """As from the address that it was sent to; the checksums stay right."""
        os.write(self.link, packet[:12] + packet[16:20] + packet[12:16] + packet[20:])

    def send_late(self):
        for due, packet in iter(self.answers.get, None):
            time.sleep(max(0, due - time.monotonic()))
            self.send_back(packet)

    def close(self):
        self.is_open = False
        self.thread.shutdown()
        for part in self.parts:
            part.join()
        if self.link is not None:
            os.close(self.link)


class Driver:
    """A running driver, and its lines with the time at which each was read."""

    def __init__(self, command, url, mode, key, options, api_key=API_KEY, apart=None):
        clean = {k: v for k, v in os.environ.items() if not k.startswith("LOCKKEEPER")}
        clean.update(LOCKKEEPER_URL=url, LOCKKEEPER_API_KEY=api_key)
        words = ["%s=%s" % pair for pair in options.items()]

        def start():
            return subprocess.Popen(
                command + [mode, key] + words, env=clean, stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)

        self.process = apart.do(start) if apart else start()
        self.started, self.lines, self.times, self.errors = time.monotonic(), [], {}, b""
        self.readers = [threading.Thread(target=self.read, daemon=True),
                        threading.Thread(target=self.read_errors, daemon=True)]
        for reader in self.readers:
            reader.start()

    def read(self):
        for line in self.process.stdout:
            text = line.decode(errors="replace").rstrip("\n")
            self.times.setdefault(text.split(" ")[0], time.monotonic())
            self.lines.append(text)

    def read_errors(self):
        for line in self.process.stderr:
            self.errors = (self.errors + line)[-20000:]

    def words(self):
        return [line.split(" ")[0] for line in list(self.lines)]

    def wait_for(self, word, seconds=PATIENCE):
        until("the line `%s`" % word, seconds, lambda: word in self.words() or self.is_over(word), 0.02)

    def is_over(self, word):
        if self.process.poll() is not None and not self.readers[0].is_alive() and word not in self.words():
            raise Red("the driver ended without the line `%s`" % word)
        return False

    def fencing(self):
        return int([line for line in self.lines if line.startswith("acquired")][0].split(" ")[1])

    def finish(self, seconds=LIMIT):
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise Red("the driver did not end within %g s" % seconds)
        finally:
            self.kill()
        for reader in self.readers:
            reader.join(5)
        return self.process.returncode

    def stop(self):
        """Suspends it; all of its threads stand still at the end."""
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOWAIT)

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


class Row:
    """One run of one row: the service, the proxy, and what the steps of a row need."""

    def __init__(self, arguments, directory):
        self.lang, self.command = arguments.lang, LANGUAGES[arguments.lang][2]
        self.service = Service(os.path.abspath(arguments.bin), directory)
        self.key, self.drivers, self.proxy = "situations/report", [], None
        self.first = None  # the other key of a claim of two, which is acquired first
        self.directory, self.apart = directory, None
        self.random = random.Random()

    def close(self):
        for driver in self.drivers:
            driver.kill()
        if self.proxy:
            self.proxy.close()
        if self.apart:
            self.apart.close()
        if self.service.process.poll() is None:
            self.service.end(signal.SIGKILL)

    def behind(self, *rules, listen=True, is_gateway=False):
        self.proxy = Proxy(self.service, rules, is_gateway)
        if listen:
            self.proxy.listen()

    def behind_addresses(self, addresses, listener, is_slow=False, rules=(), name_server=None):
        """The service has a name with these addresses."""
        self.apart = Apart(self.directory, addresses, is_slow, name_server)
        self.proxy = Proxy(self.service, rules, listener=self.apart.do(listener))
        self.apart.port = self.proxy.port
        self.proxy.listen()

    def drive(self, mode, key=None, api_key=API_KEY, **options):
        options.setdefault("ttl", "30s")
        options.setdefault("wait", "10s")
        if self.first:
            options["also"] = self.first
        if self.proxy is None:
            self.behind()
        url = "http://%s:%d" % (self.apart.NAME if self.apart else "127.0.0.1", self.proxy.port)
        driver = Driver(self.command, url, mode, key or self.key, options, api_key, self.apart)
        self.drivers.append(driver)
        return driver

    def expect(self, driver, *words, code=0, optional=("told",)):
        """The driver ends with these lines; a lease that ended on the way may be told of."""
        found = driver.finish()
        said = [word for word in driver.words() if word in words or word not in optional]
        if said != list(words):
            raise Red("expected the lines %s" % " ".join(words))
        if code is not None and found != code:
            raise Red("the driver ended with %s" % found)

    def occupy(self, key=None, ttl_ms=60000):
        """The key is held by another client; returns what releases it."""
        token, key = secrets.token_hex(16), urllib.parse.quote(key or self.key, safe="/")
        status, _ = self.service.call("POST", "/locks/" + key, {"ttl_ms": ttl_ms, "owner": "other"}, token)
        if status != 201:
            raise Red("the other client got %s" % status)
        return lambda: self.service.call("DELETE", "/locks/" + key, token=token)

    def stream(self, token):
        """The lines of a stream that holds the key with this token."""
        connection = http.client.HTTPConnection("127.0.0.1", self.service.port, timeout=PATIENCE)
        headers = {"Authorization": "Bearer " + API_KEY, "Lock-Token": token}
        connection.request("POST", "/hold/" + self.key, None, headers)
        return iter(connection.getresponse().readline, b"")

    def waiters(self, number):
        """So many wait for the key, or for one of two."""
        keys = [key for key in [self.key, self.first] if key]
        until("%d waiting" % number, PATIENCE,
              lambda: sum(self.service.look(key)["waiters"] for key in keys) == number)

    def force(self):
        self.service.call("DELETE", "/admin/locks/" + self.key)

    def free(self, key=None):
        """Free at once: no lease, and nobody in line, however long the TTL is."""
        for one in filter(None, [key or self.key, self.first]):
            until("free at once", 2.0, lambda: not self.service.look(one)["held"], 0.2)
        time.sleep(0.3)
        for one in filter(None, [key or self.key, self.first]):
            look = self.service.look(one)
            if look["held"] or look["waiters"]:
                raise Red("left behind: %s" % look)

    def free_by_ttl(self, ttl):
        """Free no later than the TTL from now on."""
        keys = [key for key in [self.key, self.first] if key]
        until("free by its TTL", ttl + 3.0, lambda: not any(self.service.look(key)["held"] for key in keys))

    def first_is(self, held):
        """Of a claim of two keys: whether the one that is acquired first is held."""
        if self.first and self.service.look(self.first)["held"] != held:
            raise Red("the other key is %sheld" % ("not " if held else ""))

    def once(self):
        if len(self.proxy.claims()) != 1:
            raise Red("a claim was repeated with another token")

    def watch(self, fencing):
        """Polls until the lease with this number has ended; returns a call that gives the earliest moment at
        which it can have ended, by the TTL that the service said it had left."""
        ended, last = [], [time.monotonic()]

        def poll():
            while not ended and self.service.process.poll() is None:
                asked = time.monotonic()
                try:
                    look = self.service.look(self.key)
                    if look.get("fencing_token") != fencing:
                        ended.append(last[0])
                    else:
                        last[0] = max(last[0], asked + look["ttl_ms"] / 1000)
                except OSError:
                    pass
                time.sleep(0.05)

        threading.Thread(target=poll, daemon=True).start()
        return lambda: until("the end of the lease", LIMIT, lambda: ended)[0]

    def told_before(self, driver):
        """The work is told before the lease ends; checked by the service's own clock."""
        driver.wait_for("acquired")
        end = self.watch(driver.fencing())
        driver.wait_for("told", LIMIT)
        if driver.times["told"] >= end():
            raise Red("told %.3f s after the end of the lease" % (driver.times["told"] - end()))


ROWS = {}


def row(function):
    ROWS[function.__name__.replace("_", "-")] = function
    return function


# The acquire


@row
def plain(r):
    r.expect(r.drive("work", seconds=1), "acquired", "done")
    r.free()


@row
def acquire_lost(r):
    r.behind(Rule("acquire", "lose", 2))
    r.expect(r.drive("work", seconds=1), "acquired", "done")
    r.once()
    r.free()


@row
def acquire_cut(r):
    r.behind(Rule("acquire", "cut", 2))
    r.expect(r.drive("work", seconds=1), "acquired", "done")
    r.once()
    r.free()


@row
def acquire_late(r):
    r.behind(Rule("acquire", "late", seconds=4))
    r.expect(r.drive("work", ttl="6s", seconds=5), "acquired", "done")
    r.free()


@row
def acquire_late_then_silent(r):
    r.behind(Rule("acquire", "late", seconds=4), Rule("refresh", "swallow", ALWAYS))
    driver = r.drive("work", ttl="10s", seconds=30)
    r.told_before(driver)
    r.expect(driver, "acquired", "told", "lost")


@row
def acquire_503(r):
    r.behind(problem("acquire", 503, 5, code="store_unavailable", outcome="unknown"))
    r.expect(r.drive("work", seconds=1), "acquired", "done")
    r.once()
    r.free()


@row
def acquire_429(r):
    r.behind(gateway("acquire", 429, 3))
    r.expect(r.drive("work", seconds=1), "acquired", "done")
    r.once()
    r.free()


@row
def acquire_200_of_a_page(r):
    r.behind(gateway("acquire", 200, 2))
    r.expect(r.drive("work", seconds=1), "acquired", "done")
    r.free()


@row
def acquire_line_full(r):
    r.behind(problem("acquire", 429, ALWAYS, code="too_many_waiters"))
    r.expect(r.drive("work", wait="2s"), "busy")
    r.free()


@row
def acquire_refused_then_back(r):
    r.behind(listen=False)
    driver = r.drive("work", seconds=1)
    time.sleep(2.5)
    r.proxy.listen()
    r.expect(driver, "acquired", "done")
    r.free()


@row
def down(r):
    r.behind(listen=False)
    r.expect(r.drive("work", wait="1s"), "unavailable")


@row
def two_addresses(r):
    """The first address of the name is of a host that is down: it answers no packet."""
    # The C library sorts by the bits that an address shares with ours, 127.0.0.1: these two have as many.
    r.behind_addresses(["127.0.0.2", "127.0.0.3"], lambda: bound("127.0.0.3"))
    silent = bound("127.0.0.2", r.proxy.port)
    silent.listen(0)
    full = socket.create_connection(silent.getsockname())
    with silent, full, socket.socket() as probe:
        probe.settimeout(0.5)
        if probe.connect_ex(silent.getsockname()) not in (errno.EAGAIN, errno.ETIMEDOUT):
            raise NotPlayed("a full queue of connections is no silence here")
        r.expect(r.drive("work", ttl="9s", seconds=8), "acquired", "done")
    r.free()


@row
def slow_link(r):
    """Each connection and each answer takes 300 to 600 ms; the second address of the name is silent."""
    r.behind_addresses([Apart.SLOW, Apart.SILENT], lambda: bound(Apart.HERE), is_slow=True)
    r.expect(r.drive("work", ttl="9s", seconds=8), "acquired", "done")
    r.free()


@row
def acquire_swallowed(r):
    r.behind(Rule("acquire", "swallow", ALWAYS))
    r.expect(r.drive("work", wait="1s"), "unavailable")
    r.free()


@row
def acquire_silent(r):
    r.behind(Rule("acquire", "silent", ALWAYS))
    r.expect(r.drive("work", wait="1s", ttl="90s"), "unavailable")
    r.free()


@row
def acquire_silent_once(r):
    r.behind(Rule("acquire", "swallow"))
    r.expect(r.drive("work", wait="30s", seconds=1), "acquired", "done")
    r.once()
    r.free()


@row
def acquire_behind(r):
    """The first request arrives in the work that its repeat has begun."""
    r.behind(Rule("acquire", "behind", seconds=2))
    r.expect(r.drive("work", ttl="90s", seconds=4), "acquired", "done")
    r.once()
    r.free()


@row
def acquire_behind_in_line(r):
    """The first request arrives while its repeat waits, which is superseded by it. Of several keys one of the two
    waits until the other one has ended."""
    release = r.occupy()
    r.behind(Rule("acquire", "behind", seconds=1))
    driver = r.drive("work", wait="30s", seconds=1)
    is_told = lambda: r.first or r.proxy.told(b"superseded")  # noqa: E731
    until("a repeat", PATIENCE, lambda: is_told() and r.proxy.count("acquire") > 2)
    r.waiters(1)
    release()
    r.expect(driver, "acquired", "done")
    r.once()
    r.free()


@row
def acquire_behind_release(r):
    """The first request arrives after the release, when its client has gone: nobody can hear of its lease."""
    r.behind(Rule("acquire", "behind", seconds=5))
    r.expect(r.drive("work", ttl="4s", seconds=1), "acquired", "done")
    until("the late lease", PATIENCE, lambda: r.service.look(r.key)["held"])
    r.free_by_ttl(4)


@row
def acquire_mine(r):
    """The token has a lease that a stream keeps: the claim replaces it."""
    r.behind(Rule("acquire", "delay", seconds=2))
    driver = r.drive("work", seconds=1)
    until("the request", PATIENCE, lambda: r.proxy.count("acquire"))
    lines = r.stream(r.proxy.claims().pop())
    first = json.loads(next(lines))["fencing_token"]
    r.expect(driver, "acquired", "done")
    end = "released" if r.first else "replaced"  # No claim of several keys replaces a lease.
    if json.loads(list(lines)[-1]).get("reason") != end or driver.fencing() <= first:
        raise Red("the lease of the stream was not replaced")
    r.once()
    r.free()


@row
def superseded_twice(r):
    r.behind(problem("acquire", 409, 2, code="superseded"))
    r.expect(r.drive("work", seconds=1), "acquired", "done")
    if r.proxy.last("acquire") - r.proxy.seen[0][0] < 2:
        raise Red("the claim did not wait for a second twice")
    r.once()
    r.free()


@row
def superseded(r):
    r.behind(problem("acquire", 409, ALWAYS, code="superseded"))
    r.expect(r.drive("work", wait="30s"), "cancelled")
    if r.proxy.count("acquire") != 3:
        raise Red("the claim did not give up after three answers")
    r.once()
    r.free()


@row
def wrong_api_key(r):
    r.expect(r.drive("work", api_key="wrong"), "refused")
    r.free()


@row
def odd_key(r):
    key = "situations/a b%20c%2Fd+e?f#g&h=i;j:k@l,m$n!o'p(q)r*s[t]u{v}w|x\\y^z`~\"<>./é/日本/😀"
    r.expect(r.drive("odd", key=key), "acquired", "done")
    r.free(key)


# The line


@row
def busy(r):
    r.occupy()
    r.expect(r.drive("work", wait="0s"), "busy")
    r.waiters(0)
    r.first_is(held=False)


@row
def busy_after_wait(r):
    r.occupy()
    driver = r.drive("work", wait="5s")
    r.waiters(1)
    r.first_is(held=True)
    r.expect(driver, "busy")
    r.waiters(0)
    r.first_is(held=False)
    r.once()
    if not 4.5 < time.monotonic() - driver.started < 5 + 5 + PATIENCE:
        raise Red("the wait was not about 5 s")


@row
def wait_longer_than_cap(r):
    release = r.occupy()
    driver = r.drive("work", wait="30s", seconds=1)
    r.waiters(1)
    time.sleep(5)  # the cap is 2 s
    release()
    r.expect(driver, "acquired", "done")
    r.once()
    r.free()


@row
def wait_504(r):
    release = r.occupy()
    r.behind(Rule("acquire", "answer", 3, seconds=1, status=504, body=PAGE % 504))
    driver = r.drive("work", wait="30s", seconds=1)
    until("three waits", PATIENCE, lambda: r.proxy.count("acquire") > 3)
    release()
    r.expect(driver, "acquired", "done")
    r.once()
    r.free()


@row
def restart_in_wait(r):
    release = r.occupy()
    r.behind(is_gateway=True)
    driver = r.drive("work", wait="30s", seconds=1)
    r.waiters(1)
    r.service.end(signal.SIGTERM)
    time.sleep(1)
    r.service.start()
    release()
    r.expect(driver, "acquired", "done")
    r.once()
    r.free()


@row
def cancel_in_line(r):
    release = r.occupy()
    # Late enough that a busy machine has both in line by then.
    driver = r.drive("cancel", wait="30s", after="10s")
    r.waiters(1)
    second = r.drive("work", wait="30s", seconds=1)
    r.waiters(2)
    r.expect(driver, "cancelled")
    r.waiters(1)
    release()
    r.expect(second, "acquired", "done")
    r.free()


@row
def cancel_in_line_unnoticed(r):
    """The gateway does not pass on that the client has gone: only a release leaves the line."""
    release = r.occupy()
    r.behind(Rule("acquire", "delay"))
    # Late enough that a busy machine has it in line by then.
    driver = r.drive("cancel", wait="30s", ttl="90s", after="10s")
    r.waiters(1)
    r.expect(driver, "cancelled")
    release()
    r.free()


@row
def cancel_at_grant(r):
    r.behind(Rule("acquire", "late", seconds=1))
    after = "%dms" % r.random.choice([600, 900, 950, 980, 990, 1000, 1005, 1010, 1020, 1050])
    r.expect(r.drive("cancel", ttl="90s", after=after), "cancelled", optional=("acquired", "told"))
    r.free()


@row
def cancel_before_arrival(r):
    """The request is still on its way when the claim is cancelled: a release would overtake it."""
    r.behind(Rule("acquire", "delay", seconds=0.6))
    r.expect(r.drive("cancel", ttl="90s", after="300ms"), "cancelled", optional=("acquired", "told"))
    time.sleep(1)
    r.free()


@row
def cancel_in_line_at_grant(r):
    release = r.occupy()
    began = time.monotonic()
    driver = r.drive("cancel", wait="30s", ttl="90s", after="10s", seconds=60)
    r.waiters(1)
    time.sleep(max(0.0, began + r.random.uniform(9.9, 10.7) - time.monotonic()))
    release()
    r.expect(driver, "cancelled", optional=("acquired", "told"))
    r.free()


@row
def released_in_line(r):
    r.occupy()
    driver = r.drive("work", wait="30s")
    r.waiters(1)
    r.service.call("DELETE", "/locks/" + r.key, token=r.proxy.claims().pop())
    r.expect(driver, "cancelled")
    r.waiters(0)
    r.first_is(held=False)


@row
def term_in_line(r):
    release = r.occupy()
    driver = r.drive("work", wait="30s")
    r.waiters(1)
    driver.process.terminate()
    r.expect(driver, code=None, optional=("cancelled",))
    r.waiters(0)
    release()
    r.free()


@row
def exit_in_line(r):
    release = r.occupy()
    driver = r.drive("exit", wait="30s", after="10s")
    r.waiters(1)
    r.expect(driver)
    r.waiters(0)
    release()
    r.free()


@row
def suspended_in_line(r):
    """The process stands still until the lease that it was granted is over."""
    release = r.occupy()
    driver = r.drive("work", ttl="3s", wait="60s", seconds=1)
    r.waiters(1)
    driver.stop()
    release()
    until("a grant", PATIENCE, lambda: r.service.look(r.key)["held"])
    until("its end", PATIENCE, lambda: not r.service.look(r.key)["held"])
    driver.process.send_signal(signal.SIGCONT)
    r.expect(driver, "acquired", "done")
    r.once()
    r.free()


@row
def exit_at_grant(r):
    ttl = "4s" if r.lang in EXIT_RUNS_NOTHING else "90s"
    r.behind(Rule("acquire", "late", seconds=1))
    r.expect(r.drive("exit", ttl=ttl, after="700ms"), optional=("acquired", "told"))
    if r.lang in EXIT_RUNS_NOTHING:
        r.free_by_ttl(4)
    r.free()


# The work


@row
def refresh_503(r):
    r.behind(problem("refresh", 503, 5, code="store_unavailable", outcome="unknown"))
    r.expect(r.drive("work", ttl="6s", seconds=8), "acquired", "done")
    r.free()


@row
def refresh_gateway(r):
    r.behind(gateway("refresh", 429, 2), gateway("refresh", 502, 2), gateway("refresh", 200, 1))
    r.expect(r.drive("work", ttl="6s", seconds=8), "acquired", "done")
    r.free()


@row
def refresh_lost(r):
    r.behind(Rule("refresh", "lose", 2), Rule("refresh", "cut", 1))
    r.expect(r.drive("work", ttl="6s", seconds=8), "acquired", "done")
    r.free()


@row
def refresh_silent_once(r):
    r.behind(Rule("refresh", "swallow", 1))
    r.expect(r.drive("work", ttl="9s", seconds=12), "acquired", "done")
    r.free()


@row
def refresh_silent(r):
    r.behind(Rule("refresh", "swallow", ALWAYS))
    driver = r.drive("work", ttl="9s", seconds=30)
    r.told_before(driver)
    r.expect(driver, "acquired", "told", "lost")


@row
def refresh_silent_without_names(r):
    """The same, and the name server answers nothing any more."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as names:
        address = "127.%d.%d.%d" % tuple(r.random.randint(1, 254) for _ in range(3))
        try:
            names.bind((address, 53))
        except OSError as error:
            raise NotPlayed("no name server of its own: %s" % error)
        rules = [Rule("refresh", "swallow", ALWAYS)]
        r.behind_addresses(["127.0.0.3"], lambda: bound("127.0.0.3"), rules=rules, name_server=address)
        driver = r.drive("work", ttl="9s", seconds=30)
        driver.wait_for("acquired")
        open(r.apart.hosts, "w").close()
        r.told_before(driver)
        r.expect(driver, "acquired", "told", "lost")


@row
def refresh_silent_blocked(r):
    r.behind(Rule("refresh", "swallow", ALWAYS))
    r.expect(r.drive("block", ttl="4s", seconds=7), "acquired", "lost")


@row
def restart_in_work(r):
    driver = r.drive("work", ttl="9s", seconds=10)
    driver.wait_for("acquired")
    time.sleep(r.random.uniform(0, 3))
    r.service.end(signal.SIGKILL)
    time.sleep(1)
    r.service.start()
    r.expect(driver, "acquired", "done")
    r.free()


def suspended(r, mode):
    """The process stands still until another client has the key."""
    driver = r.drive(mode, ttl="4s", seconds=6)
    driver.wait_for("acquired")
    driver.stop()
    until("the end of the lease", PATIENCE, lambda: not r.service.look(r.key)["held"])
    release = r.occupy()
    driver.process.send_signal(signal.SIGCONT)
    r.expect(driver, "acquired", "lost")
    if not r.service.look(r.key)["held"]:
        raise Red("the lease of another client was released")
    r.first_is(held=False)
    release()


@row
def suspended_in_work(r):
    suspended(r, "work")


@row
def suspended_in_work_blocked(r):
    suspended(r, "block")


@row
def service_suspended(r):
    driver = r.drive("work", ttl="9s", seconds=10)
    driver.wait_for("acquired")
    time.sleep(2)
    r.service.process.send_signal(signal.SIGSTOP)
    time.sleep(4)
    r.service.process.send_signal(signal.SIGCONT)
    r.expect(driver, "acquired", "done")
    r.free()


@row
def forced_release(r):
    driver = r.drive("work", ttl="6s", seconds=60)
    driver.wait_for("acquired")
    r.force()
    r.expect(driver, "acquired", "told", "lost")
    r.free()


@row
def forced_release_blocked(r):
    driver = r.drive("block", ttl="6s", seconds=6)
    driver.wait_for("acquired")
    r.force()
    r.expect(driver, "acquired", "lost")
    r.free()


def forced_at_end(r, outcome):
    """Nothing is refreshed before the work ends: the release finds it."""
    driver = r.drive("work", ttl="60s", seconds=2)
    driver.wait_for("acquired")
    r.force()
    release = r.occupy()
    r.expect(driver, "acquired", outcome)
    if not r.service.look(r.key)["held"]:
        raise Red("the lease of another client was released")
    r.first_is(held=False)
    release()


@row
def forced_release_at_end(r):
    forced_at_end(r, "lost")


@row
def forced_release_at_end_503(r):
    r.behind(problem("release", 503, 1, code="draining"))
    forced_at_end(r, "lost")


@row
def forced_release_at_end_unheard(r):
    """An earlier end and a release whose answer was lost cannot be told apart."""
    r.behind(Rule("release", "lose"))
    forced_at_end(r, "done")


@row
def forced_release_and_late_acquire(r):
    """Then a late request of the claim begins another lease, which the release hears of."""
    driver = r.drive("work", ttl="90s", seconds=2)
    driver.wait_for("acquired")
    r.force()
    r.service.call("POST", "/locks/" + r.key, {"ttl_ms": 90000}, r.proxy.claims().pop())
    r.expect(driver, "acquired", "lost")
    r.free()


@row
def max_hold(r):
    r.key = "capped/report"
    driver = r.drive("work", ttl="9s", seconds=60)
    r.told_before(driver)
    r.expect(driver, "acquired", "told", "lost")


@row
def blocked_shorter_than_ttl(r):
    r.expect(r.drive("block", ttl="6s", seconds=4), "acquired", "done")
    r.free()


@row
def blocked_three_ttls(r):
    driver = r.drive("block", ttl="6s", seconds=18)
    driver.wait_for("acquired")
    end = r.watch(driver.fencing())
    r.expect(driver, "acquired", "done")
    if end() < r.proxy.last("release"):
        raise Red("the lease ended during the work")
    r.free()


@row
def cancel_in_work(r):
    r.expect(r.drive("cancel", ttl="90s", after="8s", seconds=60), "acquired", "cancelled")
    r.free()


@row
def error_of_work(r):
    r.expect(r.drive("throw", ttl="90s"), "acquired", "done")
    r.free()


@row
def kill(r):
    driver = r.drive("work", ttl="4s", seconds=60)
    driver.wait_for("acquired")
    time.sleep(r.random.uniform(0, 2))
    driver.process.kill()
    r.expect(driver, "acquired", code=-signal.SIGKILL)
    r.free_by_ttl(4)


@row
def term_in_work(r):
    driver = r.drive("work", ttl="90s", seconds=60)
    driver.wait_for("acquired")
    driver.process.terminate()
    r.expect(driver, "acquired", code=None, optional=("told", "cancelled"))
    r.free()


@row
def exit_in_work(r):
    ttl = "4s" if r.lang in EXIT_RUNS_NOTHING else "90s"
    driver = r.drive("exit", ttl=ttl, after="8s", seconds=60)
    r.expect(driver, "acquired")
    if r.lang in EXIT_RUNS_NOTHING:
        r.free_by_ttl(4)
    r.free()


@row
def fork(r):
    if r.lang in FORKLESS:
        r.expect(r.drive("fork"), "done")
        return
    driver = r.drive("fork", ttl="6s", seconds=8)
    driver.wait_for("acquired")
    end = r.watch(driver.fencing())
    r.expect(driver, "acquired", "done")
    if end() < r.proxy.last("release"):
        raise Red("the child ended its parent's lease")
    r.free()


# The release


@row
def release_lost_once(r):
    r.behind(Rule("release", "lose"))
    r.expect(r.drive("work", ttl="90s", seconds=1), "acquired", "done")
    r.free()


@row
def release_lost(r):
    r.behind(Rule("release", "lose", 2))
    r.expect(r.drive("work", ttl="90s", seconds=1), "acquired", "done")
    r.free()


@row
def release_503(r):
    r.behind(problem("release", 503, 1, code="store_unavailable", outcome="unknown"),
             gateway("release", 409, 1), gateway("release", 502, 1))
    r.expect(r.drive("work", ttl="90s", seconds=1), "acquired", "done")
    r.free()


@row
def release_never(r):
    r.behind(Rule("release", "swallow", ALWAYS))
    r.expect(r.drive("work", ttl="6s", seconds=1), "acquired", "done")
    r.free_by_ttl(6)


@row
def release_late(r):
    """The release is repeated, and its first request arrives in the middle of the next lease."""
    r.behind(Rule("release", "behind", seconds=2))
    driver = r.drive("twice", ttl="90s", seconds=5)
    r.expect(driver, "acquired", "acquired", "done")
    if len(r.proxy.claims()) != 2:
        raise Red("two claims have one token")
    r.free()


# A share


@row
def units(r):
    driver = r.drive("work", slots=8, units=3)
    driver.wait_for("acquired")
    look = r.service.look(r.key)
    if (look.get("slots"), look.get("units")) != (8, 3):
        raise Red("three of eight units are not held: %s" % look)
    r.expect(driver, "acquired", "done")
    r.free()


# Several keys. What is forced, held by another client, or in line is the second of two.


@row
def several_shared(r):
    """The first of two keys is a share of several units."""
    r.first = "situations/first"
    driver = r.drive("work", slots=8, units=3)
    driver.wait_for("acquired")
    looks = [r.service.look(key) for key in [r.first, r.key]]
    if [(look["held"], look.get("slots"), look.get("units")) for look in looks] != [(True, 8, 3), (True, None, None)]:
        raise Red("not both are held: %s" % looks)
    r.expect(driver, "acquired", "done")
    r.once()
    r.free()


@row
def several_lost_then_busy(r):
    """The answer to the first request is lost, and another client has one of its keys before the repeat."""
    r.first = "situations/first"
    r.behind(Rule("acquire", "lose", seconds=2))
    driver = r.drive("work", ttl="90s", wait="1s")
    until("a lease", PATIENCE, lambda: r.service.look(r.key)["held"])
    r.force()
    release = r.occupy()
    r.expect(driver, "busy")
    r.first_is(held=False)
    release()


@row
def several_keep_the_others_while_the_work_stops(r):
    """One lease of two is ended by force: the other one lasts until the work has stopped."""
    r.first = "situations/first"
    driver = r.drive("block", ttl="15s", seconds=15)
    driver.wait_for("acquired")
    r.force()
    time.sleep(8)  # It has heard of the loss by then, and more.
    r.first_is(held=True)
    r.expect(driver, "acquired", "lost")
    r.free()


def of_two_keys(name):
    def play(r):
        r.first = "situations/first" if name != "max-hold" else "captain"  # before the key in the order of bytes
        ROWS[name](r)
    return play


# All others but these are played with two keys as well.
OF_ONE_KEY = ["two-addresses", "slow-link", "refresh-silent-without-names", "units"]
ROWS.update({"several-" + name: of_two_keys(name) for name in list(ROWS)
             if name not in OF_ONE_KEY and not name.startswith("several-")})


# The runner


def run(name, number, arguments):
    """Runs a row; returns what was wrong with it, or an empty string, or why it was not played."""
    directory = tempfile.mkdtemp(prefix="lockkeeper-situations-")
    r, began = None, time.monotonic()
    try:
        r = Row(arguments, directory)
        ROWS[name](r)
        if r.proxy:
            r.proxy.check()
        return name, number, time.monotonic() - began, ""
    except NotPlayed as error:
        return name, number, time.monotonic() - began, error
    except Exception as error:
        text = str(error) if isinstance(error, Red) else traceback.format_exc()
        for driver in r.drivers if r else []:
            driver.kill()
            for reader in driver.readers:
                reader.join(2)
            lines = ["%7.3f %s" % (driver.times.get(l.split(" ")[0], 0) - driver.started, l) for l in driver.lines]
            text += "\n  lines:\n    " + "\n    ".join(lines or ["none"])
            if driver.errors:
                text += "\n  standard error:\n    " + driver.errors.decode(errors="replace").replace("\n", "\n    ")
        if r and r.proxy:
            first = r.drivers[0].started if r.drivers else began
            for when, kind, path, fields, _ in r.proxy.seen[-40:]:
                text += "\n  %7.3f %s %s" % (when - first, kind, path)
        if r and r.service:
            with open(os.path.join(directory, "service.log"), errors="replace") as log:
                text += "\n  the service's log:\n    " + "    ".join(log.readlines()[-20:])
        return name, number, time.monotonic() - began, text
    finally:
        if r:
            r.close()
        shutil.rmtree(directory, ignore_errors=True)


# `acquireAll()` of PHP is a claim of each key, one after the other.
WITHOUT_SEVERAL = {"php", "php-lock"}
# A token of PHP may be that of several processes: it names no lease that it did not get itself.
EXCEPT = {("php", "acquire-mine"), ("php-lock", "acquire-mine")}
# The keeper of hold() is a process of its own, and keeps the lease of one that is suspended.
EXCEPT |= {("php", "suspended-in-work"), ("php", "suspended-in-work-blocked")}
# Nothing refreshes a lease of withLock() but its work, which a refresh without an answer stops until the end.
EXCEPT |= {("php-lock", row) for row in ("acquire-late-then-silent", "blocked-three-ttls", "max-hold", "refresh-silent",
                                         "refresh-silent-without-names")}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", required=True, help="the service's binary")
    parser.add_argument("--lang", required=True, choices=sorted(LANGUAGES))
    parser.add_argument("--rows", default="", help="names with commas between them; all by default")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--list", action="store_true", help="prints the names of the rows")
    arguments = parser.parse_args()
    if arguments.list:
        print("\n".join(ROWS))
        return 0
    has_several = arguments.lang not in WITHOUT_SEVERAL
    all_rows = [name for name in ROWS if (arguments.lang, name) not in EXCEPT
                and (has_several or not name.startswith("several-"))]
    names = [name for name in arguments.rows.split(",") if name] or all_rows
    unknown = [name for name in names if name not in ROWS]
    if unknown:
        parser.error("unknown rows: %s" % ", ".join(unknown))
    directory, build, _ = LANGUAGES[arguments.lang]
    if build:
        subprocess.run(build, cwd=directory, check=True, timeout=600)
    red = 0
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        runs = [pool.submit(run, n, i, arguments) for i in range(arguments.rounds) for n in names]
        for future in concurrent.futures.as_completed(runs):
            name, number, seconds, wrong = future.result()
            if isinstance(wrong, NotPlayed):
                print("NOT PLAYED %s, round %d: %s" % (name, number + 1, wrong), flush=True)
            elif wrong:
                red += 1
                print("RED %s, round %d, %.1f s: %s" % (name, number + 1, seconds, wrong), flush=True)
    if os.path.exists(BUILT):
        os.unlink(BUILT)
    print("%s: %d rows, %d rounds, %d red" % (arguments.lang, len(names), arguments.rounds, red))
    return 1 if red else 0


if __name__ == "__main__":
    sys.exit(main())
