<?php

declare(strict_types=1);

namespace Lockkeeper;

use Lockkeeper\Exception\LockkeeperException;
use Lockkeeper\Exception\LockLost;
use Lockkeeper\Internal\Clock;
use Lockkeeper\Internal\Share;

/** Leases of several keys, each with its own fencing token. They are given back as a {@see Lease} is. */
final class LeaseSet
{
    /** Seconds that an earlier lease lasts beyond the wait for the later ones. */
    private const BEYOND = 5.0;

    /** @param non-empty-array<string, Lease> $leases by key, in the order of their bytes */
    private function __construct(private readonly array $leases)
    {
    }

    /**
     * @internal
     *
     * @param array<string> $keys
     *
     * @throws LockkeeperException
     */
    public static function acquired(LockClient $client, array $keys, float $ttl, float $wait, Share $share): self
    {
        $keys = array_map(strval(...), array_values($keys));
        if ($keys === [] || count(array_unique($keys, SORT_STRING)) < count($keys)) {
            throw new \InvalidArgumentException('Several keys are acquired, each of them once.');
        }
        if (!is_finite($wait)) {
            throw new \InvalidArgumentException('Several keys are waited for so many seconds, not for ever.');
        }
        // Everybody in one order: else two that wait for each other's keys would wait until one gives up.
        sort($keys, SORT_STRING);
        [$leases, $until] = [[], Clock::now() + $wait];
        try {
            foreach ($keys as $key) {
                $left = max(0.0, $until - Clock::now());
                $longer = max($ttl, $left > 0.0 ? $left + self::BEYOND : 0.0);
                $own = [$share->slots, $share->shared, null, $share->units];
                $leases["k$key"] = $client->acquire($key, $longer, $left, ...$own);
            }
            foreach ($leases as $name => $lease) {
                $leases[$name] = $lease->remaining() > $ttl ? $lease->replaced($ttl) : $lease;
                $leases[$name]->remaining() >= $ttl / 2 || $leases[$name]->refresh($ttl);
            }
        } catch (\Throwable $failure) {
            array_map(static fn (Lease $lease) => $lease->giveBack(), array_reverse($leases));
            throw $failure;
        }
        return new self($leases);
    }

    /** @return non-empty-list<string> in the order in which they were acquired */
    public function keys(): array
    {
        return array_map(static fn (Lease $lease): string => $lease->key(), array_values($this->leases));
    }

    /** The lease of one of the keys. */
    public function lease(string $key): Lease
    {
        return $this->leases["k$key"] ?? throw new \InvalidArgumentException('This key is not one of them.');
    }

    /** The fencing token for what this key guards. */
    public function fencingToken(string $key): int
    {
        return $this->lease($key)->fencingToken();
    }

    /** How many seconds all of them last at least, as {@see Lease::remaining()}. */
    public function remaining(): float
    {
        return min(array_map(static fn (Lease $lease): float => $lease->remaining(), $this->leases));
    }

    /**
     * Starts the time of all anew, one after the other.
     *
     * @throws LockLost            one of them had ended: stop
     * @throws LockkeeperException one of them was not refreshed as far as is known; all last for `remaining()`
     */
    public function refresh(float|string|null $ttl = null): void
    {
        foreach ($this->leases as $lease) {
            $lease->refresh($ttl);
        }
    }

    /**
     * Gives all of them back, the last one first.
     *
     * @return bool false if one of them was not there to be given back, as {@see Lease::release()}
     *
     * @throws LockkeeperException one was not released as far as is known; the others were given back
     */
    public function release(): bool
    {
        [$all, $failure] = [true, null];
        foreach (array_reverse($this->leases) as $lease) {
            try {
                $all = $lease->release() && $all;
            } catch (LockkeeperException $thrown) {
                $failure ??= $thrown;
            }
        }
        return $failure === null ? $all : throw $failure;
    }
}
