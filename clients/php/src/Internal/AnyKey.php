<?php

declare(strict_types=1);

namespace Lockkeeper\Internal;

use Lockkeeper\Exception\LockBusy;
use Lockkeeper\Exception\LockkeeperException;
use Lockkeeper\Lease;

/** @internal A lease of one of several keys: a semaphore where the service has exclusive leases only. */
final class AnyKey
{
    /**
     * @param array<string> $keys
     *
     * @throws LockkeeperException nothing is held, and no line is waited in
     */
    public static function acquired(Service $service, array $keys, ?float $ttl, float $wait): Lease
    {
        $keys = array_map(strval(...), array_values($keys));
        if ($keys === [] || count(array_unique($keys, SORT_STRING)) < count($keys)) {
            throw new \InvalidArgumentException('One of several keys is acquired, each of which is named once.');
        }
        if (!is_finite($wait)) {
            throw new \InvalidArgumentException('Several keys are waited for so many seconds, not for ever.');
        }
        shuffle($keys); // Else all clients would crowd at the first one.
        $token = Token::random($service->tokenPrefix);
        $busy = [];
        foreach (self::tries($keys, $wait) as $key => $seconds) {
            $ticket = new Ticket((string) $key, $token);
            try {
                return Lease::claimed(Holding::own($service, $ticket), $ttl, $seconds, new Share());
            } catch (LockBusy $held) {
                $busy[$key] = $held;
                // Else the service would keep the place for a while, and hand the key to a client that is gone.
                $seconds > 0.0 && $service->part($ticket);
            }
        }
        usort($busy, static fn (LockBusy $a, LockBusy $b) => ($a->retryAfter ?? INF) <=> ($b->retryAfter ?? INF));
        throw $busy[0];
    }

    /**
     * @param non-empty-list<string> $keys
     *
     * @return \Generator<string, float> the seconds to wait for a key
     */
    private static function tries(array $keys, float $wait): \Generator
    {
        $until = Clock::now() + $wait;
        foreach ($keys as $key) {
            yield $key => 0.0;
        }
        foreach ($keys as $place => $key) {
            $left = $until - Clock::now();
            if ($left > 0.0) {
                yield $key => $left / (count($keys) - $place);
            }
        }
        if ($wait > 0.0) {
            // One may have become free while another was waited for.
            foreach ($keys as $key) {
                yield $key => 0.0;
            }
        }
    }
}
