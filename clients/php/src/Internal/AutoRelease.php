<?php

declare(strict_types=1);

namespace Lockkeeper\Internal;

/** @internal Gives back what the process may hold when it ends: out of memory, PHP runs no destructor. */
final class AutoRelease
{
    /** @var array<int, Holding> by object id */
    private static array $holdings = [];

    /** Memory for the end, where there may be none left. */
    private static ?string $reserve = null;

    public static function add(Holding $holding): void
    {
        if (self::$reserve === null) {
            self::$reserve = str_repeat(' ', 1 << 18);
            register_shutdown_function(self::atTheEnd(...));
        }
        self::$holdings[spl_object_id($holding)] = $holding;
    }

    public static function remove(Holding $holding): void
    {
        unset(self::$holdings[spl_object_id($holding)]);
    }

    /** Behind all that the application does at its end, for which it may need a lease. */
    private static function atTheEnd(): void
    {
        self::$reserve = '';
        register_shutdown_function(self::giveBackAll(...));
    }

    private static function giveBackAll(): void
    {
        foreach (self::$holdings as $holding) {
            $holding->part();
        }
        Keeper::endAll();
    }
}
