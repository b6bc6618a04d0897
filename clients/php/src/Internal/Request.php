<?php

declare(strict_types=1);

namespace Lockkeeper\Internal;

/** @internal One request, and what tells its answer from that of another. */
final class Request
{
    /**
     * @param string                $path    with the query
     * @param string                $key     the key that it is about; of a list, the prefix
     * @param ?array<string, mixed> $options the JSON body
     * @param float                 $within  seconds until the answer has to be there
     * @param ?\Closure(): void     $meanwhile is called again and again while the answer is waited for
     */
    public function __construct(
        public readonly string $method,
        public readonly string $path,
        public readonly string $key,
        public readonly ?Secret $token,
        public readonly ?array $options,
        public readonly float $within,
        public readonly ?\Closure $meanwhile = null,
    ) {
    }

    /** Whether this is what the service answers to such a request when it has done it. */
    public function isAnsweredBy(int $status, mixed $body): bool
    {
        $body = is_array($body) ? $body : [];
        return match (true) {
            $status === 204 => $this->method === 'DELETE' && $this->token !== null,
            $status !== 200 && $status !== 201 => false,
            $this->method === 'GET' && str_starts_with($this->path, '/locks?') => self::isList($body),
            ($body['key'] ?? null) !== $this->key => false,
            $this->method === 'GET' => self::isLook($body),
            $this->method === 'DELETE' => $this->token === null, // a forced release
            default => $this->isGrant($body),
        };
    }

    /** Whether the service may refuse such a request so. */
    public function isRefusedBy(string $code): bool
    {
        return match ($code) {
            'too_many_waiters', 'wait_cancelled', 'superseded' => $this->method === 'POST',
            'lock_held' => in_array($this->method, ['POST', 'PUT'], true),
            'lock_lost' => $this->method !== 'GET',
            default => true,
        };
    }

    /** @param array<mixed> $body */
    private function isGrant(array $body): bool
    {
        return ($body['token'] ?? null) === $this->token?->text()
            && is_int($body['fencing_token'] ?? null)
            && is_int($body['ttl_ms'] ?? null)
            && is_int($body['waited_ms'] ?? 0)
            && is_int($body['slots'] ?? 0)
            && is_int($body['units'] ?? 0)
            && is_int($body['slot'] ?? 0);
    }

    /** @param array<mixed> $body */
    private static function isList(array $body): bool
    {
        return is_array($body['locks'] ?? null)
            && is_string($body['cursor'] ?? '')
            && array_filter($body['locks'], static fn ($lock) => !is_array($lock) || !self::isLook($lock)) === [];
    }

    /** @param array<mixed> $body */
    private static function isLook(array $body): bool
    {
        return is_string($body['key'] ?? null)
            && is_bool($body['held'] ?? null)
            && is_string($body['owner'] ?? '')
            && is_int($body['fencing_token'] ?? 0)
            && is_int($body['ttl_ms'] ?? 0)
            && is_int($body['held_ms'] ?? 0)
            && is_int($body['waiters'] ?? 0)
            && is_bool($body['mine'] ?? false)
            && is_int($body['holders'] ?? 0)
            && is_int($body['slots'] ?? 0)
            && is_array($body['leases'] ?? [])
            && array_filter($body['leases'] ?? [], static fn ($lease) => !self::isSharedLease($lease)) === [];
    }

    private static function isSharedLease(mixed $lease): bool
    {
        return is_array($lease)
            && is_string($lease['owner'] ?? '')
            && is_int($lease['fencing_token'] ?? 0)
            && is_int($lease['ttl_ms'] ?? 0)
            && is_int($lease['held_ms'] ?? 0)
            && is_int($lease['slots'] ?? null)
            && is_int($lease['slot'] ?? 0);
    }
}
