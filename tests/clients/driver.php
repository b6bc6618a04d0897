<?php

// The driver of the PHP client for situations.py; clients/SITUATIONS.md says what it does. With --lock as the first
// argument it uses withLock() instead of withHold(), and its work refreshes the lease in its steps.

declare(strict_types=1);

use Lockkeeper\Exception\LockBusy;
use Lockkeeper\Exception\LockLost;
use Lockkeeper\Exception\RequestRefused;
use Lockkeeper\Exception\ServiceUnavailable;
use Lockkeeper\Exception\WaitCancelled;
use Lockkeeper\HeldLease;
use Lockkeeper\Lease;
use Lockkeeper\LockClient;

spl_autoload_register(static function (string $class): void {
    require dirname(__DIR__, 2) . '/clients/php/src' . strtr(substr($class, strlen('Lockkeeper')), '\\', '/') . '.php';
});

final class Cancelled extends Exception
{
}

final class OwnError extends Exception
{
}

final class Driver
{
    private readonly LockClient $client;

    /** @param array<string, float> $options seconds */
    public function __construct(
        private readonly bool $isHeld,
        private readonly string $mode,
        private readonly string $key,
        private readonly array $options,
    ) {
        $this->client = new LockClient(getenv('LOCKKEEPER_URL'), getenv('LOCKKEEPER_API_KEY'));
    }

    /** @return string the outcome */
    public function run(): string
    {
        if ($this->mode === 'get') {
            return $this->client->inspect($this->key)->isHeld ? 'held' : 'free';
        }
        pcntl_async_signals(true);
        pcntl_signal(SIGTERM, static fn () => exit(143));
        if ($this->mode === 'cancel') {
            pcntl_signal(SIGUSR1, static fn () => throw new Cancelled());
            $this->alarm();
        }
        if ($this->mode === 'exit') {
            pcntl_signal(SIGUSR1, static fn () => exit(0));
            $this->alarm();
        }
        try {
            if ($this->mode === 'twice') {
                $this->lock(static fn () => null);
            }
            $this->lock($this->work(...));
            return $this->mode === 'throw' ? 'wrong' : 'done';
        } catch (OwnError) {
            return 'done';
        } catch (LockLost) {
            return 'lost';
        } catch (LockBusy) {
            return 'busy';
        } catch (ServiceUnavailable $failure) {
            fwrite(STDERR, $failure->getMessage() . "\n");
            return 'unavailable';
        } catch (RequestRefused) {
            return 'refused';
        } catch (WaitCancelled | Cancelled) {
            return 'cancelled';
        }
    }

    /** @param callable(Lease|HeldLease): mixed $work */
    private function lock(callable $work): void
    {
        $told = static function (Lease|HeldLease $lease) use ($work): void {
            say("acquired {$lease->fencingToken()}");
            $work($lease);
        };
        $options = ['ttl' => $this->options['ttl'], 'wait' => $this->options['wait']];
        $options += array_map(intval(...), array_intersect_key($this->options, ['slots' => 0, 'units' => 0]));
        $this->isHeld
            ? $this->client->withHold($this->key, $told, ...$options, onLost: static fn () => say('told'))
            : $this->client->withLock($this->key, $told, ...$options);
    }

    private function work(Lease|HeldLease $lease): void
    {
        $child = $this->mode === 'fork' ? $this->fork() : 0;
        $end = hrtime(true) / 1e9 + $this->options['seconds'];
        match ($this->mode) {
            'throw' => throw new OwnError(),
            'odd' => $this->look(),
            'block' => self::block($end),
            default => self::steps($lease, $end),
        };
        $child === 0 || pcntl_waitpid($child, $status);
    }

    private static function steps(Lease|HeldLease $lease, float $end): void
    {
        while (hrtime(true) / 1e9 < $end) {
            $lease instanceof HeldLease ? $lease->check() : self::refresh($lease);
            usleep(20_000);
        }
    }

    private static function refresh(Lease $lease): void
    {
        try {
            $lease->remaining() > $lease->ttl() * 2 / 3 || $lease->refresh();
        } catch (ServiceUnavailable $failure) { // It lasts for what remains.
            fwrite(STDERR, $failure->getMessage() . "\n");
        } catch (LockLost $lost) {
            say('told');
            throw $lost;
        }
    }

    private static function block(float $end): void
    {
        while (hrtime(true) / 1e9 < $end) {
            usleep(5_000);
        }
    }

    private function look(): void
    {
        $look = $this->client->inspect($this->key);
        $keys = array_map(static fn ($one) => $one->key, iterator_to_array($this->client->list($this->key)));
        $look->isHeld && [$look->key] === $keys && $look->key === $this->key || throw new Exception('another key');
    }

    private function fork(): int
    {
        $child = pcntl_fork();
        if ($child === 0) {
            usleep(500_000);
            exit(0);
        }
        return $child;
    }

    /** A signal `after` now. PHP has no alarm in parts of a second. */
    private function alarm(): void
    {
        $command = sprintf('(sleep %.3f; kill -USR1 %d) >/dev/null 2>&1 &', $this->options['after'], getmypid());
        exec($command);
    }
}

/** A line, written at once. */
function say(string $line): void
{
    fwrite(STDOUT, "$line\n");
}

function seconds(string $text): float
{
    return str_ends_with($text, 'ms') ? (float) $text / 1000 : (float) $text;
}

$isHeld = ($argv[1] ?? '') !== '--lock';
$isHeld || array_splice($argv, 1, 1);
$options = ['ttl' => 30.0, 'wait' => 10.0, 'seconds' => 2.0, 'after' => 0.3];
foreach (array_slice($argv, 3) as $option) {
    [$name, $value] = explode('=', $option, 2);
    $options[$name] = seconds($value);
}
say((new Driver($isHeld, $argv[1], $argv[2], $options))->run());
