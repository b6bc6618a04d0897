<?php

declare(strict_types=1);

namespace Lockkeeper\Internal;

use Lockkeeper\Exception\LockBusy;
use Lockkeeper\Exception\LockkeeperException;
use Lockkeeper\Exception\LockLost;
use Lockkeeper\Exception\Outcome;
use Lockkeeper\Exception\RequestRefused;
use Lockkeeper\Exception\ServiceUnavailable;
use Lockkeeper\Exception\WaitCancelled;
use Lockkeeper\Wait;

/** @internal The wish for a lease: request after request with the same token is one claim. */
final class Claim
{
    /** One request waits no longer, in seconds: the service's own limit, unless it is set otherwise. */
    private const SLICE = 25.0;

    /** At least so many seconds are between two requests of one wait. */
    private const PAUSE = 0.25;

    /** A service answers within so many seconds, unless it has put a claim in line, or is stuck. */
    private const ANSWERS = 1.0;

    /** How often a lease is begun anew whose answer was long on its way. */
    private const RENEWALS = 2;

    /** So often in a row a newer request may take the place, then another program has the token. */
    private const SUPERSEDED = 3;

    private bool $inDoubt = false;
    private ?bool $isNew = null;

    private ?Progress $progress = null;

    /**
     * @param ?float                 $ttl    seconds, or INF
     * @param ?\Closure(Wait): void $onWait
     */
    public function __construct(
        private readonly Holding $holding,
        private readonly ?float $ttl,
        private readonly Share $share = new Share(),
        private readonly ?\Closure $onWait = null,
    ) {
    }

    /**
     * Waits in line for so many seconds, or for ever (null, INF). If the token has a lease with another share, and
     * this claim names one, it replaces that lease, or fails at once. After an exception, of a signal handler too, or
     * an exit nothing of one's own stays acquired as far as the service can be reached, nor a lease that was given up.
     *
     * @throws LockkeeperException
     */
    public function acquire(?float $wait): Grant
    {
        $wait = Duration::of($wait); // The frameworks have not asked.
        if ($this->onWait !== null && $wait !== 0.0) {
            $this->progress = new Progress($this->holding->service, $this->holding->ticket()->key, $this->onWait);
        }
        return $this->take(Clock::now() + ($wait ?? INF), null);
    }

    /**
     * Replaces the lease of this number. That is given up by the first request, unless it is refused.
     *
     * @throws LockLost            the token has another lease by now, or none
     * @throws LockkeeperException {@see Holding::isGivenUp()} says whether the lease is left
     */
    public function replace(int $number): Grant
    {
        return $this->take(Clock::now(), $number);
    }

    /** Whether the lease began with this claim: not if the token had it before; null where nobody knows. */
    public function isNew(): ?bool
    {
        return $this->isNew;
    }

    private function take(float $until, ?int $number): Grant
    {
        try {
            $this->holding->open();
            return $this->holding->grant = $this->insist($until, $number);
        } catch (\Throwable $failure) {
            $isAnswered = $failure instanceof LockkeeperException; // else of a signal handler
            $isLeft = $this->inDoubt || $this->holding->isGivenUp();
            $isLeft ? $this->holding->part($isAnswered) : $this->holding->close();
            throw $failure;
        }
    }

    /** @param ?int $number that of the lease to be replaced */
    private function insist(float $until, ?int $number): Grant
    {
        $patience = $this->holding->service->patience();
        [$renewals, $superseded, $mustBeThere] = [0, 0, $number !== null];
        while (true) {
            $before = $this->inDoubt;
            $this->inDoubt = true;
            $isFirst = $number !== null && $this->holding->giveUp();
            try {
                $asked = Clock::now();
                $over = min($asked + self::SLICE, max($asked, $until));
                $grant = $this->ask($number === null ? max(0.0, $over - Clock::now()) : 0.0, $number);
                $this->note($grant, $before);
                if ($grant->remaining() >= $grant->ttl / 2 || $renewals++ >= self::RENEWALS) {
                    return $grant->remaining() > 0.0 ? $grant : throw $this->tooLate();
                }
                $number = $number === null ? null : $grant->fencingToken;
            } catch (LockLost $lost) {
                $this->inDoubt = $before;
                $number = $lost->fencingToken; // Without one a new lease begins.
                if ($mustBeThere && ($isFirst || $number === null)) {
                    $isFirst && $this->holding->takeBack();
                    throw $lost;
                }
            } catch (LockBusy $busy) {
                $this->inDoubt = $before;
                // A request without an answer may still replace it.
                $isFirst && $this->holding->takeBack();
                if ($number === null && $busy->fencingToken !== null && $this->share->options() !== []) {
                    $number = $busy->fencingToken;
                    continue;
                }
                // Another share is refused at once, or two would wait for each other for ever.
                $isOver = $number !== null || $busy->isMine || Clock::now() >= $until;
                $isOver ? throw $busy : $patience->renew();
                $superseded = 0;
            } catch (WaitCancelled $cancelled) {
                $isOver = $cancelled->retryAfter === null || ++$superseded >= self::SUPERSEDED;
                $this->inDoubt = $before || $cancelled->retryAfter !== null;
                $isOver ? throw $cancelled : $patience->renew();
                Clock::sleep(min($cancelled->retryAfter, $until - Clock::now()));
            } catch (RequestRefused $refused) {
                $this->inDoubt = $before || $refused->outcome === Outcome::Unknown;
                $isFirst && !$this->inDoubt && $this->holding->takeBack();
                throw $this->inDoubt ? $refused->inDoubt() : $refused;
            } catch (ServiceUnavailable $failure) {
                $isSent = $failure->outcome === Outcome::Unknown;
                $this->inDoubt = $before || $isSent;
                // On several nodes a store that has acquired nothing may have ended the lease.
                $isFirst && !$this->inDoubt && $failure->problem !== 'store_unavailable' && $this->holding->takeBack();
                $failure = $this->inDoubt ? $failure->inDoubt() : $failure;
                $waits = Clock::now() < $until;
                $waits || Patience::isDue($failure) || throw $failure;
                $isLate = $isSent && Clock::now() >= $asked + self::ANSWERS;
                Clock::now() < $over && $patience->cut($isLate);
                $patience->bear($failure, $waits);
            }
        }
    }

    private function note(Grant $grant, bool $wasInDoubt): void
    {
        if ($grant->isNew) {
            $this->isNew = true;
        } elseif ($this->isNew === null && !$wasInDoubt) {
            $this->isNew = false;
        }
    }

    private function tooLate(): ServiceUnavailable
    {
        $name = Keys::shown($this->holding->ticket()->key);
        return new ServiceUnavailable("$name: the answer came too late for its TTL", Outcome::Unknown);
    }

    /** One request. */
    private function ask(float $wait, ?int $number): Grant
    {
        $began = Clock::now();
        $ticket = $this->holding->ticket()->named($number);
        try {
            $meanwhile = $wait > 0.0 && $this->progress !== null ? $this->progress->look(...) : null;
            return $this->holding->service->tryAcquire($ticket, $this->ttl, $wait, $this->share, $meanwhile);
        } catch (LockBusy $busy) {
            // A service that lets nobody wait for so long is not asked without a pause.
            $busy->isMine || Clock::sleep(min($wait, $began + self::PAUSE - Clock::now()));
            throw $busy;
        }
    }
}
