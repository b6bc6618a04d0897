<?php

declare(strict_types=1);

namespace Lockkeeper\Internal;

/** @internal With how many other leases a lease may share its key. */
final class Share
{
    /**
     * @param ?int $slots  with how many leases in all, itself included; 1 is exclusive, and so is null unless the
     *                     token has a lease already, which then stays as it is
     * @param bool $shared with any number of leases that are shared as well
     *
     * @param ?int $units  how many of the slots the lease takes; one if null
     *
     * @throws \InvalidArgumentException both are named
     */
    public function __construct(
        public readonly ?int $slots = null,
        public readonly bool $shared = false,
        public readonly ?int $units = null,
    ) {
        if ($slots !== null && $shared) {
            throw new \InvalidArgumentException('A lease has either a number of slots, or is shared by any number.');
        }
    }

    /** That of a lease. */
    public static function of(Grant $grant): self
    {
        $isShared = $grant->slots !== null && $grant->slot === null && $grant->units === null;
        return new self($isShared ? null : $grant->slots, $isShared, $grant->units);
    }

    /** @return array<string, int|bool> the options of a request */
    public function options(): array
    {
        $numbers = array_filter(['slots' => $this->slots, 'units' => $this->units], is_int(...));
        return $numbers + ($this->shared ? ['shared' => true] : []);
    }
}
