<?php

declare(strict_types=1);

namespace Lockkeeper\Internal;

use Lockkeeper\Exception\LockkeeperException;
use Lockkeeper\Exception\LockLost;
use Lockkeeper\LockClient;

/**
 * @internal The work of the process that Keeper starts: refreshes leases until the application drops them, or
 * has ended. It ends itself then, and gives back what is left.
 *
 * The application has ended when its pipe is closed, or when this process has another parent: a forked child
 * of the application has the pipe as well. Where programs that the application has started keep the lease
 * too, all of them have a file locked, and have ended when the lock is free.
 */
final class Keeping
{
    /** At least so often it looks whether the application lives, in seconds. */
    private const LOOK = 0.5;

    /** A lease is refreshed when this part of its TTL is over; an answer may take a fifth of the TTL. */
    private const PART = 1 / 3;
    private const ANSWER = 1 / 5;

    /** An answer may take so many seconds in any case. */
    private const SHORTEST_ANSWER = 0.05;

    /** The pause before the next try, in seconds; it doubles, to so many parts of the TTL, and seconds, at most. */
    private const FIRST_PAUSE = 0.05;
    private const PAUSE = 1 / 10;
    private const LONGEST_PAUSE = 1.0;

    /** @var array<int, Kept> */
    private array $leases = [];

    /** @var array<int, string> why a lease is lost */
    private array $losses = [];

    private string $heard = '';
    private bool $isClosed = false;

    /** @var ?resource the file that the application and its programs have locked */
    private $file = null;

    /** @param ?int $parent the application; null where programs that it starts keep the lease too */
    private function __construct(private readonly Service $service, private readonly ?int $parent)
    {
    }

    public static function run(): void
    {
        $settings = json_decode((string) fgets(STDIN), true);
        if (!is_array($settings)) {
            return; // The application has ended already.
        }
        function_exists('posix_setsid') && @posix_setsid(); // No signal of a terminal comes here.
        stream_set_blocking(STDIN, false);
        fwrite(STDOUT, "ready\n");
        $keeping = new self((new LockClient(...$settings['client']))->service(), $settings['parent']);
        while ($keeping->goesOn()) {
            $keeping->hear($keeping->pause());
            $keeping->refreshAll();
        }
        foreach ($keeping->leases as $kept) {
            $keeping->service->part($kept->ticket);
        }
    }

    private function goesOn(): bool
    {
        if ($this->file !== null) {
            return $this->leases !== [] && !($this->isClosed && flock($this->file, LOCK_EX | LOCK_NB));
        }
        return !$this->isClosed && $this->isParentThere();
    }

    private function isParentThere(): bool
    {
        return $this->parent === null || !function_exists('posix_getppid') || posix_getppid() === $this->parent;
    }

    private function pause(): float
    {
        $due = array_map(static fn (Kept $kept): float => min($kept->due, $kept->over()), $this->leases);
        return max(0.0, min([Clock::now() + self::LOOK, ...$due]) - Clock::now());
    }

    /** Does what the application says within so many seconds. */
    private function hear(float $seconds): void
    {
        if ($this->isClosed) {
            Clock::sleep($seconds);
            return;
        }
        [$read, $none] = [[STDIN], null];
        if (@stream_select($read, $none, $none, (int) $seconds, (int) (fmod($seconds, 1.0) * 1e6)) < 1) {
            return;
        }
        while (is_string($piece = fread(STDIN, 8192)) && $piece !== '') {
            $this->heard .= $piece;
        }
        $this->isClosed = feof(STDIN);
        $lines = explode("\n", $this->heard);
        $this->heard = (string) array_pop($lines);
        foreach ($lines as $line) {
            $this->does(json_decode($line, true) ?? []);
        }
    }

    /** @param array<string, mixed> $order */
    private function does(array $order): void
    {
        $id = $order['id'] ?? 0;
        match ($order['do'] ?? '') {
            'keep' => $this->keep($id, $order),
            'drop' => $this->drop($id),
            'ask' => $this->answer($id, $order['number']),
            'end' => $this->isClosed = true,
            default => null,
        };
    }

    /** @param array<string, mixed> $order */
    private function keep(int $id, array $order): void
    {
        $ticket = new Ticket($order['key'], new Secret($order['token']), $order['fencing_token']);
        $due = min($order['end'] - $order['ttl'] * (1 - self::PART), $order['last']);
        $times = [$order['ttl'], $order['end'], $due, $order['last']];
        $this->leases[$id] = new Kept($ticket, $order['signal'], ...$times);
        $this->leases[$id]->isCapped = $order['capped'];
        if ($order['file'] !== null) {
            $this->file = fopen($order['file'], 'r') ?: null;
        }
        $order['address'] === null || $this->service->useAddress($order['address']);
        $order['again'] && $this->refresh($id, $this->leases[$id]);
    }

    private function drop(int $id): void
    {
        unset($this->leases[$id], $this->losses[$id]);
    }

    private function answer(int $id, int $number): void
    {
        $this->endWhatIsOver();
        $kept = $this->leases[$id] ?? null;
        $state = $kept === null ? ['lost' => $this->losses[$id] ?? 'it is not kept'] : ['end' => $kept->end];
        fwrite(STDOUT, json_encode(['number' => $number] + $state, JSON_INVALID_UTF8_SUBSTITUTE) . "\n");
    }

    private function refreshAll(): void
    {
        $this->endWhatIsOver();
        foreach ($this->leases as $id => $kept) {
            if ($kept->due <= Clock::now() && isset($this->leases[$id])) {
                $this->refresh($id, $kept);
                // A service that hangs keeps nobody waiting for more than one answer.
                $this->hear(0.0);
                $this->endWhatIsOver();
            }
        }
    }

    private function refresh(int $id, Kept $kept): void
    {
        $ttl = $kept->ttlFrom(Clock::now());
        if ($ttl <= 0.0) {
            $this->lose($id, Keys::shown($kept->ticket->key) . ' ' . Kept::LONG_ENOUGH);
            $this->service->part($kept->ticket);
            return;
        }
        try {
            $within = min($kept->ttl * self::ANSWER, $this->untilAnEnd());
            $sent = Clock::now();
            $grant = $this->service->tryRefresh($kept->ticket, $ttl, $within);
            $kept->end = Clock::now() + $grant->remaining();
            $kept->due = min($sent + $kept->ttl * self::PART, $kept->end, $kept->last);
            $kept->failures = 0;
            [$kept->isCapped, $kept->isLast] = [$grant->isCapped, $ttl < $kept->ttl];
        } catch (LockLost $lost) {
            $this->hear(0.0); // Perhaps the application has released it.
            isset($this->leases[$id]) && $this->lose($id, $lost->getMessage());
        } catch (LockkeeperException $failure) {
            $kept->failure = $failure->getMessage();
            $longest = min(self::LONGEST_PAUSE, $kept->ttl * self::PAUSE);
            $kept->due = Clock::now() + min($longest, self::FIRST_PAUSE * 2 ** $kept->failures++);
        }
    }

    /** Seconds until a lease is over: no answer is waited for beyond that, because its loss has to be told. */
    private function untilAnEnd(): float
    {
        $ends = array_map(static fn (Kept $kept): float => $kept->over(), $this->leases);
        return max(self::SHORTEST_ANSWER, min($ends) - Clock::now());
    }

    /** A lease that was not refreshed in time may be another's. */
    private function endWhatIsOver(): void
    {
        foreach ($this->leases as $id => $kept) {
            if ($kept->over() <= Clock::now()) {
                $this->lose($id, Keys::shown($kept->ticket->key) . ' ' . $kept->why());
            }
        }
    }

    private function lose(int $id, string $why): void
    {
        $signal = $this->leases[$id]->signal;
        unset($this->leases[$id]);
        $this->losses[$id] = $why;
        if ($signal !== null && $this->parent !== null && $this->isParentThere()) {
            posix_kill($this->parent, $signal);
        }
    }
}
