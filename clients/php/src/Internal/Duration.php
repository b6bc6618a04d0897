<?php

declare(strict_types=1);

namespace Lockkeeper\Internal;

/** @internal A time as a caller gives it: seconds, or a text as in settings and the command line. */
final class Duration
{
    private const NUMBER = '(?:\d+\.?\d*|\.\d+)';

    /** Milliseconds. */
    private const UNITS = ['ms' => 1, 's' => 1_000, 'm' => 60_000, 'h' => 3_600_000, 'd' => 86_400_000];

    /**
     * Seconds: of a text such as `1h30m`, `0.5s` or `90`, rounded up to milliseconds.
     *
     * @return ($time is null ? null : float)
     *
     * @throws \InvalidArgumentException it is another text, or NAN
     */
    public static function of(float|string|null $time): ?float
    {
        if (!is_string($time)) {
            return is_nan($time ?? 0.0) ? throw new \InvalidArgumentException('NAN is no duration.') : $time;
        }
        $text = preg_match('/^' . self::NUMBER . '$/D', $time) ? "{$time}s" : $time;
        $part = '(' . self::NUMBER . ')(ms|[smhd])';
        if (!preg_match("/^(?:$part)+$/D", $text)) {
            $shown = Keys::shown($time);
            throw new \InvalidArgumentException("$shown is no duration: write it as in 90s, 1h30m or 500ms.");
        }
        preg_match_all("/$part/", $text, $parts, PREG_SET_ORDER);
        $millis = array_map(static fn (array $part): float => (float) $part[1] * self::UNITS[$part[2]], $parts);
        return ceil(round(array_sum($millis), 6)) / 1000;
    }
}
