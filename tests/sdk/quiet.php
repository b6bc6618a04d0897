<?php

// What the generated PHP client does on a Guzzle that throws nothing.
// Usage: php quiet.php BASE_URL API_KEY KEY   prints what a second acquire of KEY does

declare(strict_types=1);

require __DIR__ . '/vendor/autoload.php';

[, $url, $secret, $key] = $argv;
$service = (new Lockkeeper\Configuration())->setHost($url)->setAccessToken($secret);
$quiet = new GuzzleHttp\Client(['http_errors' => false]);
$locks = new Lockkeeper\Api\LocksApi($quiet, $service);
$locks->acquireLock($key);
try {
    echo get_class($locks->acquireLock($key)), " returned\n";
} catch (Lockkeeper\ApiException $problem) {
    echo get_class($problem->getResponseObject()), " thrown\n";
}
