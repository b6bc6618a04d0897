<?php

declare(strict_types=1);

namespace Lockkeeper\Symfony;

use Lockkeeper\Exception\LockBusy;
use Lockkeeper\Exception\LockkeeperException;
use Lockkeeper\Exception\LockLost;
use Lockkeeper\Internal\Claim;
use Lockkeeper\Internal\Grant;
use Lockkeeper\Internal\Holding;
use Lockkeeper\Internal\Keys;
use Lockkeeper\Internal\Renewal;
use Lockkeeper\Internal\Share;
use Lockkeeper\Internal\Ticket;
use Lockkeeper\Internal\Token;
use Lockkeeper\LockClient;
use Symfony\Component\Semaphore\Exception\RuntimeException;
use Symfony\Component\Semaphore\Exception\SemaphoreAcquiringException;
use Symfony\Component\Semaphore\Exception\SemaphoreExpiredException;
use Symfony\Component\Semaphore\Exception\SemaphoreReleasingException;
use Symfony\Component\Semaphore\Key;
use Symfony\Component\Semaphore\PersistingStoreInterface;

/**
 * Symfony semaphores on lockkeeper: the limit of a Key is the `slots` of its lease, its weight the `units`, and the
 * least limit of all holders counts. As in {@see LockkeeperStore}, a Key that was serialised is the semaphore wherever
 * it is restored, a forked child has nothing of its parent's Keys, and any resource will do.
 */
final class LockkeeperSemaphoreStore implements PersistingStoreInterface
{
    /**
     * @param ?float $wait   seconds that `acquire()` waits in line; for ever if INF or null
     * @param string $prefix what stands before the resources
     */
    public function __construct(
        private readonly LockClient $client,
        private readonly ?float $wait = 0.0,
        private readonly string $prefix = '',
    ) {
    }

    public function save(Key $key, float $ttlInSecond): void
    {
        $state = $this->state($key);
        $ticket = $state->isReleased() ? null : $state->ticket($this->name($key));
        $holding = $ticket === null ? $this->newHolding($key) : Holding::shared($this->client->service(), $ticket);
        try {
            $grant = (new Claim($holding, $ttlInSecond, $this->share($key)))->acquire($this->wait);
            $this->keep($key, $holding->ticket(), $grant);
            $holding->close();
        } catch (LockBusy $busy) {
            if ($holding->isGivenUp()) {
                $state->lose();
            } elseif ($busy->isMine) {
                $key->reduceLifetime($state->remaining()); // Its lease stays as it was.
            } elseif ($ticket !== null) {
                $state->forget();
            }
            throw new SemaphoreAcquiringException($key, $busy->getMessage());
        } catch (\Throwable $failure) {
            // The lease that it had lasts as long as before, unless it was given up.
            $ticket === null || $key->reduceLifetime($state->remaining());
            $holding->isGivenUp() && $state->lose();
            throw $this->failed($failure);
        } finally {
            $holding->part();
        }
    }

    public function putOffExpiration(Key $key, float $ttlInSecond): void
    {
        // Symfony has just forgotten when it ends: without an answer, no later than before, and than this.
        $state = $this->state($key);
        $left = $state->remaining();
        $ticket = $state->isReleased() ? null : $state->ticket($this->name($key));
        if ($ticket === null) {
            $key->reduceLifetime(0.0);
            throw new SemaphoreExpiredException($key, 'it is not acquired, or was released');
        }
        $holding = Holding::shared($this->client->service(), $ticket);
        try {
            $this->keep($key, $ticket, Renewal::of($holding, $ttlInSecond, $left, $this->share($key)));
            $holding->close();
        } catch (LockLost $lost) {
            $state->lose();
            throw new SemaphoreExpiredException($key, $lost->getMessage());
        } catch (\Throwable $failure) {
            $key->reduceLifetime(min($left, $ttlInSecond));
            $holding->isGivenUp() && $state->lose();
            throw $this->failed($failure);
        }
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
            throw new SemaphoreReleasingException($key, $failure->getMessage());
        }
    }

    public function exists(Key $key): bool
    {
        $ticket = $this->state($key)->ticket($this->name($key));
        try {
            return $ticket !== null && $this->client->isMine($ticket->key, $ticket->token->text());
        } catch (LockkeeperException $failure) {
            throw $this->failed($failure);
        }
    }

    /** A lease was granted, or refreshed. */
    private function keep(Key $key, Ticket $ticket, Grant $grant): void
    {
        $this->state($key)->keep($ticket, $grant, false);
        $key->reduceLifetime($grant->remaining());
    }

    private function failed(\Throwable $failure): \Throwable
    {
        return $failure instanceof LockkeeperException
            ? new RuntimeException($failure->getMessage(), 0, $failure)
            : $failure;
    }

    private function newHolding(Key $key): Holding
    {
        $service = $this->client->service();
        return Holding::own($service, new Ticket($this->name($key), Token::random($service->tokenPrefix)));
    }

    private function state(Key $key): KeyState
    {
        return new KeyState($key, hash('sha256', "{$this->client->service()->url()} {$this->prefix}"));
    }

    private function share(Key $key): Share
    {
        $weight = $key->getWeight();
        return new Share($key->getLimit(), units: $weight === 1 ? null : $weight);
    }

    private function name(Key $key): string
    {
        return Keys::fit((string) $key, $this->prefix);
    }
}
