<?php

declare(strict_types=1);

namespace Lockkeeper\Tests;

use Lockkeeper\Exception\LockLost;
use Lockkeeper\LockClient;
use PHPUnit\Framework\Attributes\DataProvider;

/** How a lease ends with its object, its process, or not at all. */
final class LeaseTest extends TestCase
{
    private const TAKE = '$lease = $client->acquire($arguments[0], 60);';

    public function testALeaseEndsWithItsObject(): void
    {
        $key = self::key();
        $lease = $this->client()->acquire($key);
        unset($lease);
        self::assertFalse($this->client()->inspect($key)->isHeld);
    }

    /** @dataProvider ends */
    #[DataProvider('ends')]
    public function testALeaseEndsWithItsProcess(string $end, int $code): void
    {
        $key = self::key();
        self::assertSame([$code, 'held'], self::script(self::TAKE . 'echo "held";' . $end, $key));
        self::assertFalse($this->client()->inspect($key)->isHeld);
    }

    public static function ends(): array
    {
        $eat = '$all = []; while (true) $all[] = ';
        return [
            'the end' => ['', 0],
            'exit' => ['exit(3);', 3],
            'an uncaught exception' => ['throw new Exception();', 255],
            'an error' => ['nothing();', 255],
            'exit within a function' => ['(function ($mine) { exit(4); })($lease);', 4],
            'a cycle' => ['$o = new stdClass(); $o->o = $o; $o->lease = $lease; unset($o, $lease); exit(5);', 5],
            'out of memory by little' => ["ini_set('memory_limit', '32M'); $eat [1, count(\$all)];", 255],
            'out of memory by strings' => ["ini_set('memory_limit', '32M'); $eat str_repeat('x', 1000);", 255],
            'out of memory to the last byte' => ["ini_set('memory_limit', '32M'); \$all = new SplFixedArray(1 << 20);"
                . 'for ($i = 0; ; $i++) $all[$i] = str_repeat("x", 16 + 61 * $i % 3000);', 255],
            'out of memory at once' => ["ini_set('memory_limit', '32M'); str_repeat('x', 1 << 30);", 255],
            'out of memory with leases' => ["ini_set('memory_limit', '32M'); $eat "
                . '[$client->acquire($arguments[0] . "/" . count($all)), str_repeat("x", 400000)];', 255],
            'out of time' => ["set_time_limit(1); while (true) { hash('sha256', 'x'); }", 255],
        ];
    }

    public function testALeaseOutlivesAProcessThatIsKilled(): void
    {
        $key = self::key();
        self::script('$lease = $client->acquire($arguments[0], 0.5); posix_kill(getmypid(), SIGKILL);', $key);
        self::assertTrue($this->client()->inspect($key)->isHeld);
        self::assertNotNull($this->client()->tryAcquire($key, wait: 5));
    }

    public function testAForkedChildReleasesNothing(): void
    {
        $key = self::key();
        [$code, $printed] = self::script(self::TAKE . '
            $other = $client->acquire("$arguments[0]/other");
            $all = $client->withLock("$arguments[0]/work", function () use ($client, $lease, $arguments) {
                $child = pcntl_fork();
                if ($child === 0) throw new Exception("of the child");
                pcntl_waitpid($child, $status);
                return [$client->inspect($arguments[0])->isHeld, $client->inspect("$arguments[0]/work")->isHeld];
            });
            $child = pcntl_fork();
            if ($child === 0) {
                unset($other);
                $own = $client->acquire("$arguments[0]/child");
                exit((int) ($lease->isOver() && $lease->isExpired() && !$own->isOver()));
            }
            pcntl_waitpid($child, $status);
            $held = fn ($name) => $client->inspect("$arguments[0]$name")->isHeld;
            $held = [$held(""), $held("/other"), $held("/child")];
            echo json_encode([$all, pcntl_wexitstatus($status), $held, $lease->release()]);
        ', $key);
        self::assertSame([0, '[[true,true],1,[true,true,false],true]'], [$code, $printed]);
    }

    public function testOnlyTheProcessThatAcquiredALeaseRefreshesItAndReleasesIt(): void
    {
        [$code, $printed] = self::script(self::TAKE . '
            $child = pcntl_fork();
            try {
                if ($child === 0) throw new Exception();
                pcntl_waitpid($child, $status);
            } catch (Exception) {
                foreach (["refresh", "handOver"] as $verb) {
                    try { $lease->$verb(); echo "done, "; } catch (Lockkeeper\Exception\LockLost) { echo "lost, "; }
                }
            } finally {
                echo json_encode([$lease->release(), $lease->remaining() > 0]), ", ";
                if ($child === 0) exit;
            }
            echo "left: ", $lease->remaining();
        ', self::key());
        self::assertSame([0, 'lost, lost, [false,false], [true,false], left: 0'], [$code, $printed]);
    }

    public function testALeaseLastsUntilAllElseIsDoneAtTheEnd(): void
    {
        $code = self::TAKE . 'register_shutdown_function(function () use ($lease, $client, $arguments) {
            echo json_encode([$lease->remaining() > 50, $client->inspect($arguments[0])->isHeld]);
        }); exit;';
        self::assertSame([0, '[true,true]'], self::script($code, $key = self::key()));
        self::assertFalse($this->client()->inspect($key)->isHeld);
    }

    /** @dataProvider handlers */
    #[DataProvider('handlers')]
    public function testAnAcquireThatASignalHandlerEndsLeavesNothingBehind(string $handler): void
    {
        $key = self::key();
        $holder = $this->client()->acquire($key);
        [$process, $output] = self::start('
            pcntl_async_signals(true);
            pcntl_signal(SIGTERM, fn () => ' . $handler . ');
            echo "ready\n";
            $lease = $client->acquire($arguments[0], 60, INF);
        ', $key);
        self::assertSame("ready\n", fgets($output));
        self::eventually(fn () => $this->client()->inspect($key)->waiters === 1);
        posix_kill(proc_get_status($process)['pid'], SIGTERM);
        $holder->release(); // so the handler comes to its turn when the key was granted
        stream_get_contents($output);
        proc_close($process);
        self::assertFalse($this->client()->inspect($key)->isHeld);
    }

    public static function handlers(): array
    {
        return ['exit' => ['exit(3)'], 'an error' => ['nothing()'], 'an exception' => ['throw new Exception()']];
    }

    /** @dataProvider handlers */
    #[DataProvider('handlers')]
    public function testASignalHandlerRunsWhileARequestWaits(string $handler): void
    {
        $patient = $this->client(self::env('PATIENT_URL'));
        $holder = $patient->acquire($key = self::key(), 600);
        [$process, $output] = self::start('
            pcntl_async_signals(true);
            pcntl_signal(SIGTERM, fn () => ' . $handler . ');
            $patient = new Lockkeeper\LockClient(getenv("LOCKKEEPER_PATIENT_URL"), getenv("LOCKKEEPER_API_KEY"));
            $lease = $patient->acquire($arguments[0], 60, INF);
        ', $key);
        self::eventually(fn () => $patient->inspect($key)->waiters === 1);
        $began = microtime(true);
        posix_kill(proc_get_status($process)['pid'], SIGTERM);
        stream_get_contents($output);
        self::assertTook(0.0, $began); // The request waits for 25 seconds.
        proc_close($process);
        self::assertSame(0, $patient->inspect($key)->waiters);
        self::assertTrue($holder->release());
        self::assertFalse($patient->inspect($key)->isHeld);
    }

    public function testAnExceptionOfASignalHandlerAtAnyMomentLeavesNothingBehind(): void
    {
        $code = '
            final class Signal extends Exception {}
            pcntl_async_signals(true);
            [$me, $isArmed, $end] = [getmypid(), false, microtime(true) + 0.3];
            pcntl_signal(SIGUSR1, function () use (&$isArmed) {
                if ($isArmed) { $isArmed = false; throw new Signal(); }
            });
            if (pcntl_fork() === 0) {
                while (microtime(true) < $end) { usleep(random_int(100, 900)); posix_kill($me, SIGUSR1); }
                posix_kill(getmypid(), SIGKILL);
            }
            for ($i = 0; microtime(true) < $end; $i++) {
                try {
                    try {
                        $isArmed = true;
                        $lease = $client->acquire("$arguments[0]/$i", 60);
                    } finally {
                        $isArmed = false;
                    }
                } catch (Signal) {
                }
                $lease = null;
            }
            pcntl_signal(SIGUSR1, SIG_IGN);
            echo count(iterator_to_array($client->list($arguments[0]), false));';
        // PHP itself crashes in half of the runs under so many signals, with curl alone as well.
        for ($whole = 0, $tries = 0; $whole < 5 && $tries < 60; $tries++) {
            [$exit, $printed] = self::script($code, self::key());
            self::assertNotSame(255, $exit, 'an exception came out');
            if ($exit === 0) {
                self::assertSame('0', $printed);
                $whole++;
            }
        }
        self::assertSame(5, $whole);
    }

    public function testAForkedChildHasAConnectionOfItsOwn(): void
    {
        [$code, $printed] = self::script('
            $client->inspect("x");
            $child = pcntl_fork();
            for ($i = 0; $i < 200; $i++) {
                $key = $child . "-" . $i;
                if ($client->inspect($key)->key !== $key) exit(9);
            }
            if ($child === 0) exit(7);
            pcntl_waitpid($child, $status);
            echo pcntl_wexitstatus($status);
        ');
        self::assertSame([0, '7'], [$code, $printed]);
    }

    public function testALeaseIsHandedOverToAnotherProcess(): void
    {
        $key = self::key();
        $code = self::TAKE . 'echo $lease->handOver();';
        [, $token] = self::script($code, $key);
        self::assertMatchesRegularExpression('/^[0-9a-f]{32}$/', $token);
        $client = $this->client();
        $lease = $client->resume($key, $token);
        self::assertSame($client->inspect($key)->fencingToken, $lease->fencingToken());
        self::assertLasts(60.0, $lease->remaining());
        $lease->refresh();
        self::assertLasts(60.0, $lease->ttl());
        unset($lease);
        $lost = $this->thrown(LockLost::class, fn () => $client->resume($key, $token));
        self::assertStringNotContainsString($token, (string) $lost);
    }

    public function testALeaseThatWasHandedOverIsNotReleasedHere(): void
    {
        $lease = $this->client()->acquire($key = self::key(), 60);
        $token = $lease->handOver();
        self::assertFalse($lease->release());
        unset($lease);
        self::assertTrue($this->client()->release($key, $token));
    }

    public function testNoFailureShowsATokenOrTheApiKey(): void
    {
        ini_set('zend.exception_ignore_args', '0');
        $client = $this->client('http://127.0.0.1:1', apiKey: 'a-secret-api-key', patience: 0.1);
        $token = 'a-secret-of-32-characters-abcdef';
        $calls = [
            fn () => $client->release('key', $token), fn () => $client->refresh('key', $token),
            fn () => $client->resume('key', $token), fn () => $client->isMine('key', $token),
            fn () => $client->acquire('key'),
        ];
        foreach ($calls as $call) {
            $failure = $this->thrown(\Lockkeeper\Exception\ServiceUnavailable::class, $call);
            $isOwn = fn ($frame) => preg_match('/^Lockkeeper\\\\(?!Tests)/', $frame['class'] ?? '') === 1;
            $own = array_filter($failure->getTrace(), $isOwn);
            self::assertNotEmpty($own);
            foreach ($own as $frame) {
                $words = array_filter($frame['args'] ?? [], 'is_string');
                self::assertDoesNotMatchRegularExpression('/secret|^[0-9a-f]{32}$/', implode(' ', $words));
            }
            self::assertStringNotContainsString('secret', $failure->getMessage());
        }
    }

    public function testLeasesThatAreGoneAreForgotten(): void
    {
        $client = $this->client();
        $use = static function (int $times) use ($client): int {
            for ($i = 0; $i < $times; $i++) {
                $client->acquire("php/forgotten/$i")->release();
            }
            gc_collect_cycles();
            return memory_get_usage();
        };
        $use(50);
        self::assertLessThan(16 * 1024, abs($use(200) - $use(50)));
    }

    public function testAClientMayBeGoneBeforeItsLease(): void
    {
        $lease = (new LockClient(self::env('URL'), self::env('API_KEY')))->acquire(self::key());
        $lease->refresh();
        self::assertTrue($lease->release());
    }

    public function testWorkThatIsAGeneratorIsRefused(): void
    {
        $work = function (): \Generator {
            yield self::fail('it runs');
        };
        $client = $this->client();
        foreach (['withLock', 'withHold'] as $verb) {
            $key = self::key();
            $refused = $this->thrown(\InvalidArgumentException::class, fn () => $client->$verb($key, $work));
            self::assertStringContainsString('generator', $refused->getMessage());
            self::assertFalse($client->inspect($key)->isHeld);
        }
    }
}
