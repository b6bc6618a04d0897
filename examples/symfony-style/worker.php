<?php

// A worker: it takes the lock that comes with the message, and gives it back.

use Symfony\Component\Lock\Exception\LockConflictedException;

$locks = require 'locks.php';
[$invoice, $key] = unserialize(base64_decode(stream_get_contents(STDIN)));
$lock = $locks->createLockFromKey($key, ttl: 60);
try {
    $lock->refresh(); // the message may have waited for longer than the lock lasts
} catch (LockConflictedException) {
    exit("invoice $invoice: too late\n");
}
echo "invoice $invoice is paid\n";
$lock->release();
