<?php

declare(strict_types=1);

namespace Lockkeeper\Tests;

use Lockkeeper\LockClient;

/**
 * A running service: LOCKKEEPER_URL, LOCKKEEPER_API_KEY that may do everything, LOCKKEEPER_PLAIN_API_KEY that
 * may only acquire. It waits for 400 ms at most, and its longest lease is an hour, and 6 seconds for keys that
 * begin with `brief/`. LOCKKEEPER_PATIENT_URL waits as long as services do, so that what waits is in line
 * without a gap.
 */
abstract class TestCase extends \PHPUnit\Framework\TestCase
{
    protected const PATIENCE = 20.0;

    /** For so many seconds a busy machine may do nothing. */
    protected const BUSY = 10.0;

    /** @var list<string> what the clients have warned of */
    protected array $warnings = [];

    protected static function env(string $name): string
    {
        return getenv("LOCKKEEPER_$name") ?: throw new \LogicException("LOCKKEEPER_$name is not set");
    }

    protected function client(?string $url = null, mixed ...$options): LockClient
    {
        $warn = function (string $message): void {
            $this->warnings[] = $message;
        };
        $options += ['apiKey' => self::env('API_KEY'), 'warn' => $warn];
        return new LockClient($url ?? self::env('URL'), ...$options);
    }

    /** A proxy before the service that does this to the first requests. */
    protected static function faults(string ...$faults): Faults
    {
        return new Faults(substr(self::env('URL'), strlen('http://')), $faults);
    }

    /** A key that no other test has. */
    protected static function key(string $name = 'key'): string
    {
        return 'php/' . bin2hex(random_bytes(6)) . "/$name";
    }

    /**
     * What a script of its own does in another process, which has `$client` and `$arguments`.
     *
     * @return array{int, string} exit code, and what it printed
     */
    protected static function script(string $code, string ...$arguments): array
    {
        [$process, $output] = self::start($code, ...$arguments);
        $printed = stream_get_contents($output);
        return [proc_close($process), $printed];
    }

    /** @return array{resource, resource} the process, and what it prints */
    protected static function start(string $code, string ...$arguments): array
    {
        $script = 'require ' . var_export(__DIR__ . '/bootstrap.php', true) . ';'
            . '$client = new Lockkeeper\LockClient(getenv("LOCKKEEPER_URL"), getenv("LOCKKEEPER_API_KEY"));'
            . '$arguments = array_slice($argv, 1);' . $code;
        $options = ['-d', 'display_errors=stderr', '-d', 'error_reporting=-1', '-d', 'log_errors=0'];
        $command = [PHP_BINARY, ...$options, '-r', $script, '--', ...$arguments];
        $process = proc_open($command, [1 => ['pipe', 'w'], 2 => ['file', '/dev/null', 'w']], $pipes);
        return [$process, $pipes[1]];
    }

    /** What an exception's class is that this throws, and the exception. */
    protected function thrown(string $class, callable $call): \Throwable
    {
        try {
            $call();
        } catch (\Throwable $thrown) {
            self::assertInstanceOf($class, $thrown, (string) $thrown);
            return $thrown;
        }
        self::fail("nothing is thrown, instead of $class");
    }

    /** That this has taken so many seconds, and not much more on a machine that is busy. */
    protected static function assertTook(float $seconds, float $began): void
    {
        $took = microtime(true) - $began;
        self::assertGreaterThanOrEqual($seconds - 0.1, $took);
        self::assertLessThan($seconds + self::BUSY, $took);
    }

    /** That a lease of so many seconds has begun a moment ago. */
    protected static function assertLasts(float $seconds, ?float $remaining): void
    {
        self::assertLessThanOrEqual($seconds, $remaining);
        self::assertGreaterThan(max(0.0, $seconds - self::BUSY), $remaining);
    }

    /** That no more remains than the service says, which counts in milliseconds. */
    protected function assertNoMoreRemains(string $key, callable $remaining): void
    {
        $known = $this->client()->inspect($key)->remaining + 0.001;
        self::assertLessThanOrEqual($known, $remaining());
    }

    /** Stops the service. On a busy machine its threads go on for a while. */
    protected static function stop(): void
    {
        posix_kill($pid = (int) self::env('PID'), SIGSTOP);
        $state = fn (string $thread) => @file_get_contents("$thread/stat"); // It may have ended.
        self::eventually(fn () => !preg_grep('/\) [RSD] /', array_map($state, glob("/proc/$pid/task/*"))));
    }

    protected static function goOn(): void
    {
        posix_kill((int) self::env('PID'), SIGCONT);
    }

    /** Asks again until it is true. */
    protected static function eventually(callable $question): void
    {
        for ($end = microtime(true) + self::PATIENCE; !$question();) {
            self::assertLessThan($end, microtime(true), 'it does not come true');
            usleep(10_000);
        }
    }
}
