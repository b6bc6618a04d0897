<?php

declare(strict_types=1);

namespace Lockkeeper\Laravel;

use Illuminate\Support\ServiceProvider;
use Lockkeeper\LockClient;

/** Adds the cache driver `lockkeeper`. Composer tells Laravel of it. */
final class LockkeeperServiceProvider extends ServiceProvider
{
    public function register(): void
    {
        $this->callAfterResolving('cache', static function ($cache): void {
            $cache->extend('lockkeeper', LockkeeperServiceProvider::creator($cache));
        });
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
            $client = new LockClient($config['url'] ?? 'http://127.0.0.1:8080', $config['api_key'] ?? null);
            $store = new LockkeeperCacheStore($client, $cache->store($inner)->getStore(), $config['lock_prefix'] ?? '');
            return $cache->repository($store, $config);
        };
    }
}
