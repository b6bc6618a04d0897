<?php

// What PHP programs really send to the service, and what they get.
// Usage: php http.php verbs|bodies|streams|keys BASE_URL [REDIS_PORT]
// The exit code is 0 if every answer was the right one.

declare(strict_types=1);

require __DIR__ . '/answers.php';

[, $scenario, $base] = $argv;
$port = (int) ($argv[3] ?? 0);
$scenario($base, $port);
echo "$scenario: as it has to be\n";

/** The verbs with JSON and with headers. */
function verbs(string $base): void
{
    $url = "$base/locks/verbs";
    $mine = 'Lock-Token: ' . bin2hex(random_bytes(16));
    $json = 'Content-Type: application/json';
    $options = [CURLOPT_POSTFIELDS => json_encode(['ttl_ms' => 5000, 'owner' => 'php'])];

    $grant = send('POST', $url, [$mine, $json], $options);
    same('201', $grant->told(), 'acquire');
    lasts(5000, $grant, 'the TTL asked for');
    same('/locks/verbs', $grant->headers['location'], 'Location');
    same($mine, "Lock-Token: {$grant->headers['lock-token']}", 'the token chosen');
    same('200', send('POST', $url, [$mine, $json], $options)->told(), 'acquire again');

    $held = send('POST', $url);
    same('409 lock_held', $held->told(), 'acquire by another');
    same('application/problem+json', $held->headers['content-type'], 'the type of a 409');
    same('php', $held->member('owner'), 'the owner of the holder');
    same(true, $held->member('retry_after_ms') > 0, 'time left');
    same(true, (int) $held->headers['retry-after'] >= 1, 'Retry-After');

    $again = send('PUT', "$url/refresh", [$mine]);
    same('200', $again->told(), 'refresh');
    same($grant->member('fencing_token'), $again->member('fencing_token'), 'its fencing token');
    same(true, send('GET', $url, [$mine])->member('mine'), 'a look at one\'s own');

    $other = 'Lock-Token: ' . bin2hex(random_bytes(16));
    same('409 lock_lost', send('PUT', "$url/refresh", [$other])->told(), 'refresh by another');
    same('409 lock_lost', send('DELETE', $url, [$other])->told(), 'release by another');
    same('400 token_required', send('DELETE', $url)->told(), 'release by nobody');
    same('204', send('DELETE', $url, [$mine])->told(), 'release');
    same('409 lock_lost', send('DELETE', $url, [$mine])->told(), 'release again');
}

/** Bodies as PHP makes them of arrays. */
function bodies(string $base): void
{
    $url = "$base/locks/bodies";
    $form = http_build_query(['ttl_ms' => 5000, 'owner' => 'Büro 7 & Söhne', 'token' => null]);
    $grant = taken($url, [CURLOPT_POSTFIELDS => $form], 5000);
    same('Büro 7 & Söhne', $grant->member('owner'), 'an owner in a form');

    $grant = taken($url, [CURLOPT_POST => true], 30000);
    same(true, str_contains($grant->headers[''], ' 100 '), 'curl is told to go on');
    taken($url, [CURLOPT_POST => true, CURLOPT_POSTFIELDS => ''], 30000);
    taken($url, [], 30000);

    foreach ([[], null, new stdClass(), ['owner' => null]] as $nothing) {
        taken($url, [CURLOPT_POSTFIELDS => json_encode($nothing)], 30000);
    }
    foreach (['{"ttl_ms":5000.0}', '{"ttl_ms":"5000"}', 'ttl_ms=5000'] as $text) {
        taken($url, [CURLOPT_POSTFIELDS => $text], 5000);
    }

    $multipart = send('POST', $url, [], [CURLOPT_POSTFIELDS => ['ttl_ms' => 5000]]);
    same('400 invalid_request', $multipart->told(), 'an array that curl makes multipart of');
    same(true, str_contains($multipart->member('detail'), 'http_build_query()'), 'what to do');
    $misspelt = send('POST', $url, [], [CURLOPT_POSTFIELDS => http_build_query(['ttl' => 5])]);
    same('400 unknown_field', $misspelt->told(), 'a misspelt option');
    same(false, send('GET', $url)->member('held'), 'held after a refusal');
}

/** Takes the key, refreshes it by an upload, and releases it by a form. */
function taken(string $url, array $options, int $ttl_ms): Answer
{
    $what = json_encode($options);
    $grant = send('POST', $url, [], $options);
    same('201', $grant->told(), $what);
    lasts($ttl_ms, $grant, $what);
    $fields = ['token' => $grant->member('token')];

    $file = fopen('php://memory', 'w+');
    fwrite($file, json_encode($fields));
    rewind($file);
    $upload = [CURLOPT_UPLOAD => true, CURLOPT_INFILE => $file];
    same('200', send('PUT', "$url/refresh", [], $upload)->told(), 'refresh by an upload');

    $form = [CURLOPT_POSTFIELDS => http_build_query($fields)];
    same('204', send('DELETE', $url, [], $form)->told(), 'release by a form');
    return $grant;
}

/** The verbs without curl. */
function streams(string $base): void
{
    $url = "$base/locks/streams";
    foreach (['1.1', '1.0'] as $version) {
        $http = ['protocol_version' => $version, 'timeout' => 20, 'ignore_errors' => true];
        $grant = stream('POST', "$url?ttl=5s", $http);
        same('201', $grant->told(), "acquire over HTTP/$version");
        lasts(5000, $grant, 'the TTL of the query');
        same('409 lock_held', stream('POST', $url, $http)->told(), 'acquire by another');

        $token = ['header' => "Lock-Token: {$grant->member('token')}"];
        same('200', stream('PUT', "$url/refresh", $token + $http)->told(), 'refresh');
        $form = ['content' => http_build_query(['token' => $grant->member('token')])];
        $form['header'] = 'Content-Type: application/x-www-form-urlencoded';
        same('204', stream('DELETE', $url, $form + $http)->told(), 'release by a form');
        same('409 lock_lost', stream('DELETE', $url, $token + $http)->told(), 'release again');
    }
}

function stream(string $method, string $url, array $http): Answer
{
    $context = stream_context_create(['http' => ['method' => $method] + $http]);
    $body = file_get_contents($url, false, $context);
    $status = (int) explode(' ', $http_response_header[0])[1];
    return new Answer($status, named($http_response_header), $body);
}

/** Keys with everything in them, as a whole and segment by segment. */
function keys(string $base, int $port): void
{
    $texts = ['a/b', 'Büro 7/Drucker & Co', 'Ключ/日本語 テスト', '100%', "it's", 'a?b#c', 'x:{y}/*'];
    $redis = new Redis();
    foreach ($texts as $key) {
        $whole = "$base/locks/" . rawurlencode($key);
        $segments = implode('/', array_map(rawurlencode(...), explode('/', $key)));
        $grant = send('POST', $whole);
        same('201', $grant->told(), $key);
        same($key, $grant->member('key'), 'the key as the service knows it');
        same('409 lock_held', send('POST', "$base/locks/$segments")->told(), 'the same in segments');
        $location = $base . $grant->headers['location'];
        same(true, send('GET', $location)->member('held'), $location);
        if ($port !== 0) {
            $redis->connect('127.0.0.1', $port);
            same($grant->member('token'), $redis->get("lock:$key"), 'the value on Redis');
        }
        $mine = ['Lock-Token: ' . $grant->member('token')];
        same('204', send('DELETE', "$base/locks/$segments", $mine)->told(), 'release');
    }
    same('400 invalid_key', send('POST', "$base/locks/" . urlencode('a b'))->told(), 'a plus may be meant as a space');
}
