<?php

declare(strict_types=1);

namespace Lockkeeper\Exception;

/** The lease has ended, and somebody else may be at work already: stop. A lost lease never comes back. */
final class LockLost extends \RuntimeException implements LockkeeperException
{
    /** @param ?int $fencingToken the number of the lease that the token has by now, if it has one */
    public function __construct(
        string $message,
        public readonly string $key,
        public readonly ?int $fencingToken = null,
    ) {
        parent::__construct($message);
    }
}
