<?php

declare(strict_types=1);

namespace Lockkeeper\Internal;

/** @internal */
final class Clock
{
    /** Seconds on a clock that no one sets. It stands still while the machine sleeps. */
    public static function now(): float
    {
        return hrtime(true) / 1e9;
    }

    public static function millis(float $seconds): int
    {
        return (int) round($seconds * 1000);
    }

    public static function sleep(float $seconds): void
    {
        usleep((int) ceil(max(0.0, $seconds) * 1e6));
    }
}
