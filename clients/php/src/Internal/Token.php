<?php

declare(strict_types=1);

namespace Lockkeeper\Internal;

/** @internal Lease tokens: whoever knows one can refresh and release its lease. */
final class Token
{
    public static function random(string $prefix = ''): Secret
    {
        return new Secret($prefix . bin2hex(random_bytes(16)));
    }

    /** The token of an owner, who is a text of any form; in every process the same. */
    public static function of(#[\SensitiveParameter] string $owner, string $prefix = ''): Secret
    {
        return new Secret($prefix . hash('sha256', $owner));
    }
}
