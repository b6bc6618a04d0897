<?php

declare(strict_types=1);

namespace Lockkeeper\Tests;

use Lockkeeper\Exception\LockBusy;
use Lockkeeper\Exception\Outcome;
use Lockkeeper\Exception\RequestRefused;
use Lockkeeper\Exception\ServiceUnavailable;
use Lockkeeper\Exception\WaitCancelled;
use PHPUnit\Framework\Attributes\DataProvider;

/** What a client makes of lost answers, proxies, and services that are away. */
final class FaultsTest extends TestCase
{
    /** A clock on which a second is over after 10 ms. */
    private const HASTE = 'eval("namespace Lockkeeper\\Internal;
        function hrtime(bool \$asNumber): int { return 100 * \hrtime(true); }");';

    /** @dataProvider passing */
    #[DataProvider('passing')]
    public function testAnAcquireIsRepeatedWithTheSameToken(string ...$faults): void
    {
        $key = self::key();
        $proxy = self::faults(...$faults);
        $lease = $this->client($proxy->url, answerTimeout: 4.0)->acquire($key, 20);
        $asked = array_map(fn ($line) => explode(' ', $line), $proxy->requests());
        self::assertSame([...$faults, 'pass'], array_column($asked, 0));
        self::assertSame(['POST'], array_values(array_unique(array_column($asked, 1))));
        self::assertCount(1, array_unique(array_column($asked, 4)));
        self::assertLasts(20.0, $lease->remaining());
        self::assertSame($this->client()->inspect($key)->fencingToken, $lease->fencingToken());
        self::assertTrue($lease->release());
    }

    public static function passing(): array
    {
        $one = ['lose', 'cut', 'html', 'lose-html', 'lose-unknown', 'draining', 'swallow'];
        $one = [...$one, 'later', 'gateway', 'nothing'];
        $all = array_map(fn ($fault) => [$fault], array_combine($one, $one));
        return $all + ['one after another' => ['lose', 'html', 'draining']];
    }

    /** On a connection that was used before, curl would repeat the request, and nobody would know. */
    public function testALostAnswerIsKnownOnAConnectionThatWasUsedBefore(): void
    {
        $keys = [self::key('a'), self::key('b')];
        $proxy = self::faults('keep', 'keep', 'keep', 'lose');
        $client = $this->client($proxy->url);
        $client->inspect($keys[0]);
        $leases = $client->acquireAll($keys, 3, 5); // the first lease is replaced after the second one's grant
        self::assertSame(['keep', 'keep', 'keep', 'lose', 'pass'], array_slice(array_map(
            static fn (string $line): string => strtok($line, ' '),
            $proxy->requests(),
        ), 0, 5));
        self::assertTrue($leases->release());
    }

    public function testOneConnectionIsKept(): void
    {
        [, $printed] = self::script('$sockets = fn () => count(preg_grep("/^socket:/", array_map(
                fn ($file) => (string) @readlink($file), glob("/proc/self/fd/*"))));
            for ($i = 0; $i < 6; $i++) {
                $lease = $client->acquire($arguments[0]);
                $lease->refresh();
                $lease->release();
                $open[] = $sockets();
            }
            echo count(array_unique($open));', self::key());
        self::assertSame('1', $printed);
    }

    public function testAWaitThatIsCutHasTheWholePatienceFromThen(): void
    {
        $proxy = self::faults('late-cut', 'cut');
        $lease = $this->client($proxy->url, patience: 1.0)->acquire(self::key(), wait: 10.0);
        self::assertCount(3, $proxy->requests());
        self::assertTrue($lease->release());
    }

    public function testARetryAfterIsHonoured(): void
    {
        $began = microtime(true);
        $proxy = self::faults('lose-unknown');
        $this->client($proxy->url)->acquire(self::key());
        self::assertTook(1.0, $began);
    }

    public function testAClaimThatIsSupersededPausesNoLongerThanItWaits(): void
    {
        foreach ([0.0, 1.5] as $wait) {
            $proxy = self::faults('long-superseded', 'long-superseded', 'long-superseded');
            $began = microtime(true);
            $this->thrown(WaitCancelled::class, fn () => $this->client($proxy->url)->acquire(self::key(), 5, $wait));
            self::assertTook($wait, $began);
        }
    }

    public function testALeaseWhoseAnswerIsLateBeginsAnew(): void
    {
        foreach ([['late'], ['late', 'late'], ['late', 'late', 'late']] as $faults) {
            $proxy = self::faults(...$faults);
            $lease = $this->client($proxy->url)->acquire(self::key(), 1);
            $asked = count($proxy->requests()); // a busy machine may be late too
            self::assertGreaterThanOrEqual(min(3, 1 + count($faults)), $asked);
            self::assertLessThanOrEqual(3, $asked);
            self::assertLessThan(count($faults) === 3 ? 0.4 : 1.0, $lease->remaining());
        }
    }

    public function testAClientThatGivesUpGivesBackWhatMayHaveBeenGranted(): void
    {
        $key = self::key();
        $proxy = self::faults(...array_fill(0, 9, 'lose'), ...['pass']);
        $client = $this->client($proxy->url, patience: 0.2);
        $failure = $this->thrown(ServiceUnavailable::class, fn () => $client->acquire($key));
        self::assertSame(Outcome::Unknown, $failure->outcome);
        self::assertStringContainsString("no answer from {$proxy->url} to POST /locks/$key: ", $failure->getMessage());
        $asked = $proxy->requests();
        self::assertStringContainsString(' DELETE ', end($asked));
        self::assertFalse($this->client()->inspect($key)->isHeld);
    }

    public function testNothingIsRepeatedThatCertainlyDidNotHappenAndNobodyWaitsFor(): void
    {
        $key = self::key();
        $proxy = self::faults('not-acquired', 'not-acquired');
        $client = $this->client($proxy->url);
        $failure = $this->thrown(ServiceUnavailable::class, fn () => $client->acquire($key));
        self::assertSame([Outcome::NotAcquired, 'store_unavailable', 1.0], [
            $failure->outcome, $failure->problem, $failure->retryAfter,
        ]);
        self::assertSame("'$key': this is store_unavailable", $failure->getMessage());
        self::assertCount(1, $proxy->requests());
        self::assertTrue($client->acquire($key, wait: 5)->release());
    }

    public function testAnInstanceThatDrainsHasAcquiredNothing(): void
    {
        $proxy = self::faults(...array_fill(0, 9, 'draining'));
        $client = $this->client($proxy->url, patience: 0.1);
        $failure = $this->thrown(ServiceUnavailable::class, fn () => $client->acquire(self::key()));
        self::assertSame([Outcome::NotAcquired, 'draining'], [$failure->outcome, $failure->problem]);
        self::assertSame([], preg_grep('/DELETE/', $proxy->requests()));
    }

    public function testAServiceThatLetsNobodyWaitIsNotAskedWithoutAPause(): void
    {
        $proxy = self::faults(...array_fill(0, 99, 'held'));
        self::assertNull($this->client($proxy->url)->tryAcquire('key', wait: 1.0));
        self::assertLessThan(7, count($proxy->requests()));
    }

    public function testAPageOfAProxyIsNoAnswerOfTheService(): void
    {
        $proxy = self::faults('page');
        $refused = $this->thrown(RequestRefused::class, fn () => $this->client($proxy->url)->acquire('key'));
        self::assertSame("'key': the answer is 404, and not from lockkeeper", $refused->getMessage());
        self::assertSame([404, ''], [$refused->status, $refused->problem]);
    }

    public function testARefusalByAProxyIsGivenBackAsItMayHaveBeenGranted(): void
    {
        $key = self::key();
        $proxy = self::faults('lose-page');
        $client = $this->client($proxy->url);
        $this->thrown(RequestRefused::class, fn () => $client->acquire($key));
        self::assertFalse($this->client()->inspect($key)->isHeld);
    }

    public function testALeaseThatIsOverWhenItsAnswerComesIsNone(): void
    {
        $key = self::key();
        $proxy = self::faults(...array_fill(0, 9, 'late'));
        $client = $this->client($proxy->url, patience: 0.5);
        $failure = $this->thrown(ServiceUnavailable::class, fn () => $client->acquire($key, 0.5));
        self::assertSame("'$key': the answer came too late for its TTL", $failure->getMessage());
        self::assertFalse($this->client()->inspect($key)->isHeld);
    }

    public function testAnUnknownOutcomeStaysUnknownWhenTheServiceGoes(): void
    {
        foreach (['acquire', 'refresh', 'release'] as $verb) {
            $passed = $verb === 'acquire' ? [] : ['pass'];
            $proxy = self::faults(...$passed, ...['lose', 'stop']);
            $client = $this->client($proxy->url, patience: 1.0);
            $lease = $passed === [] ? null : $client->acquire(self::key());
            $call = $lease === null ? fn () => $client->acquire(self::key()) : fn () => $lease->$verb();
            $failure = $this->thrown(ServiceUnavailable::class, $call);
            self::assertSame(Outcome::Unknown, $failure->outcome, $verb);
        }
    }

    public function testNothingRemainsThatMayHaveBeenReleased(): void
    {
        $proxy = self::faults('pass', ...array_fill(0, 9, 'swallow'));
        $lease = $this->client($proxy->url, patience: 0.1, answerTimeout: 1.0)->acquire(self::key());
        $this->thrown(ServiceUnavailable::class, fn () => $lease->release());
        self::assertSame(0.0, $lease->remaining());
    }

    public function testARequestAmidAnotherChangesNothingOfThat(): void
    {
        [$process, $output] = self::start('
            pcntl_async_signals(true);
            $inner = $client->acquire($arguments[1], 60);
            pcntl_signal(SIGUSR1, function () use ($inner) { $inner->refresh(); });
            echo "ready\n";
            $outer = $client->acquire($arguments[0], 60, INF);
            echo $outer->key(), " ", $client->inspect($arguments[0])->fencingToken === $outer->fencingToken();
        ', $key = self::key(), self::key('inner'));
        $holder = $this->client()->acquire($key);
        self::assertSame("ready\n", fgets($output));
        self::eventually(fn () => $this->client()->inspect($key)->waiters === 1);
        posix_kill(proc_get_status($process)['pid'], SIGUSR1);
        $holder->release();
        self::assertSame("$key 1", stream_get_contents($output));
        proc_close($process);
    }

    public function testABusyKeyIsBusyBehindALostAnswerToo(): void
    {
        $key = self::key();
        $holder = $this->client()->acquire($key);
        $proxy = self::faults('lose');
        $this->thrown(LockBusy::class, fn () => $this->client($proxy->url)->acquire($key));
        self::assertTrue($holder->release());
    }

    public function testRefreshAndReleaseAreRepeated(): void
    {
        $proxy = self::faults('pass', 'lose', 'html', 'pass', 'draining', 'cut', 'pass');
        $lease = $this->client($proxy->url)->acquire(self::key(), 5);
        $lease->refresh(9);
        self::assertLasts(9.0, $lease->ttl());
        self::assertTrue($lease->release());
        $methods = array_map(fn ($line) => explode(' ', $line)[1], $proxy->requests());
        self::assertSame(['POST', 'PUT', 'PUT', 'PUT', 'DELETE', 'DELETE', 'DELETE'], $methods);
    }

    public function testAReleaseWhoseAnswerWasLostIsDoneAsTheLeaseLastedUntilThen(): void
    {
        $proxy = self::faults('pass', 'lose', 'pass', 'pass', 'lose');
        $client = $this->client($proxy->url);
        $lease = $client->acquire($key = self::key());
        self::assertTrue($lease->release());
        self::assertFalse($this->client()->inspect($key)->isHeld);
        $client->withLock($key, fn () => 'done');
        self::assertSame([], $this->warnings);
    }

    public function testAReleaseWhoseAnswerWasLostIsNotDoneIfTheLeaseHadEnded(): void
    {
        $proxy = self::faults('pass', 'lose');
        $lease = $this->client($proxy->url)->acquire(self::key(), 0.3);
        usleep(500_000);
        self::assertFalse($lease->release());
    }

    public function testAReleaseThatDidNothingIsNotDoneIfTheNextOneFindsNothing(): void
    {
        $proxy = self::faults('pass', 'draining');
        $lease = $this->client($proxy->url)->acquire($key = self::key());
        self::assertTrue($this->client()->forceRelease($key));
        self::assertFalse($lease->release());
    }

    public function testALeaseThatCannotBeReleasedIsWarnedOf(): void
    {
        $proxy = self::faults('pass', ...array_fill(0, 9, 'html'));
        $client = $this->client($proxy->url, patience: 0.1);
        self::assertSame('done', $client->withLock(self::key(), fn () => 'done', 30));
        $proxy = self::faults('pass', 'html');
        $lease = $this->client($proxy->url)->acquire(self::key(), 30);
        unset($lease);
        self::assertCount(2, $this->warnings);
        $warning = '/^lockkeeper: not released: .* the answer is 502, and not from lockkeeper$/';
        self::assertCount(2, preg_grep($warning, $this->warnings));
    }

    public function testAUrlThatIsNoneIsRefused(): void
    {
        $acquire = fn () => $this->client('http://127.0.0.1:99999')->acquire('key', wait: 5);
        $refused = $this->thrown(RequestRefused::class, $acquire);
        self::assertStringContainsString('no answer from http://127.0.0.1:99999 ', $refused->getMessage());
    }

    public function testAServiceThatIsDownIsToldAtOnce(): void
    {
        $client = $this->client('http://127.0.0.1:1');
        $began = microtime(true);
        $failure = $this->thrown(ServiceUnavailable::class, fn () => $client->tryAcquire('key'));
        self::assertSame([Outcome::NotAcquired, ''], [$failure->outcome, $failure->problem]);
        $message = 'no answer from http://127.0.0.1:1 to POST /locks/key: ';
        self::assertStringStartsWith($message, $failure->getMessage());
        self::assertTook(0.0, $began);
        $began = microtime(true);
        $this->thrown(ServiceUnavailable::class, fn () => $client->tryAcquire('key', wait: 0.6));
        self::assertTook(0.6, $began);
    }

    public function testAClaimThatNeverReachedTheServiceGivesUpAfterAMinute(): void
    {
        [$code, $printed] = self::script(self::HASTE . '
            $client = new Lockkeeper\LockClient("http://127.0.0.1:1", warn: fn ($said) => print("$said\n"));
            $began = hrtime(true);
            try {
                $client->acquire("key", wait: null);
            } catch (Lockkeeper\Exception\ServiceUnavailable $failure) {
                echo hrtime(true) - $began > 3e8 ? "late" : "soon";
            }');
        self::assertSame(0, $code);
        $warning = 'lockkeeper: no answer, retrying: no answer from http://127.0.0.1:1 to POST /locks/key: ';
        self::assertStringStartsWith($warning, $printed);
        self::assertStringEndsWith("\nlate", $printed);
    }

    public function testAClaimThatStoodInLineWaitsAnyAbsenceOut(): void
    {
        $proxy = self::faults('held', ...array_fill(0, 6, 'draining'));
        [$code, $printed] = self::script(self::HASTE . '
            $client = new Lockkeeper\LockClient($arguments[1], getenv("LOCKKEEPER_API_KEY"), warn: fn () => 0);
            echo $client->acquire($arguments[0], 3600, wait: null)->key();', $key = self::key(), $proxy->url);
        self::assertSame([0, $key], [$code, $printed]);
        self::assertCount(8, preg_grep('/ POST /', $proxy->requests()));
    }

    public function testAServiceThatStandsStillKeepsNobodyForEver(): void
    {
        $client = $this->client(answerTimeout: 1.0, patience: 1.1);
        $held = $client->acquire($key = self::key());
        try {
            self::stop();
            $began = microtime(true);
            $failure = $this->thrown(ServiceUnavailable::class, fn () => $client->acquire(self::key(), wait: 0.3));
            self::assertSame(Outcome::Unknown, $failure->outcome);
            self::assertTook(1.3, $began);
            $began = microtime(true);
            $this->thrown(ServiceUnavailable::class, fn () => $held->refresh());
            $this->thrown(ServiceUnavailable::class, fn () => $held->release());
            self::assertTook(2 * 1.0, $began);
        } finally {
            self::goOn();
        }
        self::eventually(fn () => !$this->client()->inspect($key)->isHeld || $held->release());
    }

    public function testAnAddressThatTakesNothingIsGivenUp(): void
    {
        $context = stream_context_create(['socket' => ['backlog' => 0]]);
        $flags = STREAM_SERVER_BIND | STREAM_SERVER_LISTEN;
        $silent = stream_socket_server('tcp://127.0.0.1:0', $code, $why, $flags, $context);
        $address = stream_socket_get_name($silent, false);
        $flags = STREAM_CLIENT_CONNECT | STREAM_CLIENT_ASYNC_CONNECT;
        $connect = fn () => stream_socket_client("tcp://$address", $code, $why, 1.0, $flags);
        $others = array_map($connect, range(1, 4)); // they fill the line of those who connect
        $began = microtime(true);
        $client = $this->client("http://$address", connectTimeout: 0.3);
        $failure = $this->thrown(ServiceUnavailable::class, fn () => $client->acquire('key'));
        self::assertSame(Outcome::NotAcquired, $failure->outcome);
        self::assertTook(0.3, $began);
    }

    public function testAnExceptionOfASignalHandlerLeavesNothingBehind(): void
    {
        $key = self::key();
        $holder = $this->client()->acquire($key);
        [$process, $output] = self::start('
            pcntl_async_signals(true);
            pcntl_signal(SIGUSR1, fn () => throw new Exception());
            echo "ready\n";
            try { $client->acquire($arguments[0], wait: INF); } catch (Exception) { echo "caught"; }
        ', $key);
        self::assertSame("ready\n", fgets($output));
        self::eventually(fn () => $this->client()->inspect($key)->waiters === 1);
        posix_kill(proc_get_status($process)['pid'], SIGUSR1);
        $holder->release(); // so the handler comes to its turn when the key was granted
        self::assertSame('caught', stream_get_contents($output));
        self::assertFalse($this->client()->inspect($key)->isHeld);
        proc_close($process);
    }

    public function testARequestThatArrivesAfterASignalHasEndedItLeavesNothingBehind(): void
    {
        $proxy = self::faults('slow');
        [$process, $output] = self::start('
            pcntl_async_signals(true);
            pcntl_signal(SIGTERM, fn () => exit(3));
            $client = new Lockkeeper\LockClient($arguments[1], getenv("LOCKKEEPER_API_KEY"));
            $lease = $client->acquire($arguments[0], 60);
        ', $key = self::key(), $proxy->url);
        self::eventually(fn () => preg_grep('/^slow POST /', $proxy->requests()) !== []);
        posix_kill(proc_get_status($process)['pid'], SIGTERM);
        stream_get_contents($output);
        self::assertSame(3, proc_close($process));
        usleep(500_000); // It has arrived by now.
        self::assertFalse($this->client()->inspect($key)->isHeld);
    }
}
