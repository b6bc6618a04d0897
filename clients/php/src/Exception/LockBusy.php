<?php

declare(strict_types=1);

namespace Lockkeeper\Exception;

/** Somebody else has the key, and still had it when the wait was over. Nothing was acquired. */
final class LockBusy extends \RuntimeException implements LockkeeperException
{
    /**
     * @param ?string $owner      who has it, as they told the service
     * @param ?float  $retryAfter seconds that are left of their lease, as far as the service knows
     */
    public function __construct(
        string $message,
        public readonly string $key,
        public readonly ?string $owner = null,
        public readonly ?float $retryAfter = null,
    ) {
        parent::__construct($message);
    }
}
