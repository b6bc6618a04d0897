<?php

declare(strict_types=1);

namespace Lockkeeper\Exception;

/** What is known of a request that failed. */
enum Outcome
{
    /** For certain it did nothing: no lease was acquired, refreshed or released. */
    case NotAcquired;

    /** It may have happened. */
    case Unknown;
}
