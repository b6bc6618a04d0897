<?php

declare(strict_types=1);

namespace Lockkeeper\Laravel;

use Illuminate\Cache\Repository;

/** A cache on a {@see LockkeeperCacheStore}: funnels are in line at the service. */
final class LockkeeperRepository extends Repository
{
    /**
     * Limits how many run something at once. Laravel itself has it since version 12, with a lock for each place.
     *
     * @param \UnitEnum|string $name
     */
    public function funnel($name): LockkeeperLimiter
    {
        return $this->getStore()->funnel(match (true) {
            $name instanceof \BackedEnum => (string) $name->value,
            $name instanceof \UnitEnum => $name->name,
            default => (string) $name,
        });
    }
}
