"""Works under a lease until its input ends or the lease is lost.

Usage: python main.py sync|async URL KEY TTL
"""

import asyncio
import select
import sys

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


async def main_of_a_task(locks: lockkeeper.LocksApi, key: str, ttl: float) -> None:
    async with AsyncKeepAlive(locks, key, ttl):
        await work_in_a_task()


def main(kind: str, url: str, key: str, ttl: float) -> None:
    locks = lockkeeper.LocksApi(lockkeeper.ApiClient(lockkeeper.Configuration(host=url)))
    try:
        if kind == "sync":
            with KeepAlive(locks, key, ttl) as lease:
                work(lease)
        else:
            asyncio.run(main_of_a_task(locks, key, ttl))
        print("done")
    except ConflictException:
        print("not now")
    except LeaseLost:
        print("lost")


main(sys.argv[1], sys.argv[2], sys.argv[3], float(sys.argv[4]))
