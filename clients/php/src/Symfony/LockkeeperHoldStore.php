<?php

declare(strict_types=1);

namespace Lockkeeper\Symfony;

use Lockkeeper\Exception\LockBusy;
use Lockkeeper\Exception\LockkeeperException;
use Lockkeeper\HeldLease;
use Lockkeeper\Internal\Keys;
use Lockkeeper\LockClient;
use Symfony\Component\Lock\BlockingStoreInterface;
use Symfony\Component\Lock\Exception\LockAcquiringException;
use Symfony\Component\Lock\Exception\LockConflictedException;
use Symfony\Component\Lock\Exception\LockReleasingException;
use Symfony\Component\Lock\Key;

/**
 * Symfony locks that last while their process lives, as those of the flock and semaphore stores do, on all
 * machines: nobody refreshes them, TTLs mean nothing, and a process that was killed frees them within
 * seconds. Their Keys are not serialised, and a forked child has nothing of its parent's.
 */
final class LockkeeperHoldStore implements BlockingStoreInterface
{
    /** @var \WeakMap<Key, HeldLease> */
    private readonly \WeakMap $leases;

    /**
     * @param float  $ttl     seconds that a key stays taken if the machine goes down
     * @param ?float $maxWait seconds that `acquire(true)` waits before LockConflictedException; else for ever
     * @param string $prefix  what stands before the resources
     */
    public function __construct(
        private readonly LockClient $client,
        private readonly float $ttl = 15.0,
        private readonly ?float $maxWait = null,
        private readonly string $prefix = '',
    ) {
        $this->leases = new \WeakMap();
    }

    public function save(Key $key): void
    {
        $this->acquire($key, 0.0);
    }

    public function waitAndSave(Key $key): void
    {
        $this->acquire($key, $this->maxWait);
    }

    /** Only whether it is still there: the lock has no end while this process lives. */
    public function putOffExpiration(Key $key, float $ttl): void
    {
        if (!$this->exists($key)) {
            throw new LockConflictedException(Keys::shown((string) $key) . ' is not acquired, or was lost');
        }
    }

    public function delete(Key $key): void
    {
        try {
            ($this->leases[$key] ?? null)?->release();
        } catch (LockkeeperException $failure) {
            throw new LockReleasingException($failure->getMessage(), 0, $failure);
        } finally {
            unset($this->leases[$key]);
        }
    }

    public function exists(Key $key): bool
    {
        return ($this->leases[$key] ?? null)?->isHeld() ?? false;
    }

    private function acquire(Key $key, ?float $wait): void
    {
        if ($this->exists($key)) {
            return;
        }
        try {
            $this->leases[$key] = $this->client->hold(Keys::fit((string) $key, $this->prefix), $this->ttl, $wait);
            $key->markUnserializable();
        } catch (LockBusy $busy) {
            throw new LockConflictedException($busy->getMessage(), 0, $busy);
        } catch (LockkeeperException $failure) {
            throw new LockAcquiringException($failure->getMessage(), 0, $failure);
        }
    }
}
