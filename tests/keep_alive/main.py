"""Works under a lease until its input ends or the lease is lost.

Usage: python main.py sync|async|blind|blind-async|abandoned URL KEY TTL [WAIT]
"""

import asyncio
import select
import sys
import time
from collections.abc import Awaitable
from collections.abc import Callable

import lockkeeper
from keep_alive import AsyncKeepAlive
from keep_alive import KeepAlive
from keep_alive import LeaseLost
from lockkeeper.exceptions import ConflictException


def is_over(pause: float) -> bool:
    """Whether the input ends within this time."""
    return bool(select.select([sys.stdin], [], [], pause)[0])


def work(lease: KeepAlive) -> None:
    print("at work", flush=True)
    try:
        while not is_over(0.02):
            lease.check()
    except LeaseLost:
        print("told to stop", flush=True)
        raise


async def work_in_a_task() -> None:
    print("at work", flush=True)
    try:
        while not is_over(0):
            await asyncio.sleep(0.02)
    except asyncio.CancelledError:
        print("told to stop", flush=True)
        raise


def blind_work() -> None:
    """Work that never looks whether it has its lease, and lets nobody else of its loop run."""
    print("at work", flush=True)
    while not is_over(1):
        pass


async def blind_work_in_a_task() -> None:
    blind_work()


async def main_of_a_task(keep: AsyncKeepAlive, work: Callable[[], Awaitable[None]]) -> None:
    async with keep:
        await work()


async def abandon(locks: lockkeeper.LocksApi, key: str, task: asyncio.Task) -> None:
    """Cancels the task when its thread has the grant, and the task does not know of it yet."""
    await asyncio.sleep(0)
    while not locks.get_lock(key).held:
        pass
    time.sleep(0.3)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def main_of_tasks(kind: str, locks: lockkeeper.LocksApi, key: str, *times: float) -> None:
    keep = AsyncKeepAlive(locks, key, *times)
    work = work_in_a_task if kind == "async" else blind_work_in_a_task
    task = asyncio.create_task(main_of_a_task(keep, work))
    await (abandon(locks, key, task) if kind == "abandoned" else task)


def main(kind: str, url: str, key: str, *times: float) -> None:
    locks = lockkeeper.LocksApi(lockkeeper.ApiClient(lockkeeper.Configuration(host=url)))
    try:
        if kind == "sync":
            with KeepAlive(locks, key, *times) as lease:
                work(lease)
        elif kind == "blind":
            with KeepAlive(locks, key, *times):
                blind_work()
        else:
            asyncio.run(main_of_tasks(kind, locks, key, *times))
        print("done")
    except ConflictException:
        print("not now")
    except LeaseLost:
        print("lost")


main(sys.argv[1], sys.argv[2], sys.argv[3], *map(float, sys.argv[4:]))
