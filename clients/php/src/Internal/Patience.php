<?php

declare(strict_types=1);

namespace Lockkeeper\Internal;

use Lockkeeper\Exception\Outcome;
use Lockkeeper\Exception\ServiceUnavailable;

/** @internal How long to go on with a service that does not answer, and how fast. */
final class Patience
{
    private const FIRST_PAUSE = 0.05;
    private const LONGEST_PAUSE = 1.0;

    private float $heard;
    private int $failures = 0;

    /** @param float $seconds since it was heard of last */
    public function __construct(private readonly float $seconds)
    {
        $this->heard = Clock::now();
    }

    /** The service has answered. */
    public function renew(): void
    {
        $this->heard = Clock::now();
        $this->failures = 0;
    }

    /** The connection of a request that was waiting has broken: the service was there until now. */
    public function cut(): void
    {
        if ($this->failures === 0) {
            $this->heard = Clock::now();
        }
    }

    /**
     * Sleeps a little before the next try.
     *
     * @throws ServiceUnavailable this very failure, when it is enough
     */
    public function bear(ServiceUnavailable $failure): void
    {
        $pause = min(self::LONGEST_PAUSE, self::FIRST_PAUSE * 2 ** $this->failures);
        $wanted = max($pause, $failure->retryAfter ?? 0.0);
        $over = Clock::now() + $wanted > $this->heard + $this->seconds;
        // Where the first try took all the time there is a second one: its answer may be lost only.
        if ($over && ($this->failures > 0 || $failure->outcome === Outcome::NotAcquired)) {
            throw $failure;
        }
        $this->failures++;
        Clock::sleep($over ? $pause : $wanted);
    }

    /**
     * Whether the same request should be sent again, though nobody waits: it may have happened, or
     * another instance of the service takes it.
     */
    public static function isDue(ServiceUnavailable $failure): bool
    {
        return $failure->outcome === Outcome::Unknown || in_array($failure->problem, ['draining', 'not_ready'], true);
    }
}
