<?php

declare(strict_types=1);

namespace Lockkeeper\Exception;

/** No answer, or one that says to come back later. The same call may do well in a moment. */
final class ServiceUnavailable extends \RuntimeException implements LockkeeperException
{
    /**
     * @param string $problem    the `code` of the service's answer, such as `store_unavailable`;
     *                           empty if the service did not answer
     * @param ?float $retryAfter seconds after which to ask again, if the service said so
     */
    public function __construct(
        string $message,
        public readonly Outcome $outcome,
        public readonly string $problem = '',
        public readonly ?float $retryAfter = null,
    ) {
        parent::__construct($message);
    }

    /** @internal The same, where an earlier request of the same call may have happened. */
    public function inDoubt(): self
    {
        return new self($this->getMessage(), Outcome::Unknown, $this->problem, $this->retryAfter);
    }
}
