<?php

declare(strict_types=1);

namespace Lockkeeper\Laravel;

use Illuminate\Console\Scheduling\EventMutex;
use Illuminate\Console\Scheduling\SchedulingMutex;
use Illuminate\Support\ServiceProvider;
use Lockkeeper\Internal\Duration;
use Lockkeeper\LockClient;

/**
 * Adds the cache driver `lockkeeper`, a LockClient, and, if `lockkeeper.schedule` says so, the mutexes of the
 * scheduler. Composer tells Laravel of it.
 */
final class LockkeeperServiceProvider extends ServiceProvider
{
    public function register(): void
    {
        $this->callAfterResolving('cache', static function ($cache): void {
            $cache->extend('lockkeeper', LockkeeperServiceProvider::creator($cache));
        });
        $this->app->singleton(LockClient::class, static fn ($app) => self::client(self::settings($app)));
        $settings = self::settings($this->app);
        if (!($settings['schedule'] ?? false)) {
            return;
        }
        $prefix = $settings['prefix'] ?? '';
        $ttl = Duration::of($settings['ttl'] ?? 15.0);
        $this->app->singleton(EventMutex::class, static fn ($app) => new LockkeeperEventMutex(
            $app->make(LockClient::class),
            $prefix,
            $ttl,
        ));
        $this->app->singleton(SchedulingMutex::class, static fn ($app) => new LockkeeperSchedulingMutex(
            $app->make(LockClient::class),
            $prefix,
        ));
    }

    /** Makes the store of a configuration in config/cache.php. */
    private static function creator(object $cache): \Closure
    {
        // Laravel binds it to the cache manager, which it cannot do with a static function.
        return function ($app, array $config) use ($cache): object {
            // Not `store`: newer versions of Laravel put the name of this store there.
            $inner = $config['values'] ?? throw new \InvalidArgumentException(
                'A cache store with the driver `lockkeeper` needs `values`, the name of the store that has the values.',
            );
            $client = LockkeeperServiceProvider::client($config);
            $store = new LockkeeperCacheStore(
                $client,
                $cache->store($inner)->getStore(),
                $config['lock_prefix'] ?? '',
                $config['lock_owner'] ?? null,
                Duration::of($config['lock_seconds'] ?? LockkeeperCacheStore::LOCK_SECONDS),
            );
            $plain = $cache->repository($store, $config);
            $repository = new LockkeeperRepository($store, array_intersect_key($config, ['store' => true]));
            $events = $plain->getEventDispatcher();
            $events === null || $repository->setEventDispatcher($events);
            return $repository;
        };
    }

    /**
     * @internal
     *
     * @param array<string, mixed> $config
     */
    public static function client(array $config): LockClient
    {
        // `env()` of an empty variable is empty.
        $text = static fn (string $name): ?string => ($config[$name] ?? '') === '' ? null : $config[$name];
        return new LockClient(
            $text('url'),
            $text('api_key'),
            php: $text('php'),
            ca: $text('ca'),
            cert: $text('cert'),
            certKey: $text('cert_key'),
            apiKeyFile: $text('api_key_file'),
        );
    }

    /** @return array<string, mixed> config/lockkeeper.php */
    private static function settings(object $app): array
    {
        return $app->bound('config') ? (array) $app->make('config')->get('lockkeeper', []) : [];
    }
}
