<?php

declare(strict_types=1);

namespace Lockkeeper\Laravel;

use Illuminate\Support\InteractsWithTime;
use Lockkeeper\Exception\LockBusy;
use Lockkeeper\Exception\LockkeeperException;
use Lockkeeper\Exception\Outcome;
use Lockkeeper\Exception\RequestRefused;
use Lockkeeper\Internal\Block;
use Lockkeeper\Internal\Keys;
use Lockkeeper\Lease;
use Lockkeeper\LockClient;

/**
 * A limit of how many run something at once, with the methods of Laravel's own limiter. It is one lease with so
 * many slots; where the service has exclusive leases only, it is one of so many keys.
 */
final class LockkeeperLimiter
{
    use InteractsWithTime;

    /** The service's limit. */
    private const MOST = 1000;

    /** As in Laravel. */
    private int $releaseAfter = 60;
    private int|float $timeout = 3;

    private ?int $limit = null;

    /**
     * @internal
     *
     * @param string $prefix what stands before the names at the service
     */
    public function __construct(
        private readonly LockClient $client,
        private readonly string $name,
        private readonly string $prefix = '',
    ) {
    }

    /** @param int $limit how many may run at once; of several limits that run, the least counts */
    public function limit($limit): self
    {
        $this->limit = (int) $limit;
        return $this;
    }

    /** @param \DateTimeInterface|\DateInterval|int $releaseAfter seconds, 0 for the longest that the service gives */
    public function releaseAfter($releaseAfter): self
    {
        $this->releaseAfter = (int) $this->secondsUntil($releaseAfter);
        return $this;
    }

    /** @param int|float $timeout seconds to wait in line */
    public function block($timeout): self
    {
        $this->timeout = $timeout;
        return $this;
    }

    /** Does nothing: the service has a line, so nobody asks again and again. */
    public function sleep($sleep): self
    {
        return $this;
    }

    /**
     * Calls the callback as soon as there is room, else the other one, with the exception.
     *
     * @throws \Exception          Laravel's LimiterTimeoutException: there was no room in time
     * @throws LockkeeperException the service cannot be reached, or refuses the request
     */
    public function then(callable $callback, ?callable $failure = null): mixed
    {
        try {
            $lease = $this->acquire($this->limit ?? throw new \LogicException('A funnel needs a limit.'));
        } catch (LockBusy $busy) {
            $timeout = self::timedOut($busy);
            return $failure === null ? throw $timeout : $failure($timeout);
        }
        try {
            return Block::done($callback());
        } finally {
            $lease->giveBack();
        }
    }

    private function acquire(int $limit): Lease
    {
        $ttl = $this->releaseAfter > 0 ? (float) $this->releaseAfter : INF;
        $wait = max(0.0, (float) $this->timeout);
        // Not the key of a lock of the same name, which may be taken inside.
        $key = Keys::fit($this->name, "{$this->prefix}funnel/");
        try {
            return $this->client->acquire($key, $ttl, $wait, slots: $limit);
        } catch (RequestRefused $refused) {
            $isLimit = $limit >= 1 && $limit <= self::MOST;
            if (!$isLimit || $refused->field !== 'slots' || $refused->outcome === Outcome::Unknown) {
                throw $refused;
            }
            $keys = array_map(fn (int $place): string => "$key/$place", range(1, $limit));
            return $this->client->acquireAny($keys, $ttl, $wait);
        }
    }

    private static function timedOut(LockBusy $busy): \Exception
    {
        $ofCache = 'Illuminate\Cache\Limiters\LimiterTimeoutException'; // since Laravel 12
        $class = class_exists($ofCache) ? $ofCache : \Illuminate\Contracts\Redis\LimiterTimeoutException::class;
        return new $class($busy->getMessage(), 0, $busy);
    }
}
