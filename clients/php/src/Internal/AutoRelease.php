<?php

declare(strict_types=1);

namespace Lockkeeper\Internal;

use Lockkeeper\Lease;

/** @internal Releases at the end of the process: out of memory, PHP runs no destructor. */
final class AutoRelease
{
    /** @var \WeakMap<Lease, true>|null the leases that there are; it keeps none alive */
    private static ?\WeakMap $leases = null;

    public static function watch(Lease $lease): void
    {
        if (self::$leases === null) {
            self::$leases = new \WeakMap();
            register_shutdown_function(self::atTheEnd(...));
        }
        self::$leases[$lease] = true;
    }

    private static function atTheEnd(): void
    {
        foreach (self::$leases as $lease => $_) {
            $lease->__destruct();
        }
    }
}
