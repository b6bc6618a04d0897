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

/** @internal The wish for a lease: request after request with the same token is one claim. */
final class Claim
{
    /** One request waits no longer, in seconds: the service's own limit, unless it is set otherwise. */
    private const SLICE = 25.0;

    /** At least so many seconds are between two requests of one wait. */
    private const PAUSE = 0.25;

    /** How often a lease is begun anew whose answer was long on its way. */
    private const RENEWALS = 2;

    private bool $inDoubt = false;
    private ?bool $isNew = null;

    /** With the number of the lease that the token has, if that is known: then its share may change. */
    private Ticket $ticket;

    /** @param ?float $ttl seconds, or INF */
    public function __construct(
        private readonly Holding $holding,
        private readonly ?float $ttl,
        private readonly Share $share = new Share(),
    ) {
        $this->ticket = $holding->ticket();
    }

    /**
     * Waits in line for so many seconds, or for ever (null, INF). After an exception, of a signal handler
     * too, or an exit nothing of one's own stays acquired as far as the service can be reached.
     *
     * @throws LockkeeperException
     */
    public function acquire(?float $wait): Grant
    {
        try {
            $this->holding->open();
            return $this->holding->grant = $this->insist(Clock::now() + ($wait ?? INF));
        } catch (\Throwable $failure) {
            $isAnswered = $failure instanceof LockkeeperException; // else of a signal handler
            $this->inDoubt ? $this->holding->part($isAnswered) : $this->holding->close();
            throw $failure;
        }
    }

    /** Whether the lease began with this claim: not if the token had it before; null where nobody knows. */
    public function isNew(): ?bool
    {
        return $this->isNew;
    }

    private function insist(float $until): Grant
    {
        $patience = $this->holding->service->patience();
        $renewals = 0;
        $share = $this->share;
        while (true) {
            $before = $this->inDoubt;
            $this->inDoubt = true;
            try {
                $over = min(Clock::now() + self::SLICE, max(Clock::now(), $until));
                $grant = $this->ask(max(0.0, $over - Clock::now()), $share);
                $this->note($grant, $before);
                if ($share !== $this->share) {
                    $this->inDoubt = $before || $grant->isNew;
                    [$this->ticket, $share] = [$this->ticket->of($grant), $this->share];
                    continue;
                }
                if ($grant->remaining() >= $grant->ttl / 2 || $renewals++ >= self::RENEWALS) {
                    return $grant->remaining() > 0.0 ? $grant : throw $this->tooLate();
                }
            } catch (LockLost) {
                $this->inDoubt = $before;
                $this->ticket = new Ticket($this->ticket->key, $this->ticket->token); // A new one begins.
            } catch (LockBusy $busy) {
                $this->inDoubt = $before;
                if ($busy->isMine && $this->ticket->fencingToken === null && $this->share->options() !== []) {
                    $share = new Share(); // Any share will do, to learn the number.
                    continue;
                }
                // The change of a shared lease is refused at once, or two would wait for each other for ever.
                $busy->isMine || Clock::now() >= $until ? throw $busy : $patience->renew();
            } catch (WaitCancelled $cancelled) {
                $this->inDoubt = $before;
                throw $cancelled;
            } catch (RequestRefused $refused) {
                $this->inDoubt = $before || $refused->outcome === Outcome::Unknown;
                throw $this->inDoubt ? $refused->inDoubt() : $refused;
            } catch (ServiceUnavailable $failure) {
                $this->inDoubt = $before || $failure->outcome === Outcome::Unknown;
                $failure = $this->inDoubt ? $failure->inDoubt() : $failure;
                Patience::isDue($failure) || Clock::now() < $until || throw $failure;
                Clock::now() < $over && $patience->cut();
                $patience->bear($failure);
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
        return new ServiceUnavailable("$name: the answers take longer than the lease", Outcome::Unknown);
    }

    /** One request. */
    private function ask(float $wait, Share $share): Grant
    {
        $began = Clock::now();
        try {
            return $this->holding->service->tryAcquire($this->ticket, $this->ttl, $wait, $share);
        } catch (LockBusy $busy) {
            // A service that lets nobody wait for so long is not asked without a pause.
            $busy->isMine || Clock::sleep(min($wait, $began + self::PAUSE - Clock::now()));
            throw $busy;
        }
    }
}
