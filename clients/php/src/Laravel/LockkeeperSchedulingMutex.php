<?php

declare(strict_types=1);

namespace Lockkeeper\Laravel;

use DateTimeInterface;
use Illuminate\Console\Scheduling\Event;
use Illuminate\Console\Scheduling\SchedulingMutex;
use Lockkeeper\Exception\RequestRefused;
use Lockkeeper\Internal\Keys;
use Lockkeeper\Lease;
use Lockkeeper\LockClient;

/**
 * The mutex of `onOneServer()`: the first server that comes has the task of a minute. It outlives its process,
 * for a server whose clock is late must not run the same task again.
 */
final class LockkeeperSchedulingMutex implements SchedulingMutex
{
    /** As many seconds as Laravel takes; the service may have a lower limit. */
    private const SECONDS = 3600.0;

    /** @param string $prefix what stands before the names at the service */
    public function __construct(private readonly LockClient $client, private readonly string $prefix = '')
    {
    }

    /**
     * {@inheritdoc}
     *
     * @return bool
     */
    public function create(Event $event, DateTimeInterface $time)
    {
        $lease = $this->acquire($this->key($event, $time));
        $lease?->handOver(); // To nobody.
        return $lease !== null;
    }

    /**
     * {@inheritdoc}
     *
     * @return bool
     */
    public function exists(Event $event, DateTimeInterface $time)
    {
        return $this->client->inspect($this->key($event, $time))->isHeld;
    }

    private function acquire(string $key): ?Lease
    {
        try {
            return $this->client->tryAcquire($key, self::SECONDS);
        } catch (RequestRefused $refused) {
            if ($refused->longest === null) {
                throw $refused;
            }
            return $this->client->tryAcquire($key, $refused->longest);
        }
    }

    private function key(Event $event, DateTimeInterface $time): string
    {
        return Keys::fit($event->mutexName() . $time->format('Hi'), $this->prefix);
    }
}
