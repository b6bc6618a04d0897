<?php

declare(strict_types=1);

namespace Lockkeeper\Symfony;

use Lockkeeper\Internal\Grant;
use Lockkeeper\Internal\Secret;
use Lockkeeper\Internal\Ticket;
use Symfony\Component\Lock\Key;

/**
 * @internal What is known of the lease of a Key. Token, fencing token and end are in the Key, and go along
 * when it is serialised; the rest is of this process alone.
 */
final class KeyState
{
    /** @var \WeakMap<Key, self>|null */
    private static ?\WeakMap $here = null;

    /** Whether a release was begun, behind which there is nothing to refresh. */
    public bool $isReleased = false;

    private readonly int $pid;

    /** @param bool $isFresh whether the lease has just begun, and its TTL is still to be set */
    private function __construct(public readonly bool $isFresh)
    {
        $this->pid = (int) getmypid();
    }

    /** The lease that the Key has, as far as is known. */
    public static function ticket(Key $key, string $name): ?Ticket
    {
        if (!$key->hasState(LockkeeperStore::class) || self::isOfParent($key)) {
            return null;
        }
        $state = $key->getState(LockkeeperStore::class);
        // A text is the token, as older versions had it.
        return is_array($state)
            ? new Ticket($name, new Secret($state['token']), $state['fencing_token'])
            : new Ticket($name, new Secret($state));
    }

    /** The seconds for which the lease lasts at least; INF if nobody knows. */
    public static function remaining(Key $key): float
    {
        $state = $key->hasState(LockkeeperStore::class) ? $key->getState(LockkeeperStore::class) : null;
        return is_array($state) ? max(0.0, $state['end'] - microtime(true)) : INF;
    }

    /** What this process knows of a Key with which it, or its parent, has a lease. */
    public static function here(Key $key): ?self
    {
        return self::$here[$key] ?? null;
    }

    /** A lease was granted, or refreshed. The end is on the wall clock, as that of the Key itself. */
    public static function keep(Key $key, Ticket $ticket, Grant $grant, bool $isFresh): void
    {
        $key->setState(LockkeeperStore::class, [
            'token' => $ticket->token->text(),
            'fencing_token' => $ticket->of($grant)->fencingToken,
            'end' => microtime(true) + $grant->remaining(),
        ]);
        self::$here ??= new \WeakMap();
        self::$here[$key] = new self($isFresh);
    }

    /** The Key has no lease any more. */
    public static function forget(Key $key): void
    {
        $key->removeState(LockkeeperStore::class);
        unset(self::$here[$key]);
    }

    /** Whether the lease is that of the process that this one was forked from. */
    private static function isOfParent(Key $key): bool
    {
        $here = self::here($key);
        return $here !== null && $here->pid !== getmypid();
    }
}
