<?php

// A client of /hold that says each line it hears, until the stream ends.
// Usage: php hold.php fopen11|fopen10|curl URL

declare(strict_types=1);

[, $way, $url] = $argv;
$way($url);

function fopen11(string $url): void
{
    listen($url, []);
}

function fopen10(string $url): void
{
    listen($url, ['protocol_version' => 1.0]);
}

function listen(string $url, array $http): void
{
    $context = stream_context_create(['http' => ['method' => 'POST', 'timeout' => 30] + $http]);
    $hold = fopen($url, 'r', false, $context);
    while (($line = fgets($hold)) !== false) {
        echo $line;
    }
}

function curl(string $url): void
{
    $curl = curl_init($url);
    curl_setopt_array($curl, [CURLOPT_POST => true, CURLOPT_POSTFIELDS => '',
        CURLOPT_WRITEFUNCTION => function ($curl, string $piece): int {
            echo $piece;
            return strlen($piece);
        }]);
    curl_exec($curl);
}
