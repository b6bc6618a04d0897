<?php

declare(strict_types=1);

namespace Lockkeeper\Internal;

/** @internal A lease that Keeping refreshes. Times are those of Clock, which all processes of a machine share. */
final class Kept
{
    /** Why the last refresh failed, if one has. */
    public ?string $failure = null;

    /** How many refreshes have failed since the last good one. */
    public int $failures = 0;

    /** Whether no refresh makes it last longer. */
    public bool $isCapped = false;

    /** Whether it was refreshed for the last time, for what was left of the longest time. */
    public bool $isLast = false;

    /** Why one is over that was kept for the longest time. */
    public const LONG_ENOUGH = 'was held for as long as was asked for';

    /** Its loss is told before its end: by so many seconds, or a part of the TTL if that is more; at most by half. */
    private const SOONEST = 0.2;
    private const PART = 1 / 10;

    /** The shortest TTL that a service gives, in seconds, unless it is set otherwise. */
    private const SHORTEST = 0.1;

    /**
     * @param ?int  $signal what the application gets when it is lost
     * @param float $ttl    seconds
     * @param float $end    until when it lasts at least
     * @param float $due    when to refresh it
     * @param float $last   when to end it
     */
    public function __construct(
        public readonly Ticket $ticket,
        public readonly ?int $signal,
        public readonly float $ttl,
        public float $end,
        public float $due,
        public readonly float $last,
    ) {
    }

    /** When it is over for the application, which then has a moment to stop. */
    public function over(): float
    {
        return $this->end - min(max(self::SOONEST, $this->ttl * self::PART), $this->ttl / 2);
    }

    /** Why it is over then. */
    public function why(): string
    {
        return match (true) {
            $this->isCapped => 'lasts no longer: the service has a max_hold for it',
            $this->isLast => self::LONG_ENOUGH,
            default => 'was not refreshed in time: ' . ($this->failure ?? 'the process that keeps it was suspended'),
        };
    }

    /** For how long to ask now; 0 at its last moment. */
    public function ttlFrom(float $now): float
    {
        return $now >= $this->last ? 0.0 : min($this->ttl, max(self::SHORTEST, $this->last - $now));
    }
}
