<?php

// A web request that counts one more, one request at a time.

declare(strict_types=1);

require __DIR__ . '/lockkeeper.php';
require __DIR__ . '/FencedFile.php';

function answer(int $status, string $text, int $retry_after = 0): void
{
    http_response_code($status);
    header('Content-Type: text/plain');
    $retry_after > 0 && header("Retry-After: $retry_after");
    exit("$text\n");
}

/** Stands for your work. */
function work(string $old): string
{
    sleep((int) ($_GET['seconds'] ?? 0));
    return (string) ((int) $old + 1);
}

$locks = new Lockkeeper($_SERVER['LOCKKEEPER_URL'] ?? 'http://127.0.0.1:8080', null, '', 1.0);
try {
    // Who waits occupies a PHP worker, so wait briefly. The TTL is how long the key stays taken if
    // PHP is killed, so it is not much longer than request_terminate_timeout.
    $lease = $locks->acquire('count', 10, 2);
} catch (LockkeeperUnavailable $failure) {
    error_log($failure->getMessage());
    answer(503, 'not now', 5);
}
if ($lease === null) {
    answer(409, 'somebody else is counting', 2);
}
try {
    $file = new FencedFile(__DIR__ . '/counter');
    $write = function (callable $change) use ($file, $lease): bool {
        return $file->update($lease->fencingToken, $lease->token(), $change);
    };
    // Claims the file: from here on it refuses earlier leases, and this one as soon as a later one came.
    $write('strval');
    $new = work($file->content());
    $is_written = $write(function () use ($new): string {
        return $new;
    });
} finally {
    $lease->release() || error_log('the lease had ended, or the service did not answer');
}
$is_written ? answer(200, $new) : answer(409, 'too late, somebody else has counted', 2);
