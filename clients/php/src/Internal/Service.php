<?php

declare(strict_types=1);

namespace Lockkeeper\Internal;

use Lockkeeper\Exception\LockkeeperException;
use Lockkeeper\Exception\LockLost;
use Lockkeeper\Exception\Outcome;
use Lockkeeper\Exception\RequestRefused;
use Lockkeeper\Exception\ServiceUnavailable;

/** @internal The verbs. Each may be repeated, and is while nobody knows whether it happened. */
final class Service
{
    /** How long the last words of a process may take, in seconds: the connection about half of it. */
    private const PARTING = 4.0;

    /** How long a request that was given up may still be on its way, and the pause between two looks, in seconds. */
    private const ON_ITS_WAY = 1.0;
    private const PAUSE = 0.25;

    /** How long a look beside a request that waits may take, in seconds, and the places in line that it asks for. */
    private const MOMENT = 1.0;
    private const PLACES = 100; // as many as the service allows

    /** A timeout that is none, in seconds. */
    private const LONG = 86400.0;

    /** The longest lease, in seconds, as far as is known; the service may have another limit. */
    private float $longest = 86400.0;

    /** What keeps the leases of this process that are held. */
    private ?Keeper $keeper = null;

    /**
     * @param float                  $answerTimeout seconds that an answer may take, besides the wait
     * @param float                  $patience      seconds to go on asking when there is no answer
     * @param \Closure(string): void $warn          hears of what goes wrong where nothing is thrown
     * @param ?string                $php           the program that runs a keeper
     */
    public function __construct(
        private readonly Transport $transport,
        private readonly float $answerTimeout,
        private readonly float $patience,
        private readonly ?string $owner,
        public readonly string $tokenPrefix,
        private readonly \Closure $warn,
        public readonly ?string $php = null,
    ) {
    }

    /** That of this very process: a forked child has its own. */
    public function keeper(): Keeper
    {
        if ($this->keeper === null || !$this->keeper->isOfThisProcess()) {
            $this->keeper = new Keeper($this);
        }
        return $this->keeper;
    }

    /** @return array<string, mixed> what makes a client like this one in the keeper */
    public function settings(): array
    {
        $own = ['answerTimeout' => min(self::LONG, $this->answerTimeout), 'tokenPrefix' => $this->tokenPrefix];
        return $own + $this->transport->settings();
    }

    public function url(): string
    {
        return $this->transport->url;
    }

    /** As {@see Transport::address()}. */
    public function address(): ?string
    {
        return $this->transport->address();
    }

    /** As {@see Transport::useAddress()}. */
    public function useAddress(string $address): void
    {
        $this->transport->useAddress($address);
    }

    /** The address at which the service is now; null if there is no connection. */
    public function findAddress(): ?string
    {
        try {
            $this->transport->send(new Request('GET', '/', '', null, null, $this->answerTimeout));
        } catch (LockkeeperException) {
        }
        return $this->transport->address();
    }

    public function patience(): Patience
    {
        return new Patience($this->patience, $this->warn(...));
    }

    /** Says what cannot be thrown. */
    public function warn(string $message): void
    {
        ($this->warn)("lockkeeper: $message");
    }

    /**
     * One request, which waits in line for so many seconds. If it names a lease, it replaces that.
     *
     * @param ?\Closure(): void $meanwhile is called again and again while it waits
     *
     * @throws LockkeeperException
     */
    public function tryAcquire(
        Ticket $ticket,
        ?float $ttl,
        float $wait,
        Share $share,
        ?\Closure $meanwhile = null,
    ): Grant {
        $options = ['wait_ms' => Clock::millis($wait), 'owner' => $this->owner()];
        $options += $share->options() + self::lease($ticket);
        $within = $wait + $this->answerTimeout;
        $path = Keys::path($ticket->key);
        return $this->granted($ttl, fn (array $ttlMs): Answer => $this->transport
            ->send(new Request('POST', $path, $ticket->key, $ticket->token, $options + $ttlMs, $within, $meanwhile)));
    }

    /** Who asks, for people to read. */
    public function owner(): string
    {
        return $this->owner ?? gethostname() . ':' . getmypid();
    }

    /**
     * One look at a key and at the claims that wait for it, which takes no longer than a moment.
     *
     * @return array<string, mixed>
     *
     * @throws LockkeeperException
     */
    public function line(string $key): array
    {
        $path = Keys::path($key) . '?waiters=' . self::PLACES;
        $within = min(self::MOMENT, $this->answerTimeout);
        return self::good($this->transport->send(new Request('GET', $path, $key, null, null, $within)))->body;
    }

    /**
     * The lease lasts for so many seconds from now on, or until its end, if that is later.
     *
     * @param ?float $ttl  seconds, or INF; the TTL that was asked for last, if none
     * @param float  $left seconds for which the lease lasts at least: no longer is it tried
     *
     * @throws LockkeeperException
     */
    public function refresh(Ticket $ticket, ?float $ttl, float $left): Grant
    {
        $refresh = fn (): Grant => $this->tryRefresh($ticket, $ttl, $this->answerTimeout);
        return $this->insist($refresh, min($this->patience, $left));
    }

    /**
     * One refresh, which may take so many seconds.
     *
     * @throws LockkeeperException
     */
    public function tryRefresh(Ticket $ticket, ?float $ttl, float $within): Grant
    {
        $path = Keys::path($ticket->key) . '/refresh';
        $within = min($within, $this->answerTimeout);
        $send = fn (array $options): Answer => $this->transport
            ->send(new Request('PUT', $path, $ticket->key, $ticket->token, $options, $within));
        $lease = self::lease($ticket);
        return $this->granted($ttl, static fn (array $ttlMs): Answer => $send($lease + $ttlMs));
    }

    /**
     * Whether the lease was there to be given back.
     *
     * @param bool $isKnown whether it lasts until now by this machine's clock: if it is gone after a lost answer,
     *                      it was given back. A forced release in this moment cannot be told apart.
     * @param bool $isExact whether another lease of the token is left alone
     * @param bool $isAny   whether another one of the token counts: another object may have replaced it. Otherwise it
     *                      is given back as well, but the lease itself had ended
     *
     * @throws LockkeeperException
     */
    public function release(
        Ticket $ticket,
        bool $isKnown = false,
        bool $isExact = false,
        bool $isAny = false,
    ): bool {
        $mayBeDone = false;
        $release = function () use ($ticket, $isKnown, $isExact, $isAny, &$mayBeDone): bool {
            try {
                $released = $this->tryRelease($ticket, $this->answerTimeout, $isExact);
                return $released === true || $isAny && $released !== null || $mayBeDone;
            } catch (ServiceUnavailable $failure) {
                $mayBeDone = $mayBeDone || $isKnown && $failure->outcome === Outcome::Unknown;
                throw $failure;
            }
        };
        return $this->insist($release, $this->patience);
    }

    /** Gives back a lease whose work is done; throws nothing, for that would hide what the work threw. */
    public function giveBack(Ticket $ticket, bool $isKnown = false): void
    {
        try {
            $name = Keys::shown($ticket->key);
            $this->release($ticket, $isKnown) || $this->warn("the lease of $name ended before its work");
        } catch (LockkeeperException $failure) {
            $this->warn("not released: {$failure->getMessage()}");
        }
    }

    /**
     * Gives back what there may be, if that is quickly done. What stays ends by its TTL.
     *
     * @param bool $isOnItsWay whether the request for it may still arrive, behind a proxy: where nothing is found,
     *                         it looks again for a moment
     */
    public function part(Ticket $ticket, bool $isOnItsWay = false): void
    {
        try {
            $until = Clock::now() + self::ON_ITS_WAY;
            while ($this->tryRelease($ticket, min(self::PARTING, $this->answerTimeout)) === null) {
                if (!$isOnItsWay || Clock::now() >= $until) {
                    return;
                }
                Clock::sleep(self::PAUSE);
            }
        } catch (LockkeeperException $failure) {
            $this->warn("not released: {$failure->getMessage()}");
        }
    }

    /**
     * @param string $key the key that the answer has to be about
     *
     * @throws LockkeeperException
     */
    public function get(string $path, string $key, ?Secret $token = null): Answer
    {
        $request = new Request('GET', $path, $key, $token, null, $this->answerTimeout);
        return $this->insist(fn (): Answer => self::good($this->transport->send($request)), $this->patience);
    }

    /**
     * Asks once: a repeat could end the lease of the next one.
     *
     * @throws LockkeeperException
     */
    public function forceRelease(string $key): bool
    {
        $path = '/admin' . Keys::path($key);
        try {
            self::good($this->transport->send(new Request('DELETE', $path, $key, null, null, $this->answerTimeout)));
            return true;
        } catch (LockLost) {
            return false;
        }
    }

    /** True for the lease itself, false for another one of the token, null where there was neither. */
    private function tryRelease(Ticket $ticket, float $within, bool $isExact = false): ?bool
    {
        $lease = self::lease($ticket);
        $path = Keys::path($ticket->key) . ($lease === [] ? '' : '?' . http_build_query($lease));
        $request = new Request('DELETE', $path, $ticket->key, $ticket->token, null, $within);
        try {
            self::good($this->transport->send($request));
            return true;
        } catch (LockLost $lost) {
            // One that has replaced it, or that a late request got.
            $isThere = !$isExact && $lost->fencingToken !== null
                && $this->tryRelease($ticket->named($lost->fencingToken), $within, true);
            return $isThere ? false : null;
        }
    }

    /** @return array<string, int> what names the lease */
    private static function lease(Ticket $ticket): array
    {
        return $ticket->fencingToken === null ? [] : ['fencing_token' => $ticket->fencingToken];
    }

    /**
     * @template T
     *
     * @param \Closure(): T $request
     * @param float         $seconds
     *
     * @return T
     */
    private function insist(\Closure $request, float $seconds): mixed
    {
        $patience = new Patience($seconds, $this->warn(...));
        $inDoubt = false;
        while (true) {
            try {
                return $request();
            } catch (RequestRefused $refused) {
                throw $inDoubt ? $refused->inDoubt() : $refused;
            } catch (ServiceUnavailable $failure) {
                $inDoubt = $inDoubt || $failure->outcome === Outcome::Unknown;
                $failure = $inDoubt ? $failure->inDoubt() : $failure;
                Patience::isDue($failure) ? $patience->bear($failure) : throw $failure;
            }
        }
    }

    /** @param \Closure(array<string, int>): Answer $send */
    private function granted(?float $ttl, \Closure $send): Grant
    {
        $sent = Clock::now();
        try {
            $answer = $send($ttl === null ? [] : ['ttl_ms' => Clock::millis($ttl === INF ? $this->longest : $ttl)]);
            return Grant::of(self::good($answer)->body, $sent, $answer->status === 201);
        } catch (RequestRefused $refused) {
            // The service says what it would give.
            if ($ttl !== INF || $refused->longest === null) {
                throw $refused;
            }
            $this->longest = $refused->longest;
            return $this->granted($this->longest, $send);
        }
    }

    private static function good(Answer $answer): Answer
    {
        return $answer->isGood() ? $answer : throw $answer->failure();
    }
}
