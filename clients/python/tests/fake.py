"""A service in memory, of which every answer can be replaced."""

import json
import threading
import time
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Fake:
    def __init__(self, tls=None):
        self.held = {}  # key: (token, fencing token)
        self.seen, self.number, self.lock = [], 100, threading.Lock()
        self.clients = []  # method, client address and key of each request
        self.hangs_up = False  # after each answer, without a word
        self.replace = {}  # method: a function of (key, headers, body) that may return (status, body)
        fake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_one(self):
                length = int(self.headers.get("Content-Length") or 0)
                content = self.rfile.read(length)
                url = urllib.parse.urlsplit(self.path)
                body = json.loads(content) if content else {}
                body.update({k: v[0] for k, v in urllib.parse.parse_qs(url.query).items()})
                key = urllib.parse.unquote(url.path).split("/", 2)[-1]
                fake.clients.append((self.command, self.client_address, key))
                fake.seen.append((self.command, key, dict(self.headers), body))
                answer = None
                if self.command in fake.replace:
                    answer = fake.replace[self.command](key, self.headers, body)
                status, body = answer or fake.answer(self.command, key, self.headers, body)
                text = b"" if body is None else json.dumps(body).encode()
                try:
                    self.send_response(status)
                    self.send_header("Content-Length", str(len(text)))
                    if status == 409:
                        self.send_header("Retry-After", "1")
                    self.end_headers()
                    self.wfile.write(text)
                    self.close_connection = self.close_connection or fake.hangs_up
                except OSError:
                    pass

            do_GET = do_POST = do_PUT = do_DELETE = handle_one

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        if tls:
            self.server.socket = tls.wrap_socket(self.server.socket, server_side=True)
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()
        self.url = ("https" if tls else "http") + "://127.0.0.1:%d" % self.server.server_address[1]

    def close(self):
        self.server.shutdown()
        self.server.server_close()

    def count(self, method):
        return sum(1 for one in self.seen if one[0] == method)

    def several(self, method, token, body):
        """The answer to a request about several keys, which waits for none."""
        keys = [one if isinstance(one, str) else one["key"] for one in body.get("keys", body.get("leases"))]
        with self.lock:
            for key in keys if method == "POST" else []:
                if self.held.get(key, (token,))[0] != token:
                    return problem(409, "lock_held", key=key, owner="other", retry_after_ms=1500)
            for key in keys if method == "POST" else []:
                self.number += 1
                self.held.setdefault(key, (token, self.number))
            lost = [{"key": key} for key in keys if self.held.get(key, ("",))[0] != token]
            if method == "DELETE":
                for key in {key for key in keys if {"key": key} not in lost}:
                    del self.held[key]
            if lost:
                return problem(409, "lock_lost", lost=lost)
            leases = [{"key": key, "fencing_token": self.held[key][1], "ttl_ms": body["ttl_ms"]}
                      for key in keys if method != "DELETE"]
            return (200, {"token": token, "leases": leases, "ttl_ms": body["ttl_ms"], "waited_ms": 0}) if leases \
                else (204, None)

    def answer(self, method, key, headers, body):
        token = headers.get("Lock-Token")
        if "keys" in body or "leases" in body:
            return self.several(method, token, body)
        has, number = self.held.get(key.replace("/refresh", ""), (None, None))
        named = int(body.get("fencing_token", number or 0))
        if has == token and named != number and method != "GET":
            return problem(409, "lock_lost", fencing_token=number)
        if method == "POST":
            end = time.monotonic() + body.get("wait_ms", 0) / 1000
            while True:
                with self.lock:
                    if key not in self.held or self.held[key][0] == token:
                        if key not in self.held or "fencing_token" in body:
                            self.number += 1
                            self.held[key] = (token, self.number)
                        return 201, self.grant(key, token, body)
                if time.monotonic() >= end:
                    return problem(409, "lock_held", owner="other", retry_after_ms=1500)
                time.sleep(0.02)
        with self.lock:
            if method == "GET":
                return 200, {"key": key, "held": key in self.held, "waiters": 0}
            if self.held.get(key.replace("/refresh", ""), ("",))[0] != token:
                return problem(409, "lock_lost")
            if method == "PUT":
                return 200, self.grant(key.replace("/refresh", ""), token, body)
            del self.held[key]
            return 204, None

    def grant(self, key, token, body):
        number = self.held[key][1]
        return {"token": token, "key": key, "fencing_token": number, "ttl_ms": body["ttl_ms"], "waited_ms": 0}


def problem(status, code, **members):
    return status, dict(members, code=code, detail="by the test", type="urn:lockkeeper:" + code)
