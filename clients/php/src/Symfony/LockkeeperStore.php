<?php

declare(strict_types=1);

namespace Lockkeeper\Symfony;

use Lockkeeper\Exception\LockBusy;
use Lockkeeper\Exception\LockkeeperException;
use Lockkeeper\Exception\LockLost;
use Lockkeeper\Exception\Outcome;
use Lockkeeper\Exception\RequestRefused;
use Lockkeeper\Internal\Claim;
use Lockkeeper\Internal\Grant;
use Lockkeeper\Internal\Holding;
use Lockkeeper\Internal\Keys;
use Lockkeeper\Internal\Renewal;
use Lockkeeper\Internal\Share;
use Lockkeeper\Internal\Ticket;
use Lockkeeper\Internal\Token;
use Lockkeeper\LockClient;
use Symfony\Component\Lock\BlockingSharedLockStoreInterface;
use Symfony\Component\Lock\BlockingStoreInterface;
use Symfony\Component\Lock\Exception\InvalidTtlException;
use Symfony\Component\Lock\Exception\LockAcquiringException;
use Symfony\Component\Lock\Exception\LockConflictedException;
use Symfony\Component\Lock\Exception\LockExpiredException;
use Symfony\Component\Lock\Exception\LockReleasingException;
use Symfony\Component\Lock\Exception\LockStorageException;
use Symfony\Component\Lock\Key;
use Symfony\Component\Lock\SharedLockStoreInterface;

/**
 * Symfony locks on lockkeeper. The token is in the state of the Key, so a Key that was serialised is
 * refreshed and released wherever it is restored; only a forked child has nothing of its parent's Keys.
 *
 * A resource of any form will do. The service's key is `prefix` and the resource; where that is no key
 * (empty segments, control characters, a last segment `refresh`, more than 512 bytes), it is `prefix`,
 * `hashed/` and the SHA-256 of the resource.
 *
 * A read lock is a shared lease; where the service has exclusive leases only, it is one of these. A Key that has
 * a read lock becomes exclusive only if no other lease of the resource is held: else it conflicts at once, and
 * the read lock stays.
 *
 * To shorten a lease, or to give it another share, is to replace it. If the answer to that is lost, the lock is lost.
 */
final class LockkeeperStore implements
    BlockingStoreInterface,
    SharedLockStoreInterface,
    BlockingSharedLockStoreInterface
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
        $this->acquire($key, 0.0, new Share(1));
    }

    public function waitAndSave(Key $key): void
    {
        $this->acquire($key, $this->maxWait, new Share(1));
    }

    public function saveRead(Key $key): void
    {
        $this->acquire($key, 0.0, new Share(shared: true));
    }

    public function waitAndSaveRead(Key $key): void
    {
        $this->acquire($key, $this->maxWait, new Share(shared: true));
    }

    public function putOffExpiration(Key $key, float $ttl): void
    {
        // Symfony has just forgotten when it ends: without an answer, no later than before, and than this.
        $state = $this->state($key);
        $left = $state->remaining();
        $key->reduceLifetime($ttl);
        $ticket = $state->isReleased() ? null : $state->ticket($this->name($key));
        if ($ticket === null) {
            $key->reduceLifetime(0.0);
            throw new LockConflictedException(Keys::shown((string) $key) . ' is not acquired, or was released');
        }
        $holding = Holding::shared($this->client->service(), $ticket);
        try {
            // The first one behind save() is shorter than the initial TTL.
            $grant = Renewal::of($holding, $ttl, $left, $state->share());
            $state->keep($ticket, $grant, false);
            $holding->close();
        } catch (\Throwable $failure) {
            $key->reduceLifetime(min($left, $ttl));
            $holding->isGivenUp() && $state->lose();
            throw $this->notPutOff($key, $ttl, $failure);
        }
        $this->reduce($key, $grant);
    }

    public function delete(Key $key): void
    {
        $state = $this->state($key);
        $ticket = $state->ticket($this->name($key));
        if ($ticket === null) {
            return;
        }
        $state->release();
        try {
            $this->client->service()->release($ticket);
            $state->forget();
        } catch (LockkeeperException $failure) {
            throw new LockReleasingException($failure->getMessage(), 0, $failure);
        }
    }

    public function exists(Key $key): bool
    {
        $ticket = $this->state($key)->ticket($this->name($key));
        try {
            return $ticket !== null && $this->client->isMine($ticket->key, $ticket->token->text());
        } catch (LockkeeperException $failure) {
            throw new LockStorageException($failure->getMessage(), 0, $failure);
        }
    }

    private function acquire(Key $key, ?float $wait, Share $share): void
    {
        if ($key->isExpired()) {
            throw $this->expired($key);
        }
        $state = $this->state($key);
        $ticket = $state->isReleased() ? null : $state->ticket($this->name($key));
        $holding = $ticket === null ? $this->newHolding($key) : Holding::shared($this->client->service(), $ticket);
        try {
            $grant = $this->granted($holding, $wait, $share);
            $state->keep($holding->ticket(), $grant, $grant->isNew || $ticket === null);
            $holding->close();
        } catch (LockBusy $busy) {
            if ($holding->isGivenUp()) {
                $state->lose();
            } elseif ($busy->isMine) {
                $key->reduceLifetime($state->remaining()); // The read lock stays.
            } elseif ($ticket !== null) {
                $state->forget();
            }
            throw new LockConflictedException($busy->getMessage(), 0, $busy);
        } catch (\Throwable $failure) {
            // The lease that it had lasts as long as before, unless it was given up.
            $ticket === null || $key->reduceLifetime($state->remaining());
            $holding->isGivenUp() && $state->lose();
            throw $failure instanceof LockkeeperException
                ? new LockAcquiringException($failure->getMessage(), 0, $failure)
                : $failure;
        } finally {
            $holding->part();
        }
        $this->reduce($key, $grant);
    }

    private function granted(Holding $holding, ?float $wait, Share $share): Grant
    {
        try {
            return (new Claim($holding, $this->initialTtl, $share))->acquire($wait);
        } catch (RequestRefused $refused) {
            if ($refused->field !== 'shared' || $refused->outcome === Outcome::Unknown) {
                throw $refused;
            }
            // The service has exclusive leases only.
            return (new Claim($holding, $this->initialTtl))->acquire($wait);
        }
    }

    private function newHolding(Key $key): Holding
    {
        $service = $this->client->service();
        return Holding::own($service, new Ticket($this->name($key), Token::random($service->tokenPrefix)));
    }

    private function reduce(Key $key, Grant $grant): void
    {
        $key->reduceLifetime($grant->remaining());
        if ($key->isExpired()) {
            throw $this->expired($key);
        }
    }

    private function notPutOff(Key $key, float $ttl, \Throwable $failure): \Throwable
    {
        if ($failure instanceof LockLost) {
            $this->state($key)->lose();
            return new LockConflictedException($failure->getMessage(), 0, $failure);
        }
        if ($failure instanceof RequestRefused && $failure->shortest !== null && $ttl < $failure->shortest) {
            return $this->expired($key, $failure);
        }
        if ($failure instanceof RequestRefused && $this->state($key)->isFresh()) {
            $this->drop($key); // Symfony's acquire() fails, and leaves its lock behind.
        }
        return $failure instanceof LockkeeperException
            ? new LockStorageException($failure->getMessage(), 0, $failure)
            : $failure;
    }

    private function expired(Key $key, ?\Throwable $previous = null): LockExpiredException
    {
        $this->drop($key);
        return new LockExpiredException(Keys::shown((string) $key) . ' has expired', 0, $previous);
    }

    /** Gives back what the Key may have. */
    private function drop(Key $key): void
    {
        $state = $this->state($key);
        $ticket = $state->ticket($this->name($key));
        $ticket === null || $this->client->service()->part($ticket);
        $state->lose();
    }

    private function state(Key $key): KeyState
    {
        return new KeyState($key, hash('sha256', "{$this->client->service()->url()} {$this->prefix}"));
    }

    private function name(Key $key): string
    {
        return Keys::fit((string) $key, $this->prefix);
    }
}
