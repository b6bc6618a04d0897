<?php

declare(strict_types=1);

namespace Lockkeeper;

use Lockkeeper\Exception\LockkeeperException;
use Lockkeeper\Exception\LockLost;
use Lockkeeper\Internal\Claim;
use Lockkeeper\Internal\Duration;
use Lockkeeper\Internal\Grant;
use Lockkeeper\Internal\Holding;
use Lockkeeper\Internal\Keys;
use Lockkeeper\Internal\Share;

/**
 * The right to a key for a limited time. It is given back when the object goes, and at the end of the
 * process, be it by exit, an uncaught exception or a lack of memory. It is of the process that acquired it:
 * in a forked child it is over. A process that is killed gives nothing back, nor does one after a fatal error
 * whose shutdown functions call exit or throw: its lease ends by itself, a TTL after the last refresh.
 */
final class Lease
{
    /** With how many leases in all it may share the key, 1000 if shared by any number; null if it is exclusive. */
    public readonly ?int $slots;

    /** The number of its slot, from 1, which no other lease of the key has; null if it is exclusive or shared. */
    public readonly ?int $slot;

    private bool $isReleased = false;

    /** Whether it had ended when it was to be refreshed or released. */
    private bool $isLost = false;

    private function __construct(private readonly Holding $holding)
    {
    }

    /**
     * @internal
     *
     * @param ?\Closure(Wait): void $onWait
     *
     * @throws LockkeeperException
     */
    public static function claimed(
        Holding $holding,
        ?float $ttl,
        ?float $wait,
        Share $share,
        ?\Closure $onWait = null,
    ): self {
        // It is there before the first request, so that its end gives back what an exception leaves behind.
        $lease = new self($holding);
        $grant = (new Claim($holding, $ttl, $share, $onWait))->acquire($wait);
        [$lease->slots, $lease->slot] = [$grant->slots, $grant->slot];
        return $lease;
    }

    /**
     * @internal A lease in the place of this one, with another TTL. This one is over, unless that fails.
     *
     * @throws LockkeeperException
     */
    public function replaced(float $ttl): self
    {
        $lease = new self(Holding::own($this->holding->service, $this->holding->ticket()));
        $claim = new Claim($lease->holding, $ttl, Share::of($this->holding->grant));
        $grant = $claim->replace($this->fencingToken());
        [$lease->slots, $lease->slot] = [$grant->slots, $grant->slot];
        $this->holding->close();
        return $lease;
    }

    /** @internal */
    public static function resumed(Holding $holding, Grant $grant): self
    {
        $lease = new self($holding);
        $holding->grant = $grant;
        $holding->open();
        [$lease->slots, $lease->slot] = [$grant->slots, $grant->slot];
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

    /** For how many seconds the lease was granted last. */
    public function ttl(): float
    {
        return $this->holding->grant->ttl;
    }

    /**
     * How many seconds the lease lasts at least, by this machine's clock; 0 if it is over. It asks nobody,
     * so it does not know of a forced release. While the machine sleeps the clock stands still.
     */
    public function remaining(): float
    {
        return $this->isOver() || $this->isReleased ? 0.0 : $this->holding->grant->remaining();
    }

    public function isExpired(): bool
    {
        return $this->remaining() <= 0.0;
    }

    /**
     * Whether this process has nothing to give back: the lease was released, handed over, or is known to be
     * lost, or it is the lease of the process that this one was forked from.
     */
    public function isOver(): bool
    {
        return !$this->holding->isOpen();
    }

    /**
     * Starts the time of the lease anew. Safe to repeat.
     *
     * @param float|string|null $ttl seconds, or a text such as `1h30m`, or INF as in an acquire; without it, as many as
     *                               were asked for last. If the lease has more left, it keeps its end: no refresh
     *                               shortens it.
     *
     * @throws LockLost            it had ended: stop, your work may overlap with another's. So it is after a
     *                             release, also one that failed, and in a forked child
     * @throws LockkeeperException it was not refreshed as far as is known, and lasts for `remaining()`
     */
    public function refresh(float|string|null $ttl = null): void
    {
        $this->mustBeHere();
        $ttl = Duration::of($ttl);
        try {
            $left = $this->holding->grant->remaining();
            $this->holding->grant = $this->holding->service->refresh($this->holding->ticket(), $ttl, $left);
        } catch (LockLost $lost) {
            $this->isLost = true;
            $this->holding->close();
            throw $lost;
        }
    }

    /**
     * Gives the lease back. Safe to repeat.
     *
     * @return bool false if it was not there to be given back: it had ended, and what was done under it may
     *              have overlapped with another's work. It is true if only an answer was lost, and the lease
     *              lasted until then. In a forked child nothing is done.
     *
     * @throws LockkeeperException it was not released as far as is known; nothing remains to rely on, its TTL ends it
     */
    public function release(): bool
    {
        if ($this->isOver()) {
            return false;
        }
        $isKnown = !$this->isExpired();
        $this->isReleased = true; // It may be another's before the answer is here.
        $this->isLost = !$this->holding->service->release($this->holding->ticket(), $isKnown);
        $this->holding->close();
        return !$this->isLost;
    }

    /**
     * @internal As {@see release()} after work that was done under it.
     *
     * @throws LockLost it had ended before, as far as is known; not if the work has given it back or handed it over
     */
    public function conclude(): void
    {
        $isKnown = !$this->isExpired();
        if ($this->isReleased) {
            $this->giveBack(); // The work has tried to, and knows how that ended.
        }
        try {
            $this->release();
        } catch (LockkeeperException $failure) {
            $this->isLost = !$isKnown;
            $this->holding->service->warn("not released: {$failure->getMessage()}");
            $this->holding->close();
        }
        if ($this->isLost) {
            $why = "the lease ended before its work, which may have overlapped with another's";
            throw new LockLost(Keys::shown($this->key()) . ": $why", $this->key());
        }
    }

    /** @internal As {@see release()} where nothing can be thrown; a signal handler may, and then it is tried again. */
    public function giveBack(): void
    {
        if (!$this->isOver()) {
            $isKnown = !$this->isExpired();
            $this->isReleased = true;
            $this->holding->service->giveBack($this->holding->ticket(), $isKnown);
            $this->holding->close();
        }
    }

    /**
     * Leaves the lease to another process, which takes it by {@see LockClient::resume()} before it ends.
     * Here it is not released any more.
     *
     * @return string the token: a secret that proves the lease is yours
     *
     * @throws LockLost there is none to hand over, as in {@see refresh()}
     */
    public function handOver(): string
    {
        $this->mustBeHere();
        $this->holding->close();
        return $this->holding->ticket()->token->text();
    }

    /** @internal Gives back what there may be, if that is quickly done. */
    public function part(): void
    {
        $this->holding->part();
    }

    /** @internal */
    public function __destruct()
    {
        $this->part();
    }

    /** @return array<string, mixed> all but the token */
    public function __debugInfo(): array
    {
        return [
            'key' => $this->key(),
            'fencingToken' => $this->holding->grant?->fencingToken,
            'ttl' => $this->holding->grant?->ttl,
            'remaining' => $this->holding->grant === null ? 0.0 : $this->remaining(),
            'isOver' => $this->isOver(),
            'slots' => $this->holding->grant?->slots,
            'slot' => $this->holding->grant?->slot,
        ];
    }

    /** @return never a lease has one place; {@see Lease::handOver()} */
    public function __serialize(): array
    {
        throw new \LogicException('A lease is not serialised: hand it over, and resume it by its token.');
    }

    /** @param array<mixed> $data */
    public function __unserialize(array $data): void
    {
        throw new \LogicException('A lease is not serialised: hand it over, and resume it by its token.');
    }

    private function __clone()
    {
    }

    private function mustBeHere(): void
    {
        if ($this->isReleased || $this->isOver()) {
            $why = "the lease was released, handed over or lost, or is another process's";
            throw new LockLost(Keys::shown($this->key()) . ": $why", $this->key());
        }
    }
}
