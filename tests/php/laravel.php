<?php

// The Redis store of Laravel's cache: the cache on one connection, its locks on another.

declare(strict_types=1);

use Illuminate\Cache\RedisStore;
use Illuminate\Redis\RedisManager;

require_once 'Illuminate/Cache/autoload.php';
require_once 'Illuminate/Redis/autoload.php';

/** The locks are in database 0, what is cached is in `$cached`. */
function laravel(int $port, int $cached, array $options = []): RedisStore
{
    $server = ['host' => '127.0.0.1', 'port' => $port];
    $connections = [
        'options' => ['prefix' => 'laravel_database_'] + $options,
        'default' => ['database' => 0] + $server,
        'cache' => ['database' => $cached] + $server,
    ];
    $manager = new RedisManager(null, 'phpredis', $connections);
    return (new RedisStore($manager, 'laravel_cache', 'cache'))->setLockConnection('default');
}
