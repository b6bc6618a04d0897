<?php

declare(strict_types=1);

namespace Lockkeeper\Exception;

/** The lease has ended, and somebody else may be at work already: stop. A lost lease never comes back. */
final class LockLost extends \RuntimeException implements LockkeeperException
{
    public function __construct(string $message, public readonly string $key)
    {
        parent::__construct($message);
    }
}
