<?php

declare(strict_types=1);

namespace Lockkeeper\Internal;

/** @internal The name of a lease: its key, its token and, as soon as it is known, its fencing token. */
final class Ticket
{
    public function __construct(
        public readonly string $key,
        public readonly Secret $token,
        public readonly ?int $fencingToken = null,
    ) {
    }

    /** The same for the lease that was granted. */
    public function of(Grant $grant): self
    {
        return $this->named($grant->fencingToken ?: null);
    }

    /** The same for the lease of this number; without one, for whatever the token has. */
    public function named(?int $fencingToken): self
    {
        return new self($this->key, $this->token, $fencingToken);
    }
}
