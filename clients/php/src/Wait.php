<?php

declare(strict_types=1);

namespace Lockkeeper;

/** A wait in line, as `onWait` hears of it. */
final class Wait
{
    /**
     * @internal
     *
     * @param ?string              $owner  who has the key, as they told the service; null if several have it
     * @param ?int                 $ahead  how many claims are ahead in line; null if it is unknown, as with several
     *                                     claims of one owner
     * @param float                $waited seconds until now
     * @param array<string, mixed> $raw    all that the service says of the key
     */
    public function __construct(
        public readonly string $key,
        public readonly ?string $owner,
        public readonly ?int $ahead,
        public readonly float $waited,
        public readonly array $raw,
    ) {
    }
}
