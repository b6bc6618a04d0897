<?php

declare(strict_types=1);

namespace Lockkeeper\Tests;

use Illuminate\Cache\CacheManager;
use Illuminate\Cache\Limiters\LimiterTimeoutException;
use Illuminate\Config\Repository as Config;
use Illuminate\Container\Container;
use Illuminate\Contracts\Events\Dispatcher as DispatcherContract;
use Illuminate\Contracts\Redis\LimiterTimeoutException as OlderException;
use Illuminate\Events\Dispatcher;
use Lockkeeper\Exception\LockBusy;
use Lockkeeper\Exception\RequestRefused;
use Lockkeeper\Exception\ServiceUnavailable;
use Lockkeeper\Laravel\LockkeeperRepository;
use Lockkeeper\Laravel\LockkeeperServiceProvider;

/** How many run something at once, with the methods of Laravel's own funnel. */
final class LaravelFunnelTest extends TestCase
{
    public function testNoMoreThanTheLimitRunAtOnce(): void
    {
        $cache = $this->cache();
        $name = self::key();
        $funnel = fn () => $cache->funnel($name)->limit(2)->releaseAfter(20)->block(0);
        $result = $funnel()->then(fn () => $funnel()->then(function () use ($name, $funnel): array {
            $look = $this->client()->inspect("shop/funnel/$name");
            self::assertLasts(20.0, $look->remaining);
            return [$look->holders, $look->slots, $funnel()->then(fn () => 'in', fn () => 'full')];
        }));
        self::assertSame([2, 2, 'full'], $result);
        self::assertFalse($this->client()->inspect("shop/funnel/$name")->isHeld);
        self::assertSame('in', $funnel()->then(fn () => 'in'));
    }

    public function testWhereThereIsNoRoomInTimeLaravelsExceptionIsThrown(): void
    {
        $cache = $this->cache();
        $name = self::key();
        $work = fn () => self::fail('it is full');
        $class = class_exists(LimiterTimeoutException::class) ? LimiterTimeoutException::class : OlderException::class;
        $cache->funnel($name)->limit(1)->then(function () use ($cache, $name, $work, $class): void {
            $funnel = $cache->funnel($name)->limit(1)->block(0.5)->sleep(10);
            $began = microtime(true);
            $timeout = $this->thrown($class, fn () => $funnel->then($work));
            self::assertTook(0.5, $began);
            self::assertInstanceOf(LockBusy::class, $timeout->getPrevious());
            $told = $funnel->block(0)->then($work, fn ($timeout) => $timeout);
            self::assertInstanceOf($class, $told);
        });
    }

    public function testAnExceptionOfTheCallbackComesOutAndThePlaceIsFree(): void
    {
        $cache = $this->cache();
        $name = self::key();
        $funnel = fn () => $cache->funnel($name)->limit(1)->block(0);
        $this->thrown(\DomainException::class, fn () => $funnel()->then(function (): void {
            throw new \DomainException('of the work');
        }, fn () => self::fail('it was not full')));
        self::assertSame('in', $funnel()->then(fn () => 'in'));
    }

    public function testABlockingClientWaitsInLineAtTheService(): void
    {
        $name = self::key();
        $began = microtime(true);
        $this->client()->acquire("shop/funnel/$name", 1.2)->handOver();
        $funnel = $this->cache()->funnel($name)->limit(1)->releaseAfter(new \DateInterval('PT20S'));
        $remaining = $funnel->block(20)->then(fn () => $this->client()->inspect("shop/funnel/$name")->remaining);
        self::assertTook(1.2, $began);
        self::assertLasts(20.0, $remaining);
    }

    public function testAServiceWithExclusiveLeasesOnlyHasAKeyForEachPlace(): void
    {
        $proxy = self::faults(...array_fill(0, 40, 'exclusive'));
        $cache = $this->cache($proxy->url);
        $name = self::key();
        $funnel = fn () => $cache->funnel($name)->limit(2)->block(0);
        $result = $funnel()->then(fn () => $funnel()->then(function () use ($name, $funnel): array {
            $held = iterator_to_array($this->client()->list("shop/funnel/$name/"), false);
            $places = array_map(fn ($look) => basename($look->key), $held);
            return [$places, $funnel()->then(fn () => 'in', fn () => 'full')];
        }));
        self::assertSame([['1', '2'], 'full'], $result);
        self::assertSame('in', $funnel()->then(fn () => 'in'));
    }

    public function testABadLimitIsRefused(): void
    {
        foreach ([0, -1, 1001] as $limit) {
            $funnel = $this->cache()->funnel(self::key())->limit($limit);
            $refused = $this->thrown(RequestRefused::class, fn () => $funnel->then(fn () => self::fail('it ran')));
            self::assertSame('slots', $refused->field);
        }
        $funnel = $this->cache()->funnel(self::key());
        $this->thrown(\LogicException::class, fn () => $funnel->then(fn () => self::fail('it ran')));
        $away = $this->cache('http://127.0.0.1:1')->funnel('away')->limit(1);
        $this->thrown(ServiceUnavailable::class, fn () => $away->block(0)->then(fn () => self::fail('it ran')));
    }

    public function testALockOfTheSameNameIsAnother(): void
    {
        $cache = $this->cache();
        $name = self::key();
        $work = fn () => $cache->lock($name, 10)->get(fn () => 'both');
        self::assertSame('both', $cache->funnel($name)->limit(1)->then($work));
    }

    public function testTheStoreOfTheConfigurationIsACacheWithEvents(): void
    {
        $cache = $this->cache();
        self::assertInstanceOf(LockkeeperRepository::class, $cache);
        self::assertInstanceOf(Dispatcher::class, $cache->getEventDispatcher());
        $cache->put('a', 1, 60);
        self::assertSame(1, $cache->get('a'));
    }

    private function cache(?string $url = null): LockkeeperRepository
    {
        $url ??= self::env('URL');
        $locks = ['driver' => 'lockkeeper', 'values' => 'array', 'url' => $url, 'lock_prefix' => 'shop/'];
        $stores = ['array' => ['driver' => 'array'], 'locks' => $locks + ['api_key' => self::env('API_KEY')]];
        $app = new Container();
        $app->instance('config', new Config(['cache' => ['prefix' => '', 'stores' => $stores]]));
        $app->instance(DispatcherContract::class, new Dispatcher($app));
        $app->singleton('cache', static fn ($app) => new CacheManager($app));
        (new LockkeeperServiceProvider($app))->register();
        return $app->make('cache')->store('locks');
    }
}
