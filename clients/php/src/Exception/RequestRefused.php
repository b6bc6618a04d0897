<?php

declare(strict_types=1);

namespace Lockkeeper\Exception;

/** The service wants no such request: correct the key, the options, the API key or the URL. */
final class RequestRefused extends \RuntimeException implements LockkeeperException
{
    /**
     * @param int     $status  the HTTP status, such as 403
     * @param string  $problem the `code` of the service's answer, such as `forbidden`; empty if the
     *                         answer is not from the service
     * @param ?string $field   the option that is wrong, if it is one
     */
    public function __construct(
        string $message,
        public readonly int $status,
        public readonly string $problem,
        public readonly ?string $field = null,
    ) {
        parent::__construct($message);
    }
}
