<?php

// Adds one to the number in a file, many times, each time under the lock. Reading and writing are
// two steps with a pause between them, so two workers at a time lose one of their additions.
// Usage: php worker.php RECIPE PORT|BASE_URL KEY FILE ROUNDS

declare(strict_types=1);

require __DIR__ . '/recipes.php';

const TTL_MS = 60000;
// For one turn. Who asks over HTTP may have none before those on Redis itself are done.
const PATIENCE_S = 600;

[, $name, $where, $key, $file, $rounds] = $argv;
$recipe = recipe($name, $where);
for ($round = 0; $round < (int) $rounds; $round++) {
    $deadline = microtime(true) + PATIENCE_S;
    while (($proof = $recipe->acquire($key, TTL_MS)) === null) {
        if (microtime(true) > $deadline) {
            throw new RuntimeException("$name never had its turn in round $round");
        }
        usleep(random_int(500, 3000));
    }
    $number = (int) file_get_contents($file);
    usleep(random_int(0, 1000));
    file_put_contents($file . getmypid(), (string) ($number + 1));
    rename($file . getmypid(), $file); // Two numbers that are written at once do not mix.
    if (!$recipe->release($key, $proof)) {
        throw new RuntimeException("$name lost its lock in round $round");
    }
}
