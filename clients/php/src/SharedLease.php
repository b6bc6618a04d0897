<?php

declare(strict_types=1);

namespace Lockkeeper;

/** One of the leases that share a key, as {@see Look::$leases} has them. */
final class SharedLease
{
    /**
     * @internal
     *
     * @param ?string $owner        the holder's name, if it gave one
     * @param ?int    $fencingToken that of the lease
     * @param ?float  $remaining    seconds that the lease has left
     * @param ?float  $heldFor      seconds since the lease began, if the service can tell
     * @param int     $slots        with how many leases in all it may share the key
     * @param ?int    $slot         the number of its slot; null if it is shared by any number
     */
    private function __construct(
        public readonly ?string $owner,
        public readonly ?int $fencingToken,
        public readonly ?float $remaining,
        public readonly ?float $heldFor,
        public readonly int $slots,
        public readonly ?int $slot,
    ) {
    }

    /**
     * @internal
     *
     * @param array<string, mixed> $body
     */
    public static function of(array $body): self
    {
        return new self(
            $body['owner'] ?? null,
            $body['fencing_token'] ?? null,
            isset($body['ttl_ms']) ? $body['ttl_ms'] / 1000 : null,
            isset($body['held_ms']) ? $body['held_ms'] / 1000 : null,
            $body['slots'],
            $body['slot'] ?? null,
        );
    }
}
