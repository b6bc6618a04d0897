<?php

declare(strict_types=1);

namespace Lockkeeper\Exception;

/** All that this package throws, except for arguments that make no sense (InvalidArgumentException). */
interface LockkeeperException extends \Throwable
{
}
