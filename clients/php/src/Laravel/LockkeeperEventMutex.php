<?php

declare(strict_types=1);

namespace Lockkeeper\Laravel;

use Illuminate\Console\Scheduling\Event;
use Illuminate\Console\Scheduling\EventMutex;
use Lockkeeper\HeldLease;
use Lockkeeper\Internal\Keys;
use Lockkeeper\LockClient;

/**
 * The mutex of `withoutOverlapping()`. It is held while this process or a program that the task has started
 * lives, so a task in the background has it until its end, and one that was killed frees it within seconds;
 * after the minutes of `withoutOverlapping()` it ends in any case. Nobody frees another's: `forget()` of a
 * process that does not hold it, as of `schedule:clear-cache`, does nothing. A task that has not ended keeps it.
 */
final class LockkeeperEventMutex implements EventMutex
{
    /** @var array<string, HeldLease> by the mutex names */
    private array $leases = [];

    /** @var array<string, true> the names of tasks in the background */
    private array $inBackground = [];

    /**
     * @param string $prefix what stands before the names at the service
     * @param float  $ttl    seconds that a task stays locked if all its processes are killed at once
     */
    public function __construct(
        private readonly LockClient $client,
        private readonly string $prefix = '',
        private readonly float $ttl = 15.0,
    ) {
    }

    /**
     * {@inheritdoc}
     *
     * @return bool
     */
    public function create(Event $event)
    {
        // Earlier tasks in the background have begun, and programs of later ones should not keep their leases.
        $this->leases = array_diff_key($this->leases, $this->inBackground);
        $this->inBackground = [];
        $name = $event->mutexName();
        $longest = $event->expiresAt * 60.0;
        $lease = $this->client->tryHold($this->key($event), $this->ttl, children: true, longest: $longest);
        if ($lease === null) {
            return false;
        }
        $this->leases[$name] = $lease;
        $event->exitCode = null; // That of its last run, if it runs several times a minute.
        if ($event->runInBackground) {
            $this->inBackground[$name] = true;
        }
        return true;
    }

    /**
     * {@inheritdoc}
     *
     * @return bool
     */
    public function exists(Event $event)
    {
        return $this->client->inspect($this->key($event))->isHeld;
    }

    /**
     * {@inheritdoc}
     *
     * @return void
     */
    public function forget(Event $event)
    {
        $name = $event->mutexName();
        $lease = $this->leases[$name] ?? null;
        unset($this->leases[$name], $this->inBackground[$name]);
        // Without an exit code it has not ended: Laravel 13 forgets the mutex on SIGTERM, whatever the task has
        // started. The lease lasts until the last of these programs has ended.
        $event->exitCode === null || $lease?->giveBack();
    }

    private function key(Event $event): string
    {
        return Keys::fit($event->mutexName(), $this->prefix);
    }
}
