<?php

declare(strict_types=1);

namespace Lockkeeper;

use Lockkeeper\Exception\LockkeeperException;
use Lockkeeper\Exception\LockLost;
use Lockkeeper\Exception\RequestRefused;
use Lockkeeper\Internal\AutoRelease;
use Lockkeeper\Internal\Grant;
use Lockkeeper\Internal\Service;

/**
 * The right to a key for a limited time. It is given back when the object goes, and at the end of the
 * process, be it by exit, an uncaught exception or a lack of memory; never by a forked child. A process
 * that is killed gives nothing back: its lease ends by itself, a TTL after the last refresh.
 */
final class Lease
{
    private bool $isOver = false;
    private readonly int $pid;

    /** @internal */
    public function __construct(
        private readonly Service $service,
        private readonly string $key,
        #[\SensitiveParameter] private readonly string $token,
        private Grant $grant,
    ) {
        $this->pid = (int) getmypid();
        AutoRelease::watch($this);
    }

    public function key(): string
    {
        return $this->key;
    }

    /** A number that is higher than that of all earlier leases of the key: what is guarded refuses a smaller one. */
    public function fencingToken(): int
    {
        return $this->grant->fencingToken;
    }

    /** For how many seconds the lease was granted last. */
    public function ttl(): float
    {
        return $this->grant->ttl;
    }

    /**
     * How many seconds the lease lasts at least, by this machine's clock; 0 if it is over. It asks nobody,
     * so it does not know of a forced release. While the machine sleeps the clock stands still.
     */
    public function remaining(): float
    {
        return $this->isOver ? 0.0 : $this->grant->remaining();
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
        return $this->isOver || $this->pid !== getmypid();
    }

    /**
     * Starts the time of the lease anew. Safe to repeat.
     *
     * @param ?float $ttl seconds, or INF as in an acquire; without it, as many as were asked for last
     *
     * @throws LockLost            it had ended: stop, your work may overlap with another's
     * @throws LockkeeperException it was not refreshed as far as is known, and lasts for `remaining()`
     */
    public function refresh(?float $ttl = null): void
    {
        $before = $this->grant;
        // Until there is an answer it may last for this much only; a late one may come at any time from now on.
        $this->grant = $before->atMost($ttl ?? INF);
        try {
            $this->grant = $this->service->refresh($this->key, $this->token, $ttl, $before->remaining());
        } catch (LockLost $lost) {
            $this->isOver = true;
            throw $lost;
        } catch (RequestRefused $refused) {
            // What a proxy refuses may have been done by an earlier try.
            $this->grant = $refused->problem === '' ? $this->grant : $before;
            throw $refused;
        }
    }

    /**
     * Gives the lease back. Safe to repeat.
     *
     * @return bool false if it was not there to be given back: it had ended, and what was done under it may
     *              have overlapped with another's work. So it is, too, if the first of two answers was lost.
     *
     * @throws LockkeeperException it was not released as far as is known; nothing remains to rely on, its TTL ends it
     */
    public function release(): bool
    {
        if ($this->isOver) {
            return false;
        }
        $this->grant = $this->grant->atMost(0.0); // It may be another's before the answer is here.
        $released = $this->service->release($this->key, $this->token);
        $this->isOver = true;
        return $released;
    }

    /** @internal As {@see release()} where nothing can be thrown; a signal handler may, and then it is tried again. */
    public function giveBack(): void
    {
        if (!$this->isOver()) {
            $this->grant = $this->grant->atMost(0.0);
            $this->service->giveBack($this->key, $this->token);
            $this->isOver = true;
        }
    }

    /**
     * Leaves the lease to another process, which takes it by {@see LockClient::resume()} before it ends.
     * Here it is not released any more.
     *
     * @return string the token: a secret that proves the lease is yours
     */
    public function handOver(): string
    {
        $this->isOver = true;
        return $this->token;
    }

    /** @internal */
    public function __destruct()
    {
        if (!$this->isOver()) {
            $this->isOver = true;
            $this->service->part($this->key, $this->token);
        }
    }

    /** @return array<string, mixed> all but the token */
    public function __debugInfo(): array
    {
        return [
            'key' => $this->key,
            'fencingToken' => $this->fencingToken(),
            'ttl' => $this->ttl(),
            'remaining' => $this->remaining(),
            'isOver' => $this->isOver,
        ];
    }

    /** @return never a lease has one place; {@see Lease::handOver()} */
    public function __serialize(): array
    {
        throw new \LogicException('A lease is not serialised: hand it over, and resume it by its token.');
    }

    private function __clone()
    {
    }
}
