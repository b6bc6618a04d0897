<?php

declare(strict_types=1);

namespace Lockkeeper\Laravel;

use Illuminate\Cache\Lock;
use Illuminate\Contracts\Cache\LockTimeoutException;
use Lockkeeper\Exception\LockBusy;
use Lockkeeper\Exception\LockkeeperException;
use Lockkeeper\Exception\LockLost;
use Lockkeeper\Internal\Claim;
use Lockkeeper\Internal\Clock;
use Lockkeeper\Internal\Keys;
use Lockkeeper\Internal\Token;
use Lockkeeper\LockClient;

/**
 * A Laravel lock on lockkeeper. Whoever knows its owner may release it, so the owner is a secret: the lease
 * token is its SHA-256. 0 seconds are the longest that the service gives, at most a day. As all locks of
 * Laravel it is not released by itself.
 */
final class LockkeeperLock extends Lock
{
    private readonly string $key;
    private readonly string $token;

    /** Whether nobody else can have the owner: it was made here, and has not been in yet. */
    private bool $isFirst;

    /**
     * @param string  $name
     * @param int     $seconds
     * @param ?string $owner
     * @param string  $prefix what stands before the names at the service
     */
    public function __construct(
        private readonly LockClient $client,
        $name,
        $seconds,
        #[\SensitiveParameter] $owner = null,
        string $prefix = '',
    ) {
        parent::__construct($name, $seconds, $owner);
        $this->isFirst = $owner === null;
        $this->key = Keys::fit((string) $name, $prefix);
        $this->token = Token::of((string) $this->owner, $client->service()->tokenPrefix);
    }

    /**
     * {@inheritdoc}
     *
     * @throws LockkeeperException the service cannot be reached, or refuses the request
     */
    public function acquire(): bool
    {
        return $this->attempt(0.0);
    }

    /**
     * {@inheritdoc}
     *
     * @throws LockkeeperException as acquire
     */
    public function get($callback = null): mixed
    {
        $acquired = $this->acquire();
        return $acquired && is_callable($callback) ? $this->during($callback) : $acquired;
    }

    /**
     * Waits in line at the service.
     *
     * @param int|float $seconds
     *
     * @throws LockTimeoutException
     * @throws LockkeeperException  as acquire
     */
    public function block($seconds, $callback = null): mixed
    {
        $until = Clock::now() + $seconds;
        while (!$this->attempt(max(0.0, $until - Clock::now()))) {
            if (Clock::now() >= $until) {
                throw new LockTimeoutException("'{$this->name}' was held for all of {$seconds} s.");
            }
            Clock::sleep(min($this->sleepMilliseconds / 1000, $until - Clock::now()));
        }
        return is_callable($callback) ? $this->during($callback) : true;
    }

    /**
     * {@inheritdoc}
     *
     * @return bool false if it had ended
     *
     * @throws LockkeeperException it was not released as far as is known
     */
    public function release(): bool
    {
        return $this->client->release($this->key, $this->token);
    }

    /**
     * Ends the lease of whoever has it. The API key needs the permission `admin`.
     *
     * @throws LockkeeperException
     */
    public function forceRelease(): void
    {
        $this->client->forceRelease($this->key);
    }

    /**
     * Starts the time anew.
     *
     * @param int|float|null $seconds 0 for the longest that there is; without them as many as were asked for last
     *
     * @return bool false if it had ended
     *
     * @throws LockkeeperException
     */
    public function refresh($seconds = null): bool
    {
        try {
            $ttl = $seconds === null && $this->seconds <= 0 ? null : self::ttl($seconds ?? $this->seconds);
            $this->client->refresh($this->key, $this->token, $ttl);
            return true;
        } catch (LockLost) {
            return false;
        }
    }

    /** {@inheritdoc} */
    public function isOwnedByCurrentProcess(): bool
    {
        return $this->client->isMine($this->key, $this->token);
    }

    /**
     * {@inheritdoc}
     *
     * @param ?string $owner
     */
    public function isOwnedBy(#[\SensitiveParameter] $owner): bool
    {
        $token = Token::of((string) $owner, $this->client->service()->tokenPrefix);
        return $owner !== null && $this->client->isMine($this->key, $token);
    }

    /** Our owner if it is ours, else a text for people, as the service tells nobody's secret. */
    protected function getCurrentOwner(): ?string
    {
        $look = $this->client->inspect($this->key, $this->token);
        return match (true) {
            !$look->isHeld => null,
            $look->isMine => $this->owner,
            default => 'somebody else: ' . ($look->owner ?? 'unknown'),
        };
    }

    /**
     * For the service all who ask with one token are one, for Laravel an owner comes in once: a lock that
     * was held by its owner already is not acquired. It is looked at first, since asking starts its time anew.
     */
    private function attempt(float $wait): bool
    {
        if (!$this->isFirst && $this->isOwnedByCurrentProcess()) {
            return false;
        }
        $claim = new Claim($this->client->service(), $this->key, $this->token, self::ttl($this->seconds));
        try {
            $claim->acquire($wait);
            $this->isFirst = false;
            return !$claim->wasHeld();
        } catch (LockBusy) {
            return false;
        }
    }

    private static function ttl(int|float|string $seconds): float
    {
        return $seconds > 0 ? (float) $seconds : INF;
    }

    /** What the callback threw is what comes out, even if the release fails as well. */
    private function during(callable $callback): mixed
    {
        try {
            return $callback();
        } finally {
            $this->client->service()->giveBack($this->key, $this->token);
        }
    }
}
