<?php

declare(strict_types=1);

namespace Lockkeeper\Internal;

/** @internal Lease tokens: whoever knows one can refresh and release its lease. */
final class Token
{
    public static function random(string $prefix = ''): string
    {
        return $prefix . bin2hex(random_bytes(16));
    }

    /** The token of somebody who is known by a text of any form, in every process the same. */
    public static function of(#[\SensitiveParameter] string $owner, string $prefix = ''): string
    {
        return $prefix . hash('sha256', $owner);
    }
}
