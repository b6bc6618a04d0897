<?php

declare(strict_types=1);

namespace Lockkeeper\Exception;

/** Somebody else has the key, and still had it when the wait was over. Nothing was acquired. */
final class LockBusy extends \RuntimeException implements LockkeeperException
{
    /**
     * @param ?string $owner      who has it, as they told the service
     * @param ?float  $retryAfter seconds that are left of their lease, as far as the service knows; of a shared key,
     *                            of the lease whose end makes room first
     * @param ?int    $holders    how many leases share the key; null if one has it alone
     * @param ?int    $slots      how many leases all of them allow: the least that one of them names
     * @param bool    $isMine     whether the token has a lease itself, which stays as it was: the other holders allow
     *                            no other share, or a stream keeps the lease, and alone refreshes it
     * @param ?int    $fencingToken the number of that lease
     */
    public function __construct(
        string $message,
        public readonly string $key,
        public readonly ?string $owner = null,
        public readonly ?float $retryAfter = null,
        public readonly ?int $holders = null,
        public readonly ?int $slots = null,
        public readonly bool $isMine = false,
        public readonly ?int $fencingToken = null,
    ) {
        parent::__construct($message);
    }
}
