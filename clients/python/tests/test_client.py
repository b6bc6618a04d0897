import asyncio
import contextlib
import copy
import gc
import os
import pathlib
import pickle
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import warnings
from datetime import timedelta
from unittest import mock

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "src")]

import lockkeeper  # noqa: E402
from fake import Fake, problem  # noqa: E402
from lockkeeper import _absence, _claim, _connect, _keeper, _wait  # noqa: E402
from lockkeeper import (AsyncLockClient, LeaseLost, LockBusy, LockClient, RequestRefused, ServiceUnavailable,  # noqa: E402
                        WaitCancelled)
from lockkeeper._service import Answer, Service, seconds  # noqa: E402


def until(check, limit=15.0):
    end = time.monotonic() + limit
    while not check():
        if time.monotonic() > end:
            raise AssertionError("not in time")
        time.sleep(0.01)


class WithService(unittest.TestCase):
    def setUp(self):
        self.fake = Fake()
        self.addCleanup(self.fake.close)
        environment = {k: v for k, v in os.environ.items() if not k.startswith("LOCKKEEPER")}
        patch = mock.patch.dict(os.environ, environment, clear=True)
        patch.start()
        self.addCleanup(patch.stop)
        self.client = LockClient(self.fake.url)
        self.addCleanup(_claim._end_all)

    def nothing_is_left(self):
        """Nothing is held and no claim is being withdrawn, or will be in a moment."""
        until(lambda: self.is_free() and not _claim._open)

    def is_free(self, key="k"):
        return key not in self.fake.held


class Durations(unittest.TestCase):
    def test_all_forms(self):
        for given, expected in [(30, 30), (0.5, 0.5), ("30s", 30), ("1.5m", 90), ("5d", 432000), ("250ms", 0.25),
                                ("2h", 7200), ("7", 7), ("1h30m", 5400), ("1m1.5s", 61.5), (timedelta(minutes=1), 60), (0, 0)]:
            self.assertAlmostEqual(seconds(given), expected)

    def test_nonsense(self):
        for given in ["", "s", "-1s", "1 s", "1e3", "inf", "30S", "٣s", "1s\n", "1m30", "1m s", -1, float("nan"), float("inf"),
                      timedelta(seconds=-1)]:
            with self.assertRaises(ValueError, msg=repr(given)):
                seconds(given)
        for given in [None, True, [1], b"1s"]:
            with self.assertRaises(TypeError):
                seconds(given)


class Settings(WithService):
    def test_arguments_come_before_the_environment(self):
        os.environ.update(LOCKKEEPER_URL="http://nowhere.invalid", LOCKKEEPER_API_KEY="of the environment")
        LockClient(self.fake.url, api_key="of the argument").get("k")
        self.assertEqual(self.fake.seen[-1][2]["Authorization"], "Bearer of the argument")

    def test_an_empty_variable_is_an_absent_one(self):
        os.environ.update(LOCKKEEPER_API_KEY_FILE="", LOCKKEEPER_API_KEY="", LOCKKEEPER_CA="")
        LockClient(self.fake.url).get("k")
        self.assertNotIn("Authorization", self.fake.seen[-1][2])

    def test_the_environment(self):
        os.environ.update(LOCKKEEPER_URL=self.fake.url, LOCKKEEPER_API_KEY="secret\n")
        LockClient().get("k")
        self.assertEqual(self.fake.seen[-1][2]["Authorization"], "Bearer secret")

    def test_a_file_has_the_api_key_and_is_read_each_time(self):
        with tempfile.TemporaryDirectory() as directory:
            file = pathlib.Path(directory, "key")
            os.environ["LOCKKEEPER_API_KEY_FILE"] = str(file)
            os.environ["LOCKKEEPER_API_KEY"] = "not this one"
            for client in [LockClient(self.fake.url), LockClient(self.fake.url, api_key=file)]:
                for key in ["first", "second"]:
                    file.write_text(key + "\n")
                    client.get("k")
                    self.assertEqual(self.fake.seen[-1][2]["Authorization"], "Bearer " + key)
        with self.assertRaisesRegex(RequestRefused, "^the API key in .*/key cannot be read: No such file"):
            LockClient(self.fake.url).lock("k").__enter__()
        with self.assertRaisesRegex(RequestRefused, "^/dev/null has no API key$"):
            LockClient(self.fake.url, api_key=pathlib.Path("/dev/null")).lock("k").__enter__()

    def test_a_file_that_is_missing_for_a_moment_loses_no_lease(self):
        with tempfile.TemporaryDirectory() as directory:
            file = pathlib.Path(directory, "key")
            file.write_text("key")
            with LockClient(self.fake.url, api_key=file).lock("k", ttl=3) as lease:
                file.unlink()
                time.sleep(1.6)
                file.write_text("key")
                time.sleep(2.4)
                self.assertTrue(lease.still_mine())

    def test_while_a_file_has_no_api_key_the_last_one_counts(self):
        with tempfile.TemporaryDirectory() as directory:
            file = pathlib.Path(directory, "key")
            file.write_text("key")
            client = LockClient(self.fake.url, api_key=file)
            for text in [b"", b"\n", b"\xef\xbb\xbfkey", b"two\nlines", "k\u00a0".encode(), b"\xff", None]:
                with client.lock("k"):
                    file.write_bytes(text) if text is not None else file.unlink()
                self.assertTrue(self.is_free(), text)
                self.assertEqual(self.fake.seen[-1][2]["Authorization"], "Bearer key")
            file.write_text("other")
            client.get("k")
            self.assertEqual(self.fake.seen[-1][2]["Authorization"], "Bearer other")

    def test_urls(self):
        for url in ["localhost:8080", "ftp://x", "http://", "redis://x", "http://x/?a=b"]:
            with self.assertRaises(ValueError, msg=url):
                Service(url, None, None)
        for url, told in [
                ("http://jane:s3cret@x", "`...@x` is not the URL of a service: only a host, a port and a path are allowed"),
                ("localhost:8080", "`localhost:8080` is not the URL of a service: use http:// or https://, or unix:FILE"),
                ("http://", "`http://` is not the URL of a service: write it like http://host:8080"),
                ("http://a:99999", "`http://a:99999` is not the URL of a service: write it like http://host:8080"),
                ("unix:", "`unix:` is not the URL of a service: name a file, as in unix:/run/lockkeeper/lockkeeper.sock"),
                ("http://a/locks/", "`http://a/locks/` is not the URL of a service: leave out /locks, as in http://host:8080")]:
            with self.assertRaises(ValueError) as caught:
                LockClient(url)
            self.assertEqual(str(caught.exception), told)
        self.assertEqual(Service(None, None, None).url, "http://127.0.0.1:8080")
        self.assertEqual(Service("https://[::1]:1/base/", None, None).base, "/base")

    def test_a_ca_file_that_is_none_is_named(self):
        for file in ["/nowhere/ca.pem", __file__, os.devnull]:
            with self.assertRaisesRegex(ValueError, file):
                LockClient("https://localhost", ca=file)
            with mock.patch.dict(os.environ, LOCKKEEPER_CA=file), self.assertRaisesRegex(ValueError, file):
                LockClient("https://localhost")

    def test_no_attribute_and_no_pickle_has_an_api_key(self):
        def attributes(one):
            members = vars(one) if hasattr(one, "__dict__") else {}
            return repr(one) + "".join(name + attributes(value) for name, value in members.items())

        os.environ["LOCKKEEPER_API_KEY"] = "s3cret"
        for client in [LockClient(self.fake.url), LockClient(self.fake.url, api_key="s3cret")]:
            self.assertNotIn("s3cret", attributes(client) + attributes(client.lock("k")._make()))
            self.assertIs(copy.deepcopy(client), client)
        with self.assertRaisesRegex(TypeError, "LOCKKEEPER_API_KEY"):
            pickle.dumps(client)
        file = HERE / "fake.py"
        for made in [LockClient(self.fake.url), LockClient(self.fake.url, owner="me", api_key=file)]:
            text = pickle.dumps(made)
            self.assertNotIn(b"s3cret", text)
            again = pickle.loads(text)
            self.assertEqual((again._owner, again._service._arguments), (made._owner, made._service._arguments))
        pickle.loads(pickle.dumps(LockClient(self.fake.url))).get("k")
        self.assertEqual(self.fake.seen[-1][2]["Authorization"], "Bearer s3cret")

    def test_an_ipv6_address_without_a_port(self):
        for url, host, port in [("http://[::1]", "::1", 80), ("https://[2001:db8::5]/x", "2001:db8::5", 443)]:
            connection = Service(url, None, None).connection()
            self.assertEqual((connection.host, connection.port), (host, port))

    def test_no_proxy_of_the_environment(self):
        os.environ.update(http_proxy="http://nowhere.invalid:1", HTTP_PROXY="http://nowhere.invalid:1")
        self.assertFalse(self.client.get("k").held)

    def test_a_token_prefix(self):
        os.environ["LOCKKEEPER_TOKEN_PREFIX"] = "9999999999-"
        for client, prefix in [(LockClient(self.fake.url), "9999999999-"), (LockClient(self.fake.url, token_prefix="x"), "x")]:
            with client.lock("k") as lease:
                self.assertRegex(lease.token, "^%s[0-9a-f]{32}$" % prefix)
                self.assertEqual(self.fake.seen[-1][2]["Lock-Token"], lease.token)
        with self.assertRaisesRegex(ValueError, "`token_prefix`"):
            LockClient(self.fake.url, token_prefix="a\r\nb")

    def test_a_time_limit_for_each_answer(self):
        silence = threading.Event()
        self.addCleanup(silence.set)
        client = LockClient(self.fake.url, timeout="300ms")
        for method, ask in [("GET", lambda: client.get("k")), ("POST", lambda: client.lock("k").__enter__())]:
            self.fake.replace = {method: lambda *_: silence.wait(60) and None}
            began = time.monotonic()
            with self.assertRaisesRegex(ServiceUnavailable, "timeout after|timed out"):
                ask()
            self.assertLess(time.monotonic() - began, 4)  # usually 5 s and more
        self.fake.replace = {}
        # A wait is not cut by it.
        lease = self.client.try_lock("k")
        threading.Timer(1, lease.release).start()
        with client.lock("k", wait=60) as waited:
            self.assertEqual(sum(one[2].get("Lock-Token") == waited.token for one in self.fake.seen), 1)

    def test_unix_socket(self):
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "socket")
            listener = socket.socket(socket.AF_UNIX)
            self.addCleanup(listener.close)
            listener.bind(path)
            listener.listen(1)

            def serve():
                connection = listener.accept()[0]
                connection.recv(4096)
                connection.sendall(b'HTTP/1.1 200 OK\r\nContent-Length: 25\r\n\r\n{"key":"k","held": false}')
                connection.close()

            threading.Thread(target=serve, daemon=True).start()
            self.assertFalse(LockClient("unix:" + path).get("k").held)

    def test_keys(self):
        for key in ["", None, 5, b"k", "/", "a/", "/a", "a//b", ".", "..", "../admin/locks/a", "a/./b", "a/..", "\ud800"]:
            for ask in [self.client.lock, self.client.get, self.client.force_release]:
                with self.assertRaises(RequestRefused, msg=key):
                    ask(key)
        self.assertEqual(self.fake.seen, [])
        for key in ["...", ".a", "a./b", "a b%2F?#", "ä/日本"]:
            with self.client.lock(key):
                self.assertFalse(self.is_free(key))


class Connections(WithService):
    def setUp(self):
        super().setUp()
        self.silent = socket.socket()  # Its queue of connections is full: it answers no packet.
        self.silent.bind(("127.0.0.1", 0))
        self.silent.listen(0)
        self.full = socket.create_connection(self.silent.getsockname())
        self.addCleanup(self.silent.close)
        self.addCleanup(self.full.close)
        self.tried = []

    def name(self, *ports):
        """A client of a name with these addresses, all of this host."""
        found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port)) for port in ports]
        tried = self.tried

        class Watched(socket.socket):
            def connect(self, address):
                tried.append(address[1])
                return super().connect(address)

        for name, value in [("socket.getaddrinfo", lambda *_, **__: found), ("socket.socket", Watched)]:
            patch = mock.patch(name, value)
            patch.start()
            self.addCleanup(patch.stop)
        return LockClient("http://service.invalid:80")

    def test_an_address_that_is_silent_costs_no_request_and_no_release(self):
        silent, good = self.silent.getsockname()[1], self.fake.server.server_address[1]
        client = self.name(silent, good)
        with client.lock("k"):
            self.assertFalse(self.is_free())
        self.assertTrue(self.is_free())
        # The good one is remembered: nothing else was tried after the first request.
        self.assertEqual(self.tried, [silent, good, good])
        self.assertEqual(self.fake.count("POST"), 1)

    def test_an_address_that_refuses_is_passed_over_at_once_and_a_good_one_may_change(self):
        with socket.socket() as refusing:
            refusing.bind(("127.0.0.1", 0))
            refused, good = refusing.getsockname()[1], self.fake.server.server_address[1]
            client = self.name(refused, good)
            client.get("k")
            client.get("k")
            self.assertEqual(self.tried, [refused, good, good])
            self.fake.close()
            with self.assertRaises(OSError):
                client._service._addresses.connect(lambda: False)
            self.assertEqual(self.tried[3:], [good, refused])

    def test_a_release_has_the_time_that_its_connection_needs(self):
        begun, connect = [], _connect.Addresses.connect

        def late(addresses, is_over):
            begun.append(1)
            time.sleep(0 if len(begun) == 1 else _claim.HEAR_OUT + 0.5)
            return connect(addresses, is_over)

        with mock.patch.object(_connect.Addresses, "connect", late):
            with self.client.lock("k", ttl=60):
                pass
        self.assertEqual([self.fake.count("DELETE"), len(begun)], [1, 2])
        self.assertTrue(self.is_free())

    def test_families_take_turns(self):
        found = [(family, socket.SOCK_STREAM, 6, "", (host, 1)) for family, host in [
            (socket.AF_INET6, "::1"), (socket.AF_INET6, "::2"), (socket.AF_INET, "1"), (socket.AF_INET, "2")]]
        with mock.patch("socket.getaddrinfo", lambda *_, **__: found):
            ordered = _connect.Addresses("x", 1)._in_order()
        self.assertEqual([one[4][0] for one in ordered], ["::1", "1", "::2", "2"])


class Proxies(WithService):
    def test_a_proxy_of_an_argument_or_of_the_environment(self):
        proxy = self.fake.url.replace("//", "//jane:s3cret@")
        for variables, argument in [({}, proxy), ({"HTTP_PROXY": proxy}, None), ({"all_proxy": proxy}, None),
                                    ({"http_proxy": "http://127.0.0.1:1"}, proxy)]:
            with mock.patch.dict(os.environ, variables):
                client = LockClient("http://service.invalid:9/base", proxy=argument)
                self.fake.seen.clear()
                client._service.ask("GET", "/locks/k", lambda body: body["key"] == "locks/k")
            headers = self.fake.seen[0][2]
            self.assertEqual(headers["Host"], "service.invalid:9")
            self.assertEqual(headers["Proxy-Authorization"], "Basic amFuZTpzM2NyZXQ=")
        with self.assertRaisesRegex(TypeError, "nor the password of a proxy"):
            pickle.dumps(LockClient("http://service.invalid", proxy=proxy))
        self.assertNotIn("s3cret", repr(vars(client._service)) + repr(vars(client._service._proxy)))

    def test_hosts_without_a_proxy(self):
        os.environ.update(HTTP_PROXY="http://proxy:1", HTTPS_PROXY="http://secure:2", NO_PROXY="intern.test,10.0.0.1")
        for url, proxy in [("http://a.test", "http://proxy:1"), ("https://a.test", "http://secure:2"),
                           ("http://a.intern.test", None), ("http://10.0.0.1", None), ("http://localhost", None),
                           ("http://127.0.0.9:1", None), ("http://[::1]", None), ("unix:/x", None)]:
            self.assertEqual(getattr(LockClient(url)._service._proxy, "url", None), proxy, url)
        self.assertIsNone(LockClient("http://a.test", proxy="")._service._proxy)
        for url in ["https://proxy", "socks5://proxy:1", "http://", "http://proxy:x"]:
            with self.assertRaisesRegex(ValueError, "is not the URL of a proxy"):
                LockClient("http://a.test", proxy=url)

    def test_the_answers_of_a_proxy(self):
        for answer, error, told in [(407, RequestRefused, "answers 407 By the test"), (502, ServiceUnavailable, "answers 502")]:
            listener = socket.create_server(("127.0.0.1", 0))
            self.addCleanup(listener.close)

            def serve():
                with contextlib.suppress(OSError):
                    while True:
                        with listener.accept()[0] as connection:
                            self.asked = connection.recv(4096)
                            connection.sendall(b"HTTP/1.1 %d By the test\r\nContent-Length: 0\r\n\r\n" % answer)

            threading.Thread(target=serve, daemon=True).start()
            client = LockClient("https://service.invalid", proxy="127.0.0.1:%d" % listener.getsockname()[1], timeout=0.5)
            with self.assertRaisesRegex(error, "the proxy 127.0.0.1.* makes no connection to service.invalid:443: it " + told):
                client.lock("k").__enter__()
            self.assertTrue(self.asked.startswith(b"CONNECT service.invalid:443 HTTP/1.1\r\n"))


@unittest.skipUnless(shutil.which("openssl"), "no openssl here")
class Certificates(WithService):
    def setUp(self):
        super().setUp()
        directory = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, directory)
        self.cert, self.key = os.path.join(directory, "cert.pem"), os.path.join(directory, "key.pem")
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=test", "-addext",
                        "subjectAltName=DNS:service.invalid,IP:127.0.0.1", "-keyout", self.key, "-out", self.cert],
                       check=True, capture_output=True)
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=self.cert)
        tls.load_cert_chain(self.cert, self.key)
        tls.verify_mode = ssl.CERT_REQUIRED
        self.secure = Fake(tls)
        self.addCleanup(self.secure.close)

    def test_a_client_certificate_through_a_proxy_and_without_one(self):
        os.environ.update(LOCKKEEPER_CERT=self.cert, LOCKKEEPER_CERT_KEY=self.key)
        listener, seen = socket.create_server(("127.0.0.1", 0)), []
        self.addCleanup(listener.close)

        def pump(source, target):
            with contextlib.suppress(OSError):
                while True:
                    target.sendall(source.recv(65536))

        def serve():
            with contextlib.suppress(OSError):
                while True:
                    client = listener.accept()[0]
                    seen.append(client.recv(4096).split(b"\r\n")[0])
                    service = socket.create_connection(self.secure.server.server_address)
                    client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
                    for pair in [(client, service), (service, client)]:
                        threading.Thread(target=pump, args=pair, daemon=True).start()

        threading.Thread(target=serve, daemon=True).start()
        proxied = LockClient("https://service.invalid:8443", ca=self.cert,
                             proxy="http://127.0.0.1:%d" % listener.getsockname()[1])
        for client in [LockClient(self.secure.url, ca=self.cert), proxied, pickle.loads(pickle.dumps(proxied))]:
            with client.lock("k"):
                self.assertIn("k", self.secure.held)
            self.assertEqual(self.secure.held, {})
        self.assertEqual(set(seen), {b"CONNECT service.invalid:8443 HTTP/1.1"})

    def test_a_missing_client_certificate_is_told_at_once(self):
        with self.assertRaisesRegex(RequestRefused, "client certificate: set `cert`"):
            LockClient(self.secure.url, ca=self.cert).lock("k", wait=60).__enter__()

    def test_files_that_are_no_certificate_and_key(self):
        for cert, key, told in [(self.cert, None, "are set together"), (None, self.key, "are set together"),
                                (self.key, self.cert, "are no certificate and its key"),
                                (self.cert, "/nowhere/key", "cannot read .*/nowhere/key")]:
            with self.assertRaisesRegex(ValueError, told):
                LockClient(self.secure.url, ca=self.cert, cert=cert, cert_key=key)


def interrupting(point, is_its):
    """A trace function that interrupts the frames that are its at one of their steps, and the steps left until then."""
    left = [point]

    def trace(frame, event, arg):
        if left[0] <= 0 or not is_its(frame):
            return None
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt
        return trace

    return trace, left


class Leases(WithService):
    def test_options_and_members(self):
        with self.client.lock("a/b c", ttl="1m", wait="2s", slots=3, owner="me") as lease:
            body = self.fake.seen[0][3]
            self.assertEqual((body["ttl_ms"], body["slots"], body["owner"]), (60000, 3, "me"))
            self.assertTrue(1900 < body["wait_ms"] <= 2000)
            self.assertNotIn("shared", body)
            self.assertEqual(lease.fencing_token, 101)
            self.assertTrue(55 < lease.remaining() <= 60)
            self.assertTrue(lease.still_mine(50))
            self.assertFalse(lease.still_mine("61s"))
            self.assertNotIn(lease.token, repr(lease) + str(self.fake.seen[0][3]))
        self.assertEqual(lease.remaining(), 0)
        self.assertTrue(self.is_free("a/b c"))
        self.assertEqual(self.fake.seen[-1][3]["fencing_token"], "101")

    def test_a_wrong_number_of_slots_is_no_exclusive_lease(self):
        for slots in [0, False]:
            with self.client.lock("k", slots=slots):
                self.assertIs(self.fake.seen[-1][3]["slots"], slots)

    def test_units_of_the_slots(self):
        with self.client.lock("k", slots=8, units=3), self.client.try_lock("j", slots=8, units=2):
            shares = [(body["slots"], body["units"]) for _, _, _, body in self.fake.seen]
            self.assertEqual(shares, [(8, 3), (8, 2)])

    def test_several_keys(self):
        keys = ["b", {"key": "a/é", "shared": True}, {"key": "gpu", "slots": 8, "units": 3}]
        with self.client.lock(keys, ttl="1m", owner="me") as lease:
            _, path, _, body = self.fake.seen[0]
            self.assertEqual((path, body), ("locks", {
                "keys": [{"key": "b"}, *keys[1:]], "ttl_ms": 60000, "wait_ms": 0, "owner": "me"}))
            self.assertEqual(lease.keys, ["b", "a/é", "gpu"])
            self.assertEqual(lease.fencing_tokens, {"b": 101, "a/é": 102, "gpu": 103})
            self.assertEqual(lease.slots, {"b": None, "a/é": None, "gpu": None})
            self.assertTrue(lease.still_mine(50))
            for name in ["key", "fencing_token", "slot"]:
                with self.assertRaisesRegex(AttributeError, "of several keys has no `%s`: use `%s" % (name, name)):
                    getattr(lease, name)
            self.assertIsNone(self.client.try_lock(["c", "gpu"]))
            with self.assertRaises(LockBusy) as busy:
                self.client.lock(("c", "gpu")).__enter__()
            self.assertEqual(busy.exception.key, "gpu")
            self.assertEqual(set(self.fake.held), {"b", "a/é", "gpu"})
        self.assertEqual(self.fake.seen[-1][3], {"leases": [
            {"key": key, "fencing_token": number} for key, number in lease.fencing_tokens.items()]})
        self.assertEqual(self.fake.held, {})

    def test_several_keys_are_lost_with_one_of_them(self):
        with self.assertRaises(LeaseLost) as lost:
            with self.client.lock(["a", "b"], ttl=0.9) as lease:
                del self.fake.held["b"]
                self.assertTrue(lease.lost.wait(15))
                self.assertEqual((lease.remaining(), set(self.fake.held)), (0, {"a"}))
        self.assertEqual((lost.exception.key, lost.exception.fencing_token), ("b", 102))
        self.assertIn("the lease on 'b' was lost before the work ended", str(lost.exception))
        self.assertEqual(self.fake.held, {})
        self.assertEqual({one["fencing_token"] for one in self.fake.seen[1][3]["leases"]}, {101, 102})

    def test_several_keys_that_make_no_sense(self):
        for keys, text in [(["a", "b//c"], "'b//c' is no key"), (["a", {"name": "b"}], "None is no key"),
                           (["%010000d" % number for number in range(4)], "4 keys are too long together")]:
            with self.assertRaisesRegex(RequestRefused, text):
                self.client.lock(keys)
        for keys in [{"a", "b"}, {"key": "a"}, None]:
            with self.assertRaisesRegex(RequestRefused, "a key is a text, and several are a list"):
                self.client.lock(keys)
        for share in [{"slots": 2}, {"units": 2}, {"shared": True}]:
            with self.assertRaisesRegex(ValueError, "each of several keys has its own share"):
                self.client.lock(["a", "b"], **share)
        self.assertEqual(self.fake.seen, [])

    def test_the_key_that_is_awaited_is_told(self):
        looks = {"a": {"key": "a", "held": True, "owner": "me", "waiters": 1, "queue": [{"owner": "first"}]},
                 "b": {"key": "b", "held": True, "owner": "other", "waiters": 2,
                       "queue": [{"owner": "first"}, {"owner": "me"}]}}
        self.fake.replace["GET"] = lambda key, headers, body: (200, looks[key])
        self.fake.held["b"], told = ("of another", 1), []
        self.fake.replace["POST"] = lambda *_: (time.sleep(0.2), None)[1]
        with mock.patch.multiple(_wait, FIRST=0.05):
            with self.client.lock(["b", "a"], wait=60, owner="me",
                                  on_wait=lambda wait: (told.append(wait), self.fake.held.pop("b", None))):
                pass
        self.assertEqual([(one.key, one.owner, one.ahead) for one in told[:1]], [("b", "other", 1)])
        self.assertEqual([key for method, key, _, _ in self.fake.seen if method == "GET"][:2], ["a", "b"])

    def test_try_lock(self):
        with self.client.try_lock("k") as lease:
            self.assertIsNone(self.client.try_lock("k"))
        self.assertTrue(lease.release())
        self.assertTrue(self.is_free())

    def test_a_lock_is_used_again_but_not_twice_at_once(self):
        lock = self.client.lock("k")
        for _ in range(2):
            with lock:
                with self.assertRaises(RuntimeError):
                    lock.__enter__()
        self.assertEqual(len({one[2]["Lock-Token"] for one in self.fake.seen if one[0] == "POST"}), 2)

    def test_of_two_threads_with_one_lock_object_one_is_refused(self):
        names = {one for one in vars(self.client.lock("k")) if one != "_make"}
        outcomes = []

        class Watched(lockkeeper.Lock):
            def __getattribute__(self, name):
                value = super().__getattribute__(name)
                if name in names:
                    time.sleep(0.01)
                return value

        lock = Watched(self.client.lock("k", wait=5)._make)

        def work():
            try:
                with lock:
                    time.sleep(0.3)
                outcomes.append("done")
            except RuntimeError:
                outcomes.append("refused")

        threads = [threading.Thread(target=work) for _ in range(2)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        self.assertEqual(sorted(outcomes), ["done", "refused"])

    def test_decorator(self):
        @self.client.lock("k")
        def work(number):
            """Its text."""
            self.assertFalse(self.is_free())
            return number + 1

        self.assertEqual([work(1), work(2), work.__doc__], [2, 3, "Its text."])
        self.assertTrue(self.is_free())

        def generator():
            yield

        async def async_generator():
            yield

        for function in [generator, async_generator]:
            with self.assertRaises(TypeError):
                self.client.lock("k")(function)

    def test_a_decorated_call_whose_work_is_still_to_come_is_refused(self):
        async def coroutine():
            self.fail("without a lease")

        def generator():
            self.fail("without a lease")
            yield

        async def async_generator():
            self.fail("without a lease")
            yield

        class Callable:
            async def __call__(self):
                self.fail("without a lease")

        def wrapped(function):
            return lambda: function()

        for work in [wrapped(coroutine), wrapped(generator), wrapped(async_generator), Callable(),
                     contextlib.contextmanager(generator), contextlib.asynccontextmanager(async_generator),
                     lambda: (None for _ in "a"), lambda: asyncio.Future(loop=mock.Mock())]:
            with self.assertRaisesRegex(TypeError, "^it goes on after its call: use `with` or `async with` in it$"):
                self.client.lock("k")(work)()
            self.assertTrue(self.is_free())

        async def later():
            return generator()

        with self.assertRaises(TypeError):
            asyncio.run(self.client.lock("k")(later)())
        with self.client.lock("k")(lambda: open(os.devnull))() as file:  # A usual result.
            self.assertTrue(file.name)

    def test_the_decorator_of_the_readme_skips_a_call_while_another_one_runs(self):
        os.environ["LOCKKEEPER_URL"] = self.fake.url
        readme = (HERE.parent / "README.md").read_text("utf-8").split("## Celery, APScheduler and Django")[1]
        names, ran, release = {}, [], threading.Event()
        exec(readme.split("```python\n")[1].split("```")[0], names)
        work = names["once"]("k", at_least=0)(lambda text: ran.append(text) or release.wait(15))
        thread = threading.Thread(target=work, args=("first",))
        thread.start()
        until(lambda: ran)
        work("while it runs")
        release.set()
        thread.join()
        self.assertTrue(self.is_free())
        work("later")
        self.assertEqual(ran, ["first", "later"])
        began = time.monotonic()
        names["once"]("k", at_least=0.5)(lambda: None)()
        self.assertGreaterEqual(time.monotonic() - began, 0.5)

    def test_no_block_of_a_lease_begins_after_its_end(self):
        released, lost = self.client.try_lock("a"), self.client.try_lock("b", ttl=0.9)
        self.fake.held.pop("b")
        released.release()
        self.assertTrue(lost.lost.wait(15))
        for lease, error in [(released, WaitCancelled), (lost, LeaseLost)]:
            with self.assertRaises(error):
                with lease:
                    self.fail("the block began")

        async def main():
            client = AsyncLockClient(self.fake.url)
            released, lost = await client.try_lock("a"), await client.try_lock("c", ttl=0.9)
            self.fake.held.pop("c")
            self.assertTrue(await released.release())
            self.assertTrue(await asyncio.to_thread(lost.lost.wait, 15))
            for lease, error in [(released, WaitCancelled), (lost, LeaseLost)]:
                with self.assertRaises(error):
                    async with lease:
                        self.fail("the block began")

        asyncio.run(main())

    def test_a_lease_that_nobody_keeps_is_released(self):
        lease = self.client.try_lock("k", ttl=60)
        self.assertFalse(self.is_free())
        del lease
        gc.collect()
        until(self.is_free)

    def test_an_exception_just_before_the_end_of_the_block_is_handled_leaves_nothing(self):
        """As of a signal handler: in each line that ends the block, while the variable of the lease lives."""
        code = lockkeeper._client.Lock.__exit__.__code__
        for point in range(1, 100):
            lease = None
            trace, left = interrupting(point, lambda frame: code in (frame.f_code, frame.f_back.f_code))
            before = sys.gettrace()
            try:
                with self.client.lock("k", ttl=60) as lease:
                    sys.settrace(trace)
            except KeyboardInterrupt:
                pass
            finally:
                sys.settrace(before)
            until(self.is_free)
            self.assertFalse(lease.still_mine())
            if left[0] > 0:
                self.assertGreater(point, 5)
                return
        self.fail("no end")

    def test_a_lease_whose_lock_object_is_gone_is_lost(self):
        lease = self.client.lock("k", ttl=60).__enter__()
        gc.collect()
        self.assertTrue(lease.lost.wait(15))
        with self.assertRaisesRegex(LeaseLost, "collected before its end"):
            lease.release()
        until(self.is_free)

    def test_a_shared_lock_object_in_many_threads(self):
        most, inside, guard = [0], [0], threading.Lock()

        def work():
            for _ in range(3):
                with self.client.lock("k", wait=60):
                    with guard:
                        inside[0] += 1
                        most[0] = max(most[0], inside[0])
                    time.sleep(0.002)
                    with guard:
                        inside[0] -= 1

        threads = [threading.Thread(target=work) for _ in range(5)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        self.assertEqual(most[0], 1)
        self.assertTrue(self.is_free())

    def test_a_wait_is_told_when_it_has_begun_and_again_later(self):
        line = [{"key": "k", "held": True, "waiters": 0}, {
            "key": "k", "held": True, "owner": "other", "waiters": 2,
            "queue": [{"owner": "first"}, {"owner": "me"}]}]
        self.fake.replace["GET"] = lambda key, headers, body: (200, line.pop(0) if len(line) > 1 else line[0])
        told, lease = [], self.client.try_lock("k")

        def on_wait(wait):
            told.append(wait)
            raise ValueError("by the test: costs a line in the log")

        with mock.patch.multiple(_wait, FIRST=0.05, RETRY=0.1, NEXT=0.2), self.assertLogs("lockkeeper", "ERROR"):
            def work():
                with self.client.lock("k", wait=60, owner="me", on_wait=on_wait):
                    pass

            async def task():
                async with self.client.lock("k", wait=60, owner="me", on_wait=on_wait):
                    pass

            for run in [work, lambda: asyncio.run(task())]:
                told.clear()
                thread = threading.Thread(target=run)
                thread.start()
                until(lambda: len(told) > 1)
                lease.release()
                thread.join()
                self.assertEqual([(one.key, one.owner, one.ahead, one.raw["waiters"]) for one in told[:2]],
                                 2 * [("k", "other", 1, 2)])
                self.assertTrue(0.05 <= told[0].waited <= told[1].waited - 0.2)
                lease = self.client.try_lock("k")
        looks = [body for method, _, _, body in self.fake.seen if method == "GET"]
        self.assertEqual(looks[0]["waiters"], "100")
        # A claim that does not wait, or is served at once, looks at nothing.
        lease.release()
        before = self.fake.count("GET")
        with self.client.lock("k", on_wait=on_wait), self.client.lock("other", wait=9, on_wait=on_wait):
            time.sleep(_wait.FIRST + 0.5)
        self.assertEqual(self.fake.count("GET"), before)

    def test_of_two_claims_with_one_owner_none_has_a_place(self):
        self.fake.replace["GET"] = lambda *_: (200, {
            "key": "k", "held": True, "waiters": 2, "queue": [{"owner": "me"}, {"owner": "me"}, {}]})
        told, lease = [], self.client.try_lock("k")
        with mock.patch.multiple(_wait, FIRST=0.05):
            lock = self.client.lock("k", wait=60, owner="me", on_wait=lambda wait: (told.append(wait), lease.release()))
            with lock:
                self.assertEqual((told[0].owner, told[0].ahead), (None, None))

    def test_list_follows_the_cursor(self):
        pages = {None: {"locks": [{"key": "a", "held": True, "ttl_ms": 1500}], "cursor": "x"},
                 "x": {"locks": [{"key": "b", "held": True}]}}
        self.fake.replace["GET"] = lambda key, headers, body: (200, pages[body.get("cursor")])
        found = self.client.list("p/")
        self.assertEqual([(one.key, one.ttl) for one in found], [("a", 1.5), ("b", None)])

    def test_force_release(self):
        for status, code, expected in [(200, "", True), (409, "lock_lost", False)]:
            answer = problem(status, code) if code else (200, {"key": "k"})
            self.fake.replace["DELETE"] = lambda *_: answer
            self.assertIs(self.client.force_release("k", reason="a b+&"), expected)
            self.assertEqual(self.fake.seen[-1][3]["reason"], "a b+&")
        for answer in [(502, None), (200, {"status": "ok"}), (200, [1])]:
            self.fake.replace["DELETE"] = lambda *_: answer
            count = self.fake.count("DELETE")
            with self.assertRaises(ServiceUnavailable):
                self.client.force_release("k")
            self.assertEqual(self.fake.count("DELETE"), count + 1)

    def test_a_look_takes_nothing_of_a_gateway(self):
        for look, expected in [(lambda: self.client.get("k").held, False), (lambda: self.client.list("p"), [])]:
            answers = [(200, {"status": "ok"}), (200, [1]), (200, {"key": "k", "held": False, "locks": []})]
            self.fake.replace["GET"] = lambda *_: answers.pop(0)
            self.assertEqual(look(), expected)


class Errors(WithService):
    def test_busy(self):
        lease = self.client.try_lock("k")
        with self.assertRaises(LockBusy) as caught:
            self.client.lock("k").__enter__()
        self.assertEqual((caught.exception.owner, caught.exception.retry_after), ("other", 1.5))
        self.assertIn("retry later", str(caught.exception))
        lease.release()

    def test_refused(self):
        for status, code, text in [(401, "unauthenticated", "LOCKKEEPER_API_KEY"), (403, "forbidden", "permission"),
                                   (400, "invalid_request", "correct the request")]:
            self.fake.replace["POST"] = lambda *_: problem(status, code, field="ttl_ms")
            with self.assertRaisesRegex(RequestRefused, text) as caught:
                self.client.lock("k").__enter__()
            self.assertEqual(caught.exception.problem["field"], "ttl_ms")
        for status in [301, 404, 407]:
            self.fake.replace["POST"] = lambda *_: (status, {"message": "of a gateway"})
            with self.assertRaisesRegex(RequestRefused, "check the URL"):
                self.client.lock("k").__enter__()

    def test_an_unknown_api_key_is_told_from_a_missing_one(self):
        self.fake.replace["POST"] = lambda *_: problem(401, "unauthenticated")
        for key, told in [("", "the service asks for an API key: set `api_key`"), ("k", "unknown API key: look at `api_key`")]:
            with self.assertRaisesRegex(RequestRefused, "^" + told):
                LockClient(self.fake.url, api_key=key).lock("k").__enter__()

    def test_https_to_a_plain_port_is_told_at_once(self):
        url = self.fake.url.replace("http:", "https:")
        with self.assertRaises(RequestRefused) as caught:
            LockClient(url).lock("k", wait=60).__enter__()
        self.assertEqual(str(caught.exception), "no answer from %s: no TLS is spoken there: is it http://?" % url)

    def test_an_answer_with_the_token_of_another_claim_is_none(self):
        def other(key, headers, body):
            if self.fake.count("POST") < 3:
                return 201, {"token": "other", "key": key, "fencing_token": 1, "ttl_ms": 9000, "waited_ms": 0}

        self.fake.replace["POST"] = other
        with self.client.lock("k") as lease:
            self.assertEqual(lease.fencing_token, 101)

    def test_a_key_that_a_proxy_changes_is_refused_and_released(self):
        def changed(key, headers, body):
            status, grant = self.fake.answer("POST", key, headers, body)
            return status, dict(grant, key="another")

        self.fake.replace["POST"] = changed
        with self.assertRaisesRegex(RequestRefused, "proxy"):
            self.client.lock("k").__enter__()
        self.nothing_is_left()

    def test_answers_that_take_as_long_as_the_ttl_are_no_lease(self):
        def slow(key, headers, body):
            answer = self.fake.answer("POST", key, headers, body)
            time.sleep(0.5)
            return answer

        self.fake.replace["POST"] = slow
        with self.assertRaisesRegex(ServiceUnavailable, "TTL"):
            self.client.lock("k", ttl=0.4).__enter__()
        self.nothing_is_left()

    def test_an_answer_is_whole_and_has_an_end(self):
        answers = [b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{}", b"HTTP/1.1 200 OK\r\n\r\n" + b" " * (9 << 20),
                   b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{}"]
        listener = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(listener.close)

        def serve(answer):
            with listener.accept()[0] as connection, contextlib.suppress(OSError):
                connection.recv(4096)
                connection.sendall(answer)

        client = LockClient("http://127.0.0.1:%d" % listener.getsockname()[1])
        for answer, text in zip(answers, ["cut|Incomplete", "too long", "Incomplete"]):
            threading.Thread(target=serve, args=(answer,), daemon=True).start()
            with self.assertRaisesRegex(ServiceUnavailable, text):
                client.force_release("k")

    def test_no_error_has_a_secret(self):
        client = LockClient(self.fake.url, api_key="s3cret")
        self.fake.replace["POST"] = lambda *_: (404, None)
        with self.assertRaises(RequestRefused) as caught:
            client.lock("k").__enter__()
        token = self.fake.seen[0][2]["Lock-Token"]
        for secret in ["s3cret", token]:
            self.assertNotIn(secret, str(caught.exception) + repr(caught.exception))

        for secret, told in [("s3cret\nX: y", "line break"), ("s3cret\u00e9", "visible ASCII")]:
            with self.assertRaisesRegex(RequestRefused, told) as caught:
                LockClient(self.fake.url, api_key=secret).lock("k").__enter__()
            self.assertNotIn("s3cret", str(caught.exception))
        with self.assertRaises(ValueError) as caught:
            LockClient("http://me:s3cret@localhost")
        self.assertNotIn("s3cret", str(caught.exception))

    def test_all_have_one_base(self):
        for name in ["LockBusy", "LeaseLost", "ServiceUnavailable", "RequestRefused", "WaitCancelled"]:
            self.assertTrue(issubclass(getattr(lockkeeper, name), lockkeeper.LockkeeperError))

    def test_a_certificate_that_is_not_trusted_is_refused_at_once(self):
        for code, told in [(18, "is not signed by an authority .*: name the file of that authority \\(`ca`, LOCKKEEPER_CA"),
                           (10, "is not accepted: it has expired$")]:
            error = ssl.SSLCertVerificationError("of OpenSSL")
            error.verify_code, error.verify_message = code, "it has expired"
            with mock.patch.object(Service, "connection") as connection:
                connection.return_value.connect.side_effect = error
                with self.assertRaisesRegex(RequestRefused, "no answer from .*: its certificate " + told):
                    self.client.lock("k").__enter__()


class Losses(WithService):
    def lose(self):
        self.fake.held.clear()

    def test_told_then_lost(self):
        told = []
        with self.assertRaises(LeaseLost) as caught:
            with self.client.lock("k", ttl=3, on_lost=lambda: told.append(1)) as lease:
                self.lose()
                self.assertTrue(lease.lost.wait(15))
                self.assertFalse(lease.still_mine())
        until(lambda: told)
        self.assertIsNone(caught.exception.__cause__)
        self.assertEqual(caught.exception.fencing_token, 101)

    def test_no_block_begins_with_a_lease_that_was_lost_by_then(self):
        """As after a suspension between the grant and the block; in the second case no thread has noticed it."""
        self.fake.replace["PUT"] = lambda *_: (502, None)
        for ttl, lead, start in [(0.9, 0, lambda claim: claim.lost.wait(15)), (60, 61, lambda claim: True)]:
            lock, claims = self.client.lock("k", ttl=ttl), []
            made, result = lock._make, _claim.futures.Future.result
            lock._make = lambda: claims.append(made()) or claims[-1]

            def late(future, *rest):
                decided = result(future, *rest)
                start(claims[0])
                return decided

            late_now = lambda: time.clock_gettime(time.CLOCK_BOOTTIME) + (lead if claims[0].decided.done() else 0)
            with mock.patch("concurrent.futures.Future.result", late), mock.patch.object(_claim, "now", late_now):
                with self.assertRaisesRegex(LeaseLost, "before the work began: .*nothing ran"):
                    with lock:
                        self.fail("the block began")
            until(self.is_free)
            lock._make = made
            self.fake.replace.clear()
            with lock:  # It is in use no more.
                pass

    def test_an_error_of_the_work_is_chained_and_an_exit_passes_unless_it_is_a_success(self):
        for error, expected in [(KeyError("x"), LeaseLost), (SystemExit(3), SystemExit),
                                (SystemExit("no"), SystemExit), (SystemExit(0), LeaseLost), (SystemExit(), LeaseLost),
                                (KeyboardInterrupt(), KeyboardInterrupt)]:
            with self.assertRaises(expected) as caught:
                with self.client.lock("k", ttl=0.9) as lease:
                    self.lose()
                    lease.lost.wait(15)
                    raise error
            self.assertIs(caught.exception if expected is not LeaseLost else caught.exception.__cause__, error)

    def test_an_error_of_the_work_comes_out_and_releases(self):
        with self.assertRaises(KeyError):
            with self.client.lock("k"):
                raise KeyError("x")
        self.assertTrue(self.is_free())

    def test_a_callback_that_fails_breaks_nothing(self):
        for error in [KeyError("x"), SystemExit(1)]:
            def fail():
                raise error

            with self.assertLogs("lockkeeper", "ERROR"), self.assertRaises(LeaseLost):
                with self.client.lock("k", ttl=0.9, on_lost=fail) as lease:
                    self.lose()
                    lease.lost.wait(15)
                    time.sleep(0.1)

    def test_the_clock_decides_where_no_thread_has_run(self):
        """As after a suspension: the thread of the claim has noticed nothing yet."""
        with self.assertRaises(LeaseLost):
            with self.client.lock("k", ttl=60) as lease:
                with mock.patch.object(_claim, "now", lambda: time.clock_gettime(time.CLOCK_BOOTTIME) + 61):
                    self.assertFalse(lease.still_mine())
                    lease._claim.end()

    def test_a_renewal_that_dies_is_a_loss(self):
        for error in [RuntimeError("dead"), SystemExit()]:
            with mock.patch.object(_claim.Claim, "_keep", side_effect=error):
                with self.assertRaisesRegex(LeaseLost, "renewal failed"):
                    with self.client.lock("k", ttl=60) as lease:
                        self.assertTrue(lease.lost.wait(15))
                        self.assertFalse(lease.still_mine())
            self.assertTrue(self.is_free())

    def test_an_acquire_that_dies_is_an_error(self):
        with mock.patch.object(_claim.Claim, "_take", side_effect=MemoryError):
            with self.assertRaises(MemoryError):
                self.client.lock("k").__enter__()
        self.nothing_is_left()

    def test_no_threads_left(self):
        with mock.patch("_thread.start_new_thread", side_effect=RuntimeError("can't start new thread")):
            with self.assertRaises(RuntimeError):
                self.client.lock("k").__enter__()
        self.assertFalse(_claim._open)
        self.assertEqual(self.fake.seen, [])

    def test_a_release_after_the_loss_raises(self):
        lease = self.client.try_lock("k")
        self.lose()
        with self.assertRaises(LeaseLost):
            lease.release()

    def test_the_lease_that_a_late_request_has_begun_is_released(self):
        for is_told in [False, True]:
            with self.assertRaises(LeaseLost):
                with self.client.lock("k", ttl=0.9) as lease:
                    self.fake.held["k"] = (lease.token, 55)
                    if is_told:
                        lease.lost.wait(15)
            self.assertTrue(self.is_free())

    def test_a_release_that_reaches_nobody_is_logged(self):
        lease = self.client.try_lock("k", ttl=1)
        self.fake.replace["DELETE"] = lambda *_: (502, None)
        with self.assertLogs("lockkeeper", "WARNING") as logs:
            self.assertFalse(lease.release())
        self.assertNotIn(lease.token, str(logs.output))

    def test_a_lease_that_is_cut_to_less_than_the_margin_is_one_until_its_middle(self):
        def short(key, headers, body):
            status, grant = self.fake.answer("POST", key, headers, body)
            return status, dict(grant, ttl_ms=2000, capped=True)

        self.fake.replace["POST"] = short
        self.fake.replace["PUT"] = lambda *_: (502, None)
        with self.assertRaises(LeaseLost):
            with self.client.lock("k", ttl=60) as lease:
                self.assertTrue(lease.still_mine())
                self.assertTrue(lease.lost.wait(15))
                self.assertGreater(lease.remaining(), 0)

    def test_the_reason_of_a_loss_is_that_of_the_last_renewal(self):
        answers = [(503, None), None]
        self.fake.replace["PUT"] = lambda *_: answers.pop(0) if answers else (502, None)
        with self.assertRaisesRegex(LeaseLost, "not be renewed in time: the answer is 502"):
            with self.client.lock("k", ttl=1.5) as lease:
                self.assertTrue(lease.lost.wait(15))
        self.assertEqual(answers, [])

    def test_a_lease_is_counted_from_the_sending(self):
        def late(key, headers, body):
            answer = self.fake.answer("POST", key, headers, body)
            time.sleep(1)
            return answer

        self.fake.replace["POST"] = late
        self.fake.replace["PUT"] = lambda *_: (502, None)
        with self.client.lock("k", ttl=30) as lease:
            self.assertLess(lease.remaining(), 29.1)


class ManyLeases(WithService):
    """One thread renews all leases of a client; others make the requests."""

    def leases(self, *keys, **options):
        leases = [self.client.try_lock(key, **options) for key in keys]
        self.addCleanup(lambda: [lease._claim.end() for lease in leases])
        return leases

    def renewed(self, key, times):
        return lambda: sum(one[0] == "PUT" and one[1] == key + "/refresh" for one in self.fake.seen) >= times

    def test_one_thread_keeps_them_and_one_connection_is_kept(self):
        before = len(sys._current_frames())
        leases = self.leases(*(str(number) for number in range(40)), ttl=60)
        until(lambda: not self.client._service.keepers[os.getpid()]._threads)
        # Those of the fake service end with the connections.
        until(lambda: len(sys._current_frames()) <= before + 1)
        for lease in leases:
            lease.release()
        self.assertEqual(self.fake.held, {})
        until(lambda: not self.client._service.keepers[os.getpid()]._is_running)
        self.fake.clients.clear()
        keeper = self.client._service.keepers[os.getpid()]
        keeper._grow_at = float("inf")  # On a slow machine there would be more of them.
        leases = self.leases("a", "b", "c", "d", ttl=6)
        until(self.renewed("a", 3))
        renewals = [address for method, address, _ in self.fake.clients if method == "PUT"]
        self.assertLess(len(set(renewals)), len(renewals) / 2)
        self.assertTrue(all(lease.still_mine() for lease in leases))

    def test_requests_that_are_not_answered_delay_no_other_lease(self):
        silence, keys = threading.Event(), ["slow%d" % number for number in range(12)]
        self.addCleanup(silence.set)
        self.fake.replace["PUT"] = lambda key, *_: key.startswith("slow") and silence.wait(60) and None
        told = {}
        slow, others = self.leases(*keys, ttl=6), self.leases("a", "b", "c", ttl=6)
        for lease in slow:
            lease._claim.listeners.append(lambda lease=lease: told.update({lease.key: lease.remaining()}))
        until(lambda: len(told) == 12)
        self.assertGreater(min(told.values()), 0, "told after its end")
        self.assertTrue(all(lease.still_mine() for lease in others))
        for lease in others:
            self.assertTrue(lease.release())

    def test_the_callback_is_called_before_the_block_ends(self):
        told = []
        lock = self.client.lock("k", ttl=0.9, on_lost=lambda: (time.sleep(0.3), told.append(1)))
        with self.assertRaises(LeaseLost):
            with lock as lease:
                self.fake.held.clear()
                self.assertTrue(lease.lost.wait(15))
        self.assertEqual(told, [1])

        async def main():
            with self.assertRaises(LeaseLost):
                async with lock:
                    self.fake.held.clear()
                    await asyncio.sleep(60)
            self.assertEqual(told, [1, 1])

        asyncio.run(main())

    def test_a_callback_that_blocks_delays_no_other_lease(self):
        silence = threading.Event()
        self.addCleanup(silence.set)
        lost, kept = self.client.try_lock("lost", ttl=0.9, on_lost=lambda: silence.wait(60)), self.client.try_lock("k", ttl=3)
        self.fake.held.pop("lost")
        self.assertTrue(lost.lost.wait(15))
        until(self.renewed("k", 3))
        self.assertTrue(kept.release())
        silence.set()

    def test_a_connection_that_was_closed_meanwhile_costs_no_lease(self):
        self.fake.hangs_up = True
        leases = self.leases("a", "b", ttl=3)
        until(self.renewed("a", 4))
        with self.assertNoLogs("lockkeeper", "WARNING") if sys.version_info >= (3, 10) else contextlib.nullcontext():
            for lease in leases:
                self.assertTrue(lease.release())

    def test_a_failure_of_the_thread_costs_no_lease(self):
        lease, = self.leases("k", ttl=3)
        due = _keeper.Keeper._due
        with self.assertLogs("lockkeeper", "ERROR"):
            failures = [MemoryError(), SystemExit()]

            def fail(keeper):
                if failures:
                    raise failures.pop()
                return due(keeper)

            with mock.patch.object(_keeper.Keeper, "_due", fail):
                until(lambda: not failures)
        until(self.renewed("k", 3))
        self.assertTrue(lease.release())

    def test_no_threads_left_for_the_requests(self):
        """The leases are told lost in time, and nothing hangs."""
        lease, = self.leases("k", ttl=1.5)
        with mock.patch("_thread.start_new_thread", side_effect=RuntimeError("can't start new thread")):
            self.assertTrue(lease.lost.wait(15))
            self.assertGreater(lease.remaining(), 0)
            with self.assertRaisesRegex(LeaseLost, "can't start new thread"):
                lease.release()
        self.assertTrue(self.is_free())

    def test_the_thread_ends_with_the_last_lease_and_another_one_follows(self):
        for _ in range(20):
            threads = [threading.Thread(target=lambda key=str(key): self.client.try_lock(key, ttl=60).release())
                       for key in range(8)]
            [thread.start() for thread in threads]
            [thread.join() for thread in threads]
            self.assertEqual(self.fake.held, {})
        keeper = self.client._service.keepers[os.getpid()]
        until(lambda: not keeper._is_running and not keeper._lives)

    @unittest.skipUnless(hasattr(os, "fork"), "no fork here")
    def test_a_child_has_connections_of_its_own(self):
        leases = self.leases("a", "b", "c", ttl=6)
        until(self.renewed("a", 2))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            try:
                with self.client.lock("of the child", ttl=3) as lease:
                    time.sleep(4)  # Its copy of the fake service sees nothing.
                    os._exit(0 if lease.still_mine() and not leases[0].still_mine() else 1)
            finally:
                os._exit(2)
        self.assertEqual(os.waitpid(pid, 0)[1], 0)
        children = {address for _, address, key in self.fake.clients if key.startswith("of the child")}
        parents = {address for _, address, key in self.fake.clients if not key.startswith("of the child")}
        self.assertFalse(children & parents)
        self.assertTrue(all(lease.release() for lease in leases))


@unittest.skipUnless(hasattr(os, "fork"), "no fork here")
class Forks(WithService):
    def child(self, work):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # fork with threads, on purpose
            pid = os.fork()
        if pid == 0:
            try:
                os._exit(0 if work() else 1)
            except BaseException:
                os._exit(2)
        self.assertEqual(os.waitpid(pid, 0)[1], 0)

    def test_a_child_owns_nothing(self):
        with self.client.lock("k", ttl=60) as lease:
            def work():
                lost = False
                try:
                    lease.__exit__(None, None, None)
                except LeaseLost:
                    lost = True
                calm = lease.__exit__(KeyError, KeyboardInterrupt(), None) is None
                return lost and calm and not lease.still_mine() and not lease.release() and not _claim._open

            self.child(work)
            self.assertTrue(lease.still_mine())
            self.assertFalse(self.is_free())
        self.assertTrue(self.is_free())

    def test_a_child_that_ends_leaves_the_lease(self):
        with self.client.lock("k", ttl=60) as lease:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                pid = os.fork()
            if pid == 0:
                _claim._end_all()
                del lease
                gc.collect()
                os._exit(0)
            os.waitpid(pid, 0)
            time.sleep(0.3)
            self.assertFalse(self.is_free())

    def test_a_child_uses_the_client(self):
        with self.client.lock("k"):
            def work():
                with self.client.lock("of the child"):
                    return not self.client.try_lock("k")

            self.child(work)


class Ends(WithService):
    def run_program(self, text, code=0):
        text = "import sys, threading, time\nfrom lockkeeper import LockClient\nc = LockClient()\n" + text
        environment = dict(os.environ, PYTHONPATH=str(HERE.parent / "src"), LOCKKEEPER_URL=self.fake.url)
        done = subprocess.run([sys.executable, "-c", text], env=environment, timeout=60, capture_output=True)
        self.assertEqual(done.returncode, code, done.stderr.decode())
        return done.stderr.decode()

    def test_the_end_of_the_program_releases(self):
        error = self.run_program("lease = c.try_lock('k', ttl=600)")
        self.assertEqual(error, "")
        self.assertEqual(self.fake.count("POST"), 1)
        self.assertTrue(self.is_free())

    def test_the_end_of_the_program_releases_many(self):
        error = self.run_program("leases = [c.try_lock(str(i), ttl=600) for i in range(30)]\nassert all(leases)")
        self.assertEqual((error, self.fake.held), ("", {}))

    @unittest.skipUnless(hasattr(signal, "SIGSTOP"), "no such signal here")
    def test_after_a_suspension_no_lease_counts_and_nothing_ends_as_a_success(self):
        text = ("import os\nfrom lockkeeper import LeaseLost, LockClient\n"
                "leases = [LockClient().try_lock(str(i), ttl=1) for i in range(3)] + [c.try_lock('s%d' % i, ttl=1) for i in range(9)]\n"
                "print('held', flush=True)\nsys.stdin.readline()\n"
                "mine, lost = sum(one.still_mine() for one in leases), 0\n"
                "for one in leases:\n    try: one.release()\n    except LeaseLost: lost += 1\n"
                "print(mine, lost)")
        environment = dict(os.environ, PYTHONPATH=str(HERE.parent / "src"), LOCKKEEPER_URL=self.fake.url)
        text = "import sys\nfrom lockkeeper import LockClient\nc = LockClient()\n" + text
        with subprocess.Popen([sys.executable, "-c", text], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as run:
            self.assertEqual(run.stdout.readline(), b"held\n")
            run.send_signal(signal.SIGSTOP)
            time.sleep(1.5)
            self.fake.replace["PUT"] = lambda *_: problem(409, "lock_lost")
            run.stdin.write(b"go on\n")
            run.stdin.flush()
            run.send_signal(signal.SIGCONT)
            self.assertEqual(run.stdout.read(), b"0 12\n")

    def test_an_exit_and_an_exception_release(self):
        self.run_program("lease = c.try_lock('k', ttl=600)\nsys.exit(7)", 7)
        self.assertTrue(self.is_free())
        self.run_program("with c.lock('k', ttl=600): raise KeyError", 1)
        self.assertTrue(self.is_free())

    def test_a_daemon_thread_in_line_leaves_nothing(self):
        self.fake.held["k"] = ("other", 1)
        self.run_program("threading.Thread(target=lambda: c.lock('k', wait=50).__enter__(), daemon=True).start()\n"
                         "time.sleep(0.7)")
        self.assertEqual(self.fake.count("POST"), 1)
        self.assertGreaterEqual(self.fake.count("DELETE"), 1)

    def test_a_block_in_a_daemon_thread_is_told_and_ends_before_its_lease(self):
        for begin, lock in [("with c", ""), ("async with AsyncLockClient()", "async ")]:
            self.fake.seen.clear()
            self.run_program(
                "import asyncio\nfrom lockkeeper import AsyncLockClient, LockkeeperError\nready, told = threading.Event(), []\n"
                + lock + "def work():\n"
                "    try:\n"
                "        " + begin + ".lock('k', ttl=600, on_lost=lambda: told.append(1)) as lease:\n"
                "            ready.set()\n"
                "            try:\n"
                "                " + ("await asyncio.sleep(60)" if lock else "lease.lost.wait(60)") + "\n"
                "            finally:\n"
                "                time.sleep(0.3)\n"
                "                c.get('told' if lease.lost.is_set() and told else 'not told')\n"
                "    except LockkeeperError:\n"
                "        pass\n"
                "threading.Thread(target=" + ("lambda: asyncio.run(work())" if lock else "work") + ", daemon=True).start()\n"
                "ready.wait()")
            self.assertEqual([one[:2] for one in self.fake.seen][:3], [("POST", "k"), ("GET", "told"), ("DELETE", "k")])

    def test_work_of_a_daemon_thread_that_does_not_stop_keeps_its_lease_until_its_ttl(self):
        self.run_program("import lockkeeper._claim\nlockkeeper._claim.LONGEST = 0.5\nready = threading.Event()\n"
                         "def work():\n"
                         "    with c.lock('k', ttl=0.9):\n"
                         "        ready.set()\n"
                         "        time.sleep(60)\n"
                         "threading.Thread(target=work, daemon=True).start()\n"
                         "ready.wait()")
        self.assertEqual([one[0] for one in self.fake.seen], ["POST"])

    def test_a_daemon_thread_that_locks_in_a_loop_leaves_nothing(self):
        error = self.run_program(
            "from lockkeeper import LockkeeperError\n"
            "def work(key):\n"
            "    while True:\n"
            "        try:\n"
            "            with c.lock(key, ttl=600): time.sleep(0.01)\n"
            "        except LockkeeperError:\n"
            "            pass\n"
            "for i in range(6): threading.Thread(target=work, args=(str(i),), daemon=True).start()\n"
            "time.sleep(0.5)")
        self.assertEqual((error, self.fake.held), ("", {}))

    def test_a_lease_of_the_thread_that_ends_the_program_is_released_and_lost(self):
        self.addCleanup(_claim._ending.clear)
        told = []
        lease = self.client.try_lock("k", ttl=600, on_lost=lambda: told.append(1))
        _claim._end_all()
        self.assertTrue(self.is_free())
        self.assertTrue(lease.lost.is_set())
        self.assertEqual(told, [])

    def test_a_lease_of_a_thread_that_has_ended_is_released_at_the_end_of_the_program(self):
        begin = time.monotonic()
        self.run_program("leases = []\n"
                         "thread = threading.Thread(target=lambda: leases.append(c.try_lock('k', ttl=600)))\n"
                         "thread.start()\nthread.join()")
        self.assertTrue(self.is_free())
        self.assertLess(time.monotonic() - begin, 5)

    @unittest.skipIf((3, 12) <= sys.version_info < (3, 12, 2), "this Python starts no threads then")
    def test_a_thread_works_on_after_the_main_thread(self):
        error = self.run_program(
            "def work():\n"
            "    with c.lock('k', ttl=1): time.sleep(2.5)\n"
            "threading.Thread(target=work).start()")
        self.assertEqual(error, "")
        self.assertGreaterEqual(self.fake.count("PUT"), 3)
        self.assertTrue(self.is_free())


class Asyncio(WithService):
    def run_async(self, coroutine):
        return asyncio.run(asyncio.wait_for(coroutine, 60))

    def test_a_lease(self):
        async def work():
            async with self.client.lock("k") as lease:
                self.assertFalse(self.is_free())
                return lease.fencing_token

        self.assertEqual(self.run_async(work()), 101)
        self.assertTrue(self.is_free())

    def test_the_whole_api(self):
        async def work():
            client = AsyncLockClient(self.fake.url, owner="me")
            lease = await client.try_lock("k", ttl=60)
            self.assertIsNone(await client.try_lock("k"))
            self.assertTrue(lease.still_mine("50s"))
            self.assertTrue((await client.get("k")).held)
            self.assertTrue(await lease.release())
            self.assertTrue(self.is_free())
            async with await client.try_lock("k") as lease:
                self.assertFalse(self.is_free())
                self.assertEqual((lease.key, lease.fencing_token), ("k", 102))
            self.assertTrue(self.is_free())
            self.fake.replace["GET"] = lambda *_: (200, {"locks": [{"key": "a", "held": True}]})
            self.assertEqual([one.key for one in await client.list("p")], ["a"])
            self.fake.replace["DELETE"] = lambda *_: problem(409, "lock_lost")
            self.assertIs(await client.force_release("k", reason="r"), False)
            with self.assertRaises(RequestRefused):
                await client.get("../k")
            with self.assertRaises(LeaseLost):
                await (await client.try_lock("k")).release()

        self.run_async(work())
        self.fake.replace.clear()
        client = pickle.loads(pickle.dumps(AsyncLockClient(self.fake.url)))
        self.assertEqual(asyncio.run(client.get("k")).key, "k")

    def test_a_decorator_of_coroutines(self):
        @self.client.lock("k", wait=60)
        async def work(number):
            """Its text."""
            self.assertFalse(self.is_free())
            await asyncio.sleep(0.01)
            return number + 1

        async def main():
            return await asyncio.gather(work(1), work(2), work(number=3))

        self.assertEqual((self.run_async(main()), work.__doc__), ([2, 3, 4], "Its text."))
        self.assertTrue(asyncio.iscoroutinefunction(work) and self.is_free())

    def test_a_loss_cancels_the_block_of_a_lease_and_nothing_outside_it(self):
        async def work():
            client = AsyncLockClient(self.fake.url)
            outside = await client.try_lock("other", ttl=0.9)
            with self.assertRaises(LeaseLost):
                async with await client.try_lock("k", ttl=0.9):
                    self.fake.held.clear()
                    await asyncio.sleep(60)
            self.assertTrue(await asyncio.to_thread(outside.lost.wait, 15))
            await asyncio.sleep(0.1)
            with self.assertRaises(LeaseLost):
                await outside.release()

        self.run_async(work())

    def test_a_caller_that_is_cancelled_does_not_wait_for_a_look(self):
        silence = threading.Event()
        self.addCleanup(silence.set)
        self.fake.replace["GET"] = lambda *_: silence.wait(60) and None

        async def work():
            client = AsyncLockClient(self.fake.url)
            for ask in [client.get("k"), client.list()]:
                with self.assertRaises(asyncio.TimeoutError):
                    await asyncio.wait_for(ask, 0.1)
            self.fake.held["k"] = ("other", 1)
            self.fake.replace["POST"] = lambda *_: silence.wait(60) and None
            with self.assertRaises(asyncio.TimeoutError):
                await asyncio.wait_for(client.try_lock("k"), 0.1)

        began = time.monotonic()
        self.run_async(work())
        self.assertLess(time.monotonic() - began, 5)
        silence.set()

    def test_a_loss_cancels_the_block(self):
        async def work():
            with self.assertRaises(LeaseLost):
                async with self.client.lock("k", ttl=0.9):
                    self.fake.held.clear()
                    await asyncio.sleep(60)
            await asyncio.sleep(0.1)  # no cancellation is left over
            if sys.version_info >= (3, 11):
                self.assertEqual(asyncio.current_task().cancelling(), 0)
            return "went on"

        self.assertEqual(self.run_async(work()), "went on")

    def test_no_block_begins_with_a_lease_that_was_lost_by_then(self):
        self.fake.replace["PUT"] = lambda *_: (502, None)
        told = threading.Event()

        async def work():
            async with self.client.lock("k", ttl=0.9, on_lost=told.set):
                self.fail("the block began")

        async def main():
            task = asyncio.ensure_future(work())
            await asyncio.sleep(0)  # It has begun to acquire.
            self.assertTrue(told.wait(15))  # and the loop stands still
            with self.assertRaisesRegex(LeaseLost, "before the work began"):
                await task

        self.run_async(main())
        until(self.is_free)

    def test_a_loss_that_the_block_ignores(self):
        async def work():
            async with self.client.lock("k", ttl=0.9) as lease:
                self.fake.held.clear()
                time.sleep(1.2)
                self.assertTrue(lease.lost.wait(15))

        with self.assertRaises(LeaseLost):
            self.run_async(work())

    def test_a_cancellation_from_outside_stays_one(self):
        async def work(entered):
            async with self.client.lock("k", ttl=60):
                entered.set()
                await asyncio.sleep(60)

        async def main():
            entered = asyncio.Event()
            task = asyncio.ensure_future(work(entered))
            await entered.wait()
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task
            self.nothing_is_left()

        self.run_async(main())

    def test_cancelled_at_any_moment_of_an_acquire(self):
        async def main():
            for step in range(60):
                async def work():
                    async with self.client.lock("k", ttl=60, wait=5):
                        await asyncio.sleep(60)

                task = asyncio.ensure_future(work())
                await asyncio.sleep(step * 0.0003)
                task.cancel()
                with self.assertRaises(asyncio.CancelledError):
                    await task
                self.nothing_is_left()

        self.run_async(main())

    def test_a_time_out_in_line(self):
        self.fake.held["k"] = ("other", 1)

        async def work():
            async with self.client.lock("k", wait=50):
                pass

        async def main():
            with self.assertRaises(asyncio.TimeoutError):
                await asyncio.wait_for(work(), 0.3)

        self.fake.replace["DELETE"] = lambda *_: (204, None)
        self.run_async(main())
        self.assertGreaterEqual(self.fake.count("DELETE"), 1)

    def test_a_closed_loop_takes_its_lease_along(self):
        async def work():
            async with self.client.lock("k", ttl=60):
                await asyncio.sleep(60)

        async def main():
            asyncio.ensure_future(work())
            while self.is_free():
                await asyncio.sleep(0.01)

        asyncio.run(main())
        until(self.is_free)

    def test_many_at_once(self):
        async def work(number):
            async with self.client.lock("k%d" % (number % 5), wait=50):
                await asyncio.sleep(0.01)

        async def main():
            await asyncio.gather(*(work(number) for number in range(30)))

        self.run_async(main())
        self.assertEqual(self.fake.held, {})


class Waits(WithService):
    def test_a_claim_released_elsewhere(self):
        self.fake.replace["POST"] = lambda *_: problem(409, "wait_cancelled")
        with self.assertRaises(WaitCancelled):
            self.client.lock("k", wait=5).__enter__()

    def test_a_superseded_claim_asks_again_and_gives_up_after_three_times(self):
        for times, error in [(2, None), (3, WaitCancelled)]:
            answers = [problem(409, "superseded")] * times
            self.fake.replace["POST"] = lambda *_: answers.pop() if answers else None
            count, began = self.fake.count("POST"), time.monotonic()
            with self.assertRaises(error) if error else contextlib.nullcontext():
                with self.client.lock("k", wait=5):
                    pass
            self.assertGreater(time.monotonic() - began, 2)
            self.assertEqual(self.fake.count("POST") - count, 3)
        self.assertEqual([one[3] for one in self.fake.seen if one[0] == "DELETE"], [{"fencing_token": "101"}, {}])

    def test_a_lease_of_an_earlier_request_is_replaced_also_if_that_answer_is_lost(self):
        def earlier(key, headers, body):
            count = self.fake.count("POST")
            if count == 1:
                self.fake.held[key] = (headers["Lock-Token"], 7)
                return problem(409, "lock_held", mine=True, fencing_token=7)
            answer = self.fake.answer("POST", key, headers, body)
            return (502, None) if count == 2 else answer

        self.fake.replace["POST"] = earlier
        with self.client.lock("k") as lease:
            self.assertEqual(lease.fencing_token, 102)
        named = [one[3].get("fencing_token") for one in self.fake.seen if one[0] == "POST"]
        self.assertEqual(named, [None, 7, 7, 101])
        self.assertTrue(self.is_free())

    def test_a_claim_that_names_a_lease_leaves_nothing_if_it_is_refused(self):
        def busy(key, headers, body):
            if "fencing_token" in body:
                return problem(409, "lock_held")
            self.fake.held[key] = (headers["Lock-Token"], 7)
            return problem(409, "lock_held", mine=True, fencing_token=7)

        self.fake.replace["POST"] = busy
        with self.assertRaises(LockBusy):
            self.client.lock("k").__enter__()
        self.nothing_is_left()

    def test_an_interrupt_leaves_nothing(self):
        with mock.patch("concurrent.futures.Future.result", side_effect=KeyboardInterrupt):
            with self.assertRaises(KeyboardInterrupt):
                self.client.lock("k", ttl=60).__enter__()
        until(self.is_free)

    def test_an_exception_just_before_the_thread_starts_costs_no_time_and_leaves_nothing(self):
        """As that of a signal handler, or of a worker's time limit."""
        threads = []

        def interrupt(function, arguments):
            threads.append(lambda: function(*arguments))
            raise TimeoutError("of the caller")

        async def enter():
            await self.client.lock("k").__aenter__()

        for run in [lambda: self.client.lock("k").__enter__(), lambda: asyncio.run(asyncio.wait_for(enter(), 30))]:
            began = time.monotonic()
            with mock.patch("_thread.start_new_thread", interrupt):
                with self.assertRaisesRegex(TimeoutError, "of the caller"):
                    run()
                _claim._end_all()
            self.assertLess(time.monotonic() - began, 6)
            self.assertFalse(_claim._open)
        for run in threads:  # A thread that did start, and runs only now, does nothing.
            run()
        self.assertEqual(self.fake.seen, [])

    @unittest.skipUnless(hasattr(signal, "SIGALRM"), "no such signal here")
    def test_a_time_limit_of_the_caller_holds_with_a_silent_service(self):
        """In line and in the block, with threads and asyncio. The withdrawal goes on behind the caller."""
        silence = threading.Event()
        self.addCleanup(silence.set)

        class Limit(BaseException):
            pass

        def limit(*_):
            raise Limit

        def interrupt(seen):
            until(lambda: self.fake.count("POST") > seen)
            os.kill(os.getpid(), signal.SIGALRM)

        def threads(seen):
            threading.Thread(target=interrupt, args=(seen,)).start()
            with self.client.lock("k", ttl=60, wait=600):
                threading.Event().wait(60)

        async def block():
            async with self.client.lock("k", ttl=60, wait=600):
                await asyncio.sleep(60)

        async def tasks(seen):
            task = asyncio.ensure_future(block())
            while self.fake.count("POST") == seen:
                await asyncio.sleep(0.01)
            with self.assertRaises(asyncio.TimeoutError):
                await asyncio.wait_for(task, 0.1)
            raise Limit

        self.addCleanup(signal.signal, signal.SIGALRM, signal.signal(signal.SIGALRM, limit))
        for silent in [("POST", "DELETE"), ("DELETE",)]:
            for run in [threads, lambda seen: asyncio.run(tasks(seen))]:
                self.fake.replace = {method: lambda *_: silence.wait(60) and None for method in silent}
                count = self.fake.count("DELETE")
                with self.assertRaises(Limit):
                    run(self.fake.count("POST"))
                self.assertTrue(_claim._open, (silent, run))
                until(lambda: self.fake.count("DELETE") > count)
                self.fake.replace = {}
                silence.set()
                self.nothing_is_left()
                silence.clear()

    def test_no_caller_waits_for_a_thread_that_has_died(self):
        lock = self.client.lock("k", ttl=60)
        made = lock._make

        def make():
            claim = made()
            claim.decided.set_result = mock.Mock(side_effect=[SystemExit, mock.DEFAULT], wraps=claim.decided.set_result)
            return claim

        lock._make, caught = make, []

        def enter():
            try:
                lock.__enter__()
            except WaitCancelled as error:
                caught.append(error)

        with self.assertLogs("lockkeeper", "ERROR"):
            thread = threading.Thread(target=enter, daemon=True)
            thread.start()
            thread.join(15)
        self.assertEqual(len(caught), 1)

    def test_after_a_cancel_between_two_attempts_nothing_is_acquired(self):
        self.fake.replace["POST"] = lambda *_: (502, None)
        with mock.patch.object(_claim, "pause", return_value=3.0):
            claim = self.client.lock("k", wait=60)._make()
            claim.start()
            until(lambda: self.fake.seen)
            time.sleep(0.5)
            claim.end()
            claim.join()
        self.assertEqual((self.fake.count("POST"), self.fake.count("DELETE")), (1, 1))
        self.assertIsInstance(claim.decided.result(), WaitCancelled)

    def test_an_interrupt_of_the_end_leaves_nothing_locked(self):
        """In each Python function that `Claim.end` calls, at each of its lines and at its return."""
        for point in range(1, 100):
            lease = self.client.try_lock("k", ttl=60)
            trace, left = interrupting(point, lambda frame: frame.f_code is not _claim.Claim.end.__code__)
            before = sys.gettrace()
            sys.settrace(trace)
            try:
                lease._claim.end()
            except KeyboardInterrupt:
                pass
            finally:
                sys.settrace(before)
            lease.release()
            self.assertTrue(self.is_free(), point)
            if left[0] > 0:
                self.assertGreater(point, 5)
                return
        self.fail("no end")

    def test_a_claim_that_never_reached_the_service_gives_up_and_one_that_stood_in_line_waits(self):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            nowhere = "http://127.0.0.1:%d" % listener.getsockname()[1]
        for wait, most in [(3600, "BEFORE_LINE"), (None, "BEFORE_LINE"), (0.1, "WITHOUT_WAIT"), (0, "WITHOUT_WAIT")]:
            with mock.patch.multiple(_absence, **{most: 0.8, "FIRST": 0}):
                with self.assertLogs("lockkeeper", "WARNING") as logs, self.assertRaises(ServiceUnavailable) as caught:
                    LockClient(nowhere).lock("k", wait=wait).__enter__()
            told = "no answer from %s: Connection refused" % nowhere
            self.assertEqual(str(caught.exception), "'k' was not acquired: %s; retry later" % told)
            more = "35[0-9]{2} s more " if wait == 3600 else ""
            self.assertEqual(len(logs.records), 1)
            self.assertRegex(logs.records[0].getMessage(), "^waiting %sfor 'k', retrying: %s$" % (more, told))
        for lasted in [0, 0.3]:
            answers = [(502, None)] * 6 + [problem(409, "lock_held")]
            self.fake.replace["POST"] = lambda *_: answers and (len(answers) < 7 or not time.sleep(lasted)) and answers.pop()
            with mock.patch.multiple(_absence, BEFORE_LINE=0.2, WITHOUT_WAIT=0.1), \
                    mock.patch.object(_claim, "pause", return_value=0.1), self.client.lock("k", wait=600):
                self.assertEqual(answers, [])

    def test_the_end_of_an_absence(self):
        refused, silent, page, gone = Answer(), Answer(), Answer(504), Answer()
        refused.was_sent = False
        hour, busy = 3600.0, Answer(*problem(409, "lock_held"))
        for before, answer, lasted, over, expected in [
                ([], refused, 0, hour, 60), ([], refused, 0, 30, 30), ([], refused, 0, 0, 5), ([], refused, 0, 3, 5),
                ([busy], refused, 0, hour, hour), ([busy], refused, 0, 0, 5), ([], silent, 25, hour, 35),
                ([], silent, 9000, hour, 35),
                ([], gone, 0.9, hour, 60), ([], gone, 1, hour, hour), ([], page, 10, hour, hour),
                ([], Answer(502), 10, hour, 60), ([], refused, 4, hour, 60)]:
            absence, clock = _absence.Absence(), 100.0
            with mock.patch.object(_absence, "now", lambda: clock):
                for one in before:
                    self.assertFalse(absence.notes(one, clock, 0))
                clock += lasted
                self.assertTrue(absence.notes(answer, 100.0, 20))
                self.assertEqual(absence.end(clock + over) - clock, expected, (before, str(answer), lasted, over))

    def test_a_warning_after_five_seconds_and_then_each_minute(self):
        absence, clock, told = _absence.Absence(), 100.0, []
        with mock.patch.object(_absence, "now", lambda: clock):
            while clock < 300:
                self.assertTrue(absence.notes(Answer(502), clock, 0))
                if absence.is_due():
                    told.append(clock - 100)
                clock += 1
        self.assertEqual(told, [5, 65, 125, 185])

    def test_a_full_service_is_told_at_the_end_of_the_wait(self):
        self.fake.replace["POST"] = lambda *_: problem(429, "quota_exceeded")
        began = time.monotonic()
        with self.assertRaisesRegex(ServiceUnavailable, "quota_exceeded"):
            self.client.lock("k").__enter__()
        self.assertLess(time.monotonic() - began, 4)
        self.assertEqual(self.fake.count("DELETE"), 0)

    def test_waits_for_ever(self):
        lease = self.client.try_lock("k")
        threading.Timer(0.5, lease.release).start()
        with self.client.lock("k", wait=None):
            pass


if __name__ == "__main__":
    unittest.main()
