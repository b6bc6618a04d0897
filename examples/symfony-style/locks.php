<?php

use Lockkeeper\LockClient;
use Lockkeeper\Symfony\LockkeeperStore;
use Symfony\Component\Lock\LockFactory;

require 'vendor/autoload.php';

$url = getenv('LOCKKEEPER_URL') ?: 'http://localhost:8080';
return new LockFactory(new LockkeeperStore(new LockClient($url, getenv('LOCKKEEPER_API_KEY') ?: null)));
