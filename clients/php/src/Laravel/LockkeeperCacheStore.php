<?php

declare(strict_types=1);

namespace Lockkeeper\Laravel;

use Illuminate\Contracts\Cache\LockProvider;
use Illuminate\Contracts\Cache\Store;
use Lockkeeper\Internal\Secret;
use Lockkeeper\LockClient;

/** A cache store whose locks are on lockkeeper; what is cached is in another store. It has no tags. */
final class LockkeeperCacheStore implements LockProvider, Store
{
    /** Seconds that a lock lasts which was created without any, as of the Symfony store. */
    public const LOCK_SECONDS = 300.0;

    private readonly ?Secret $lockOwner;

    /**
     * @param Store   $inner       where the cached values are
     * @param string  $prefix      what stands before the names of locks at the service
     * @param ?string $lockOwner   the owner of all locks for which none is given: a secret
     * @param float   $lockSeconds for which a lock lasts that was created with 0 seconds or less; INF for the longest
     *                             that there is, at most a day
     */
    public function __construct(
        private readonly LockClient $client,
        private readonly Store $inner,
        private readonly string $prefix = '',
        #[\SensitiveParameter] ?string $lockOwner = null,
        private readonly float $lockSeconds = self::LOCK_SECONDS,
    ) {
        if (!($lockSeconds > 0)) { // NAN as well
            throw new \InvalidArgumentException('The seconds of a lock have to be positive.');
        }
        $this->lockOwner = $lockOwner === null ? null : new Secret($lockOwner);
    }

    public function lock($name, $seconds = 0, #[\SensitiveParameter] $owner = null): LockkeeperLock
    {
        $more = [$owner ?? $this->lockOwner?->text(), $this->prefix, $this->lockSeconds];
        return new LockkeeperLock($this->client, $name, $seconds, ...$more);
    }

    public function restoreLock($name, #[\SensitiveParameter] $owner): LockkeeperLock
    {
        return $this->lock($name, 0, $owner);
    }

    /** Limits how many run something at once; {@see LockkeeperRepository::funnel()}. */
    public function funnel(string $name): LockkeeperLimiter
    {
        return new LockkeeperLimiter($this->client, $name, $this->prefix);
    }

    public function get($key)
    {
        return $this->inner->get($key);
    }

    public function many(array $keys)
    {
        return $this->inner->many($keys);
    }

    public function put($key, $value, $seconds)
    {
        return $this->inner->put($key, $value, $seconds);
    }

    public function putMany(array $values, $seconds)
    {
        return $this->inner->putMany($values, $seconds);
    }

    /** Puts a value where there is none; in one step, if the other store can. */
    public function add($key, $value, $seconds)
    {
        if (method_exists($this->inner, 'add')) {
            return $this->inner->add($key, $value, $seconds);
        }
        return $this->inner->get($key) === null && $this->inner->put($key, $value, $seconds);
    }

    public function increment($key, $value = 1)
    {
        return $this->inner->increment($key, $value);
    }

    public function decrement($key, $value = 1)
    {
        return $this->inner->decrement($key, $value);
    }

    public function forever($key, $value)
    {
        return $this->inner->forever($key, $value);
    }

    /** Gives a value so many seconds from now on; part of a Store since Laravel 13. */
    public function touch($key, $seconds)
    {
        if (method_exists($this->inner, 'touch')) {
            return $this->inner->touch($key, $seconds);
        }
        $value = $this->inner->get($key);
        return $value !== null && $this->inner->put($key, $value, $seconds);
    }

    public function forget($key)
    {
        return $this->inner->forget($key);
    }

    /** Leaves the locks alone. */
    public function flush()
    {
        return $this->inner->flush();
    }

    public function getPrefix()
    {
        return $this->inner->getPrefix();
    }
}
