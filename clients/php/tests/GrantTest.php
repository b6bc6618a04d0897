<?php

declare(strict_types=1);

namespace Lockkeeper\Tests;

use Lockkeeper\Exception\LockBusy;
use Lockkeeper\Exception\LockkeeperException;
use Lockkeeper\Exception\LockLost;
use Lockkeeper\Exception\Outcome;
use Lockkeeper\Exception\RequestRefused;
use Lockkeeper\Exception\ServiceUnavailable;
use Lockkeeper\Exception\WaitCancelled;
use PHPUnit\Framework\Attributes\DataProvider;

/** No client claims more than the service has granted, whatever it is answered. */
final class GrantTest extends TestCase
{
    /** @dataProvider refusals */
    #[DataProvider('refusals')]
    public function testARefreshThatMayHaveHappenedLeavesTheEndAsItWas(string ...$faults): void
    {
        $proxy = self::faults('pass', ...$faults);
        $lease = $this->client($proxy->url, patience: 0.1)->acquire($key = self::key(), 60);
        $failure = $this->thrown(LockkeeperException::class, fn () => $lease->refresh(5));
        self::assertSame(Outcome::Unknown, $failure->outcome);
        self::assertLasts(60.0, $lease->remaining());
        $this->assertNoMoreRemains($key, fn () => $lease->remaining());
    }

    public static function refusals(): array
    {
        return [
            'the API key was changed' => ['lose', 'unauthenticated'],
            'a gateway wants another key' => ['lose', 'gateway-401'],
            'a gateway limits the rate' => ['lose', 'gateway-429'],
            'a gateway refuses behind the service' => ['gateway-401'],
        ];
    }

    public function testARefreshThatCertainlyDidNotHappenLeavesTheEndAsItWas(): void
    {
        foreach (['unauthenticated', 'not-acquired'] as $fault) {
            $proxy = self::faults('pass', $fault);
            $lease = $this->client($proxy->url)->acquire(self::key(), 60);
            $this->thrown(LockkeeperException::class, fn () => $lease->refresh(5));
            self::assertLasts(60.0, $lease->remaining());
        }
    }

    public function testARefreshNeverShortensALease(): void
    {
        $lease = $this->client()->acquire($key = self::key(), 60);
        $number = $lease->fencingToken();
        $lease->refresh(5);
        self::assertLasts(60.0, $lease->remaining());
        self::assertLasts(60.0, $this->client()->inspect($key)->remaining);
        self::assertSame($number, $lease->fencingToken());
    }

    public function testAnAnswerToAnotherRequestIsNone(): void
    {
        $proxy = self::faults('pass', 'stale', 'pass', 'pass', 'stale', 'pass');
        $client = $this->client($proxy->url);
        $first = $client->acquire(self::key());
        $holder = $this->client()->acquire($key = self::key());
        $busy = $this->thrown(LockBusy::class, fn () => $client->acquire($key));
        self::assertSame($key, $busy->key);
        self::assertTrue($client->inspect($key)->isHeld); // not that of the request before
        self::assertTrue($first->release());
        self::assertTrue($holder->release());
    }

    public function testAnAnswerWithAnotherTokenIsNone(): void
    {
        $key = self::key();
        $proxy = self::faults('pass', 'stale');
        $client = $this->client($proxy->url);
        $client->acquire($key)->handOver();
        $this->thrown(LockBusy::class, fn () => $client->acquire($key));
        self::assertCount(4, $proxy->requests()); // once more, and it is given back
    }

    public function testNothingIsRefreshedBehindARelease(): void
    {
        $proxy = self::faults('pass', ...array_fill(0, 9, 'html'));
        $lease = $this->client($proxy->url, patience: 0.1)->acquire($key = self::key(), 30);
        $this->thrown(ServiceUnavailable::class, fn () => $lease->release());
        $proxy->requests();
        $lost = $this->thrown(LockLost::class, fn () => $lease->refresh());
        self::assertSame([$key, 0.0, []], [$lost->key, $lease->remaining(), $proxy->requests()]);
        $this->thrown(LockLost::class, fn () => $lease->handOver());
        $lease = $this->client()->acquire(self::key());
        $lease->release();
        $this->thrown(LockLost::class, fn () => $lease->refresh());
    }

    public function testARefreshAndAReleaseNameTheirLeaseByItsFencingToken(): void
    {
        $proxy = self::faults();
        $client = $this->client($proxy->url);
        $lease = $client->acquire($key = self::key());
        $lease->refresh(40);
        $lease->release();
        [, $refresh, $release] = $proxy->requests();
        self::assertStringContainsString("\"fencing_token\":{$lease->fencingToken()}", $refresh);
        self::assertStringContainsString("?fencing_token={$lease->fencingToken()} ", $release);
        $lease = $client->acquire($key);
        $number = $lease->fencingToken();
        unset($lease);
        self::assertStringContainsString("?fencing_token=$number ", implode($proxy->requests()));
    }

    public function testALaterLeaseOfTheSameTokenIsLeftAlone(): void
    {
        $client = $this->client();
        $lease = $client->acquire($key = self::key());
        [$number, $token] = [$lease->fencingToken(), $lease->handOver()];
        $client->forceRelease($key);
        $url = self::env('URL') . "/locks/$key";
        $headers = ["Lock-Token: $token", 'Authorization: Bearer ' . self::env('API_KEY')];
        $again = ['http' => ['method' => 'POST', 'header' => $headers]];
        file_get_contents($url, false, stream_context_create($again));
        self::assertFalse($client->release($key, $token, $number));
        $lost = $this->thrown(LockLost::class, fn () => $client->refresh($key, $token, 9, $number));
        self::assertTrue($client->isMine($key, $token));
        self::assertSame($client->inspect($key)->fencingToken, $lost->fencingToken);
        self::assertTrue($client->release($key, $token, $lost->fencingToken));
    }

    public function testALeaseThatAStreamKeepsIsRefreshedByTheStreamAlone(): void
    {
        [$key, $token] = [self::key(), bin2hex(random_bytes(16))];
        $headers = ["Lock-Token: $token", 'Authorization: Bearer ' . self::env('API_KEY')];
        $context = stream_context_create(['http' => ['method' => 'POST', 'header' => $headers]]);
        $stream = fopen(self::env('URL') . "/hold/$key", 'r', false, $context);
        $number = json_decode(fgets($stream), true)['fencing_token'];
        $busy = $this->thrown(LockBusy::class, fn () => $this->client()->refresh($key, $token));
        self::assertSame([true, $number], [$busy->isMine, $busy->fencingToken]);
        self::assertTrue($this->client()->release($key, $token));
    }

    public function testAWaitThatIsCancelledIsNotGoneOnWith(): void
    {
        $proxy = self::faults('cancelled');
        $client = $this->client($proxy->url);
        $key = self::key();
        $cancelled = $this->thrown(WaitCancelled::class, fn () => $client->tryAcquire($key, wait: 5));
        self::assertSame([$key, "'$key': this is wait_cancelled"], [$cancelled->key, $cancelled->getMessage()]);
        self::assertCount(1, $proxy->requests());
    }

    public function testAClaimThatANewerRequestSupersedesIsRepeatedAndGivenUpAfterThree(): void
    {
        $proxy = self::faults('superseded', 'superseded');
        $began = microtime(true);
        self::assertTrue($this->client($proxy->url)->acquire(self::key(), wait: 5)->release());
        self::assertTook(2.0, $began); // as long as it says
        $proxy = self::faults('superseded', 'superseded', 'superseded');
        $client = $this->client($proxy->url);
        $cancelled = $this->thrown(WaitCancelled::class, fn () => $client->acquire($key = self::key(), wait: 5));
        self::assertSame(1.0, $cancelled->retryAfter);
        $methods = array_map(fn ($line) => explode(' ', $line)[1], $proxy->requests());
        self::assertSame(['POST', 'POST', 'POST', 'DELETE'], $methods); // what the newer one may get
    }

    public function testAQuotaThatIsUsedUpIsForALaterTry(): void
    {
        $proxy = self::faults('quota');
        $client = $this->client($proxy->url);
        $failure = $this->thrown(ServiceUnavailable::class, fn () => $client->acquire(self::key()));
        self::assertSame([Outcome::NotAcquired, 'quota_exceeded', 3.0], [
            $failure->outcome, $failure->problem, $failure->retryAfter,
        ]);
    }

    public function testTimesWithoutAnEndAreLong(): void
    {
        $client = $this->client(connectTimeout: INF, answerTimeout: INF, patience: INF);
        self::assertTrue($client->acquire(self::key())->release());
        foreach (['connectTimeout' => NAN, 'answerTimeout' => 0.0, 'patience' => -1.0] as $name => $seconds) {
            $this->thrown(\InvalidArgumentException::class, fn () => $this->client(...[$name => $seconds]));
        }
        foreach ([1e17, 1e300, -1.0, 0.0] as $ttl) {
            $this->thrown(RequestRefused::class, fn () => $client->acquire(self::key(), $ttl));
        }
    }

    /** @dataProvider strange */
    #[DataProvider('strange')]
    public function testOnlyItsOwnExceptionsComeOutWhateverTheAnswer(string $fault): void
    {
        set_error_handler(static function (int $level, string $message): never {
            throw new \ErrorException($message);
        });
        try {
            $proxy = self::faults($fault, $fault, $fault);
            $client = $this->client($proxy->url, patience: 0.01);
            $this->thrown(LockkeeperException::class, fn () => $client->acquire(self::key()));
            $proxy = self::faults(...array_fill(0, 9, $fault));
            $client = $this->client($proxy->url, patience: 0.01);
            $this->thrown(LockkeeperException::class, fn () => $client->inspect(self::key()));
            $this->thrown(LockkeeperException::class, fn () => iterator_to_array($client->list('x')));
            $proxy = self::faults('pass', ...array_fill(0, 9, $fault));
            $client = $this->client($proxy->url, patience: 0.01);
            $work = fn () => throw new \DomainException('of the work');
            $this->thrown(\DomainException::class, fn () => $client->withLock(self::key(), $work));
            $proxy = self::faults('pass', ...array_fill(0, 9, $fault));
            $client = $this->client($proxy->url, patience: 0.01);
            $lease = $client->acquire(self::key(), 2);
            $this->thrown(LockkeeperException::class, fn () => $lease->refresh());
            unset($lease);
        } finally {
            restore_error_handler();
        }
        self::assertDoesNotMatchRegularExpression('/Array|[\x00-\x1f]/', implode($this->warnings));
    }

    public static function strange(): array
    {
        $all = ['gateway-422', 'gateway-429', 'gateway-200', 'half', 'odd', 'odd-held', 'html', 'page', 'endless'];
        return array_map(fn ($fault) => [$fault], array_combine($all, $all));
    }

    public function testAnAnswerWithoutAnEndDoesNotUseUpTheMemory(): void
    {
        $proxy = self::faults(...array_fill(0, 99, 'endless'));
        $code = 'ini_set("memory_limit", "32M");
            $client = new Lockkeeper\LockClient($arguments[0], patience: 0.01, warn: fn () => 0);
            try { $client->acquire("key"); } catch (Lockkeeper\Exception\ServiceUnavailable) { echo "told"; }';
        self::assertSame([0, 'told'], self::script($code, $proxy->url));
    }

    /** @dataProvider elsewhere */
    #[DataProvider('elsewhere')]
    public function testNoSegmentLeavesTheClientThatIsResolvedOnTheWay(string $key): void
    {
        $proxy = self::faults();
        $client = $this->client($proxy->url);
        $calls = [
            fn () => $client->acquire($key), fn () => $client->release($key, str_repeat('a', 20)),
            fn () => $client->refresh($key, str_repeat('a', 20)), fn () => $client->inspect($key),
            fn () => $client->resume($key, str_repeat('a', 20)), fn () => $client->forceRelease($key),
        ];
        foreach ($calls as $call) {
            $refused = $this->thrown(RequestRefused::class, $call);
            self::assertSame([400, 'invalid_key'], [$refused->status, $refused->problem]);
        }
        self::assertSame([], $proxy->requests());
    }

    public static function elsewhere(): array
    {
        $keys = ['..', '.', '../admin/locks/victim', 'a/../b', 'a/..', 'a/./b', 'a//b', '/a', 'a/', ''];
        return array_map(fn ($key) => [$key], $keys);
    }

    public function testAKeyGoesOutWithNothingThatMeansSomethingElse(): void
    {
        $proxy = self::faults();
        $client = $this->client($proxy->url);
        $client->acquire(self::key('a b+c%2Bd?e#f'))->release();
        iterator_to_array($client->list('a b+c'));
        $paths = array_map(fn ($line) => explode(' ', $line)[2], $proxy->requests());
        self::assertStringEndsWith('/a%20b%2Bc%252Bd%3Fe%23f', $paths[0]);
        self::assertStringContainsString('/a%20b%2Bc%252Bd%3Fe%23f?fencing_token=', $paths[1]);
        self::assertStringStartsWith('/locks?prefix=a%20b%2Bc', end($paths));
    }

    public function testNoProxyIsUsedThatNobodyAskedFor(): void
    {
        $proxy = self::faults();
        $code = 'echo get_debug_type($client->tryAcquire($arguments[0]));';
        putenv("http_proxy={$proxy->url}");
        try {
            self::assertSame([0, 'Lockkeeper\Lease'], self::script($code, self::key()));
        } finally {
            putenv('http_proxy');
        }
        self::assertSame([], $proxy->requests());
        $client = $this->client('http://lockkeeper.invalid', proxy: $proxy->url);
        self::assertTrue($client->acquire($key = self::key())->release());
        self::assertStringContainsString("POST http://lockkeeper.invalid/locks/$key ", $proxy->requests()[0]);
    }

    public function testNoMessageHasALineOfAKey(): void
    {
        $key = "a\nb";
        $proxy = self::faults('page', 'page', 'page', 'page');
        $client = $this->client($proxy->url);
        $said = [
            $this->thrown(RequestRefused::class, fn () => $client->resume($key, str_repeat('a', 20)))->getMessage(),
            $this->thrown(RequestRefused::class, fn () => $client->acquire($key))->getMessage(),
            $this->thrown(RequestRefused::class, fn () => $client->acquire("$key/.."))->getMessage(),
            ...$this->warnings,
        ];
        self::assertCount(4, $said);
        self::assertSame([], preg_grep('/[\x00-\x1f]/', $said));
    }
}
