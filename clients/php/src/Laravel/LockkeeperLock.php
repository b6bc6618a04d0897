<?php

declare(strict_types=1);

namespace Lockkeeper\Laravel;

use Illuminate\Cache\Lock;
use Illuminate\Contracts\Cache\LockTimeoutException;
use Lockkeeper\Exception\LockBusy;
use Lockkeeper\Exception\LockkeeperException;
use Lockkeeper\Exception\LockLost;
use Lockkeeper\Exception\Outcome;
use Lockkeeper\Exception\RequestRefused;
use Lockkeeper\Exception\ServiceUnavailable;
use Lockkeeper\Exception\WaitCancelled;
use Lockkeeper\Internal\Block;
use Lockkeeper\Internal\Claim;
use Lockkeeper\Internal\Clock;
use Lockkeeper\Internal\Duration;
use Lockkeeper\Internal\Grant;
use Lockkeeper\Internal\Holding;
use Lockkeeper\Internal\Keys;
use Lockkeeper\Internal\Renewal;
use Lockkeeper\Internal\Secret;
use Lockkeeper\Internal\Share;
use Lockkeeper\Internal\Ticket;
use Lockkeeper\Internal\Token;
use Lockkeeper\LockClient;

/**
 * A Laravel lock on lockkeeper. Whoever knows its owner may release it, so the owner is a secret: the lease
 * token is its SHA-256. As all locks of Laravel it is not released by itself, but it has an end in any case. A
 * forked child has nothing of a lock that its parent has acquired.
 */
final class LockkeeperLock extends Lock
{
    private readonly string $key;
    private readonly Secret $ownerText;
    private readonly Secret $token;

    /** Whether the owner was made here, so that at first nobody else has it. */
    private readonly bool $isOwnerMadeHere;

    /** Whether it has not been in yet. */
    private bool $isFirst;

    /** The lease, if it was acquired by this very object. */
    private ?Grant $grant = null;

    /** The process that acquired it. */
    private ?int $pid = null;

    /** Whether a release was begun, behind which there is nothing to refresh. */
    private bool $isReleased = false;

    /**
     * @param string  $name
     * @param int     $seconds
     * @param ?string $owner
     * @param string  $prefix what stands before the names at the service
     * @param float   $usual  seconds for which it lasts if `$seconds` is 0 or less
     */
    public function __construct(
        private readonly LockClient $client,
        $name,
        $seconds,
        #[\SensitiveParameter] $owner = null,
        string $prefix = '',
        private readonly float $usual = LockkeeperCacheStore::LOCK_SECONDS,
    ) {
        parent::__construct($name, $seconds, $owner);
        $this->isOwnerMadeHere = $owner === null;
        $this->isFirst = $owner === null;
        $this->key = Keys::fit((string) $name, $prefix);
        $this->ownerText = new Secret((string) $this->owner);
        $this->token = Token::of((string) $this->owner, $client->service()->tokenPrefix);
        $this->owner = ''; // Nothing that shows the lock shows it.
    }

    /**
     * {@inheritdoc}
     *
     * @return string a secret: whoever knows it may release the lock
     */
    public function owner(): string
    {
        return $this->ownerText->text();
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
        $until = Clock::now() + Duration::of($seconds);
        while (!$this->attempt(max(0.0, $until - Clock::now()))) {
            if (Clock::now() >= $until) {
                $name = Keys::shown((string) $this->name);
                throw new LockTimeoutException("$name was held for all of {$seconds} s.");
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
        if ($this->isOfParent()) {
            return false;
        }
        $this->isReleased = true;
        return $this->client->service()->release($this->ticket(), isAny: true);
    }

    /**
     * Ends the lease of whoever has it. That of any other than this owner needs an API key with the permission
     * `admin`; without it, it ends by its TTL, and `warn` of the client hears of it.
     *
     * @throws LockkeeperException
     */
    public function forceRelease(): void
    {
        if (!$this->isFirst && $this->release()) {
            return;
        }
        try {
            $this->client->forceRelease($this->key);
        } catch (RequestRefused $refused) {
            if ($refused->problem !== 'forbidden') {
                throw $refused;
            }
            // An exception would fail a job of Laravel whose work is done, and have it done again.
            $this->client->service()->warn("not released by force: {$refused->getMessage()}");
        }
    }

    /**
     * Starts the time anew. A lock that is to end earlier than it would is replaced, and has a new fencing token.
     *
     * @param int|float|null $seconds 0 or less as for a new lock; without them as many as were asked for last
     *
     * @return bool false if it had ended
     *
     * @throws LockkeeperException it was not refreshed as far as is known, and ends no later than before; if it was to
     *                             be replaced, it may have ended
     */
    public function refresh($seconds = null): bool
    {
        if ($this->isOfParent() || $this->isReleased) {
            return false;
        }
        try {
            $ttl = $seconds === null && $this->seconds <= 0 ? null : $this->ttl($seconds ?? $this->seconds);
            $holding = Holding::shared($this->client->service(), $this->ticket());
            $grant = Renewal::of($holding, $ttl, $this->grant?->remaining() ?? 0.0, new Share());
            $this->grant = $this->grant === null ? null : $grant;
            $holding->close();
            return true;
        } catch (LockLost) {
            return false;
        }
    }

    /** {@inheritdoc} */
    public function isOwnedByCurrentProcess(): bool
    {
        return !$this->isOfParent() && $this->client->isMine($this->key, $this->token->text());
    }

    /**
     * {@inheritdoc}
     *
     * @param ?string $owner null is the owner of a lock that nobody has
     */
    public function isOwnedBy(#[\SensitiveParameter] $owner): bool
    {
        if ($owner === null) {
            return !$this->client->inspect($this->key)->isHeld;
        }
        $token = Token::of((string) $owner, $this->client->service()->tokenPrefix);
        return $this->client->isMine($this->key, $token->text());
    }

    /** @return array<string, mixed> all but the owner and the token */
    public function __debugInfo(): array
    {
        return ['name' => $this->name, 'key' => $this->key, 'seconds' => $this->seconds];
    }

    /** @return never */
    public function __serialize(): array
    {
        throw new \LogicException('A lock is not serialised: restore it by its owner.');
    }

    /** Our owner if it is ours, else a text for people, as the service tells nobody's secret. */
    protected function getCurrentOwner(): ?string
    {
        $look = $this->client->inspect($this->key, $this->token->text());
        return match (true) {
            !$look->isHeld => null,
            $look->isMine => $this->owner(),
            default => 'somebody else: ' . ($look->owner ?? 'unknown'),
        };
    }

    /**
     * For the service all who ask with one token are one, for Laravel an owner comes in once: a lock that
     * was held by its owner already is not acquired. It is looked at first, since asking starts its time anew.
     */
    private function attempt(float $wait): bool
    {
        if (!$this->isFirst && $this->client->isMine($this->key, $this->token->text())) {
            return false;
        }
        $isOwn = $this->isOwnerMadeHere && $this->isFirst;
        $ticket = new Ticket($this->key, $this->token);
        $service = $this->client->service();
        $holding = $isOwn ? Holding::own($service, $ticket) : Holding::shared($service, $ticket);
        $claim = new Claim($holding, $this->ttl($this->seconds));
        try {
            $grant = $claim->acquire($wait);
            if (!$isOwn && $claim->isNew() !== true) {
                return $claim->isNew() ?? throw $this->nobodyKnows();
            }
            [$this->grant, $this->pid, $this->isReleased, $this->isFirst] = [$grant, (int) getmypid(), false, false];
            $holding->close();
            return true;
        } catch (LockBusy) {
            return false;
        } catch (WaitCancelled $cancelled) {
            // Another one of this owner waits.
            return $cancelled->retryAfter === null ? throw $cancelled : false;
        } finally {
            $holding->part();
        }
    }

    private function nobodyKnows(): ServiceUnavailable
    {
        $name = Keys::shown($this->key);
        $message = "$name: an answer was lost, and nobody knows whether the owner had the lock before";
        return new ServiceUnavailable($message, Outcome::Unknown);
    }

    private function ticket(): Ticket
    {
        $ticket = new Ticket($this->key, $this->token);
        return $this->grant === null ? $ticket : $ticket->of($this->grant);
    }

    private function isOfParent(): bool
    {
        return $this->pid !== null && $this->pid !== getmypid();
    }

    private function ttl(int|float|string $seconds): float
    {
        return $seconds > 0 ? (float) $seconds : $this->usual;
    }

    /** What the callback threw is what comes out, even if the release fails as well. */
    private function during(callable $callback): mixed
    {
        try {
            return Block::done($callback());
        } finally {
            if (!$this->isOfParent()) {
                $this->isReleased = true;
                $this->client->service()->giveBack($this->ticket());
            }
        }
    }
}
