<?php

declare(strict_types=1);

namespace Lockkeeper;

use Lockkeeper\Exception\LockkeeperException;
use Lockkeeper\Exception\LockLost;
use Lockkeeper\Internal\Claim;
use Lockkeeper\Internal\Clock;
use Lockkeeper\Internal\Holding;
use Lockkeeper\Internal\Keeper;
use Lockkeeper\Internal\Keys;
use Lockkeeper\Internal\Share;

/**
 * The right to a key while this process lives. A process beside it refreshes the lease, and gives it back as
 * soon as this one has ended, by `kill -9` too. It is given back when the object goes, and at the end of the
 * process. In a forked child it is over.
 */
final class HeldLease
{
    /** As {@see Lease::$slots}. */
    public readonly ?int $slots;

    /** As {@see Lease::$slot}. */
    public readonly ?int $slot;

    private bool $isReleased = false;

    /** Why it is lost. */
    private ?LockLost $loss = null;

    /** Until when it lasts as far as is known here, on our clock. */
    private float $end = 0.0;

    private int $id = 0;

    /** @param ?\Closure(LockLost): void $onLost */
    private function __construct(
        private readonly Holding $holding,
        private readonly Keeper $keeper,
        private ?\Closure $onLost = null,
    ) {
    }

    /**
     * @internal
     *
     * @param ?\Closure(LockLost): void $onLost
     * @param ?\Closure(Wait): void     $onWait
     *
     * @throws LockkeeperException
     */
    public static function claimed(
        Holding $holding,
        Keeper $keeper,
        float $ttl,
        ?float $wait,
        float $longest,
        ?\Closure $onLost,
        ?int $signal,
        Share $share,
        ?\Closure $onWait = null,
    ): self {
        $keeper->ready(); // Before anything is acquired.
        $lease = new self($holding, $keeper);
        $grant = (new Claim($holding, $ttl, $share, $onWait))->acquire($wait);
        [$lease->slots, $lease->slot] = [$grant->slots, $grant->slot];
        $lease->end = Clock::now() + $grant->remaining();
        $lease->id = $keeper->keep($holding->ticket(), $grant, min($ttl, $grant->ttl), $longest, $signal);
        $holding->keptBy($keeper, $lease->id);
        if (!$lease->isHeld()) { // One of the two processes was suspended since the grant.
            $holding->service->part($holding->ticket());
            throw $lease->loss ?? $lease->noLease('the lease ended before the work could begin');
        }
        $lease->onLost = $onLost;
        return $lease;
    }

    public function key(): string
    {
        return $this->holding->ticket()->key;
    }

    /** A number that is higher than that of all earlier leases of the key: what is guarded refuses a smaller one. */
    public function fencingToken(): int
    {
        return $this->holding->grant->fencingToken;
    }

    /** Whether the lease is still there, as far as is known: it is asked of the process that keeps it. */
    public function isHeld(): bool
    {
        return $this->remaining() > 0.0;
    }

    /**
     * Does nothing while the lease is there.
     *
     * @throws LockLost it has ended: stop, your work may overlap with another's
     */
    public function check(): void
    {
        if (!$this->isHeld()) {
            throw $this->loss ?? $this->noLease("it was released, or is another process's");
        }
    }

    /**
     * How many seconds the lease lasts at least if nobody refreshes it any more, by this machine's clock; 0 if
     * it is over.
     */
    public function remaining(): float
    {
        if ($this->isReleased || $this->loss !== null || !$this->holding->isOpen()) {
            return 0.0;
        }
        $said = $this->keeper->ask($this->id, $this->end);
        if (!is_string($said) && max($this->end, (float) $said) <= Clock::now()) {
            $said = $this->keeper->ask($this->id, 0.0); // It was over meanwhile, and may have been refreshed.
        }
        $this->end = max($this->end, is_float($said) ? $said : 0.0);
        if (is_string($said) || $this->end <= Clock::now()) {
            $silent = Keys::shown($this->key()) . ': the process that keeps the lease does not answer';
            $this->lost(is_string($said) ? $said : $silent);
            return 0.0;
        }
        return max(0.0, $this->end - Clock::now());
    }

    /**
     * Gives the lease back. Safe to repeat.
     *
     * @return bool false if it was not there to be given back: it had ended, and what was done under it may
     *              have overlapped with another's work. It is true if only an answer was lost, because the lease
     *              was refreshed until then. In a forked child nothing is done.
     *
     * @throws LockkeeperException it was not released as far as is known; its TTL ends it
     */
    public function release(): bool
    {
        if (!$this->isHeld()) {
            return false;
        }
        $this->isReleased = true;
        $this->keeper->drop($this->id);
        $released = $this->holding->service->release($this->holding->ticket(), true);
        $this->holding->close();
        $why = "the lease ended before its work, which may have overlapped with another's";
        $this->loss = $released ? null : $this->noLease($why);
        return $released;
    }

    /**
     * @internal As {@see release()} after work that was done under it.
     *
     * @throws LockLost it had ended before, as far as is known; not if the work has given it back
     */
    public function conclude(): void
    {
        try {
            $this->release();
        } catch (LockkeeperException $failure) {
            $this->holding->service->warn("not released: {$failure->getMessage()}");
            $this->holding->close();
        }
        $this->loss === null || throw $this->loss;
    }

    /** @internal As {@see release()} where nothing can be thrown. */
    public function giveBack(): void
    {
        if (!$this->isOver()) {
            $isHeld = $this->end > Clock::now();
            $this->isReleased = true;
            $this->keeper->drop($this->id);
            $this->holding->service->giveBack($this->holding->ticket(), $isHeld);
            $this->holding->close();
        }
    }

    /** @return array<string, mixed> all but the token */
    public function __debugInfo(): array
    {
        return ['key' => $this->key(), 'fencingToken' => $this->holding->grant?->fencingToken];
    }

    /** @return never a lease has one place */
    public function __serialize(): array
    {
        throw new \LogicException('A lease is not serialised: it ends with its process.');
    }

    /** @param array<mixed> $data */
    public function __unserialize(array $data): void
    {
        throw new \LogicException('A lease is not serialised: it ends with its process.');
    }

    /** @internal Gives back what there may be, if that is quickly done. */
    public function part(): void
    {
        $this->holding->part();
    }

    public function __destruct()
    {
        $this->part();
    }

    private function __clone()
    {
    }

    private function isOver(): bool
    {
        return $this->isReleased || $this->loss !== null || !$this->holding->isOpen();
    }

    private function lost(string $why): void
    {
        $this->loss = new LockLost($why, $this->key());
        $this->holding->close();
        if ($this->onLost !== null) {
            ($this->onLost)($this->loss);
        }
    }

    private function noLease(string $why): LockLost
    {
        return new LockLost(Keys::shown($this->key()) . ": $why", $this->key());
    }
}
