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
    /** How long the last words of a process may take, in seconds. */
    private const PARTING = 2.0;

    /** The longest lease, in seconds, as far as is known; the service may have another limit. */
    private float $longest = 86400.0;

    /**
     * @param float                  $answerTimeout seconds that an answer may take, besides the wait
     * @param float                  $patience      seconds to go on asking when there is no answer
     * @param \Closure(string): void $warn          hears of what goes wrong where nothing is thrown
     */
    public function __construct(
        private readonly Transport $transport,
        private readonly float $answerTimeout,
        private readonly float $patience,
        private readonly ?string $owner,
        public readonly string $tokenPrefix,
        private readonly \Closure $warn,
    ) {
    }

    public function patience(): Patience
    {
        return new Patience($this->patience);
    }

    /**
     * One request, which waits in line for so many seconds.
     *
     * @throws LockkeeperException
     */
    public function tryAcquire(string $key, #[\SensitiveParameter] string $token, ?float $ttl, float $wait): Grant
    {
        $options = ['wait_ms' => Clock::millis($wait), 'owner' => $this->owner ?? gethostname() . ':' . getmypid()];
        $send = fn (array $ttlMs): Answer => $this->transport
            ->send('POST', Keys::path($key), $token, $options + $ttlMs, $wait + $this->answerTimeout);
        return $this->granted($key, $ttl, $send);
    }

    /**
     * @param ?float $ttl  seconds, or INF; the TTL that was asked for last, if none
     * @param float  $left seconds for which the lease lasts at least: no longer is it tried
     *
     * @throws LockkeeperException
     */
    public function refresh(string $key, #[\SensitiveParameter] string $token, ?float $ttl, float $left): Grant
    {
        $send = fn (array $ttlMs): Answer => $this->transport
            ->send('PUT', Keys::path($key) . '/refresh', $token, $ttlMs, $this->answerTimeout);
        return $this->insist(fn (): Grant => $this->granted($key, $ttl, $send), min($this->patience, $left));
    }

    /**
     * Whether the lease was there to be given back.
     *
     * @throws LockkeeperException
     */
    public function release(string $key, #[\SensitiveParameter] string $token): bool
    {
        return $this->insist(fn (): bool => $this->tryRelease($key, $token, $this->answerTimeout), $this->patience);
    }

    /** Gives back a lease whose work is done; throws nothing, for that would hide what the work threw. */
    public function giveBack(string $key, #[\SensitiveParameter] string $token): void
    {
        try {
            $this->release($key, $token) || ($this->warn)("lockkeeper: the lease of '$key' ended before its work");
        } catch (LockkeeperException $failure) {
            ($this->warn)("lockkeeper: not released: {$failure->getMessage()}");
        }
    }

    /** Gives back what there may be, if that is quickly done. What stays ends by its TTL. */
    public function part(string $key, #[\SensitiveParameter] string $token): void
    {
        try {
            $this->tryRelease($key, $token, min(self::PARTING, $this->answerTimeout));
        } catch (LockkeeperException $failure) {
            ($this->warn)("lockkeeper: not released: {$failure->getMessage()}");
        }
    }

    /** @throws LockkeeperException */
    public function get(string $path, string $key, #[\SensitiveParameter] ?string $token = null): Answer
    {
        return $this->insist(function () use ($path, $key, $token): Answer {
            return self::good($this->transport->send('GET', $path, $token, null, $this->answerTimeout), $key);
        }, $this->patience);
    }

    /**
     * Asks once: a repeat could end the lease of the next one.
     *
     * @throws LockkeeperException
     */
    public function forceRelease(string $key): bool
    {
        $path = '/admin' . Keys::path($key);
        return self::done($this->transport->send('DELETE', $path, null, null, $this->answerTimeout), $key);
    }

    private function tryRelease(string $key, #[\SensitiveParameter] string $token, float $within): bool
    {
        return self::done($this->transport->send('DELETE', Keys::path($key), $token, null, $within), $key);
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
        $patience = new Patience($seconds);
        $inDoubt = false;
        while (true) {
            try {
                return $request();
            } catch (ServiceUnavailable $failure) {
                $inDoubt = $inDoubt || $failure->outcome === Outcome::Unknown;
                $failure = $inDoubt ? $failure->inDoubt() : $failure;
                Patience::isDue($failure) ? $patience->bear($failure) : throw $failure;
            }
        }
    }

    /** @param \Closure(array<string, int>): Answer $send */
    private function granted(string $key, ?float $ttl, \Closure $send): Grant
    {
        $sent = Clock::now();
        try {
            $answer = $send($ttl === null ? [] : ['ttl_ms' => Clock::millis($ttl === INF ? $this->longest : $ttl)]);
            return Grant::of(self::good($answer, $key)->body, $sent, $answer->status === 201);
        } catch (RequestRefused $refused) {
            // The service says what it would give: "a TTL is 100 to 3600000 milliseconds".
            if ($ttl !== INF || !preg_match('/ to (\d+) milliseconds/', $refused->getMessage(), $longest)) {
                throw $refused;
            }
            $this->longest = $longest[1] / 1000;
            return $this->granted($key, $this->longest, $send);
        }
    }

    private static function done(Answer $answer, string $key): bool
    {
        $failure = $answer->status === 204 || $answer->isGood() ? null : $answer->failure($key);
        return match (true) {
            $failure === null => true,
            $failure instanceof LockLost => false,
            default => throw $failure,
        };
    }

    private static function good(Answer $answer, string $key): Answer
    {
        return $answer->isGood() ? $answer : throw $answer->failure($key);
    }
}
