<?php

declare(strict_types=1);

namespace Lockkeeper\Exception;

/** The process that keeps a lease alive could not be started. Nothing was acquired. */
final class KeeperUnavailable extends \RuntimeException implements LockkeeperException
{
}
