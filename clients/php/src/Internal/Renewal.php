<?php

declare(strict_types=1);

namespace Lockkeeper\Internal;

use Lockkeeper\Exception\LockkeeperException;
use Lockkeeper\Exception\LockLost;

/** @internal A lease that lasts for so many seconds from now on, neither more nor less, as the frameworks want it. */
final class Renewal
{
    /**
     * Refreshes the lease or, since no refresh shortens it, replaces it.
     *
     * @param ?float $ttl   seconds, or INF; the TTL that was asked for last, if none
     * @param float  $left  seconds that it lasts as far as is known
     * @param Share  $share that of the lease
     *
     * @throws LockLost            it had ended
     * @throws LockkeeperException {@see Holding::isGivenUp()} says whether the lease is left
     */
    public static function of(Holding $holding, ?float $ttl, float $left, Share $share): Grant
    {
        $most = $ttl === null ? INF : Clock::millis($ttl) / 1000;
        $ticket = $holding->ticket();
        $refresh = static fn (Ticket $ticket): Grant => $holding->service->refresh($ticket, $ttl, $most);
        try {
            if ($left > $most && $ticket->fencingToken !== null) {
                return (new Claim($holding, $ttl, $share))->replace($ticket->fencingToken);
            }
            $grant = $refresh($ticket);
        } catch (LockLost $lost) {
            // Another object, or process, has replaced the lease.
            $grant = $refresh($ticket->named($lost->fencingToken ?? throw $lost));
        }
        $isLonger = $grant->ttl > $most;
        return $isLonger ? (new Claim($holding, $ttl, Share::of($grant)))->replace($grant->fencingToken) : $grant;
    }
}
