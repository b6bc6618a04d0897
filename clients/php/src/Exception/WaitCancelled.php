<?php

declare(strict_types=1);

namespace Lockkeeper\Exception;

/** The claim was released elsewhere, with its token, while it waited in line. Nothing was acquired. */
final class WaitCancelled extends \RuntimeException implements LockkeeperException
{
    public function __construct(string $message, public readonly string $key)
    {
        parent::__construct($message);
    }
}
