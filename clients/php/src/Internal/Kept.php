<?php

declare(strict_types=1);

namespace Lockkeeper\Internal;

/** @internal A lease that Keeping refreshes. Times are those of Clock, which all processes of a machine share. */
final class Kept
{
    /** Why the last refresh failed, if one has. */
    public ?string $failure = null;

    /** Whether no refresh makes it last longer. */
    public bool $isCapped = false;

    /** Why a capped one is over. */
    public const CAPPED = 'lasts no longer: the service has a max_hold for it';

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

    /** For how long to ask now; 0 at its last moment. */
    public function ttlFrom(float $now): float
    {
        return $now >= $this->last ? 0.0 : min($this->ttl, max(self::SHORTEST, $this->last - $now));
    }
}
