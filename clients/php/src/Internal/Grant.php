<?php

declare(strict_types=1);

namespace Lockkeeper\Internal;

/** @internal What the service said of a lease, and when it ends on our clock. */
final class Grant
{
    /** @param bool $isCapped whether no refresh makes it last longer, by the `max_hold` of its key */
    private function __construct(
        public readonly int $fencingToken,
        public readonly float $ttl,
        private readonly float $end,
        public readonly bool $isNew,
        public readonly bool $isCapped,
        public readonly ?int $slots,
        public readonly ?int $slot,
        public readonly ?int $units,
    ) {
    }

    /**
     * A lease begins no earlier than `waited_ms` after its request arrived, so it ends no earlier
     * than is counted here, from before the request was sent.
     *
     * @param array<string, mixed> $body the answer; of a shared lease with `slots`, and with `slot` or several `units`
     * @param float                $sent when its request was sent
     * @param bool                 $isNew whether nobody had the lease before that request
     */
    public static function of(array $body, float $sent, bool $isNew): self
    {
        $ttl = $body['ttl_ms'] / 1000;
        $waited = ($body['waited_ms'] ?? 0) / 1000;
        $more = [($body['capped'] ?? null) === true];
        $more = [...$more, $body['slots'] ?? null, $body['slot'] ?? null, $body['units'] ?? null];
        return new self((int) ($body['fencing_token'] ?? 0), $ttl, $sent + $waited + $ttl, $isNew, ...$more);
    }

    /** Seconds. */
    public function remaining(): float
    {
        return max(0.0, $this->end - Clock::now());
    }
}
