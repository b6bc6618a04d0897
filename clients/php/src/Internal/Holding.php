<?php

declare(strict_types=1);

namespace Lockkeeper\Internal;

/**
 * @internal A lease that this process has or may have, from before its first request on: whatever ends the
 * process gives it back. A forked child has nothing of its parent's.
 */
final class Holding
{
    public ?Grant $grant = null;

    /** The process that may have it; none before the first request, and when it is over. */
    private ?int $pid = null;

    /** The process that refreshes it, if one does, and its number there. */
    private ?Keeper $keeper = null;
    private int $id = 0;

    /** Whether it stays when this process ends. */
    private bool $stays = false;

    /** Whether a request that replaces the lease may be without an answer: nothing relies on it any more. */
    private bool $isGivenUp = false;

    /** @param bool $isOwn whether nobody else can know the token, so that it may be given back here */
    private function __construct(
        public readonly Service $service,
        private readonly Ticket $ticket,
        private readonly bool $isOwn,
    ) {
    }

    /** That of a token which was made for it. */
    public static function own(Service $service, Ticket $ticket): self
    {
        return new self($service, $ticket, true);
    }

    /** That of a token which may have a lease already, also in another process: here it is only given back if given up. */
    public static function shared(Service $service, Ticket $ticket): self
    {
        return new self($service, $ticket, false);
    }

    public function ticket(): Ticket
    {
        return $this->grant === null ? $this->ticket : $this->ticket->of($this->grant);
    }

    /** From now on it may be held. */
    public function open(): void
    {
        if ($this->isOwn || $this->isGivenUp) {
            $this->pid = (int) getmypid();
            AutoRelease::add($this);
        }
    }

    /**
     * A request is about to be sent that replaces the lease. Without its answer all that is left is to give the lease
     * back.
     *
     * @return bool whether every earlier such request was answered
     */
    public function giveUp(): bool
    {
        $isFirst = !$this->isGivenUp;
        $this->isGivenUp = true;
        $this->open();
        return $isFirst;
    }

    /** All such requests were refused: the lease stays as it was. */
    public function takeBack(): void
    {
        $this->isGivenUp = false;
        $this->isOwn || $this->close();
    }

    public function isGivenUp(): bool
    {
        return $this->isGivenUp;
    }

    /** Another process refreshes it from now on, and gives it back when this one was killed. */
    public function keptBy(Keeper $keeper, int $id): void
    {
        [$this->keeper, $this->id, $this->stays] = [$keeper, $id, $keeper->isForChildren];
        if ($this->stays) {
            AutoRelease::remove($this);
        }
    }

    /** Here is nothing to give back any more. */
    public function close(): void
    {
        $this->pid = null;
        $this->keeper?->drop($this->id);
        AutoRelease::remove($this);
    }

    /** Whether this process has something to give back. */
    public function isOpen(): bool
    {
        return $this->pid !== null && $this->pid === getmypid();
    }

    /**
     * Gives back what there may be, if that is quickly done; what stays ends by its TTL.
     *
     * @param bool $isAnswered whether no request was left before its answer or the end of its time
     */
    public function part(bool $isAnswered = false): void
    {
        if (!$this->isOpen() || $this->stays) {
            return;
        }
        try {
            $this->keeper?->drop($this->id);
            $this->service->part($this->ticket(), !$isAnswered && $this->grant === null);
            $this->close();
        } finally {
            // A signal handler may throw amid the request.
            $this->isOpen() && $this->service->part($this->ticket());
            $this->close();
        }
    }

    public function __destruct()
    {
        $this->part();
    }
}
