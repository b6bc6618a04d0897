<?php

declare(strict_types=1);

namespace Lockkeeper\Exception;

/** While the claim waited in line, it was released elsewhere, or another program waited with its token. */
final class WaitCancelled extends \RuntimeException implements LockkeeperException
{
    /** @param ?float $retryAfter seconds after which to ask again, where another request has taken the place */
    public function __construct(
        string $message,
        public readonly string $key,
        public readonly ?float $retryAfter = null,
    ) {
        parent::__construct($message);
    }
}
