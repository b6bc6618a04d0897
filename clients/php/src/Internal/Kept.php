<?php

declare(strict_types=1);

namespace Lockkeeper\Internal;

/** @internal A lease that Keeping refreshes. Times are those of Clock, which all processes of a machine share. */
final class Kept
{
    /** Why the last refresh failed, if one has. */
    public ?string $failure = null;

    /**
     * @param float $ttl    seconds
     * @param float $end    until when it lasts at least
     * @param float $due    when to refresh it
     * @param ?int  $signal what the application gets when it is lost
     */
    public function __construct(
        public readonly Ticket $ticket,
        public readonly float $ttl,
        public float $end,
        public float $due,
        public readonly ?int $signal,
    ) {
    }
}
