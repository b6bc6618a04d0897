<?php

declare(strict_types=1);

namespace Lockkeeper;

/** How a key stood a moment ago. */
final class Look
{
    /**
     * @internal
     *
     * @param ?string $owner        who has it, as they told the service
     * @param ?int    $fencingToken that of the lease
     * @param ?float  $remaining    seconds that the lease has left, if it has an end
     * @param ?float  $heldFor      seconds since the lease began, if the service can tell
     * @param int     $waiters      how many wait in line
     * @param bool    $isMine       whether the token that was asked with has it
     * @param ?int    $holders      how many leases share the key; null if it is free or held by one alone. Of a shared
     *                              key, owner, fencing token and times are those of the token's own lease.
     * @param ?int    $slots        how many leases all of them allow: the least that one of them names
     * @param ?list<SharedLease> $leases the first 100 of them to end; null in a list
     */
    private function __construct(
        public readonly string $key,
        public readonly bool $isHeld,
        public readonly ?string $owner,
        public readonly ?int $fencingToken,
        public readonly ?float $remaining,
        public readonly ?float $heldFor,
        public readonly int $waiters,
        public readonly bool $isMine,
        public readonly ?int $holders,
        public readonly ?int $slots,
        public readonly ?array $leases,
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
            $body['key'],
            $body['held'],
            $body['owner'] ?? null,
            $body['fencing_token'] ?? null,
            isset($body['ttl_ms']) ? $body['ttl_ms'] / 1000 : null,
            isset($body['held_ms']) ? $body['held_ms'] / 1000 : null,
            $body['waiters'] ?? 0,
            $body['mine'] ?? false,
            $body['holders'] ?? null,
            $body['slots'] ?? null,
            isset($body['leases']) ? array_map(SharedLease::of(...), $body['leases']) : null,
        );
    }
}
