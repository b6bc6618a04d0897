<?php

// A proxy that does to one request after another what it is told, and passes on the rest.
// Usage: php faults.php UPSTREAM FAULT,FAULT... [CERTIFICATE] [CA] [SOCKET] [ADDRESS:PORT]; prints its port, then a
// line for each request: fault, method, path, protocol, token, body. With a certificate and its key, in one PEM file,
// it speaks TLS, and with the authority of clients it demands a certificate of them. With a path it listens on a unix
// socket.

declare(strict_types=1);

[, $upstream, $faults, $own, $ca, $socket, $address] = $argv + ['', '', '', '', '', '', '127.0.0.1:0'];
$faults = array_filter(explode(',', $faults));
$tls = ['local_cert' => $own, 'verify_peer' => $ca !== '', 'cafile' => $ca, 'verify_peer_name' => false];
$listener = stream_socket_server(
    $socket !== '' ? "unix://$socket" : ($own === '' ? 'tcp' : 'tls') . "://$address",
    context: stream_context_create(['ssl' => $own === '' ? [] : $tls]),
);
echo substr((string) strrchr(stream_socket_get_name($listener, false), ':'), 1), "\n";
while (true) {
    $client = @stream_socket_accept($listener, -1);
    if ($client === false) {
        continue; // No TLS came about.
    }
    do {
        $request = received($client);
        if ($request === '') {
            break;
        }
        $fault = array_shift($faults) ?? 'pass';
        echo $fault, ' ', strtok($request, "\r"), ' ', preg_match('/^lock-token: (.*?)\r/im', $request, $found)
            ? $found[1] : '-', ' ', explode("\r\n\r\n", $request, 2)[1] ?? '', "\n";
        fwrite($client, answer($fault, $request, $client, $upstream));
    } while ($fault === 'keep' && isNext($client, $listener));
    fclose($client);
}

/** Whether this connection is used before another one is made. */
function isNext($client, $listener): bool
{
    [$read, $none] = [[$client, $listener], null];
    stream_select($read, $none, $none, null);
    return !in_array($listener, $read, true);
}

/** What the client is told instead of the answer, or the answer. */
function answer(string $fault, string $request, $client, string $upstream): string
{
    return match ($fault) {
        'pass' => passed($request, $upstream),
        // The connection stays open.
        'keep' => preg_replace('/^connection: close\r\n/im', '', passed($request, $upstream)),
        'late' => passed($request, $upstream) . (usleep(700_000) ?? ''),
        'slow' => slowly($request, $upstream),
        'lose' => passed($request, $upstream, ''),
        'lose-html' => passed($request, $upstream, html(504)),
        'lose-unknown' => passed($request, $upstream, problem('store_unavailable', 1, ['outcome' => 'unknown'])),
        'cut' => '',
        'late-cut' => usleep(1_500_000) ?? '',
        'html' => html(502),
        'page' => html(404),
        'lose-page' => passed($request, $upstream, html(404)),
        'later' => html(503, "Retry-After: 3600\r\n"),
        'gateway' => str_replace('"draining"', '503', problem('draining', 0, [])),
        'nothing' => "HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n",
        'stop' => exit,
        'draining' => problem('draining', 0, []),
        'held' => problem('lock_held', 9, [], 409),
        'not-acquired' => problem('store_unavailable', 1, ['outcome' => 'not_acquired']),
        'swallow' => (string) stream_get_contents($client),
        'cancelled' => problem('wait_cancelled', 0, ['waited_ms' => 1], 409),
        'superseded' => problem('superseded', 1, ['waited_ms' => 1], 409),
        'long-superseded' => problem('superseded', 60, ['waited_ms' => 1], 409),
        'quota' => problem('quota_exceeded', 3, [], 429),
        'unauthenticated' => problem('unauthenticated', 0, [], 401),
        'gateway-401' => json(401, ['code' => 'unauthorized', 'detail' => 'of a gateway']),
        'gateway-429' => json(429, ['code' => 'rate_limited', 'message' => 'slow down']),
        'gateway-422' => json(422, ['detail' => [['loc' => ['path'], 'msg' => 'bad']]]),
        'gateway-200' => json(200, ['key' => 'x', 'status' => 'ok']),
        'half' => json(200, ['key' => keyOf($request), 'held' => 'yes']),
        'odd' => problem('odd', 0, ['detail' => ['a'], 'field' => ['a'], 'retry_after_ms' => 'soon'], 400),
        'odd-held' => problem('lock_held', 0, ['owner' => 7, 'retry_after_ms' => 'soon'], 409),
        // A store with exclusive leases only.
        'exclusive' => preg_match('/"(slots|shared)":(?!1\D)/', $request, $found)
            ? problem('invalid_request', 0, ['field' => $found[1]], 400) : passed($request, $upstream),
        // The answer to a request before.
        'stale' => $GLOBALS['last'],
        'endless' => endless($client),
    };
}

function passed(string $request, string $upstream, ?string $instead = null): string
{
    $service = stream_socket_client("tcp://$upstream");
    fwrite($service, preg_replace('/\r\n/', "\r\nConnection: close\r\n", $request, 1));
    $GLOBALS['last'] = stream_get_contents($service);
    return $instead ?? $GLOBALS['last'];
}

/** Passes it on when its client may be gone. */
function slowly(string $request, string $upstream): string
{
    if (pcntl_fork() === 0) {
        usleep(300_000);
        passed($request, $upstream);
        posix_kill(getmypid(), SIGKILL);
    }
    return '';
}

function endless($client): string
{
    $piece = '10000' . "\r\n" . str_repeat('x', 0x10000) . "\r\n";
    $head = "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nTransfer-Encoding: chunked\r\n\r\n";
    while (@fwrite($client, $head . $piece)) {
        $head = '';
    }
    return '';
}

function keyOf(string $request): string
{
    return rawurldecode(preg_replace('~^\S+ /locks/([^ ?]*).*~s', '$1', $request));
}

/** A request, whole; nothing if the client has hung up. */
function received($client): string
{
    $request = '';
    do {
        $more = fread($client, 8192);
        $request .= $more;
        $head = strpos($request, "\r\n\r\n");
        $length = preg_match('/^content-length: (\d+)/im', $request, $found) ? (int) $found[1] : 0;
    } while ($more !== '' && ($head === false || strlen($request) < $head + 4 + $length));
    return $request;
}

function html(int $status, string $more = ''): string
{
    return "HTTP/1.1 $status No\r\nContent-Type: text/html\r\n{$more}Connection: close\r\n\r\n<html>nginx</html>";
}

function problem(string $code, int $retryAfter, array $more, int $status = 503): string
{
    $type = ['status' => $status, 'type' => "urn:lockkeeper:$code"];
    $more += ['code' => $code, 'detail' => "this is $code"] + $type;
    return json($status, $more, "Retry-After: $retryAfter\r\n");
}

function json(int $status, array $body, string $more = ''): string
{
    $head = "HTTP/1.1 $status No\r\nContent-Type: application/problem+json\r\n{$more}Connection: close\r\n\r\n";
    return $head . json_encode($body);
}
