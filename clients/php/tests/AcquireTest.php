<?php

declare(strict_types=1);

namespace Lockkeeper\Tests;

use Lockkeeper\Exception\LockBusy;
use Lockkeeper\Exception\LockLost;
use Lockkeeper\Exception\RequestRefused;
use Lockkeeper\Internal\Keys;
use PHPUnit\Framework\Attributes\DataProvider;

final class AcquireTest extends TestCase
{
    public function testAKeyIsHeldUntilItIsReleased(): void
    {
        $key = self::key();
        $lease = $this->client()->acquire($key, 5);
        self::assertSame($key, $lease->key());
        self::assertLasts(5.0, $lease->ttl());
        $busy = $this->thrown(LockBusy::class, fn () => $this->client(owner: 'web-2')->acquire($key));
        self::assertMatchesRegularExpression("~^'$key' is held by .+ for another \d\.\d s$~", $busy->getMessage());
        self::assertSame([$key, gethostname() . ':' . getmypid()], [$busy->key, $busy->owner]);
        self::assertLasts(5.0, $busy->retryAfter);
        self::assertNull($this->client()->tryAcquire($key));
        self::assertTrue($lease->release());
        $next = $this->client()->tryAcquire($key);
        self::assertGreaterThan($lease->fencingToken(), $next->fencingToken());
        self::assertSame([false, 0.0, true], [$lease->release(), $lease->remaining(), $lease->isOver()]);
        self::assertTrue($next->release());
    }

    public function testAWaitLongerThanTheServiceAllowsIsWhole(): void
    {
        $key = self::key();
        $this->client()->acquire($key)->handOver();
        $began = microtime(true);
        self::assertNull($this->client()->tryAcquire($key, wait: 1.1));
        self::assertTook(1.1, $began);
        $began = microtime(true);
        $holder = $this->client()->acquire($key = self::key(), 1.2);
        $lease = $this->client()->acquire($key, wait: null);
        self::assertTook(1.2, $began);
        self::assertLasts(30.0, $lease->remaining());
        self::assertFalse($holder->release());
    }

    public function testAPlaceInLineOutlastsTheServicesLongestWait(): void
    {
        $key = self::key();
        $holder = $this->client()->acquire($key);
        $proxy = self::faults();
        $code = '(new Lockkeeper\LockClient($arguments[1], getenv("LOCKKEEPER_API_KEY"), owner: $arguments[2]))
            ->acquire($arguments[0], wait: INF);
            echo $arguments[2];';
        [$first, $output] = self::start($code, $key, $proxy->url, 'first');
        self::eventually(fn () => $this->client()->inspect($key)->waiters === 1);
        [$second, $later] = self::start($code, $key, self::env('URL'), 'second');
        self::eventually(fn () => $this->client()->inspect($key)->waiters === 2);
        $proxy->requests();
        $asked = 0;
        self::eventually(function () use ($proxy, &$asked): bool {
            return ($asked += count($proxy->requests())) > 1;
        });
        $line = [];
        self::eventually(function () use ($key, &$line): bool {
            $path = Keys::path($key) . '?waiters=2';
            $line = array_column($this->client()->service()->get($path, $key)->body['queue'], 'owner');
            return count($line) === 2; // A claim that is away between two requests is not in it.
        });
        self::assertSame(['first', 'second'], $line);
        self::assertTrue($holder->release());
        self::assertSame(['first', 'second'], [stream_get_contents($output), stream_get_contents($later)]);
        proc_close($first);
        proc_close($second);
    }

    public function testWorkUnderALockIsReleasedWhateverItDoes(): void
    {
        $key = self::key();
        $client = $this->client();
        self::assertSame('done', $client->withLock($key, function ($lease) use ($client, $key): string {
            self::assertNull($client->tryAcquire($key));
            return $lease->key() === $key ? 'done' : '';
        }));
        self::assertFalse($client->inspect($key)->isHeld);
        $thrown = $this->thrown(\DomainException::class, fn () => $client->withLock($key, function ($lease) {
            $lease->release();
            throw new \DomainException('of the work');
        }));
        self::assertSame(['of the work', null], [$thrown->getMessage(), $thrown->getPrevious()]);
        self::assertSame([], $this->warnings);
    }

    /** @dataProvider forms */
    #[DataProvider('forms')]
    public function testWorkThatLostItsLeaseIsToldUnlessItThrowsItself(string $form): void
    {
        $key = self::key();
        $client = $this->client();
        $lost = $this->thrown(LockLost::class, fn () => $client->$form($key, fn () => $client->forceRelease($key)));
        $why = "the lease ended before its work, which may have overlapped with another's";
        self::assertSame(["'$key': $why", $key], [$lost->getMessage(), $lost->key]);
        self::assertSame([], $this->warnings);
        $this->thrown(\DomainException::class, fn () => $client->$form($key, function () use ($client, $key) {
            $client->forceRelease($key);
            throw new \DomainException('of the work');
        }));
        self::assertSame(["lockkeeper: the lease of '$key' ended before its work"], $this->warnings);
    }

    public static function forms(): array
    {
        return ['a lease' => ['withLock'], 'a lease that is kept' => ['withHold']];
    }

    public function testWorkThatHidesALossIsToldAndWorkThatHasGivenTheLeaseAwayIsDone(): void
    {
        $key = self::key();
        $client = $this->client();
        $this->thrown(LockLost::class, fn () => $client->withLock($key, function ($lease) use ($client, $key) {
            $client->forceRelease($key);
            $this->thrown(LockLost::class, fn () => $lease->refresh());
        }));
        $this->thrown(LockLost::class, fn () => $client->withLock($key, function ($lease) use ($client, $key) {
            $client->forceRelease($key);
            self::assertFalse($lease->release());
        }));
        self::assertTrue($client->withLock($key, fn ($lease) => $lease->release()));
        self::assertTrue($client->withHold($key, fn ($lease) => $lease->release()));
        $token = $client->withLock($key, fn ($lease) => $lease->handOver());
        self::assertTrue($client->release($key, $token));
        self::assertSame([], $this->warnings);
    }

    public function testNoWorkBeginsWithALeaseThatIsOver(): void
    {
        // A clock on which an hour passes as soon as the lease is granted, as if the process was suspended.
        $clock = 'namespace Lockkeeper\Internal; function hrtime(bool $asNumber): int {
            $isAsking = in_array(Claim::class, array_column(debug_backtrace(0), "class"));
            $GLOBALS["hasAsked"] = ($GLOBALS["hasAsked"] ?? false) || $isAsking;
            return \hrtime(true) + ($GLOBALS["hasAsked"] && !$isAsking ? 3600 * 1000000000 : 0);
        }';
        [$code, $printed] = self::script('eval($arguments[1]);
            try {
                $client->withLock($arguments[0], function () { echo "the work has begun"; }, 60);
            } catch (Lockkeeper\Exception\LockLost $lost) {
                echo $lost->getMessage(), " ", json_encode($client->inspect($arguments[0])->isHeld);
            }', $key = self::key(), $clock);
        self::assertSame([0, "'$key': the lease ended before the work could begin false"], [$code, $printed]);
    }

    public function testALeaseIsRefreshedUntilItIsLost(): void
    {
        $key = self::key();
        $lease = $this->client()->acquire($key, 2);
        $lease->refresh(8);
        self::assertLasts(8.0, $lease->remaining());
        $lease->refresh();
        self::assertLasts(8.0, $lease->ttl());
        self::assertTrue($this->client()->forceRelease($key));
        self::assertFalse($this->client()->forceRelease($key));
        $lost = $this->thrown(LockLost::class, fn () => $lease->refresh());
        self::assertStringContainsString('lost', $lost->getMessage());
        self::assertSame([$key, true, true], [$lost->key, $lease->isOver(), $lease->isExpired()]);
    }

    public function testRemainingTimeIsNeverOverEstimated(): void
    {
        $key = self::key();
        $lease = $this->client()->acquire($key, 2);
        self::assertFalse($lease->isExpired());
        self::eventually(fn () => $lease->isExpired());
        $holder = $this->client()->acquire($key, 1, wait: null);
        $waited = $this->client()->acquire($key, 5, wait: null);
        $this->assertNoMoreRemains($key, fn () => $waited->remaining());
        self::assertLasts(5.0, $waited->remaining());
        self::assertFalse($holder->release());
    }

    public function testALookTellsWhoseAKeyIs(): void
    {
        $key = self::key();
        $client = $this->client(owner: 'Büro 7');
        $began = microtime(true);
        $lease = $client->acquire($key, 5);
        $token = $lease->handOver();
        $look = $client->inspect($key);
        self::assertSame([$key, true, 'Büro 7', $lease->fencingToken(), 0, false], [
            $look->key, $look->isHeld, $look->owner, $look->fencingToken, $look->waiters, $look->isMine,
        ]);
        self::assertGreaterThanOrEqual(0.0, $look->heldFor);
        self::assertLessThanOrEqual(microtime(true) - $began + 0.001, $look->heldFor);
        self::assertTrue($client->isMine($key, $token));
        self::assertFalse($client->isMine($key, "not-$token"));
        $listed = iterator_to_array($client->list(dirname($key) . '/'), false);
        self::assertSame([$key], array_map(fn ($look) => $look->key, $listed));
        $client->refresh($key, $token, 9);
        self::assertLasts(9.0, $client->inspect($key)->remaining);
        self::assertTrue($client->release($key, $token));
        self::assertFalse($client->release($key, $token));
        $this->thrown(LockLost::class, fn () => $client->refresh($key, $token));
        $free = $client->inspect($key);
        self::assertSame([false, null], [$free->isHeld, $free->heldFor]);
    }

    public function testTheLongestLeaseIsAsLongAsTheServiceGives(): void
    {
        $client = $this->client();
        self::assertLasts(3600.0, $client->acquire(self::key(), INF)->ttl());
        $lease = $client->acquire(self::key(), 9);
        $lease->refresh(INF);
        self::assertLasts(3600.0, $lease->ttl());
        $refused = $this->thrown(RequestRefused::class, fn () => $lease->refresh(86401));
        self::assertSame('ttl_ms', $refused->field);
        $refused = $this->thrown(RequestRefused::class, fn () => $this->client()->acquire(self::key(), 3601));
        self::assertSame([400, 'invalid_request', 'ttl_ms'], [$refused->status, $refused->problem, $refused->field]);
        self::assertStringContainsString('100ms to 1h', $refused->getMessage());
    }

    /** @dataProvider keys */
    #[DataProvider('keys')]
    public function testAKeyIsTheOneThatWasMeant(string $name): void
    {
        $key = self::key($name);
        $lease = $this->client()->acquire($key);
        self::assertSame($key, $this->client()->inspect($key)->key);
        self::assertNull($this->client()->tryAcquire($key));
        $lease->refresh();
        self::assertTrue($lease->release());
    }

    public static function keys(): array
    {
        return array_map(fn ($name) => [$name], [
            'a/b', 'a%2Fb', 'with space', 'plus+', '100%', 'Zürich/☃', 'a?b=c#d', "it's", 'x;y,z&w=1', '~.-_', 'a\\b',
        ]);
    }

    /** @dataProvider noKeys */
    #[DataProvider('noKeys')]
    public function testABadKeyIsRefused(string $key): void
    {
        $refused = $this->thrown(RequestRefused::class, fn () => $this->client()->acquire($key));
        self::assertContains($refused->status, [400, 405]);
        self::assertDoesNotMatchRegularExpression('/[\x00-\x1f]/', $refused->getMessage());
    }

    public static function noKeys(): array
    {
        return [[''], ['a//b'], ['a/../b'], ['a/.'], ["a\nb"], ["a\xff"], ['a/refresh'], [str_repeat('a', 513)]];
    }

    public function testAnApiKeyThatMayNotIsRefused(): void
    {
        $plain = $this->client(apiKey: self::env('PLAIN_API_KEY'));
        $lease = $plain->acquire($key = self::key());
        self::assertTrue($plain->inspect($key)->isHeld);
        $refused = $this->thrown(RequestRefused::class, fn () => $plain->forceRelease($key));
        self::assertSame([403, 'forbidden'], [$refused->status, $refused->problem]);
        self::assertTrue($lease->release());
        $refused = $this->thrown(RequestRefused::class, fn () => $this->client(apiKey: '')->acquire($key));
        self::assertSame([401, 'unauthenticated'], [$refused->status, $refused->problem]);
    }

    public function testNonsenseIsRefusedBeforeAnythingIsSent(): void
    {
        $urls = ['localhost:8080', 'ftp://a', 'http://me:secret@a', 'http://', 'http://a?b', 'http://a/locks/'];
        foreach ($urls as $url) {
            $this->thrown(\InvalidArgumentException::class, fn () => $this->client($url));
        }
        $this->thrown(\InvalidArgumentException::class, fn () => $this->client(apiKey: "a\r\nEvil: yes"));
        $this->thrown(\InvalidArgumentException::class, fn () => $this->client()->release('key', "a\r\nEvil: yes"));
    }

    public function testProcessesNeverCountOverOneAnother(): void
    {
        $file = tempnam(sys_get_temp_dir(), 'count');
        file_put_contents($file, '0');
        $code = 'for ($i = 0; $i < 25; $i++) $client->withLock($arguments[0], function () use ($arguments) {'
            . 'file_put_contents($arguments[1], (string) (1 + (int) file_get_contents($arguments[1]))); }, 10, INF);';
        $key = self::key();
        $workers = array_map(fn () => self::start($code, $key, $file), range(1, 4));
        $codes = array_map(fn ($worker) => [stream_get_contents($worker[1]), proc_close($worker[0])], $workers);
        self::assertSame(array_fill(0, 4, ['', 0]), $codes);
        self::assertSame('100', file_get_contents($file));
        unlink($file);
    }

    public function testTokensBeginAsTheServiceWantsThem(): void
    {
        $lease = $this->client(tokenPrefix: '9999999999-')->acquire(self::key());
        self::assertMatchesRegularExpression('/^9999999999-[0-9a-f]{32}$/', $token = $lease->handOver());
        self::assertTrue($this->client()->release($lease->key(), $token));
    }
}
