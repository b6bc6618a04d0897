<?php

// A job: it takes the lock that comes with it, and gives it back.

$cache = require 'cache.php';
[$invoice, $owner] = json_decode(stream_get_contents(STDIN));
$lock = $cache->restoreLock("invoice/$invoice", $owner);
if (!$lock->refresh(60)) { // the job may have waited for longer than the lock lasts
    exit("invoice $invoice: too late\n");
}
echo "invoice $invoice is paid\n";
$lock->release();
