<?php

declare(strict_types=1);

namespace Lockkeeper\Internal;

/** @internal The variables that stand for settings which are left out. */
final class Environment
{
    /** What was given, or else the variable LOCKKEEPER_$name; an empty variable is an absent one. */
    public static function text(?string $given, string $name): ?string
    {
        $variable = getenv("LOCKKEEPER_$name");
        return $given ?? ($variable === false || $variable === '' ? null : $variable);
    }

    /** The same for a file: its whole path, since the keeper works in another directory. Empty for none. */
    public static function file(?string $given, string $name): string
    {
        $file = self::text($given, $name) ?? '';
        return $file === '' || $file[0] === '/' ? $file : getcwd() . "/$file";
    }
}
