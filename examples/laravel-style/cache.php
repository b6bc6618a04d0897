<?php

// In an application, `Cache::store('locks')` is this, from config/cache.php.

use Illuminate\Cache\ArrayStore;
use Illuminate\Cache\Repository;
use Lockkeeper\Laravel\LockkeeperCacheStore;
use Lockkeeper\LockClient;

require 'vendor/autoload.php';

$url = getenv('LOCKKEEPER_URL') ?: 'http://localhost:8080';
$client = new LockClient($url, getenv('LOCKKEEPER_API_KEY') ?: null);
return new Repository(new LockkeeperCacheStore($client, new ArrayStore()));
