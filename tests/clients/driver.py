#!/usr/bin/env python3
"""The driver of the Python client for situations.py; clients/SITUATIONS.md says what it does.

With `--asyncio` first, the same over `async with`.
"""

import asyncio
import ctypes
import os
import signal
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "clients", "python", "src"))

from lockkeeper import (AsyncLockClient, LeaseLost, LockBusy, LockClient, RequestRefused,  # noqa: E402
                        ServiceUnavailable, WaitCancelled)


class Cancelled(Exception):
    pass


class Failure(Exception):
    pass


class Told(Exception):
    pass


def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def number(text):
    return float(text[:-2]) / 1000 if text.endswith("ms") else float(text.rstrip("s"))


def told():
    say("told")


def terminate(*_):
    sys.exit(143)


class Driver:
    def __init__(self, mode, key, options, is_async):
        self.mode, self.key, self.is_async = mode, key, is_async
        self.client = (AsyncLockClient if is_async else LockClient)()
        self.share = {name: int(options[name]) for name in ["slots", "units"] if name in options}
        self.also = options.get("also")
        self.named = {"ttl": options.get("ttl", "30s"), "wait": options.get("wait", "10s")}
        self.seconds = number(options.get("seconds", "2"))
        self.after = number(options.get("after", "300ms"))

    def lock(self):
        if self.also:
            return self.client.lock([self.key, {"key": self.also, **self.share}], on_lost=told, **self.named)
        return self.client.lock(self.key, on_lost=told, **self.named, **self.share)

    def alarm(self, handler):
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, self.after)

    def fork(self):
        child = os.fork()
        if child == 0:
            time.sleep(0.5)
            if self.is_async:  # A loop is not to be used, nor closed, in a forked child.
                os._exit(0)
            sys.exit(0)
        return child

    def threads(self):
        if self.mode == "cancel":
            def cancel(*_):
                raise Cancelled()
            self.alarm(cancel)
        if self.mode == "exit":
            self.alarm(lambda *_: sys.exit(0))
        if self.mode == "twice":
            with self.lock() as lease:
                say("acquired", lease.fencing_tokens[self.key])
        with self.lock() as lease:
            say("acquired", lease.fencing_tokens[self.key])
            if self.mode == "odd":
                state = self.client.get(self.key)
                assert state.held and state.key == self.key
                assert [one.key for one in self.client.list(self.key)] == [self.key]
            elif self.mode == "throw":
                raise Failure()
            elif self.mode == "block":
                self.busy()
            else:
                if self.mode == "fork":
                    child = self.fork()
                end = time.monotonic() + self.seconds
                while time.monotonic() < end:
                    if lease.lost.wait(0.02):
                        raise Told()
                if self.mode == "fork":
                    os.waitpid(child, 0)

    def busy(self):
        """Keeps the interpreter's lock like a computation, without a processor."""
        usleep = ctypes.PyDLL(None).usleep
        end = time.monotonic() + self.seconds
        while time.monotonic() < end:
            usleep(5_000)

    async def tasks(self):
        loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        loop.add_signal_handler(signal.SIGTERM, task.cancel)
        if self.mode == "cancel":
            loop.call_later(self.after, task.cancel)
        if self.mode == "exit":
            loop.call_later(self.after, sys.exit, 0)
        if self.mode == "twice":
            async with self.lock() as lease:
                say("acquired", lease.fencing_tokens[self.key])
        async with self.lock() as lease:
            say("acquired", lease.fencing_tokens[self.key])
            if self.mode == "odd":
                state = await self.client.get(self.key)
                assert state.held and state.key == self.key
                assert [one.key for one in await self.client.list(self.key)] == [self.key]
            elif self.mode == "throw":
                raise Failure()
            elif self.mode == "block":
                self.busy()
            elif self.mode == "fork":
                child = self.fork()
                await asyncio.sleep(self.seconds)
                os.waitpid(child, 0)
            else:
                await asyncio.sleep(self.seconds)

    def run(self):
        if self.mode == "get":
            state = self.client.get(self.key)
            say("held" if (asyncio.run(state) if self.is_async else state).held else "free")
            return
        try:
            if self.is_async:
                asyncio.run(self.tasks())
            else:
                signal.signal(signal.SIGTERM, terminate)
                self.threads()
            word = "wrong" if self.mode == "throw" else "done"
        except Failure:
            word = "done"
        except LeaseLost as error:
            assert self.is_async or self.mode == "block" or isinstance(error.__cause__, (Told, type(None)))
            word = "lost"
        except LockBusy:
            word = "busy"
        except ServiceUnavailable:
            word = "unavailable"
        except RequestRefused:
            word = "refused"
        except (WaitCancelled, Cancelled, asyncio.CancelledError):
            word = "cancelled"
        say(word)


def main():
    words = sys.argv[1:]
    is_async = words[0] == "--asyncio"
    mode, key, *options = words[is_async:]
    Driver(mode, key, dict(option.split("=", 1) for option in options), is_async).run()


if __name__ == "__main__":
    main()
