<?php

declare(strict_types=1);

namespace Lockkeeper\Internal;

use Lockkeeper\Exception\LockkeeperException;
use Lockkeeper\Exception\LockLost;
use Lockkeeper\HeldLease;
use Lockkeeper\Lease;

/** @internal Work under a lease, which ends with it. */
final class Block
{
    /**
     * @template T
     *
     * @param callable(Lease|HeldLease): T $work
     *
     * @return T
     *
     * @throws LockLost            the lease had ended before the work began, or before it was done
     * @throws LockkeeperException
     */
    public static function run(Lease|HeldLease $lease, callable $work): mixed
    {
        if ($lease->remaining() <= 0.0) { // This process was suspended since the grant.
            $lease->part();
            $name = Keys::shown($lease->key());
            throw new LockLost("$name: the lease ended before the work could begin", $lease->key());
        }
        try {
            $done = self::done($work($lease));
        } catch (\Throwable $failure) {
            $lease->giveBack(); // The loss of the lease would hide what the work threw.
            throw $failure;
        }
        $lease->conclude();
        return $done;
    }

    /**
     * What the work has returned.
     *
     * @template T
     *
     * @param T $returned
     *
     * @return T
     *
     * @throws \InvalidArgumentException a generator: nothing of the work has run
     */
    public static function done(mixed $returned): mixed
    {
        return $returned instanceof \Generator
            ? throw new \InvalidArgumentException('The work is a generator, which would run after the lease has ended.')
            : $returned;
    }
}
