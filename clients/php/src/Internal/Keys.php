<?php

declare(strict_types=1);

namespace Lockkeeper\Internal;

use Lockkeeper\Exception\RequestRefused;

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

    /**
     * The path of a key. Its slashes stay, for some proxies refuse `%2F`.
     *
     * @throws RequestRefused it has a segment that somebody on the way would resolve, and so reach another key
     */
    public static function path(string $key): string
    {
        if (preg_match('~(^|/)\.{0,2}(/|$)~D', $key)) {
            $message = self::shown($key) . ' has a segment that is empty, . or ..';
            throw new RequestRefused($message, 400, 'invalid_key');
        }
        return '/locks/' . str_replace('%2F', '/', rawurlencode($key));
    }

    /** A key in quotes for messages and logs, on one line. */
    public static function shown(string $key): string
    {
        return "'" . addcslashes($key, "\0..\37\177") . "'";
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
