<?php

declare(strict_types=1);

namespace Lockkeeper\Symfony;

use Lockkeeper\Exception\LockBusy;
use Lockkeeper\Exception\LockkeeperException;
use Lockkeeper\Exception\LockLost;
use Lockkeeper\Internal\Claim;
use Lockkeeper\Internal\Keys;
use Lockkeeper\Internal\Token;
use Lockkeeper\LockClient;
use Symfony\Component\Lock\BlockingStoreInterface;
use Symfony\Component\Lock\Exception\InvalidTtlException;
use Symfony\Component\Lock\Exception\LockAcquiringException;
use Symfony\Component\Lock\Exception\LockConflictedException;
use Symfony\Component\Lock\Exception\LockReleasingException;
use Symfony\Component\Lock\Exception\LockStorageException;
use Symfony\Component\Lock\Key;

/**
 * Symfony locks on lockkeeper. The token is in the state of the Key, so a Key that was serialised is
 * refreshed and released wherever it is restored.
 *
 * A resource of any form will do. The service's key is `prefix` and the resource; where that is no key
 * (empty segments, control characters, a last segment `refresh`, more than 512 bytes), it is `prefix`,
 * `hashed/` and the SHA-256 of the resource.
 */
final class LockkeeperStore implements BlockingStoreInterface
{
    /**
     * @param float  $initialTtl seconds that a lock lasts which was created without a TTL; INF for the longest
     *                           that the service gives, at most a day
     * @param ?float $maxWait    seconds that `acquire(true)` waits before LockConflictedException; else for ever
     * @param string $prefix     what stands before the resources
     */
    public function __construct(
        private readonly LockClient $client,
        private readonly float $initialTtl = 300.0,
        private readonly ?float $maxWait = null,
        private readonly string $prefix = '',
    ) {
        if ($initialTtl <= 0) {
            throw new InvalidTtlException(sprintf('The initial TTL has to be positive, not %g.', $initialTtl));
        }
    }

    public function save(Key $key): void
    {
        $this->acquire($key, 0.0);
    }

    public function waitAndSave(Key $key): void
    {
        $this->acquire($key, $this->maxWait);
    }

    public function putOffExpiration(Key $key, float $ttl): void
    {
        try {
            $grant = $this->client->service()->refresh($this->name($key), $this->token($key), $ttl, $ttl);
        } catch (LockLost $lost) {
            throw new LockConflictedException($lost->getMessage(), 0, $lost);
        } catch (LockkeeperException $failure) {
            throw new LockStorageException($failure->getMessage(), 0, $failure);
        }
        $key->reduceLifetime($grant->remaining());
    }

    public function delete(Key $key): void
    {
        try {
            $this->client->release($this->name($key), $this->token($key));
        } catch (LockkeeperException $failure) {
            throw new LockReleasingException($failure->getMessage(), 0, $failure);
        }
    }

    public function exists(Key $key): bool
    {
        try {
            return $this->client->isMine($this->name($key), $this->token($key));
        } catch (LockkeeperException $failure) {
            throw new LockStorageException($failure->getMessage(), 0, $failure);
        }
    }

    private function acquire(Key $key, ?float $wait): void
    {
        try {
            $claim = new Claim($this->client->service(), $this->name($key), $this->token($key), $this->initialTtl);
            $grant = $claim->acquire($wait);
        } catch (LockBusy $busy) {
            throw new LockConflictedException($busy->getMessage(), 0, $busy);
        } catch (LockkeeperException $failure) {
            throw new LockAcquiringException($failure->getMessage(), 0, $failure);
        }
        $key->reduceLifetime($grant->remaining());
    }

    private function name(Key $key): string
    {
        return Keys::fit((string) $key, $this->prefix);
    }

    private function token(Key $key): string
    {
        if (!$key->hasState(self::class)) {
            $key->setState(self::class, Token::random($this->client->service()->tokenPrefix));
        }
        return $key->getState(self::class);
    }
}
