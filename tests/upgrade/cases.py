"""Two versions of the service on the leases of each other: one writes, the other serves.

Usage: cases.py ONE OTHER   (two programs; run it a second time with both changed over)
"""

import atexit
import contextlib
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse

TTL = "9s"
# The longest lease on nodes, for which new ones do not vote; leases are no longer.
LONGEST = {"LOCKKEEPER_REDLOCK_LONGEST_LEASE": "9s", "LOCKKEEPER_TTL_DEFAULT": "9s",
           "LOCKKEEPER_TTL_MAX": "9s"}


class Service:
    """A version that serves on a free port."""

    def __init__(self, program, store):
        self.program = program
        settings = LONGEST if store.count("redis://") > 1 else {}
        self.process = subprocess.Popen(
            [program, "serve", "--listen", "127.0.0.1:0"], stderr=subprocess.PIPE, text=True,
            env={**os.environ, **settings, "LOCKKEEPER_STORE": store})
        atexit.register(self.process.kill)
        self.log = []
        for line in self.process.stderr:
            self.log.append(line)
            if "serving locks on http://" in line:
                self.address = line.split("serving locks on http://")[1].split('"')[0].strip()
                break
        else:
            raise AssertionError(f"{program} does not serve: {''.join(self.log)}")
        threading.Thread(target=lambda: self.log.extend(self.process.stderr), daemon=True).start()
        until(lambda: self.call("GET", "/readyz")[0] == 200, f"{program} is not ready")

    def open(self, method, path, token=None):
        connection = http.client.HTTPConnection(self.address, timeout=40)
        connection.request(method, path, headers={"Lock-Token": token} if token else {})
        return connection.getresponse()

    def call(self, method, path, token=None):
        answer = self.open(method, path, token)
        body = answer.read()
        try:
            return answer.status, json.loads(body)
        except ValueError:
            return answer.status, {}

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(20) == 0, "".join(self.log)


def until(condition, what):
    for _ in range(600):
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError(what)


def is_answer(answer, *statuses):
    assert answer[0] in statuses, answer
    return answer[1]


@contextlib.contextmanager
def redis(number):
    """So many Redis without data, as URLs."""
    servers, urls = [], []
    directory = tempfile.mkdtemp(prefix="lockkeeper-upgrade-")
    try:
        for _ in range(number):
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = free.getsockname()[1]
            servers.append(subprocess.Popen(
                ["redis-server", "--port", str(port), "--save", "", "--dir", directory],
                stdout=subprocess.DEVNULL))
            urls.append(f"redis://127.0.0.1:{port}")
            until(lambda: socket.socket().connect_ex(("127.0.0.1", port)) == 0, "no Redis")
        yield " ".join(urls)
    finally:
        for server in servers:
            server.kill()
            server.wait()
        shutil.rmtree(directory)


# What a version writes: a query for each lease, and whether Redlock has that kind.
LEASES = [
    ("alone", "/locks/alone?owner=one", True),
    ("odd", "/locks/odd%20%7Bkey%7D/%C3%A9?owner=%C3%BC%22", True),
    ("first", "/locks/pool?slots=3", False),
    ("second", "/locks/pool?slots=3&units=2", False),
    ("reader", "/locks/book?shared=true", False),
    ("several", "/locks?key=left&key=right", True),
]


def writes(service, everything):
    """Takes leases, and returns each with its query, token and grant."""
    taken = []
    for name, path, everywhere in LEASES:
        if everything or everywhere:
            token = f"token-of-{name}-{time.time_ns()}"
            answer = service.call("POST", f"{path}&ttl={TTL}", token)
            taken.append((path, token, is_answer(answer, 201)))
    return taken


def serves(service, taken):
    """Holds what another version granted against what this one says of it, then ends the leases."""
    for path, token, grant in taken:
        key, _, query = path.partition("?")
        if key == "/locks":
            names = [name for _, name in urllib.parse.parse_qsl(query)]
            seen = [is_answer(service.call("GET", f"/locks/{name}", token), 200) for name in names]
            refresh, release = f"/locks/refresh?{query}", f"/locks?{query}"
            granted = grant["leases"]
        else:
            names = [key.removeprefix("/locks/")]
            seen = [is_answer(service.call("GET", key, token), 200)]
            refresh, release, granted = f"{key}/refresh", key, [grant]
        for name, state, one in zip(names, seen, granted, strict=True):
            assert state["held"] and state["mine"], (name, state)
            number = one["fencing_token"]
            mine, = [one for one in state.get("leases", [state]) if one["fencing_token"] == number]
            for member in ["owner", "slots", "slot", "units"]:
                said = one.get(member, grant.get(member))
                assert mine.get(member) == said, (member, state, grant)
        is_answer(service.call("PUT", refresh, token), 200)
        if "slots" not in query and "shared" not in query:
            refused = is_answer(service.call("POST", f"/locks/{names[0]}"), 409)
            assert refused["code"] == "lock_held", refused
        is_answer(service.call("DELETE", release, token), 204)
        for name, one in zip(names, granted, strict=True):
            again = is_answer(service.call("POST", f"/locks/{name}?slots=3"
                                           if "slots" in query else f"/locks/{name}", token + "-2"),
                              200, 201)
            assert again["fencing_token"] > one["fencing_token"], (again, one)
            is_answer(service.call("DELETE", f"/locks/{name}", token + "-2"), 204)


def a_file_goes_from_one_to_the_other(one, other):
    with tempfile.TemporaryDirectory() as directory:
        for writer, reader in [(one, other), (other, one)]:
            service = Service(writer, f"embedded:{directory}/leases")
            taken = writes(service, True)
            service.stop()
            service = Service(reader, f"embedded:{directory}/leases")
            serves(service, taken)
            service.stop()


def both_serve_the_same(one, other, store, everything):
    services = [Service(one, store), Service(other, store)]
    for writer, reader in [services, services[::-1]]:
        serves(reader, writes(writer, everything))
        a_line_of_both(writer, reader)
        a_stream_that_moves(one if writer is services[0] else other, reader, store)
    for service in services:
        service.stop()


def a_line_of_both(first, second):
    """A holder, and a waiting request on each: a release on either side hands the key over."""
    holder = is_answer(first.call("POST", f"/locks/line?ttl={TTL}", "the-token-of-the-holder"), 201)
    granted = []

    def waits(service, token):
        grant = is_answer(service.call("POST", f"/locks/line?wait=8s&ttl={TTL}", token), 201)
        granted.append((token, grant["fencing_token"]))
        is_answer(service.call("DELETE", "/locks/line", token), 204)

    waiting = []
    for number, service in enumerate([first, second]):
        thread = threading.Thread(target=waits, args=(service, f"the-token-that-waits-{number}"))
        thread.start()
        waiting.append(thread)
        until(lambda: service.call("GET", "/locks/line")[1]["waiters"] > 0, "nobody waits")
        time.sleep(0.1)
    is_answer(second.call("DELETE", "/locks/line", "the-token-of-the-holder"), 204)
    for thread in waiting:
        thread.join()
    numbers = [holder["fencing_token"]] + [number for _, number in granted]
    assert len(granted) == 2 and numbers == sorted(set(numbers)), (holder, granted)


def a_stream_that_moves(program, other, store):
    """The stream of an instance that stops goes on through one of the other version."""
    service = Service(program, store)
    stream = service.open("POST", f"/hold/moves?ttl={TTL}", "the-token-of-the-stream")
    acquired = json.loads(stream.readline())
    assert acquired["event"] == "acquired", acquired
    assert other.call("GET", "/locks/moves")[1]["held"]
    service.process.send_signal(signal.SIGTERM)
    events = [json.loads(line) for line in stream]
    assert events[-1]["event"] == "draining", events
    number = acquired["fencing_token"]
    named = f"/hold/moves?ttl={TTL}&fencing_token={number}"
    resumed = other.open("POST", named, "the-token-of-the-stream")
    again = json.loads(resumed.readline())
    assert again["event"] == "acquired" and again["fencing_token"] > number, again
    assert service.process.wait(20) == 0
    resumed.close()
    until(lambda: not other.call("GET", "/locks/moves")[1]["held"], "a closed stream frees nothing")


def main(one, other):
    began = time.monotonic()
    a_file_goes_from_one_to_the_other(one, other)
    print(f"upgrade: a file, in {time.monotonic() - began:.1f} s", flush=True)
    for number, everything in [(1, True), (3, False)]:
        began = time.monotonic()
        with redis(number) as store:
            both_serve_the_same(one, other, store, everything)
        kind = "one Redis" if everything else "nodes"
        print(f"upgrade: {kind}, in {time.monotonic() - began:.1f} s", flush=True)


main(*sys.argv[1:])
