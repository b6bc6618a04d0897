"""The libraries with which Python applications lock on Redis directly, all for keys `lock:<key>`."""

import redis
import redlock
from redis.exceptions import LockNotOwnedError

# How long the libraries sleep between two tries, and after how many of them they give up.
PAUSE_S = 0.002
TRIES = 60_000


def recipe(name: str, port: int):
    """The recipe of this name, for the Redis at this port.

    `acquire` tries once, `wait` until it is its turn, as the library does it; both give a proof of the
    lock, or None. `release` says whether the lock was still there.
    """
    return {"redis-py": RedisPy, "redlock-py": RedlockPy}[name](port)


class RedisPy:
    """`Lock` of redis-py."""

    def __init__(self, port: int):
        self.redis = redis.Redis(port=port)

    def acquire(self, key: str, ttl_ms: int) -> str | None:
        return self.__take(key, ttl_ms, blocking=False)

    def wait(self, key: str, ttl_ms: int) -> str | None:
        return self.__take(key, ttl_ms, blocking_timeout=PAUSE_S * TRIES)

    def release(self, key: str, proof: str) -> bool:
        lock = self.redis.lock(f"lock:{key}", thread_local=False)
        lock.local.token = proof.encode()
        try:
            lock.release()
        except LockNotOwnedError:
            return False
        return True

    def __take(self, key: str, ttl_ms: int, **how) -> str | None:
        lock = self.redis.lock(f"lock:{key}", ttl_ms / 1000, sleep=PAUSE_S)
        return lock.local.token.decode() if lock.acquire(**how) else None


class RedlockPy:
    """`Redlock` of redlock-py, with one node."""

    def __init__(self, port: int):
        self.redis = redis.Redis(port=port)
        self.once = redlock.Redlock([self.redis], retry_count=1, retry_delay=PAUSE_S)
        self.patient = redlock.Redlock([self.redis], retry_count=TRIES, retry_delay=PAUSE_S)

    def acquire(self, key: str, ttl_ms: int) -> str | None:
        return self.__proof(self.once.lock(f"lock:{key}", ttl_ms))

    def wait(self, key: str, ttl_ms: int) -> str | None:
        return self.__proof(self.patient.lock(f"lock:{key}", ttl_ms))

    def release(self, key: str, proof: str) -> bool:
        # The library does not say whether there was something to unlock.
        there = self.redis.get(f"lock:{key}") == proof.encode()
        self.once.unlock(redlock.Lock(0, f"lock:{key}", proof.encode()))
        return there

    def __proof(self, lock) -> str | None:
        return lock.key.decode() if lock else None
