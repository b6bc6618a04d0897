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

    /** The longest absence that a claim waits out before it stood in line, in seconds: a machine starts meanwhile. */
    private const BEFORE_LINE = 60.0;

    /** A claim in line loses its place after so many seconds without a request, whatever a gateway asks for. */
    private const PLACE = 5.0;

    /** An absence is warned of after so many seconds, and again after so many more. */
    private const WARNED = 5.0;
    private const WARNED_AGAIN = 60.0;

    private float $heard;
    private int $failures = 0;
    private bool $hasStood = false;
    private float $warning = self::WARNED;

    /**
     * @param float                  $seconds since it was heard of last, where nobody waits
     * @param \Closure(string): void $warn    hears of a wait without an answer
     */
    public function __construct(private readonly float $seconds, private readonly \Closure $warn)
    {
        $this->heard = Clock::now();
    }

    /** The service has answered a claim that stands in line. */
    public function renew(): void
    {
        $this->heard = Clock::now();
        [$this->failures, $this->warning, $this->hasStood] = [0, self::WARNED, true];
    }

    /**
     * The connection of a request that was waiting has broken: the service was there until now.
     *
     * @param bool $stood whether it had stood in line, as far as is known
     */
    public function cut(bool $stood): void
    {
        $this->hasStood = $this->hasStood || $stood;
        if ($this->failures === 0) {
            $this->heard = Clock::now();
        }
    }

    /**
     * Sleeps a little before the next try.
     *
     * @param bool $waits whether the wait of a claim is not over: one that stood in line waits out any absence
     *
     * @throws ServiceUnavailable this very failure, when it is enough
     */
    public function bear(ServiceUnavailable $failure, bool $waits = false): void
    {
        $pause = min(self::LONGEST_PAUSE, self::FIRST_PAUSE * 2 ** $this->failures);
        $wanted = max($pause, min($failure->retryAfter ?? 0.0, $waits ? self::PLACE : INF));
        $seconds = $waits ? ($this->hasStood ? INF : max(self::BEFORE_LINE, $this->seconds)) : $this->seconds;
        $over = Clock::now() + $wanted > $this->heard + $seconds;
        // Where the first try took all the time there is a second one: its answer may be lost only.
        if ($over && ($this->failures > 0 || $failure->outcome === Outcome::NotAcquired)) {
            throw $failure;
        }
        $this->failures++;
        if ($waits && Clock::now() > $this->heard + $this->warning) {
            $this->warning = Clock::now() - $this->heard + self::WARNED_AGAIN;
            ($this->warn)("no answer, retrying: {$failure->getMessage()}");
        }
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
