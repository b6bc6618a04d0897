<?php

// A web request: it makes sure that nobody pays the invoice twice, and leaves the rest to the worker.

use Symfony\Component\Lock\Key;

$locks = require 'locks.php';
$key = new Key("invoice/$argv[1]");
$lock = $locks->createLockFromKey($key, ttl: 60, autoRelease: false); // it is to outlive this process
if (!$lock->acquire()) {
    exit("invoice $argv[1] is in work already\n");
}
echo base64_encode(serialize([$argv[1], $key])); // the message; whoever reads it has the lock
