<?php

// A web request whose lease ends with it at once, even if PHP is killed.

declare(strict_types=1);

$url = $_SERVER['LOCKKEEPER_URL'] ?? 'http://127.0.0.1:8080';
$hold = @fopen("$url/hold/held?ttl=10s&wait=2s", 'r', false, stream_context_create(['http' =>
    ['method' => 'POST', 'protocol_version' => 1.0, 'timeout' => 10]]));
do {
    $line = json_decode($hold ? (string) fgets($hold) : '', true);
} while (($line['event'] ?? '') === 'waiting');
header('Content-Type: text/plain');
if (($line['event'] ?? '') !== 'acquired') {
    http_response_code(503);
    header('Retry-After: 2');
    exit("not now\n");
}

sleep((int) ($_GET['seconds'] ?? 0)); // Stands for your work.
echo "done as number {$line['fencing_token']}\n";
