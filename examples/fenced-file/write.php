<?php

// Takes a lease, writes its standard input to a file that refuses late writers, and ends the lease;
// or writes under the lease that you have. With -a it appends.
//
//     make-report | php write.php [-a] 'http://localhost:8080/locks/report?ttl=30s' report.csv
//     make-report | LOCK_TOKEN=... php write.php [-a] FENCING_TOKEN report.csv
//
//     php write.php report.csv
//
// It ends with 0 if it has written, 1 if it was too late, and 75 if somebody else has the key. The
// last form shows the content.

declare(strict_types=1);

require __DIR__ . '/FencedFile.php';

/** @return array{int, array} status and body */
function locks(string $method, string $url, string $lease_token): array
{
    $curl = curl_init($url);
    curl_setopt_array($curl, [CURLOPT_CUSTOMREQUEST => $method, CURLOPT_RETURNTRANSFER => true,
        CURLOPT_TIMEOUT => 30, CURLOPT_HTTPHEADER => ["Lock-Token: $lease_token"]]);
    $body = curl_exec($curl);
    return [curl_getinfo($curl, CURLINFO_RESPONSE_CODE), json_decode((string) $body, true) ?: []];
}

function write(string $path, int $fencing_token, string $lease_token, bool $append): int
{
    // All of it is there before the file is locked: a slow source must keep nobody waiting.
    $input = stream_get_contents(STDIN);
    $change = fn (string $old): string => $append ? $old . $input : $input;
    $accepted = (new FencedFile($path))->update($fencing_token, $lease_token, $change);
    echo $accepted ? "written\n" : "too late: another lease has written\n";
    return $accepted ? 0 : 1;
}

function main(string $lease, string $path, bool $append): int
{
    if (ctype_digit($lease)) {
        return write($path, (int) $lease, (string) getenv('LOCK_TOKEN'), $append);
    }
    $lease_token = bin2hex(random_bytes(16));
    [$status, $answer] = locks('POST', $lease, $lease_token);
    if ($status !== 201) {
        fwrite(STDERR, 'not now: ' . ($answer['detail'] ?? 'no answer') . "\n");
        return $status === 409 ? 75 : 70;
    }
    try {
        return write($path, $answer['fencing_token'], $lease_token, $append);
    } finally {
        // The answer changes nothing: a lease that is over is one that the file has judged by itself.
        locks('DELETE', strtok($lease, '?'), $lease_token);
    }
}

$options = getopt('a', [], $first);
$arguments = array_slice($argv, $first);
try {
    if (count($arguments) === 1) {
        echo (new FencedFile($arguments[0]))->content();
        exit(0);
    }
    if (count($arguments) === 2) {
        exit(main($arguments[0], $arguments[1], isset($options['a'])));
    }
} catch (Exception $failure) {
    fwrite(STDERR, $failure->getMessage() . "\n");
    exit(70);
}
fwrite(STDERR, "usage: php write.php [-a] [URL_OF_A_LOCK|FENCING_TOKEN] FILE\n");
exit(64);
