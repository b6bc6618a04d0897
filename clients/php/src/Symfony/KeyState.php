<?php

declare(strict_types=1);

namespace Lockkeeper\Symfony;

use Lockkeeper\Internal\Grant;
use Lockkeeper\Internal\Secret;
use Lockkeeper\Internal\Share;
use Lockkeeper\Internal\Ticket;
use Symfony\Component\Lock\Key;
use Symfony\Component\Semaphore\Key as SemaphoreKey;

/**
 * @internal What is known of the lease of a Key, that of a lock or of a semaphore, at one place, for a Key may have
 * one in each of several stores. Token, fencing token and end are in the Key, and go along when it is serialised;
 * the rest is of this process.
 */
final class KeyState
{
    /** @var \WeakMap<Key|SemaphoreKey, array<string, array{pid: int, isFresh: bool, isReleased: bool}>>|null by place */
    private static ?\WeakMap $here = null;

    public function __construct(private readonly Key|SemaphoreKey $key, private readonly string $place)
    {
    }

    /** The lease that the Key has, as far as is known; none in a child of the process that acquired it. */
    public function ticket(string $name): ?Ticket
    {
        $token = $this->lease()['token'] ?? $this->state()['token'] ?? null;
        if ($token === null || ($this->here()['pid'] ?? getmypid()) !== getmypid()) {
            return null;
        }
        return new Ticket($name, new Secret($token), $this->lease()['fencing_token'] ?? null);
    }

    /** The seconds for which the lease lasts at least; INF if nobody knows. */
    public function remaining(): float
    {
        return isset($this->lease()['end']) ? max(0.0, $this->lease()['end'] - microtime(true)) : INF;
    }

    /** The share of the lease when it was heard of last: of a lock, exclusive or shared by any number. */
    public function share(): Share
    {
        return new Share(shared: $this->lease()['shared'] ?? false);
    }

    /** Whether the lease has just begun, and its TTL is still to be set. */
    public function isFresh(): bool
    {
        return $this->here()['isFresh'] ?? false;
    }

    /** Whether a release was begun, behind which there is nothing to refresh. */
    public function isReleased(): bool
    {
        return $this->here()['isReleased'] ?? false;
    }

    /** A lease was granted, or refreshed. The end is on the wall clock, as that of the Key itself. */
    public function keep(Ticket $ticket, Grant $grant, bool $isFresh): void
    {
        $token = $ticket->token->text();
        $end = microtime(true) + $grant->remaining();
        $lease = ['token' => $token, 'fencing_token' => $ticket->of($grant)->fencingToken, 'end' => $end];
        $lease += ['shared' => $grant->slots !== null];
        $leases = [$this->place => $lease] + ($this->state()['leases'] ?? []);
        $this->key->setState(LockkeeperStore::class, ['token' => $token, 'leases' => $leases]);
        $this->note(['pid' => (int) getmypid(), 'isFresh' => $isFresh, 'isReleased' => false]);
    }

    public function release(): void
    {
        $this->note(['isReleased' => true] + ($this->here() ?? ['pid' => (int) getmypid(), 'isFresh' => false]));
    }

    /** The lease has ended, or was given up: there is nothing to rely on. */
    public function lose(): void
    {
        $this->key->reduceLifetime(0.0);
        $this->forget();
    }

    /** There is no lease here any more. */
    public function forget(): void
    {
        $state = $this->state();
        unset($state['leases'][$this->place]);
        ($state['leases'] ?? []) === []
            ? $this->key->removeState(LockkeeperStore::class)
            : $this->key->setState(LockkeeperStore::class, $state);
        $this->note(null);
    }

    /** @return array{token?: string, leases?: array<string, array<string, mixed>>} */
    private function state(): array
    {
        $has = $this->key->hasState(LockkeeperStore::class);
        return $has ? $this->key->getState(LockkeeperStore::class) : [];
    }

    /** @return array<string, mixed> */
    private function lease(): array
    {
        return $this->state()['leases'][$this->place] ?? [];
    }

    /** @return array{pid: int, isFresh: bool, isReleased: bool}|null */
    private function here(): ?array
    {
        return self::$here[$this->key][$this->place] ?? null;
    }

    /** @param array{pid: int, isFresh: bool, isReleased: bool}|null $here */
    private function note(?array $here): void
    {
        self::$here ??= new \WeakMap();
        $all = self::$here[$this->key] ?? [];
        $all[$this->place] = $here;
        self::$here[$this->key] = $all;
    }
}
