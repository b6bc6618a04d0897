<?php

declare(strict_types=1);

namespace Lockkeeper\Tests;

use Illuminate\Cache\ArrayStore;
use Illuminate\Cache\CacheManager;
use Illuminate\Cache\Repository;
use Illuminate\Config\Repository as Config;
use Illuminate\Container\Container;
use Illuminate\Contracts\Cache\LockTimeoutException;
use Lockkeeper\Exception\Outcome;
use Lockkeeper\Exception\RequestRefused;
use Lockkeeper\Exception\ServiceUnavailable;
use Lockkeeper\Laravel\LockkeeperCacheStore;
use Lockkeeper\Laravel\LockkeeperLock;
use Lockkeeper\Laravel\LockkeeperServiceProvider;
use PHPUnit\Framework\Attributes\DataProvider;

final class LaravelTest extends TestCase
{
    public function testALockIsHeldUntilItIsReleased(): void
    {
        $cache = $this->cache();
        $name = self::key();
        $lock = $cache->lock($name, 10);
        self::assertTrue($lock->get());
        self::assertFalse($cache->lock($name, 10)->get());
        self::assertFalse($lock->get());
        self::assertTrue($lock->isOwnedByCurrentProcess());
        self::assertFalse($cache->lock($name)->isOwnedByCurrentProcess());
        self::assertSame([true, false], [$lock->isOwnedBy($lock->owner()), $lock->isOwnedBy('somebody')]);
        self::assertFalse($lock->isOwnedBy(null));
        self::assertTrue($cache->lock(self::key())->isOwnedBy(null));
        self::assertTrue($lock->refresh(60));
        self::assertLasts(60.0, $this->client()->inspect($name)->remaining);
        self::assertTrue($lock->refresh());
        self::assertLasts(10.0, $this->client()->inspect($name)->remaining);
        self::assertTrue($lock->release());
        self::assertSame([false, false], [$lock->release(), $lock->refresh()]);
        self::assertTrue($lock->get());
    }

    public function testALockThatNobodyElseCanHaveCostsOneRequestToTakeAndOneToGiveBack(): void
    {
        $proxy = self::faults();
        $lock = $this->cache($this->client($proxy->url))->lock(self::key(), 10);
        self::assertSame('done', $lock->block(5, fn () => 'done'));
        $methods = array_map(fn ($line) => explode(' ', $line)[1], $proxy->requests());
        self::assertSame(['POST', 'DELETE'], $methods);
    }

    public function testACallbackRunsUnderTheLock(): void
    {
        $cache = $this->cache();
        $name = self::key();
        $work = fn () => $cache->lock($name, 10)->get() ? 'not locked' : 'locked';
        self::assertSame('locked', $cache->lock($name, 10)->get($work));
        self::assertSame('locked', $cache->lock($name, 10)->block(1, $work));
        self::assertFalse($this->client()->inspect($name)->isHeld);
        $cache->lock($name, 10)->get();
        self::assertFalse($cache->lock($name, 10)->get(fn () => self::fail('it is held')));
    }

    public function testAnExceptionOfACallbackComesOutThoughTheLockWasLost(): void
    {
        $name = self::key();
        $work = function () use ($name): void {
            $this->client()->forceRelease($name);
            throw new \DomainException('of the work');
        };
        $lock = $this->cache()->lock($name, 10);
        $thrown = $this->thrown(\DomainException::class, fn () => $lock->block(0, $work));
        self::assertNull($thrown->getPrevious());
        self::assertSame(["lockkeeper: the lease of '$name' ended before its work"], $this->warnings);
    }

    public function testABlockingClientWaitsInLineAtTheService(): void
    {
        $cache = $this->cache();
        $name = self::key();
        $began = microtime(true);
        $cache->lock($name, 2)->get();
        $this->thrown(LockTimeoutException::class, fn () => $cache->lock($name, 10)->block(1));
        self::assertTook(1.0, $began);
        self::assertTrue($cache->lock($name, 10)->block(5));
        self::assertTook(2.0, $began);
    }

    public function testALockWithoutSecondsLastsAsLongAsIsUsual(): void
    {
        $name = self::key();
        foreach ([0, -5] as $seconds) {
            $lock = $this->cache()->lock($name, $seconds);
            self::assertTrue($lock->get());
            self::assertLasts(300.0, $this->client()->inspect($name)->remaining);
            self::assertTrue($lock->release());
        }
        $longest = new LockkeeperCacheStore($this->client(), new ArrayStore(), lockSeconds: INF);
        self::assertTrue($longest->lock($other = self::key())->get());
        self::assertLasts(3600.0, $this->client()->inspect($other)->remaining);
        $lock = $this->cache()->lock($name);
        self::assertTrue($lock->get());
        self::assertTrue($lock->refresh());
        self::assertLasts(300.0, $this->client()->inspect($name)->remaining);
        self::assertTrue($lock->release());
        self::assertTrue($lock->get());
        self::assertTrue($lock->refresh('9'));
        self::assertLasts(9.0, $this->client()->inspect($name)->remaining);
        self::assertTrue($lock->refresh(0));
        self::assertLasts(300.0, $this->client()->inspect($name)->remaining);
        $this->thrown(RequestRefused::class, fn () => $this->cache()->lock(self::key(), 86401)->get());
    }

    /** @dataProvider owners */
    #[DataProvider('owners')]
    public function testALockIsRestoredByItsOwner(?string $owner): void
    {
        $cache = $this->cache();
        $lock = $cache->lock($name = self::key(), 30, $owner);
        self::assertTrue($lock->get());
        self::assertSame($owner ?? $lock->owner(), $lock->owner());
        self::assertFalse($cache->restoreLock($name, 'x' . $lock->owner())->release());
        self::assertFalse($cache->restoreLock($name, $lock->owner())->get());
        $code = '$cache = new Lockkeeper\Laravel\LockkeeperCacheStore($client, new Illuminate\Cache\ArrayStore());
            $lock = $cache->restoreLock($arguments[0], base64_decode($arguments[1]));
            echo json_encode([$lock->isOwnedByCurrentProcess(), $lock->refresh(), $lock->release()]);';
        self::assertSame([0, '[true,true,true]'], self::script($code, $name, base64_encode($lock->owner())));
        self::assertFalse($lock->release());
    }

    public static function owners(): array
    {
        $uuid = 'f47ac10b-58cc-4372-a567-0e02b2c3d479';
        return [[null], [''], ['me'], ["a line\nand \xff"], [str_repeat('ü', 2000)], [$uuid]];
    }

    public function testAnOwnerComesInOnce(): void
    {
        $cache = $this->cache();
        $name = self::key();
        $asked = 0.0;
        $comesIn = function () use ($cache, $name, &$asked): bool {
            $asked = microtime(true);
            return $cache->lock($name, 2, 'the same')->get();
        };
        self::assertTrue($comesIn());
        $began = $asked;
        self::eventually($comesIn); // asking does not start the time of the other one anew
        self::assertTook(2.0, $began);
        $began = $asked;
        self::assertTrue($cache->lock($name, 2, 'the same')->block(5));
        self::assertTook(2.0, $began);
    }

    public function testACallbackThatIsAGeneratorIsRefused(): void
    {
        $work = function (): \Generator {
            yield self::fail('it runs');
        };
        $lock = $this->cache()->lock(self::key(), 10);
        $funnel = $this->cache()->funnel(self::key())->limit(1);
        $calls = [fn () => $lock->get($work), fn () => $lock->block(1, $work), fn () => $funnel->then($work)];
        array_map(fn ($call) => $this->thrown(\InvalidArgumentException::class, $call), $calls);
        self::assertSame('free', $funnel->then(fn () => 'free'));
        self::assertSame('free', $lock->get(fn () => 'free'));
        $this->thrown(\InvalidArgumentException::class, fn () => $lock->block(NAN));
    }

    public function testALostAnswerIsNotTakenForAnotherOfOneOwner(): void
    {
        $proxy = self::faults('lose');
        self::assertTrue($this->cache($this->client($proxy->url))->lock(self::key(), 10)->get());
    }

    public function testALostAnswerIsNotTakenForOnesOwnWhereAnotherMayHaveTheOwner(): void
    {
        foreach (['pass', 'keep'] as $look) {
            $name = self::key();
            $proxy = self::faults($look, 'lose', 'pass', 'pass');
            $lock = $this->cache($this->client($proxy->url))->lock($name, 10, 'me');
            $failure = $this->thrown(ServiceUnavailable::class, fn () => $lock->get());
            self::assertSame(Outcome::Unknown, $failure->outcome);
            self::assertTrue($this->client()->inspect($name)->isHeld);
            self::assertFalse($lock->get());
        }
        $lose = ['cut', ...array_fill(0, 9, 'lose')]; // the other one comes in behind the look
        $proxy = self::faults('pass', ...$lose);
        $late = $this->cache($this->client($proxy->url, patience: 0.1))->lock($name = self::key(), 10, 'you');
        $this->thrown(ServiceUnavailable::class, fn () => $late->get());
        self::assertSame([], preg_grep('/DELETE/', $proxy->requests()));
        self::assertTrue($this->client()->inspect($name)->isHeld);
    }

    public function testAForkedChildHasNothingOfItsParentsLock(): void
    {
        $code = '$cache = new Lockkeeper\Laravel\LockkeeperCacheStore($client, new Illuminate\Cache\ArrayStore());
            $cache->lock($arguments[0], 30)->get(function () use ($cache, $arguments, $client) {
                $other = $cache->lock("$arguments[0]/other", 30);
                $other->get();
                $child = pcntl_fork();
                if ($child === 0) {
                    echo json_encode([$other->refresh(), $other->release(), $other->isOwnedByCurrentProcess()]), " ";
                    throw new Exception();
                }
                pcntl_waitpid($child, $status);
                $held = $client->inspect($arguments[0])->isHeld;
                echo json_encode([$held, $other->isOwnedByCurrentProcess(), $other->release()]);
            });';
        self::assertSame([0, '[false,false,false] [true,true,true]'], self::script($code, self::key()));
    }

    public function testNothingIsRefreshedBehindARelease(): void
    {
        $proxy = self::faults('pass', ...array_fill(0, 2, 'html'));
        $lock = $this->cache($this->client($proxy->url, patience: 0.01))->lock(self::key(), 10);
        $lock->get();
        $this->thrown(ServiceUnavailable::class, fn () => $lock->release());
        self::assertFalse($lock->refresh());
    }

    public function testARequestNamesTheLeaseByItsFencingToken(): void
    {
        $proxy = self::faults();
        $lock = $this->cache($this->client($proxy->url))->lock(self::key(), 10);
        $lock->get();
        $lock->refresh(20);
        $lock->refresh(5);
        $lock->release();
        $named = '/(PUT|POST).*"fencing_token":\d|DELETE.*\?fencing_token=\d/';
        self::assertCount(3, preg_grep($named, $proxy->requests()));
    }

    public function testALockThatIsRestoredIsShortenedToo(): void
    {
        $cache = $this->cache();
        $lock = $cache->lock($name = self::key(), 60);
        $lock->get();
        self::assertTrue($cache->restoreLock($name, $lock->owner())->refresh(5));
        self::assertLasts(5.0, $this->client()->inspect($name)->remaining);
        self::assertTrue($lock->refresh(30)); // whose number it does not know
        self::assertLasts(30.0, $this->client()->inspect($name)->remaining);
        self::assertTrue($lock->refresh(5));
        self::assertTrue($lock->release());
        self::assertFalse($this->client()->inspect($name)->isHeld);
    }

    public function testALockThatIsShortenedWithoutAnAnswerIsGivenBack(): void
    {
        $proxy = self::faults('pass', 'lose', 'lose');
        $lock = $this->cache($this->client($proxy->url, patience: 0.0))->lock($name = self::key(), 60);
        $lock->get();
        $this->thrown(ServiceUnavailable::class, fn () => $lock->refresh(5));
        self::assertFalse($this->client()->inspect($name)->isHeld);
        self::assertSame([false, false], [$lock->refresh(), $lock->release()]);
    }

    public function testAnotherOneOfTheOwnerThatWaitsIsWaitedFor(): void
    {
        $proxy = self::faults('pass', ...array_fill(0, 3, 'superseded'));
        $lock = $this->cache($this->client($proxy->url))->lock(self::key(), 10, 'me');
        self::assertTrue($lock->block(10));
    }

    public function testTwoOfOneOwnerThatAskAtOnceDoNotBothComeIn(): void
    {
        $key = self::key();
        $code = '$cache = new Lockkeeper\Laravel\LockkeeperCacheStore($client, new Illuminate\Cache\ArrayStore());
            for ($i = 0; $i < 60; $i++) echo (int) $cache->lock("$arguments[0]/$i", 60, "the same")->get();';
        $workers = array_map(fn () => self::start($code, $key), range(1, 4));
        $wins = array_map(fn ($worker) => str_split(stream_get_contents($worker[1])), $workers);
        self::assertSame(array_fill(0, 60, 1), array_map(fn (...$of) => (int) array_sum($of), ...$wins));
    }

    public function testAForcedReleaseEndsTheLeaseOfWhoeverHasIt(): void
    {
        $name = self::key();
        $this->cache()->lock($name, 10)->get();
        $this->cache()->lock($name)->forceRelease();
        $this->cache()->lock($name)->forceRelease();
        self::assertFalse($this->client()->inspect($name)->isHeld);
        self::assertSame([], $this->warnings);
    }

    public function testAForcedReleaseWithoutThePermissionEndsThatOfItsOwnerAndThrowsNothing(): void
    {
        $plain = $this->cache($this->client(apiKey: self::env('PLAIN_API_KEY')));
        $lock = $plain->lock($name = self::key(), 10);
        $lock->get();
        $plain->lock($name)->forceRelease(); // as Laravel does it at the end of a job
        self::assertTrue($this->client()->inspect($name)->isHeld);
        self::assertCount(1, preg_grep("/^lockkeeper: not released by force: '.*permission/", $this->warnings));
        $plain->restoreLock($name, $lock->owner())->forceRelease();
        self::assertFalse($this->client()->inspect($name)->isHeld);
        self::assertCount(1, $this->warnings);
    }

    public function testAServiceThatIsAwayIsNoHeldLock(): void
    {
        $cache = $this->cache($this->client('http://127.0.0.1:1', patience: 0.1));
        $lock = fn () => $cache->lock('a', 1);
        $this->thrown(ServiceUnavailable::class, fn () => $lock()->get());
        $this->thrown(ServiceUnavailable::class, fn () => $lock()->block(1));
        $this->thrown(ServiceUnavailable::class, fn () => $lock()->release());
        $this->thrown(ServiceUnavailable::class, fn () => $lock()->isOwnedByCurrentProcess());
    }

    public function testANameMayBeAnything(): void
    {
        $names = ['a//b', "line\n", 'framework/schedule-' . sha1('x'), 'laravel_unique_job:App\Jobs\A:', 'refresh'];
        foreach ($names as $name) {
            $cache = $this->cache(prefix: self::key(''));
            self::assertTrue($cache->lock($name, 10)->get());
            self::assertFalse($cache->lock($name, 10)->get());
        }
    }

    public function testTheCurrentOwnerIsNobodysSecret(): void
    {
        $current = fn (LockkeeperLock $lock) => (fn () => $this->getCurrentOwner())->call($lock);
        $mine = $this->cache()->lock($name = self::key(), 10, 'me');
        $other = $this->cache()->lock($name, 10, 'you');
        self::assertNull($current($mine));
        $mine->get();
        self::assertSame('me', $current($mine));
        self::assertSame('somebody else: ' . gethostname() . ':' . getmypid(), $current($other));
    }

    public function testTheProviderMakesACacheWithLocks(): void
    {
        $app = new Container();
        $prefix = self::key('');
        $url = ['url' => self::env('URL'), 'api_key' => self::env('API_KEY'), 'lock_prefix' => $prefix];
        $locks = ['driver' => 'lockkeeper', 'values' => 'values'] + $url;
        $stores = ['values' => ['driver' => 'array'], 'none' => ['driver' => 'lockkeeper'], 'locks' => $locks];
        $stores['owned'] = ['lock_owner' => 'all of us', 'lock_seconds' => 40] + $locks;
        // An empty setting is absent: URL and API key are those of LOCKKEEPER_URL and LOCKKEEPER_API_KEY.
        $stores['long'] = ['lock_seconds' => '20m', 'url' => '', 'api_key' => '', 'ca' => ''] + $locks;
        $app->instance('config', new Config(['cache' => ['default' => 'locks', 'prefix' => '', 'stores' => $stores]]));
        $app->singleton('cache', fn ($app) => new CacheManager($app));
        (new LockkeeperServiceProvider($app))->register();
        $cache = $app['cache'];
        $work = fn () => $cache->lock('x', 10)->get() ? 'not locked' : 'locked';
        self::assertSame('locked', $cache->store('locks')->lock('x', 10)->get($work));
        self::assertTrue($cache->lock('x', 10)->get());
        self::assertTrue($this->client()->inspect("{$prefix}x")->isHeld);
        $owned = $cache->store('owned')->lock('z');
        self::assertSame(['all of us', true], [$owned->owner(), $owned->get()]);
        self::assertFalse($cache->store('owned')->lock('z', 10)->get());
        self::assertLasts(40.0, $this->client()->inspect("{$prefix}z")->remaining);
        $long = $cache->store('long')->lock('long');
        self::assertTrue($long->get());
        self::assertLasts(1200.0, $this->client()->inspect("{$prefix}long")->remaining);
        $cache->put('y', 7, 60);
        self::assertSame([7, 7], [$cache->get('y'), $cache->store('values')->get('y')]);
        $this->thrown(\InvalidArgumentException::class, fn () => $cache->store('none'));
    }

    public function testValuesAreThoseOfTheOtherStore(): void
    {
        $inner = new ArrayStore();
        $cache = new Repository(new LockkeeperCacheStore($this->client(), $inner));
        self::assertTrue($cache->add('a', 1, 60));
        self::assertFalse($cache->add('a', 2, 60));
        self::assertSame([3, 1], [$cache->increment('a', 2), $cache->decrement('a', 2)]);
        $cache->putMany(['b' => 2, 'c' => 3], 60);
        $cache->forever('d', 4);
        self::assertSame(['a' => 1, 'd' => 4, 'e' => null], $cache->many(['a', 'd', 'e']));
        self::assertTrue($cache->getStore()->touch('b', 90));
        self::assertFalse($cache->getStore()->touch('e', 90));
        $cache->forget('a');
        self::assertSame([null, 2, 3], [$inner->get('a'), $inner->get('b'), $cache->pull('c')]);
        $lock = $cache->lock($name = self::key(), 10);
        $lock->get();
        $cache->flush();
        self::assertNull($cache->get('d'));
        self::assertTrue($this->client()->inspect($name)->isHeld);
        self::assertSame('', $cache->getStore()->getPrefix());
        self::assertFalse($cache->supportsTags());
    }

    private function cache(?\Lockkeeper\LockClient $client = null, string $prefix = ''): LockkeeperCacheStore
    {
        return new LockkeeperCacheStore($client ?? $this->client(), new ArrayStore(), $prefix);
    }
}
