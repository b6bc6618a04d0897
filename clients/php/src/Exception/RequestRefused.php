<?php

declare(strict_types=1);

namespace Lockkeeper\Exception;

/** The service wants no such request: correct the key, the options, the API key or the URL. */
final class RequestRefused extends \RuntimeException implements LockkeeperException
{
    /**
     * @param int     $status   the HTTP status, such as 403
     * @param string  $problem  the `code` of the service's answer, such as `forbidden`; empty if the
     *                          answer is not from the service
     * @param ?string $field    the option that is wrong, if it is one
     * @param Outcome $outcome  unknown where an earlier try of the same call, or a request that a proxy
     *                          refused, may have happened
     * @param ?float  $shortest the shortest TTL that the service gives, in seconds, where the TTL is wrong
     * @param ?float  $longest  the longest
     */
    public function __construct(
        string $message,
        public readonly int $status,
        public readonly string $problem,
        public readonly ?string $field = null,
        public readonly Outcome $outcome = Outcome::NotAcquired,
        public readonly ?float $shortest = null,
        public readonly ?float $longest = null,
    ) {
        parent::__construct($message);
    }

    /** @internal The same, where an earlier request of the same call may have happened. */
    public function inDoubt(): self
    {
        $said = [$this->getMessage(), $this->status, $this->problem, $this->field];
        return new self(...[...$said, Outcome::Unknown, $this->shortest, $this->longest]);
    }
}
