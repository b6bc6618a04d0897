"""Every call of the generated Python client that applications need, and every way in which it fails.

Usage: python client.py BASE_URL API_KEY KEY...
"""

import secrets
import sys

import lockkeeper
from lockkeeper import AcquireRequest
from lockkeeper import AdminApi
from lockkeeper import LockHeld
from lockkeeper import LocksApi
from lockkeeper import Problem
from lockkeeper import RefreshRequest
from lockkeeper.exceptions import BadRequestException
from lockkeeper.exceptions import ConflictException
from lockkeeper.exceptions import UnauthorizedException


def main(url: str, secret: str, keys: list[str]) -> None:
    service = lockkeeper.Configuration(host=url, access_token=secret)
    locks = LocksApi(lockkeeper.ApiClient(service))
    admin = AdminApi(lockkeeper.ApiClient(service))
    for key in keys:
        lease(locks, key)
        force(locks, admin, key)
    refusals(locks)
    service.access_token = "none of them"
    problem = refused(UnauthorizedException, lambda: locks.acquire_lock("report"))
    same("unauthenticated", problem.code)
    print("as it has to be")


def lease(locks: LocksApi, key: str) -> None:
    """A lease from its beginning to its end."""
    grant = locks.acquire_lock(key, AcquireRequest(ttl_ms=30000, owner="python é"))
    same((key, 0, "python é"), (grant.key, grant.waited_ms, grant.owner))
    same(True, 15000 <= grant.ttl_ms <= 30000)

    held = refused(ConflictException, lambda: locks.acquire_lock(key, AcquireRequest(wait_ms=50)))
    same((LockHeld, "lock_held", "python é"), (type(held), held.code, held.owner))
    same(True, 0 < held.retry_after_ms <= 30000 and held.waited_ms >= 50)

    longer = locks.refresh_lock(key, grant.token, RefreshRequest(ttl_ms=60000))
    same((True, grant.fencing_token), (50000 < longer.ttl_ms <= 60000, longer.fencing_token))
    same(True, 50000 < locks.refresh_lock(key, grant.token).ttl_ms <= 60000)

    same(True, locks.get_lock(key, grant.token).mine)
    look = locks.get_lock(key)
    same((key, True, None), (look.key, look.held, look.mine))
    page = locks.list_locks(prefix=key)
    same(([(key, "python é")], None), ([(one.key, one.owner) for one in page.locks], page.cursor))

    same(None, locks.release_lock(key, grant.token))
    for again in (locks.release_lock, locks.refresh_lock):
        lost = refused(ConflictException, lambda: again(key, grant.token))
        same((Problem, "lock_lost"), (type(lost), lost.code))
    look = locks.get_lock(key)
    same((False, None), (look.held, look.owner))


def force(locks: LocksApi, admin: AdminApi, key: str) -> None:
    """A lease with a token of one's own, until an administrator ends it."""
    mine = AcquireRequest(token=secrets.token_hex(16))
    grant = locks.acquire_lock(key, mine)
    same(mine.token, grant.token)
    same(grant.fencing_token, locks.acquire_lock(key, mine).fencing_token)
    same(grant.fencing_token, admin.force_release_lock(key).fencing_token)
    same("lock_lost", refused(ConflictException, lambda: admin.force_release_lock(key)).code)


def refusals(locks: LocksApi) -> None:
    short = AcquireRequest(ttl_ms=1)
    problem = refused(BadRequestException, lambda: locks.acquire_lock("report", short))
    same((Problem, "invalid_request", "ttl_ms"), (type(problem), problem.code, problem.var_field))
    problem = refused(BadRequestException, lambda: locks.acquire_lock("a//b"))
    same("invalid_key", problem.code)


def refused(kind: type, call):
    """What a call answers because it is refused."""
    try:
        answer = call()
    except kind as problem:
        return problem.data
    raise AssertionError(f"no exception but {answer!r}")


def same(expected, actual) -> None:
    assert expected == actual, f"{actual!r} is not {expected!r}"


main(sys.argv[1], sys.argv[2], sys.argv[3:])
