<?php

declare(strict_types=1);

namespace Lockkeeper\Internal;

/** @internal Names of any form, as keys that the service takes. */
final class Keys
{
    private const LONGEST = 512;

    /**
     * The name behind the prefix, if that is a key; else `hashed/` and its SHA-256 behind the prefix.
     * The same name is always the same key.
     */
    public static function fit(string $name, string $prefix = ''): string
    {
        $key = $prefix . $name;
        return self::isKey($key) ? $key : $prefix . 'hashed/' . hash('sha256', $name);
    }

    /** The path of a key. Its slashes stay, for some proxies refuse `%2F`. */
    public static function path(string $key): string
    {
        return '/locks/' . str_replace('%2F', '/', rawurlencode($key));
    }

    private static function isKey(string $key): bool
    {
        $segments = explode('/', $key);
        return strlen($key) <= self::LONGEST
            && preg_match('/^[^\x{0}-\x{1f}\x{7f}-\x{9f}]+$/Du', $key) === 1
            && array_intersect($segments, ['', '.', '..']) === []
            && end($segments) !== 'refresh';
    }
}
