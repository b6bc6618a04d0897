<?php

// Every call of the generated PHP client that applications need, and every way in which it fails.
// Usage: php client.php BASE_URL API_KEY KEY...

declare(strict_types=1);

require __DIR__ . '/vendor/autoload.php';

use Lockkeeper\Api\AdminApi;
use Lockkeeper\Api\LocksApi;
use Lockkeeper\ApiException;
use Lockkeeper\Configuration;
use Lockkeeper\Model\AcquireRequest;
use Lockkeeper\Model\LockHeld;
use Lockkeeper\Model\Problem;
use Lockkeeper\Model\RefreshRequest;

[, $url, $secret] = $argv;
$service = (new Configuration())->setHost($url)->setAccessToken($secret);
foreach (array_slice($argv, 3) as $key) {
    lease(new LocksApi(null, $service), $key);
    force(new LocksApi(null, $service), new AdminApi(null, $service), $key);
}
refusals(new LocksApi(null, $service));
$service->setAccessToken('none of them');
$problem = problem(401, fn () => (new LocksApi(null, $service))->acquireLock('report'));
same('unauthenticated', $problem->getCode());
echo "as it has to be\n";

/** A lease from its beginning to its end. */
function lease(LocksApi $locks, string $key): void
{
    $grant = $locks->acquireLock($key, new AcquireRequest(['ttl_ms' => 30000, 'owner' => 'php é']));
    same([$key, 0, 'php é'], [$grant->getKey(), $grant->getWaitedMs(), $grant->getOwner()]);
    same(true, $grant->getTtlMs() >= 15000 && $grant->getTtlMs() <= 30000);

    $held = held(fn () => $locks->acquireLock($key, new AcquireRequest(['wait_ms' => 50])));
    same('php é', $held->getOwner());
    same(true, $held->getRetryAfterMs() > 0 && $held->getRetryAfterMs() <= 30000);
    same(true, $held->getWaitedMs() >= 50);

    $longer = $locks->refreshLock($key, $grant->getToken(), new RefreshRequest(['ttl_ms' => 60000]));
    same([true, $grant->getFencingToken()], [minute($longer->getTtlMs()), $longer->getFencingToken()]);
    same(true, minute($locks->refreshLock($key, $grant->getToken())->getTtlMs()));

    same(true, $locks->getLock($key, $grant->getToken())->getMine());
    $look = $locks->getLock($key);
    same([$key, true, null], [$look->getKey(), $look->getHeld(), $look->getMine()]);
    $list = $locks->listLocks($key);
    same([1, null], [count($list->getLocks()), $list->getCursor()]);
    same([$key, 'php é'], [$list->getLocks()[0]->getKey(), $list->getLocks()[0]->getOwner()]);

    same(null, $locks->releaseLock($key, $grant->getToken()));
    $lost = problem(409, fn () => $locks->releaseLock($key, $grant->getToken()));
    same('lock_lost', $lost->getCode());
    $lost = problem(409, fn () => $locks->refreshLock($key, $grant->getToken()));
    same('lock_lost', $lost->getCode());
    same([false, null], [$locks->getLock($key)->getHeld(), $locks->getLock($key)->getOwner()]);
}

/** A lease with a token of one's own, until an administrator ends it. */
function force(LocksApi $locks, AdminApi $admin, string $key): void
{
    $mine = new AcquireRequest(['token' => bin2hex(random_bytes(16))]);
    $grant = $locks->acquireLock($key, $mine);
    same($mine->getToken(), $grant->getToken());
    same($grant->getFencingToken(), $locks->acquireLock($key, $mine)->getFencingToken());
    same($grant->getFencingToken(), $admin->forceReleaseLock($key)->getFencingToken());
    same('lock_lost', problem(409, fn () => $admin->forceReleaseLock($key))->getCode());
}

function refusals(LocksApi $locks): void
{
    $short = fn () => $locks->acquireLock('report', new AcquireRequest(['ttl_ms' => 1]));
    $problem = problem(400, $short);
    same(['invalid_request', 'ttl_ms'], [$problem->getCode(), $problem->getField()]);
    same('invalid_key', problem(400, fn () => $locks->acquireLock('a//b'))->getCode());
}

/** What a call answers because somebody else has the key. */
function held(callable $call): LockHeld
{
    $held = thrown(409, $call)->getResponseObject();
    same('lock_held', $held->getCode());
    return $held;
}

/** What a call answers because it is refused. */
function problem(int $status, callable $call): Problem
{
    return thrown($status, $call)->getResponseObject();
}

function thrown(int $status, callable $call): ApiException
{
    try {
        $answer = $call();
    } catch (ApiException $problem) {
        same($status, $problem->getCode());
        return $problem;
    }
    throw new UnexpectedValueException('no exception but ' . var_export($answer, true));
}

// A slow disk takes its time off a lease.
function minute(int $ttl_ms): bool
{
    return $ttl_ms > 50000 && $ttl_ms <= 60000;
}

function same(mixed $expected, mixed $actual): void
{
    if ($expected !== $actual) {
        throw new UnexpectedValueException(json_encode($actual) . ' is not ' . json_encode($expected));
    }
}
