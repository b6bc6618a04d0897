<?php

declare(strict_types=1);

namespace Lockkeeper\Tests;

use Lockkeeper\Exception\KeeperUnavailable;
use Lockkeeper\Exception\LockBusy;
use Lockkeeper\Exception\LockLost;
use Lockkeeper\Exception\RequestRefused;
use Lockkeeper\Exception\ServiceUnavailable;
use Lockkeeper\HeldLease;
use PHPUnit\Framework\Attributes\DataProvider;

/** Leases that another process refreshes while this one lives. */
final class HoldTest extends TestCase
{
    /** The key is taken for an hour if the keeper does not give it back. */
    private const HOLD = '$lease = $client->hold($arguments[0], 3600); echo "held\n";';

    /** The keeper of this process. */
    private const KEEPER = 'exec("pgrep -P " . getmypid() . " -f keep.php", $found); $keeper = (int) $found[0];';

    /** It is killed, and asking for the lease has brought another one. */
    private const REPLACED = self::KEEPER . 'posix_kill($keeper, SIGKILL);
        for ($other = [], $i = 0; $i < 400 && (int) ($other[0] ?? $keeper) === $keeper; $i++) {
            $lease->check();
            usleep(50000);
            $other = [];
            exec("pgrep -P " . getmypid() . " -f keep.php", $other);
        }';

    public function testALeaseIsRefreshedWhileTheProcessIsBusyWithOtherThings(): void
    {
        $key = self::key();
        $lease = $this->client()->hold($key, 6.0);
        sleep(8);
        self::assertTrue($this->client()->inspect($key)->isHeld);
        $lease->check();
        self::assertTrue($lease->isHeld());
        self::assertGreaterThan(0.0, $lease->remaining());
        self::assertLessThanOrEqual(6.0, $lease->remaining());
        self::assertSame($this->client()->inspect($key)->fencingToken, $lease->fencingToken());
        self::assertTrue($lease->release());
        self::assertFalse($this->client()->inspect($key)->isHeld);
        self::assertSame([0.0, false, false], [$lease->remaining(), $lease->isHeld(), $lease->release()]);
        $this->thrown(LockLost::class, fn () => $lease->check());
        self::assertSame([], $this->warnings);
    }

    public function testAHeldKeyIsBusyAndWaitedFor(): void
    {
        $key = self::key();
        $first = $this->client()->hold($key);
        $this->thrown(LockBusy::class, fn () => $this->client()->hold($key));
        self::assertNull($this->client()->tryHold($key, wait: 0.2));
        self::assertNull($this->client()->tryAcquire($key));
        unset($first);
        self::assertInstanceOf(HeldLease::class, $this->client()->tryHold($key));
    }

    /** @dataProvider kills */
    #[DataProvider('kills')]
    public function testTheKeyIsFreeSoonAfterTheProcessWasKilled(string $end): void
    {
        $key = self::key();
        [$process, $output] = self::start(self::HOLD . $end, $key);
        self::assertSame("held\n", fgets($output));
        proc_close($process);
        $this->becomesFree($key);
    }

    public static function kills(): array
    {
        return [
            'kill -9' => ['posix_kill(getmypid(), SIGKILL);'],
            'a signal without a handler' => ['posix_kill(getmypid(), SIGTERM);'],
            'a signal to the whole group' => ['posix_setpgid(0, 0); posix_kill(0, SIGTERM);'],
            'kill -9 with a program that it has started' => [
                'proc_open(["sleep", "20"], [], $none); posix_kill(getmypid(), SIGKILL);',
            ],
            'kill -9 with a forked child' => [
                'if (pcntl_fork() === 0) { fclose(STDOUT); sleep(20); posix_kill(getmypid(), SIGKILL); }
                posix_kill(getmypid(), SIGKILL);',
            ],
            'out of memory, and a shutdown function that exits' => [
                "register_shutdown_function(fn () => exit(1));
                ini_set('memory_limit', '32M'); str_repeat('x', 1 << 30);",
            ],
            'kill -9 after another keeper was started' => [
                self::REPLACED . 'posix_kill(getmypid(), SIGKILL);',
            ],
        ];
    }

    /** @dataProvider ends */
    #[DataProvider('ends')]
    public function testALeaseEndsWithItsProcess(string $end, int $code): void
    {
        $key = self::key();
        self::assertSame([$code, "held\n"], self::script(self::HOLD . $end, $key));
        self::assertFalse($this->client()->inspect($key)->isHeld);
    }

    public static function ends(): array
    {
        return [
            'the end' => ['', 0],
            'exit' => ['exit(3);', 3],
            'an uncaught exception' => ['throw new Exception();', 255],
            'out of memory' => ["ini_set('memory_limit', '32M'); str_repeat('x', 1 << 30);", 255],
            'out of time' => ["set_time_limit(1); while (true) { hash('sha256', 'x'); }", 255],
            'with a forked child that lives on' => [
                'if (pcntl_fork() === 0) { fclose(STDOUT); sleep(15); posix_kill(getmypid(), SIGKILL); }', 0,
            ],
        ];
    }

    public function testTheKeeperHasNoFileOfTheProcess(): void
    {
        [$code, $printed] = self::script('while (count($files ?? []) < 20) $files[] = tmpfile();
            $lease = $client->hold($arguments[0]);' . self::KEEPER . '
            $names = fn ($process) => array_map(fn ($file) => @readlink($file), glob("/proc/$process/fd/*"));
            $own = array_map(fn ($file) => stream_get_meta_data($file)["uri"], $files);
            foreach ([getmypid(), $keeper] as $process) echo count(array_intersect($own, $names($process))), " ";
        ', self::key());
        self::assertSame([0, '20 0 '], [$code, $printed]);
    }

    public function testAKeeperStartsAlsoWhereMostDescriptorsAreInUse(): void
    {
        [$code, $printed] = self::script('posix_setrlimit(POSIX_RLIMIT_NOFILE, 256, 256);
            while (count(scandir("/dev/fd")) < 226) $files[] = fopen("/dev/null", "r");
            echo json_encode($client->hold($arguments[0])->isHeld());', self::key());
        self::assertSame([0, 'true'], [$code, $printed]);
    }

    public function testBothKilledAtOnceIsTheTtl(): void
    {
        $key = self::key();
        [$process, $output] = self::start('$lease = $client->hold($arguments[0], 2); echo "held\n";' . self::KEEPER . '
            posix_kill($keeper, SIGKILL); posix_kill(getmypid(), SIGKILL);', $key);
        fgets($output);
        proc_close($process);
        $this->becomesFree($key);
    }

    public function testAForkedChildHasNothingOfItAndTheParentGoesOn(): void
    {
        [$code, $printed] = self::script('$lease = $client->hold($arguments[0], 6);
            $child = pcntl_fork();
            if ($child === 0) {
                echo json_encode([$lease->isHeld(), $lease->release(), $lease->remaining()]);
                try { $lease->check(); } catch (Lockkeeper\Exception\LockLost) { echo " lost "; }
                $own = $client->hold("$arguments[0]/own");
                echo json_encode($own->isHeld());
                exit;
            }
            pcntl_waitpid($child, $status);
            sleep(8);
            $lease->check();
            echo json_encode([$client->inspect("$arguments[0]/own")->isHeld, $lease->release()]);
        ', self::key());
        self::assertSame([0, '[false,false,0] lost true[false,true]'], [$code, $printed]);
    }

    /** @dataProvider losses */
    #[DataProvider('losses')]
    public function testALossIsToldAtTheNextCallAndOnce(string $call): void
    {
        $told = [];
        $onLost = function (LockLost $lost) use (&$told): void {
            $told[] = $lost->getMessage();
        };
        $key = self::key();
        $lease = $this->client()->hold($key, 3.0, onLost: $onLost);
        $other = $this->client()->hold("$key/other");
        $this->client()->forceRelease($key);
        $next = $this->client()->acquire($key);
        self::eventually(fn () => !$lease->isHeld());
        $call === 'check' && $this->thrown(LockLost::class, fn () => $lease->check());
        self::assertFalse($lease->release());
        unset($lease);
        self::assertCount(1, $told);
        self::assertTrue($other->isHeld());
        self::assertTrue($next->release());
    }

    public static function losses(): array
    {
        return ['check' => ['check'], 'release' => ['release']];
    }

    public function testALossIsASignalIfOneIsWanted(): void
    {
        [$process, $output] = self::start('pcntl_async_signals(true);
            pcntl_signal(SIGUSR1, function () { echo "lost\n"; exit(7); });
            $lease = $client->hold($arguments[0], 3, signal: SIGUSR1);
            echo "held\n";
            for ($i = 0; $i < 400; $i++) usleep(50000);', $key = self::key());
        self::assertSame("held\n", fgets($output));
        $this->client()->forceRelease($key);
        self::assertSame("lost\n", fgets($output));
        self::assertSame(7, proc_close($process));
    }

    public function testANumberThatIsNoSignalIsRefused(): void
    {
        foreach ([999, 65, 0, -1] as $signal) {
            $hold = fn () => $this->client()->hold(self::key(), signal: $signal);
            $this->thrown(\InvalidArgumentException::class, $hold);
        }
    }

    public function testARefreshThatFailsIsRepeatedWhileTheLeaseLasts(): void
    {
        $proxy = self::faults('pass', 'html', 'cut', 'not-acquired');
        $lease = $this->client($proxy->url)->hold(self::key(), 6.0);
        sleep(8);
        $lease->check();
        self::assertGreaterThan(2, count(preg_grep('/ PUT /', $proxy->requests())));
    }

    public function testWithoutTheServiceItIsOverBeforeItsEnd(): void
    {
        $proxy = self::faults();
        $lease = $this->client($proxy->url, patience: 0.1)->hold($key = self::key(), 10.0);
        unset($proxy);
        self::assertTrue($lease->isHeld());
        self::eventually(fn () => !$lease->isHeld());
        self::assertTrue($this->client()->inspect($key)->isHeld); // for a second in which the work can stop
        $lost = $this->thrown(LockLost::class, fn () => $lease->check());
        self::assertStringContainsString('was not refreshed in time', $lost->getMessage());
    }

    /** @dataProvider ttls */
    #[DataProvider('ttls')]
    public function testALeaseThatMayLastNoLongerIsLostForThatReason(float $ttl): void
    {
        $proxy = self::faults();
        $lease = $this->client($proxy->url)->hold('brief/' . self::key(), $ttl); // for 6 seconds at most
        sleep(4);
        self::assertTrue($lease->isHeld());
        self::eventually(fn () => !$lease->isHeld());
        $lost = $this->thrown(LockLost::class, fn () => $lease->check());
        // The keeper sees the end, or the service refuses what the keeper asks for at that moment.
        self::assertStringContainsString('max_hold', $lost->getMessage());
        // A third of the TTL is between two refreshes, also of what is left.
        self::assertLessThanOrEqual(6 / (min($ttl, 6) / 3) + 1, count(preg_grep('/ PUT /', $proxy->requests())));
    }

    public static function ttls(): array
    {
        return ['a shorter TTL' => [3.0], 'a longer TTL' => [15.0]];
    }

    public function testALossIsToldInTimeThoughTheServiceHangsForManyLeases(): void
    {
        // To refresh the others, an answer for each would be waited for, half a minute in all.
        [$process, $output] = self::start('pcntl_async_signals(true);
            pcntl_signal(SIGUSR1, function () use (&$began) { echo microtime(true) - $began, "\n"; exit; });
            for ($i = 0; $i < 16; $i++) $others[] = $client->hold("$arguments[0]/$i", 9);
            $lease = $client->hold($arguments[0], 6, signal: SIGUSR1);
            $began = microtime(true);
            echo "held\n";
            for ($i = 0; $i < 400; $i++) usleep(50000);', self::key());
        self::assertSame("held\n", fgets($output));
        try {
            self::stop();
            $told = (float) fgets($output);
        } finally {
            self::goOn();
        }
        proc_close($process);
        self::assertGreaterThan(0.0, $told);
        self::assertLessThan(6 + self::BUSY, $told);
    }

    public function testAReleaseWhoseAnswerWasLostIsDoneAsTheLeaseWasKeptUntilThen(): void
    {
        $proxy = self::faults('pass', 'lose', 'lose');
        $lease = $this->client($proxy->url)->hold($key = self::key());
        self::assertTrue($lease->release());
        self::assertFalse($this->client()->inspect($key)->isHeld);
    }

    public function testAReleaseWhoseAnswerWasLostIsNotDoneIfTheLeaseHadEnded(): void
    {
        $proxy = self::faults('pass', 'html', 'html', 'html', 'html', 'html', 'html', 'html', 'html', 'html');
        $lease = $this->client($proxy->url)->hold(self::key(), 1.0);
        sleep(2);
        self::assertFalse($lease->release());
    }

    public function testALeaseIsKeptForNoLongerThanAskedForThoughItsTtlIsLonger(): void
    {
        $lease = $this->client()->hold($key = self::key(), 60.0, longest: 1.0);
        self::assertTrue($this->client()->inspect($key)->isHeld);
        sleep(4);
        self::assertFalse($this->client()->inspect($key)->isHeld);
        $lost = $this->thrown(LockLost::class, fn () => $lease->check());
        self::assertStringContainsString('was held for as long as was asked for', $lost->getMessage());
    }

    public function testAKeeperThatWasKilledIsReplaced(): void
    {
        [$code, $printed] = self::script('$lease = $client->hold($arguments[0], 8);' . self::REPLACED . '
            sleep(10);
            $lease->check();
            $other = $client->hold("$arguments[0]/other");
            echo json_encode([$lease->isHeld(), $other->isHeld()]);', self::key());
        self::assertSame([0, '[true,true]'], [$code, $printed]);
    }

    public function testAKeeperThatWasKilledLongAgoHasLostIt(): void
    {
        [$code, $printed] = self::script('$lease = $client->hold($arguments[0], 3);' . self::KEEPER . '
            posix_kill($keeper, SIGKILL); sleep(5);
            echo json_encode([$lease->isHeld(), $lease->release()]);', self::key());
        self::assertSame([0, '[false,false]'], [$code, $printed]);
    }

    public function testALeaseThatIsOverIsLostAtOnceThoughItsKeeperIsSuspended(): void
    {
        [$code, $printed] = self::script('$lease = $client->hold($arguments[0], 2);' . self::KEEPER . '
            $other = $client->hold("$arguments[0]/other", 60);
            posix_kill($keeper, SIGSTOP); sleep(3);
            $began = microtime(true);
            echo json_encode([$lease->isHeld(), $other->isHeld(), $lease->release()]);
            echo " after ", intdiv((int) (microtime(true) - $began), 10), "0 seconds or more";
            posix_kill($keeper, SIGCONT);
            for ($i = 0; $i < 400 && $other->remaining() < 55; $i++) usleep(50000);
            $other->check();', self::key());
        self::assertSame([0, '[false,true,false] after 00 seconds or more'], [$code, $printed]);
    }

    /** @dataProvider children */
    #[DataProvider('children')]
    public function testAChildOfTheProcessKeepsItTooIfItIsMeantTo(string $start, string $end): void
    {
        $key = self::key();
        [$process, $output] = self::start('$lease = $client->hold($arguments[0], 5, children: true);' . $start . '
            echo "$child\n"; ' . $end, $key);
        $child = (int) fgets($output);
        proc_close($process);
        sleep(7);
        self::assertTrue($this->client()->inspect($key)->isHeld);
        posix_kill($child, SIGKILL);
        $this->becomesFree($key);
    }

    public static function children(): array
    {
        $program = '$started = proc_open(["sleep", "600"], [1 => ["file", "/dev/null", "w"]], $none);
            $child = proc_get_status($started)["pid"];';
        $background = '$child = (int) shell_exec("sleep 600 > /dev/null 2>&1 & echo $!");';
        $fork = '$child = pcntl_fork(); if ($child === 0) { fclose(STDOUT); while (true) sleep(1); }';
        $kill = 'posix_kill(getmypid(), SIGKILL);';
        return [
            'a program, and kill -9' => [$program, $kill],
            'a program in the background, and the end' => [$background, ''],
            'a forked child, and kill -9' => [$fork, $kill],
        ];
    }

    public function testALeaseThatIsMeantForProgramsEndsWithoutThem(): void
    {
        $hold = '$lease = $client->hold($arguments[0], 3600, children: true);';
        $key = self::key();
        self::script("{$hold}posix_kill(getmypid(), SIGKILL);", $key);
        $this->becomesFree($key);
        self::script($hold, "$key/end");
        $this->becomesFree("$key/end");
        $lease = $this->client()->hold("$key/release", 3600, children: true);
        self::assertTrue($lease->isHeld());
        self::assertTrue($lease->release());
        self::assertFalse($this->client()->inspect("$key/release")->isHeld);
    }

    public function testNothingIsAcquiredWithoutAKeeper(): void
    {
        $key = self::key();
        $php = sys_get_temp_dir() . '/no such php';
        $failure = $this->thrown(KeeperUnavailable::class, fn () => $this->client(php: $php)->hold($key));
        self::assertStringContainsString($php, $failure->getMessage());
        self::assertFalse($this->client()->inspect($key)->isHeld);
        $code = 'require $argv[1]; $client = new Lockkeeper\LockClient("http://127.0.0.1:1");
            try { $client->hold("a"); } catch (Lockkeeper\Exception\KeeperUnavailable) { echo "none"; }';
        $command = [PHP_BINARY, '-d', 'disable_functions=proc_open', '-r', $code, '--', __DIR__ . '/bootstrap.php'];
        self::assertSame('none', shell_exec(implode(' ', array_map('escapeshellarg', $command))));
    }

    public function testALeaseThatIsLostBeforeItIsKeptIsNoneAndNothingIsLeft(): void
    {
        // A keeper that was suspended until the lease was over for it.
        $keeper = tempnam(sys_get_temp_dir(), 'keeper');
        $lost = '{\"number\":$((i += 1)),\"lost\":\"it was suspended\"}';
        $asked = 'i=0; while read line; do case $line in *ask*)';
        file_put_contents($keeper, "#!/bin/sh\necho ready; $asked echo \"$lost\";; esac; done\n");
        chmod($keeper, 0700);
        $told = fn () => self::fail('there is no lease yet');
        $client = $this->client(php: $keeper);
        try {
            $lost = $this->thrown(LockLost::class, fn () => $client->hold($key = self::key(), 60.0, onLost: $told));
        } finally {
            unlink($keeper);
        }
        self::assertStringContainsString('it was suspended', $lost->getMessage());
        self::assertFalse($this->client()->inspect($lost->key)->isHeld);
    }

    public function testARefusalByTheServiceIsThrown(): void
    {
        $this->thrown(RequestRefused::class, fn () => $this->client()->hold(self::key(), 86401.0));
        $this->thrown(RequestRefused::class, fn () => $this->client()->hold('a//b'));
        $this->thrown(ServiceUnavailable::class, fn () => $this->client('http://127.0.0.1:1')->hold(self::key()));
        self::assertGreaterThan(3000, $this->client()->hold(self::key(), INF)->remaining());
    }

    public function testNoProcessAndNoDumpShowsASecret(): void
    {
        [, $printed] = self::script('$lease = $client->hold($arguments[0]);' . self::KEEPER . '
            echo file_get_contents("/proc/$keeper/cmdline"), file_get_contents("/proc/$keeper/environ");
            var_dump($lease); var_export($client); echo print_r($lease, true);
            echo "\n", $lease->isHeld() ? "held" : "lost";', self::key());
        self::assertStringEndsWith('held', $printed);
        $printed = str_replace('LOCKKEEPER_API_KEY=' . self::env('API_KEY'), '', $printed);
        self::assertStringNotContainsString(self::env('API_KEY'), $printed);
        self::assertDoesNotMatchRegularExpression('/[0-9a-f]{32}/', $printed);
    }

    private function becomesFree(string $key): void
    {
        self::eventually(fn () => !$this->client()->inspect($key)->isHeld);
    }
}
