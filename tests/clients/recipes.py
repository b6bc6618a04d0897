#!/usr/bin/env python3
"""The recipes of the Python package's README, with the frameworks themselves, and what it says of gevent, anyio
and trio. Each test runs the code of the README in processes of its own, against a service of its own.

    python3 tests/clients/recipes.py --bin target/debug/lockkeeper     (installs recipes.txt in a directory of its own)
"""

import argparse
import glob
import http.client
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

HERE = pathlib.Path(__file__).resolve().parent
PACKAGE = HERE.parent.parent / "clients" / "python"
PATIENCE = 60.0


def until(what, check):
    end = time.monotonic() + PATIENCE
    while not check():
        if time.monotonic() > end:
            raise AssertionError("%s: not within %d s" % (what, PATIENCE))
        time.sleep(0.05)


def recipe(heading):
    """The first program below a heading of the README."""
    section = (PACKAGE / "README.md").read_text("utf-8").split("\n## %s\n" % heading)[1].split("\n## ")[0]
    return section.split("```python\n")[1].split("```")[0]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Recipes(unittest.TestCase):
    binary = ""

    def setUp(self):
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="lockkeeper-recipes-"))
        self.addCleanup(shutil.rmtree, self.directory, ignore_errors=True)
        self.processes = []
        self.addCleanup(self.end)
        self.port = free_port()
        url = "http://127.0.0.1:%d" % self.port
        clean = {k: v for k, v in os.environ.items() if not k.startswith("LOCKKEEPER")}
        self.environment = dict(clean, LOCKKEEPER_URL=url, PYTHONPATH=str(PACKAGE / "src"))
        listen = "127.0.0.1:%d" % self.port
        self.start([self.binary, "serve", "--listen", listen, "--store", "embedded:data"], env=clean)
        until("the service is ready", self.is_ready)

    def end(self):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()

    def start(self, command, env=None):
        log = open(self.directory / ("log%d" % len(self.processes)), "wb")
        process = subprocess.Popen(command, cwd=self.directory, env=env or self.environment, stdout=log, stderr=log)
        log.close()
        self.processes.append(process)
        return process

    def is_ready(self):
        return self.get("/readyz")[0] == 200

    def get(self, path):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read()
        except OSError:
            return 0, b""
        finally:
            connection.close()

    def write(self, name, text):
        (self.directory / name).write_text(text)

    def run_program(self, text):
        """Runs a program to its end; returns what it printed."""
        self.write("program.py", text)
        done = subprocess.run([sys.executable, "program.py"], cwd=self.directory, env=self.environment,
                              timeout=PATIENCE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.assertEqual(done.returncode, 0, done.stderr.decode())
        return done.stdout.decode()

    def takes_over(self, key, start, seen):
        """One of two works, and the other one after its end. `seen` are the names of those that worked, in order."""
        first = start()
        until("the first works", seen)
        one = seen()[0]
        second = start()
        time.sleep(4)  # The second has tried by then.
        self.assertEqual(set(seen()), {one})
        first.send_signal(signal.SIGTERM)
        until("the second works", lambda: seen()[-1] != one)
        names = seen()
        self.assertEqual(names, sorted(names, key=lambda name: name != one), "both worked at once")
        second.send_signal(signal.SIGTERM)
        self.assertIn(second.wait(PATIENCE), [0, -signal.SIGTERM])
        self.assertFalse(json.loads(self.get("/locks/" + key)[1])["held"])

    def test_one_celery_beat(self):
        self.write("beat.py", recipe("One Celery beat"))
        self.write("app.py", """
from celery import Celery
app = Celery("app", broker="filesystem://")
app.conf.broker_transport_options = dict(
    data_folder_in="queue", data_folder_out="queue", control_folder="control")
app.conf.beat_schedule = {"often": {"task": "app.work", "schedule": 0.5}}
@app.task
def work(): pass
""")
        for name in ["queue", "control"]:
            (self.directory / name).mkdir()
        count = []

        def start():
            count.append(1)
            return self.start([sys.executable, "-m", "celery", "-A", "app", "beat", "-S", "beat.OneBeat",
                               "-s", "schedule%d" % len(count), "--pidfile="])

        def seen():
            files = sorted(glob.glob(str(self.directory / "queue" / "*.msg")), key=os.path.getmtime)
            texts = [pathlib.Path(file).read_text() for file in files]
            return [json.loads(text)["headers"]["origin"] for text in texts if text]

        self.takes_over("celery/beat", start, seen)

    def test_a_leader_in_fastapi(self):
        self.write("main.py", "import os\n" + recipe("A leader in FastAPI") + """
async def work():
    while True:
        with open("work", "a") as file:
            file.write("%d\\n" % os.getpid())
        await asyncio.sleep(0.05)
""")

        def seen():
            file = self.directory / "work"
            return file.read_text().split() if file.exists() else []

        def start():
            return self.start([sys.executable, "-m", "uvicorn", "main:app", "--port", str(free_port())])

        self.takes_over("shop/leader", start, seen)

    def test_one_job_of_apscheduler(self):
        self.write("job.py", recipe("Celery, APScheduler and Django") + """
import datetime, sys, threading
from apscheduler.events import EVENT_JOB_ERROR, EVENT_JOB_EXECUTED
from apscheduler.schedulers.background import BackgroundScheduler
over, failed = threading.Event(), []
scheduler = BackgroundScheduler()
scheduler.add_listener(lambda event: (failed.append(event.exception), over.set()), EVENT_JOB_EXECUTED | EVENT_JOB_ERROR)
def mail():
    with open("work", "a") as file:
        file.write("%s\\n" % sys.argv[1])
at = datetime.datetime.fromtimestamp(float(sys.argv[2]))
scheduler.add_job(once("shop/mail", ttl="1m")(mail), "date", run_date=at, misfire_grace_time=60)
scheduler.start()
over.wait(60)
sys.exit(repr(failed[0]) if failed[0] else 0)
""")
        at = str(time.time() + 3)
        for process in [self.start([sys.executable, "job.py", name, at]) for name in "abc"]:
            self.assertEqual(process.wait(PATIENCE), 0)
        self.assertEqual(len((self.directory / "work").read_text().split()), 1)

    def test_gevent(self):
        printed = self.run_program("""
from gevent import monkey
monkey.patch_all()
import gevent, time
from lockkeeper import LeaseLost, LockBusy, LockClient
client = LockClient()
def work(number):
    with client.lock("k%d" % (number % 3), ttl=3, wait=60) as lease:
        gevent.sleep(0.2)
        return lease.still_mine()
jobs = [gevent.spawn(work, number) for number in range(12)]
gevent.joinall(jobs, raise_error=True)
print(all(job.value for job in jobs))
with client.lock("long", ttl=2) as lease:
    gevent.sleep(5)
    print(lease.still_mine())
    try:
        client.lock("long").__enter__()
    except LockBusy:
        print("busy")
try:
    with client.lock("busy", ttl=1):
        end = time.monotonic() + 2
        while time.monotonic() < end: pass
except LeaseLost:
    print("lost")
try:
    with gevent.Timeout(0.5):
        with client.lock("cut"):
            gevent.sleep(60)
except gevent.Timeout:
    print(client.get("cut").held)
""")
        self.assertEqual(printed.split(), ["True", "True", "busy", "lost", "False"])

    def test_anyio_with_asyncio(self):
        printed = self.run_program("""
import anyio
from lockkeeper import AsyncLockClient, LeaseLost, LockClient
client = AsyncLockClient()
async def work(number):
    async with client.lock("k%d" % (number % 3), ttl=3, wait=60):
        await anyio.sleep(0.1)
async def lose():
    try:
        async with client.lock("lost", ttl=2):
            LockClient().force_release("lost")
            async with anyio.create_task_group() as group:
                group.start_soon(anyio.sleep, 60)
                await anyio.sleep(60)
    except LeaseLost:
        print("lost")
async def main():
    async with anyio.create_task_group() as group:
        for number in range(9):
            group.start_soon(work, number)
    await lose()
    with anyio.move_on_after(0.5) as scope:
        async with client.lock("cut"):
            await anyio.sleep(60)
    while (await client.get("cut")).held:  # The release goes on behind it.
        await anyio.sleep(0.05)
    print(scope.cancelled_caught)
anyio.run(main)
""")
        self.assertEqual(printed.split(), ["lost", "True"])

    def test_trio_with_threads(self):
        printed = self.run_program("""
import trio
from lockkeeper import AsyncLockClient, LockClient
client = LockClient()
async def main():
    lease = await trio.to_thread.run_sync(client.try_lock, "report")
    print(lease.still_mine(), await trio.to_thread.run_sync(client.try_lock, "report"))
    print(await trio.to_thread.run_sync(lease.release))
    try:
        async with AsyncLockClient().lock("k"):
            pass
    except RuntimeError as error:
        print("no running event loop" in str(error))
trio.run(main)
""")
        self.assertEqual(printed.split(), ["True", "None", "True", "True"])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", required=True, help="the service's binary")
    arguments, rest = parser.parse_known_args()
    Recipes.binary = os.path.abspath(arguments.bin)
    try:
        import apscheduler  # noqa: F401
    except ImportError:
        with tempfile.TemporaryDirectory(prefix="lockkeeper-recipes-") as there:
            subprocess.run([sys.executable, "-m", "venv", there], check=True)
            python = os.path.join(there, "bin", "python")
            subprocess.run([python, "-m", "pip", "install", "-q", "-r", str(HERE / "recipes.txt")], check=True)
            return subprocess.run([python, *sys.argv]).returncode
    unittest.main(argv=[sys.argv[0], *rest])


if __name__ == "__main__":
    sys.exit(main())
