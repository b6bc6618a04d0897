<?php

declare(strict_types=1);

namespace Lockkeeper\Internal;

use Lockkeeper\Exception\LockkeeperException;
use Lockkeeper\Wait;

/**
 * @internal Tells of a wait in line when it has begun and once a minute, by a look at the key beside the request that
 * waits. A look that fails costs nothing else.
 */
final class Progress
{
    /** Before the first look, as most leases are granted before; until the next one, if nobody was in line; after it. */
    private const FIRST = 1.0;
    private const RETRY = 5.0;
    private const NEXT = 60.0;

    private readonly float $began;
    private float $due;

    /** @param \Closure(Wait): void $listener */
    public function __construct(
        private readonly Service $service,
        private readonly string $key,
        private readonly \Closure $listener,
    ) {
        $this->began = Clock::now();
        $this->due = $this->began + self::FIRST;
    }

    /** Looks, if it is time. The request that waits is not read meanwhile. */
    public function look(): void
    {
        if (Clock::now() < $this->due) {
            return;
        }
        $this->due = INF; // None begins amid another one.
        $wait = $this->found();
        $this->due = Clock::now() + ($wait === null ? self::RETRY : self::NEXT);
        $wait === null || ($this->listener)($wait);
    }

    /** Null if nobody is in line: the claim has not arrived yet, or was granted meanwhile. */
    private function found(): ?Wait
    {
        try {
            $body = $this->service->line($this->key);
        } catch (LockkeeperException) {
            return null;
        }
        if (!$body['held'] || ($body['waiters'] ?? 0) < 1) {
            return null;
        }
        $owner = $this->service->owner();
        $queue = is_array($body['queue'] ?? null) ? array_values($body['queue']) : [];
        $ours = array_keys(array_filter($queue, static fn (mixed $one): bool => ($one['owner'] ?? null) === $owner));
        // Others may have given the same name.
        $ahead = count($ours) === 1 ? $ours[0] : null;
        return new Wait($this->key, $body['owner'] ?? null, $ahead, Clock::now() - $this->began, $body);
    }
}
