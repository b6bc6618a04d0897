<?php

declare(strict_types=1);

namespace Lockkeeper\Internal;

/** @internal */
final class Clock
{
    /** The largest number that JSON keeps exactly. */
    private const MOST = 1 << 53;

    /** Seconds on a clock that no one sets. It stands still while the machine sleeps. */
    public static function now(): float
    {
        return hrtime(true) / 1e9;
    }

    public static function millis(float $seconds): int
    {
        return is_nan($seconds) ? 0 : (int) max(-self::MOST, min(self::MOST, round($seconds * 1000)));
    }

    public static function sleep(float $seconds): void
    {
        usleep((int) ceil(max(0.0, $seconds) * 1e6));
    }
}
