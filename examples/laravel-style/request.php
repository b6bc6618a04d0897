<?php

// A web request: it makes sure that nobody pays the invoice twice, and leaves the rest to the job.

$cache = require 'cache.php';
$lock = $cache->lock("invoice/$argv[1]", 60);
if (!$lock->get()) {
    exit("invoice $argv[1] is in work already\n");
}
echo json_encode([$argv[1], $lock->owner()]); // the job; whoever knows the owner has the lock
