<?php

// Leases from a lockkeeper service, for applications without composer: copy this file, and require it.
// PHP 7.2 or newer with ext-curl or, where that is missing, with allow_url_fopen.
//
//     $locks = new Lockkeeper('http://127.0.0.1:8080');
//     $lease = $locks->acquire('report', 30, 10); // a lease of 30 seconds; wait for 10 at most
//     if ($lease === null) {
//         exit("somebody else is at it\n");
//     }
//     try {
//         write_report($lease->fencingToken);
//     } finally {
//         $lease->release() || error_log('the lease had ended, or the service did not answer');
//     }

declare(strict_types=1);

/** A lockkeeper service. All durations are in seconds. */
final class Lockkeeper
{
    private $url;
    private $apiKey;
    private $tokenPrefix;
    private $patience;

    /**
     * @param string $tokenPrefix what the service has as `redis.token_prefix`
     * @param float  $patience    how long an answer may take, besides the wait, and how long to repeat a
     *                            request that has none: acquire() takes the wait, twice this and 3 s at most
     */
    public function __construct(
        string $url,
        #[\SensitiveParameter] // A comment before PHP 8.
        ?string $apiKey = null,
        string $tokenPrefix = '',
        float $patience = 5.0
    ) {
        $this->url = rtrim($url, '/');
        if (substr($this->url, -6) === '/locks') { // It would do, with other keys than everybody else.
            throw new InvalidArgumentException('The URL of the service ends before /locks, as in http://host:8080');
        }
        if (!function_exists('curl_init') && !ini_get('allow_url_fopen')) {
            throw new RuntimeException('Leases need ext-curl, which is missing, or allow_url_fopen, which is off');
        }
        $this->apiKey = $apiKey;
        $this->tokenPrefix = $tokenPrefix;
        $this->patience = $patience;
    }

    /**
     * A lease of the key, or null if somebody else has it, and still had it when the wait was over. It
     * ends with release(), with the last reference to it, with this process, or by its TTL.
     *
     * @param ?string $owner who asks, for people to read; the host and the process if it is null
     * @throws LockkeeperUnavailable nobody knows; what may have been acquired is given back if that can be
     * @throws LockkeeperRefused     correct the key, the options, the API key or the URL
     */
    public function acquire(string $key, float $ttl = 30.0, float $wait = 0.0, ?string $owner = null): ?LockkeeperLease
    {
        $lease = new LockkeeperLease($this, self::path($key), $key, $this->tokenPrefix, $this->patience);
        return $lease->acquire($ttl, $wait, $owner ?? gethostname() . ':' . getmypid()) ? $lease : null;
    }

    /**
     * Ends whoever has the key (permission `admin`); false if nobody had it. A repeat could hit the next
     * one, so there is none. @throws LockkeeperException
     */
    public function forceRelease(string $key): bool
    {
        return $this->send('DELETE', '/admin' . self::path($key), [], [], $this->patience)->certain($key)->isGood();
    }

    /** @internal One request. */
    public function send(string $method, string $path, array $headers, array $options, float $timeout): LockkeeperAnswer
    {
        $headers[] = 'Content-Type: application/json';
        $this->apiKey === null || $headers[] = "Authorization: Bearer $this->apiKey";
        $body = $options === [] ? '' : json_encode($options, JSON_INVALID_UTF8_SUBSTITUTE);
        $way = function_exists('curl_init') ? 'curl' : 'stream';
        $sent = self::clocks();
        return new LockkeeperAnswer($sent, ...$this->$way($method, $this->url . $path, $headers, $body, $timeout));
    }

    /** @return array{int, string, bool} status, or 0; text, or what went wrong; whether the request may have arrived */
    private function curl(string $method, string $url, array $headers, string $body, float $timeout): array
    {
        $curl = curl_init($url);
        curl_setopt_array($curl, [
            CURLOPT_CUSTOMREQUEST => $method,
            CURLOPT_HTTPHEADER => $headers,
            CURLOPT_RETURNTRANSFER => true,
            CURLOPT_TIMEOUT_MS => (int) ceil($timeout * 1000),
            CURLOPT_NOSIGNAL => true,
        ] + ($body === '' ? [] : [CURLOPT_POSTFIELDS => $body]));
        $text = curl_exec($curl);
        if ($text === false) {
            return [0, curl_error($curl), curl_getinfo($curl, CURLINFO_REQUEST_SIZE) > 0];
        }
        return [curl_getinfo($curl, CURLINFO_RESPONSE_CODE), $text, true];
    }

    /** The same without ext-curl. */
    private function stream(string $method, string $url, array $headers, string $body, float $timeout): array
    {
        $error = '';
        set_error_handler(function (int $level, string $message) use (&$error): bool {
            $error = preg_replace('/^.*stream: /s', '', $message);
            return true;
        });
        $http = ['method' => $method, 'header' => $headers, 'content' => $body, 'timeout' => $timeout,
            'protocol_version' => 1.1, 'follow_location' => 0, 'ignore_errors' => true];
        try {
            $stream = fopen($url, 'r', false, stream_context_create(['http' => $http]));
            if (!$stream) {
                return [0, $error, !preg_match('/^Connection refused|getaddrinfo|No route/', $error)];
            }
            $statuses = preg_grep('~^HTTP/~', stream_get_meta_data($stream)['wrapper_data'] ?? []);
            $text = (string) stream_get_contents($stream);
            return $statuses ? [(int) explode(' ', end($statuses))[1], $text, true] : [0, 'no answer', true];
        } finally {
            restore_error_handler();
        }
    }

    /** A segment at a time, as some proxies refuse %2F, and none that somebody on the way resolves. */
    private static function path(string $key): string
    {
        if (preg_match('~(^|/)\.{0,2}(/|$)~D', $key)) {
            throw new LockkeeperRefused("'$key' has a segment that is empty, . or ..", 400, 'invalid_key');
        }
        return '/locks/' . implode('/', array_map('rawurlencode', explode('/', $key)));
    }

    /** @internal What the clocks say: one may be set back, another may stand still while the machine sleeps. */
    public static function clocks(): array
    {
        $wall = microtime(true);
        return [$wall, function_exists('hrtime') ? hrtime(true) / 1e9 : $wall]; // PHP 7.3
    }

    /** @internal Seconds since then, rather too many than too few. */
    public static function since(array $then): float
    {
        $now = self::clocks();
        $passed = max($now[0] - $then[0], $now[1] - $then[1]);
        return $passed < 0 ? INF : $passed;
    }

    public function __debugInfo(): array
    {
        return ['url' => $this->url];
    }
}

/** A lease. It is of the process that acquired it: the end of what is forked from that does not end it. */
final class LockkeeperLease
{
    /** No request waits longer: less than the service allows, and most proxies. */
    private const SLICE = 20.0;

    /** @var string */
    public $key;

    /** @var int greater than that of every earlier lease of the key: what you write to can refuse a smaller one */
    public $fencingToken;

    private $service;
    private $path;
    private $token;
    private $patience;
    private $ttl = 0.0;
    private $began;

    /** What the process gives back at its end, by token; no leases, for these end with the last reference. */
    private static $open = [];

    /** Memory for the end, where there may be none left. */
    private static $reserve;

    /** @internal */
    public function __construct(Lockkeeper $service, string $path, string $key, string $tokenPrefix, float $patience)
    {
        $this->service = $service;
        $this->path = $path;
        $this->key = $key;
        $this->token = $tokenPrefix . bin2hex(random_bytes(16));
        $this->patience = $patience;
        if (self::$reserve === null) {
            self::$reserve = str_repeat(' ', 1 << 18);
            register_shutdown_function([self::class, 'giveBackAll'], false);
        }
    }

    public function __destruct()
    {
        self::giveBack($this->token);
    }

    /**
     * The TTL begins anew, or another one.
     *
     * @throws LockkeeperLost        stop: your work may overlap with another's
     * @throws LockkeeperUnavailable nobody knows; it lasts for remaining(), and until then you may try again
     * @throws LockkeeperRefused
     */
    public function refresh(?float $ttl = null): void
    {
        $options = $ttl === null ? [] : ['ttl_ms' => (int) round($ttl * 1000)];
        // There is nothing to refresh behind its end.
        $patience = max(0.5, $this->remaining());
        $before = [$this->ttl, $this->began];
        if ($ttl !== null && $ttl < $this->remaining()) {
            // Without an answer it may last for this much only.
            [$this->ttl, $this->began] = [$ttl, Lockkeeper::clocks()];
        }
        try {
            $answer = $this->ask('PUT', $options, 0.0, $patience);
        } catch (LockkeeperRefused $refused) {
            // What a proxy refuses may have been done by an earlier try.
            [$this->ttl, $this->began] = $refused->problem === '' ? [$this->ttl, $this->began] : $before;
            throw $refused;
        }
        if (!$answer->isGood()) {
            $this->isOver();
            throw new LockkeeperLost($answer->detail($this->key), 409, 'lock_lost');
        }
        $this->count($answer);
    }

    /**
     * Whether the lease lasted until now, and is given back. False is for a log: it had ended, so your work
     * may overlap with another's, or the service did not answer, and its TTL ends it.
     */
    public function release(): bool
    {
        if (!isset(self::$open[$this->token])) {
            return false;
        }
        try {
            $answer = $this->ask('DELETE');
            // Where an answer was lost, a repeat finds nothing that it could release.
            return $answer->isGood() || ($answer->isRepeated && $this->remaining() > 0);
        } catch (LockkeeperException $failure) {
            return false;
        } finally {
            $this->isOver();
        }
    }

    /** Whether the lease lasts, as the service knows. @throws LockkeeperException */
    public function isMine(): bool
    {
        return $this->ask('GET')->body['mine'] ?? false;
    }

    /** For how long the lease lasts at least, if nobody ends it by force; 0 if it may have ended. */
    public function remaining(): float
    {
        return $this->ttl > 0 ? max(0.0, $this->ttl - Lockkeeper::since($this->began)) : 0.0;
    }

    /** The lease token, a secret: who knows it can refresh the lease and release it. */
    public function token(): string
    {
        return $this->token;
    }

    private function __clone()
    {
    }

    /** Without the token. */
    public function __debugInfo(): array
    {
        return ['key' => $this->key, 'fencingToken' => $this->fencingToken, 'remaining' => $this->remaining()];
    }

    /** @internal */
    public function acquire(float $ttl, float $wait, string $owner): bool
    {
        $answer = $this->ask('POST', ['ttl_ms' => (int) round($ttl * 1000), 'owner' => $owner], $wait);
        if (!$answer->isGood()) {
            return false;
        }
        $this->fencingToken = $answer->body['fencing_token'];
        $this->count($answer);
        if ($this->remaining() <= 0) {
            throw new LockkeeperUnavailable("'$this->key': the answer took longer than the lease", 201, '', 'unknown');
        }
        return true;
    }

    /** @internal */
    public static function giveBackAll(bool $isLast): void
    {
        self::$reserve = '';
        if (!$isLast) {
            // Behind all that the application does at its end, for which it may need a lease.
            register_shutdown_function([self::class, 'giveBackAll'], true);
            return;
        }
        array_map([self::class, 'giveBack'], array_keys(self::$open));
    }

    /** What it may have, if that is quickly done; what stays is ended by its TTL. */
    private static function giveBack(string $token): void
    {
        [$service, $path, $pid] = self::$open[$token] ?? [null, '', 0];
        unset(self::$open[$token]);
        $pid === getmypid() && $service->send('DELETE', $path, ["Lock-Token: $token"], [], 2.0);
    }

    private function isOver(): void
    {
        $this->ttl = 0.0;
        unset(self::$open[$this->token]);
    }

    /** It began `waited_ms` after the request had come to the service, or later. */
    private function count(LockkeeperAnswer $grant): void
    {
        $this->ttl = ($grant->body['waited_ms'] + $grant->body['ttl_ms']) / 1000;
        $this->began = $grant->sent;
    }

    /** Asks until it is certain what has happened, and while the key is busy until the wait is over. */
    private function ask(string $method, array $options = [], float $wait = 0, float $patience = INF): LockkeeperAnswer
    {
        $began = Lockkeeper::clocks();
        $path = $this->path . ($method === 'PUT' ? '/refresh' : '');
        $patience = min($patience, $this->patience);
        if ($method === 'POST') {
            self::$open[$this->token] = [$this->service, $this->path, getmypid()];
        }
        for ($failures = 0, $inDoubt = false;; usleep((int) ($pause * 1e6))) {
            $slice = min(self::SLICE, max(0.0, $wait - Lockkeeper::since($began)));
            $options = ($wait > 0 ? ['wait_ms' => (int) ceil($slice * 1000)] : []) + $options;
            $token = ["Lock-Token: $this->token"]; // In an array traces of exceptions do not show it.
            $answer = $this->service->send($method, $path, $token, $options, $slice + $patience);
            $answer->isRepeated = $inDoubt;
            $inDoubt = $inDoubt || $answer->outcome === 'unknown';
            $left = $wait - Lockkeeper::since($began);
            if ($answer->outcome === '') {
                if (!($left > 0) || !$answer->isBusy()) { // NAN ends as well
                    break;
                }
                // A service that waits for less is not asked all the time.
                $pause = max(0.0, 0.2 - Lockkeeper::since($answer->sent));
                $failures = 0;
            } else {
                // What may have been done is asked for twice at least.
                if (!($left + $patience > 0) && ($failures > 0 || $answer->outcome !== 'unknown')) {
                    break;
                }
                $pause = min(1.0, 0.05 * 2 ** $failures++);
            }
        }
        // What a proxy refuses it may have passed on before.
        if ($method === 'POST' && !$answer->isGood() && !$inDoubt && $answer->isOurs) {
            $this->isOver();
        }
        return $answer->certain($this->key, $inDoubt);
    }
}

class LockkeeperException extends RuntimeException
{
    /** @var string the service's code, as `forbidden`; empty if it was not the service that answered */
    public $problem;

    /** @var string where nobody answered: `not_acquired` if nothing has happened for sure, or `unknown` */
    public $outcome;

    public function __construct(string $message, int $status, string $problem, string $outcome = '')
    {
        parent::__construct($message, $status); // getCode() is the HTTP status, as 403
        $this->problem = $problem;
        $this->outcome = $outcome;
    }
}

/** The lease has ended: stop, for somebody else may be at work. */
final class LockkeeperLost extends LockkeeperException
{
}

/** No answer, or none that says what has happened. */
final class LockkeeperUnavailable extends LockkeeperException
{
}

/** The service wants no such request: correct the key, the options, the API key or the URL. */
final class LockkeeperRefused extends LockkeeperException
{
}

/** @internal What came back, be it from the service or from a proxy before it. */
final class LockkeeperAnswer
{
    /** What the clocks said before the request. */
    public $sent;
    public $body;
    /** Empty if it is certain what has happened, else `not_acquired` or `unknown`. */
    public $outcome = '';
    /** Whether it is from the service. */
    public $isOurs;
    /** Whether the same request may have been done before. */
    public $isRepeated = false;
    private $status;
    private $text;

    public function __construct(array $sent, int $status, string $text, bool $mayHaveArrived)
    {
        $body = $status > 0 ? json_decode($text, true) : null;
        $isOurs = $status === 204 || ($status < 300 ? isset($body['key']) : is_string($body['code'] ?? null));
        $this->isOurs = $isOurs;
        $this->sent = $sent;
        $this->status = $status;
        $this->body = $isOurs && $body ? $body : [];
        $this->text = $status > 0 ? "HTTP $status, and not from lockkeeper" : $text;
        if ($isOurs && $status >= 500) {
            $isEarly = in_array($body['code'], ['draining', 'not_ready'], true);
            $this->outcome = $body['outcome'] ?? ($isEarly ? 'not_acquired' : 'unknown');
        } elseif (!$isOurs && ($status < 300 || $status >= 500 || in_array($status, [408, 409, 429], true))) {
            $this->outcome = $mayHaveArrived ? 'unknown' : 'not_acquired';
        }
    }

    public function isGood(): bool
    {
        return $this->status < 300 && $this->outcome === '';
    }

    public function isBusy(): bool
    {
        return in_array($this->body['code'] ?? '', ['lock_held', 'too_many_waiters'], true);
    }

    public function detail(string $key): string
    {
        return "'$key': " . ($this->body['detail'] ?? $this->text);
    }

    /** @throws LockkeeperException if it says nothing of the lock */
    public function certain(string $key, bool $inDoubt = false): self
    {
        $problem = $this->body['code'] ?? '';
        if ($this->outcome !== '') {
            $outcome = $inDoubt ? 'unknown' : $this->outcome;
            throw new LockkeeperUnavailable($this->detail($key), $this->status, $problem, $outcome);
        }
        if (!$this->isGood() && !$this->isBusy() && $problem !== 'lock_lost') {
            throw new LockkeeperRefused($this->detail($key), $this->status, $problem);
        }
        return $this;
    }
}
