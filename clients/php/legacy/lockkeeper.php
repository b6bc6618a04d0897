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
    /** Bytes of an answer: more than the service ever sends. */
    private const LONGEST = 1 << 20;

    private $url;
    private $tokenPrefix;
    private $patience;

    /** The place of the API key; it stands outside of the object, where no dump, export or copy shows it. */
    private $secret;

    /** The API keys of all clients. */
    private static $secrets = [];

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
        if (preg_grep('/^[\x20-\x7e]*$/D', [$url, (string) $apiKey, $tokenPrefix], PREG_GREP_INVERT)) {
            throw new InvalidArgumentException('The URL, the API key or the token prefix holds what no header may');
        }
        if (!($patience > 0)) { // NAN as well
            throw new InvalidArgumentException('The patience has to be positive');
        }
        if (!function_exists('curl_init') && !ini_get('allow_url_fopen')) {
            throw new RuntimeException('Leases need ext-curl, which is missing, or allow_url_fopen, which is off');
        }
        $this->tokenPrefix = $tokenPrefix;
        $this->patience = $patience;
        $apiKey = $apiKey === '' ? null : $apiKey;
        $place = array_search($apiKey, self::$secrets, true);
        $this->secret = $place === false ? count(self::$secrets) : $place;
        self::$secrets[$this->secret] = $apiKey;
    }

    /**
     * A lease of the key, or null if somebody else has it, and still had it when the wait was over. It
     * ends with release(), with the last reference to it, with this process, or by its TTL.
     *
     * @param ?string $owner   who asks, for people to read; the host and the process if it is null
     * @param array   $options ['slots' => 5]: shares the key with at most 5 leases in all, itself included; or
     *                         ['shared' => true]: with any number of such leases. Without them it is exclusive.
     * @throws LockkeeperUnavailable nobody knows; what may have been acquired is given back if that can be
     * @throws LockkeeperRefused     correct the key, the options, the API key or the URL
     */
    public function acquire(
        string $key,
        float $ttl = 30.0,
        float $wait = 0.0,
        ?string $owner = null,
        array $options = []
    ): ?LockkeeperLease {
        $share = self::share($options);
        $lease = new LockkeeperLease($this, self::path($key), $key, $this->tokenPrefix, $this->patience);
        return $lease->acquire($ttl, $wait, $owner ?? gethostname() . ':' . getmypid(), $share) ? $lease : null;
    }

    /**
     * As acquire(), for as long as this process lives: another PHP, which this one starts, refreshes the lease, and
     * gives it back when this process has ended, by `kill -9` as well. Ask isMine() now and then.
     *
     * @param float   $ttl     how long the key stays taken if both processes are killed
     * @param ?string $php     the PHP of the command line; beside this one, if it is null
     * @param array   $options as in acquire()
     * @throws LockkeeperUnavailable also if that PHP does not start; nothing is acquired then
     * @throws LockkeeperRefused
     */
    public function hold(
        string $key,
        float $ttl = 15.0,
        float $wait = 0.0,
        ?string $php = null,
        array $options = []
    ): ?LockkeeperLease {
        self::share($options);
        $keeper = new LockkeeperKeeper($php);
        $lease = $this->acquire($key, $ttl, $wait, null, $options);
        if ($lease !== null) {
            $lease->keptBy($keeper, $ttl, [$this->url, self::$secrets[$this->secret], $this->tokenPrefix]);
        }
        return $lease;
    }

    /**
     * Ends whoever has the key (permission `admin`); false if nobody had it. A repeat could hit the next
     * one, so there is none. @throws LockkeeperException
     */
    public function forceRelease(string $key): bool
    {
        $answer = $this->send('DELETE', '/admin' . self::path($key), $key, [], [], $this->patience);
        return $answer->certain($key)->isGood();
    }

    /** @internal One request; `$token` is in an array, where traces of exceptions do not show it. */
    public function send(
        string $method,
        string $path,
        string $key,
        #[\SensitiveParameter]
        array $token,
        array $options,
        float $timeout
    ): LockkeeperAnswer {
        $headers = ['Content-Type: application/json'];
        $apiKey = self::$secrets[$this->secret];
        $apiKey === null || $headers[] = "Authorization: Bearer $apiKey";
        $token === [] || $headers[] = "Lock-Token: $token[0]";
        $body = $options === [] ? '' : json_encode($options, JSON_INVALID_UTF8_SUBSTITUTE);
        $way = function_exists('curl_init') ? 'curl' : 'stream';
        $sent = self::clocks();
        $came = $this->$way($method, $this->url . $path, $headers, $body, min($timeout, 2147483.0));
        return new LockkeeperAnswer($sent, [$method, $key, $token], ...$came);
    }

    /** @return array{int, string, bool} status, or 0; text, or what went wrong; whether the request may have arrived */
    private function curl(
        string $method,
        string $url,
        #[\SensitiveParameter]
        array $headers,
        string $body,
        float $timeout
    ): array {
        $curl = curl_init($url);
        $text = '';
        curl_setopt_array($curl, [
            CURLOPT_CUSTOMREQUEST => $method,
            CURLOPT_HTTPHEADER => $headers,
            CURLOPT_PROXY => '', // None, whatever the environment says.
            CURLOPT_PATH_AS_IS => true,
            CURLOPT_TIMEOUT_MS => max(1, (int) ceil($timeout * 1000)),
            CURLOPT_NOSIGNAL => true,
            CURLOPT_WRITEFUNCTION => static function ($curl, string $piece) use (&$text): int {
                $text .= $piece;
                return strlen($text) > self::LONGEST ? 0 : strlen($piece);
            },
        ] + ($body === '' ? [] : [CURLOPT_POSTFIELDS => $body]));
        if (curl_exec($curl) === false) {
            $why = strlen($text) > self::LONGEST ? 'an answer without an end' : curl_error($curl);
            return [0, $why, curl_getinfo($curl, CURLINFO_REQUEST_SIZE) > 0];
        }
        return [curl_getinfo($curl, CURLINFO_RESPONSE_CODE), $text, true];
    }

    /** The same without ext-curl. */
    private function stream(
        string $method,
        string $url,
        #[\SensitiveParameter]
        array $headers,
        string $body,
        float $timeout
    ): array {
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
            $text = (string) stream_get_contents($stream, self::LONGEST + 1);
            if (strlen($text) > self::LONGEST) {
                return [0, 'an answer without an end', true];
            }
            return $statuses ? [(int) explode(' ', end($statuses))[1], $text, true] : [0, 'no answer', true];
        } finally {
            restore_error_handler();
        }
    }

    /** What a request says of the options. @throws InvalidArgumentException before anything is sent */
    private static function share(array $options): array
    {
        $options += ['slots' => null, 'shared' => false];
        if (count($options) !== 2 || !(is_int($options['slots']) || $options['slots'] === null)) {
            throw new InvalidArgumentException('The options are slots, a whole number, and shared');
        }
        if ($options['slots'] !== null && $options['shared']) {
            throw new InvalidArgumentException('A lease has either slots, or is shared by any number');
        }
        $share = $options['slots'] === null ? [] : ['slots' => $options['slots']];
        return $options['shared'] ? ['shared' => true] : $share;
    }

    /** A segment at a time, as some proxies refuse %2F, and none that somebody on the way resolves. */
    private static function path(string $key): string
    {
        if (preg_match('~(^|/)\.{0,2}(/|$)~D', $key)) {
            $message = self::shown($key) . ' has a segment that is empty, . or ..';
            throw new LockkeeperRefused($message, 400, 'invalid_key', 'not_acquired');
        }
        return '/locks/' . implode('/', array_map('rawurlencode', explode('/', $key)));
    }

    /** @internal A key in quotes, on one line. */
    public static function shown(string $key): string
    {
        return "'" . addcslashes($key, "\0..\37\177") . "'";
    }

    /** @internal What the service is told of a duration: an integer that JSON keeps exactly. */
    public static function millis(float $seconds): int
    {
        return is_nan($seconds) ? 0 : (int) max(-2 ** 53, min(2 ** 53, round($seconds * 1000)));
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

    private function __clone()
    {
    }

    public function __sleep(): array
    {
        throw new LogicException('A client is not serialised: make one where it is needed');
    }

    public function __serialize(): array
    {
        return $this->__sleep();
    }

    public function __wakeup(): void
    {
        $this->__sleep();
    }
}

/**
 * A lease. It is of the process that acquired it: what is forked from that cannot refresh it, and does not
 * end it.
 */
final class LockkeeperLease
{
    /** No request waits longer: less than the service allows, and most proxies. */
    private const SLICE = 20.0;

    /** So often in a row a newer request may take the place, then another program has the token. */
    private const SUPERSEDED = 3;

    /** @var string */
    public $key;

    /** @var int greater than that of every earlier lease of the key: what you write to can refuse a smaller one */
    public $fencingToken;

    /** @var ?int with `slots`, the number of its slot, from 1, which no other lease of the key has */
    public $slot;

    private $service;
    private $path;
    private $patience;
    private $ttl = 0.0;
    private $began;

    /** What refreshes it, if something does. */
    private $keeper;

    /** The place of the token; it stands outside of the object, where no dump, export or copy shows it. */
    private $id;

    /** The tokens of the leases, by id. */
    private static $tokens = [];

    private static $lastId = 0;

    /** What the process gives back at its end, by id; no leases, for these end with the last reference. */
    private static $open = [];

    /** Memory for the end, where there may be none left. */
    private static $reserve;

    /** @internal */
    public function __construct(Lockkeeper $service, string $path, string $key, string $tokenPrefix, float $patience)
    {
        $this->service = $service;
        $this->path = $path;
        $this->key = $key;
        $this->id = ++self::$lastId;
        self::$tokens[$this->id] = $tokenPrefix . bin2hex(random_bytes(16));
        $this->patience = $patience;
        if (self::$reserve === null) {
            self::$reserve = str_repeat(' ', 1 << 18);
            register_shutdown_function([self::class, 'giveBackAll'], false);
        }
    }

    public function __destruct()
    {
        $this->keeper === null || $this->keeper->end();
        self::giveBack($this->id);
        unset(self::$tokens[$this->id]);
    }

    /**
     * The TTL begins anew, or another one. It never ends earlier for it.
     *
     * @throws LockkeeperLost        stop: your work may overlap with another's; so it is after a release, and in a
     *                               forked child
     * @throws LockkeeperUnavailable nobody knows; it lasts for remaining(), and until then you may try again
     * @throws LockkeeperRefused
     */
    public function refresh(?float $ttl = null): void
    {
        if (!$this->isHere()) {
            $why = Lockkeeper::shown($this->key) . ": the lease was released or lost, or is another process's";
            throw new LockkeeperLost($why, 409, 'lock_lost');
        }
        $options = $ttl === null ? [] : ['ttl_ms' => Lockkeeper::millis($ttl)];
        // There is nothing to refresh behind its end.
        $answer = $this->ask('PUT', $options, 0.0, max(0.5, $this->remaining()));
        if (!$answer->isGood()) {
            $this->isOver();
            throw new LockkeeperLost($answer->detail($this->key), 409, 'lock_lost');
        }
        $this->count($answer);
    }

    /**
     * Whether the lease lasted until now, and is given back. False is for a log: it had ended, so your work
     * may overlap with another's, or the service did not answer the first time, or it is another process's.
     */
    public function release(): bool
    {
        if (!$this->isHere()) {
            return false;
        }
        $this->keeper === null || $this->keeper->end();
        $this->ttl = 0.0; // It may be another's before the answer is here.
        try {
            $answer = $this->ask('DELETE');
            $this->isOver();
            return $answer->isGood();
        } catch (LockkeeperException $failure) {
            $this->isOver();
            return false;
        }
    }

    /** Whether the lease lasts, as the service knows. @throws LockkeeperException */
    public function isMine(): bool
    {
        return !$this->isOfParent() && ($this->ask('GET')->body['mine'] ?? false);
    }

    /**
     * For how long the lease lasts at least, if nobody ends it by force; 0 if it may have ended. The service is
     * asked for that of a lease by hold().
     */
    public function remaining(): float
    {
        if ($this->keeper !== null && $this->isHere() && $this->ttl > 0) {
            try {
                $answer = $this->ask('GET');
            } catch (LockkeeperException $failure) {
                return 0.0;
            }
            $ttl = ($answer->body['mine'] ?? false) ? ($answer->body['ttl_ms'] ?? 0) / 1000 : 0.0;
            return max(0.0, $ttl - Lockkeeper::since($answer->sent));
        }
        $lasts = $this->ttl > 0 && !$this->isOfParent();
        return $lasts ? max(0.0, $this->ttl - Lockkeeper::since($this->began)) : 0.0;
    }

    /** The lease token, a secret: who knows it can refresh the lease and release it. */
    public function token(): string
    {
        return self::$tokens[$this->id];
    }

    private function __clone()
    {
    }

    /** Without the token. */
    public function __debugInfo(): array
    {
        return ['key' => $this->key, 'fencingToken' => $this->fencingToken, 'remaining' => $this->remaining()];
    }

    public function __sleep(): array
    {
        throw new LogicException('A lease is not serialised: it is of one process');
    }

    public function __serialize(): array
    {
        return $this->__sleep();
    }

    public function __wakeup(): void
    {
        $this->__sleep();
    }

    /** @internal */
    public function acquire(float $ttl, float $wait, string $owner, array $share): bool
    {
        $answer = $this->ask('POST', ['ttl_ms' => Lockkeeper::millis($ttl), 'owner' => $owner] + $share, $wait);
        if (!$answer->isGood()) {
            return false;
        }
        $this->count($answer);
        if ($this->remaining() <= 0) {
            $why = Lockkeeper::shown($this->key) . ': the answer took longer than the lease';
            throw new LockkeeperUnavailable($why, 201, '', 'unknown');
        }
        return true;
    }

    /** @internal */
    public function keptBy(
        LockkeeperKeeper $keeper,
        float $ttl,
        #[\SensitiveParameter]
        array $client
    ): void {
        $this->keeper = $keeper;
        self::$open[$this->id][4] = $keeper;
        $keeper->keep([
            'client' => $client,
            'path' => $this->path,
            'key' => $this->key,
            'token' => self::$tokens[$this->id],
            'fencing_token' => $this->fencingToken,
            'ttl' => $ttl,
        ]);
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
    private static function giveBack(int $id): void
    {
        [$service, $path, $key, $pid] = self::$open[$id] ?? [null, '', '', 0];
        if ($pid !== getmypid()) {
            return;
        }
        isset(self::$open[$id][4]) && self::$open[$id][4]->end();
        try {
            $service->send('DELETE', $path, $key, [self::$tokens[$id]], [], 2.0);
            unset(self::$open[$id]);
        } finally {
            // A signal handler may throw amid the request.
            isset(self::$open[$id]) && $service->send('DELETE', $path, $key, [self::$tokens[$id]], [], 2.0);
            unset(self::$open[$id]);
        }
    }

    /** Whether this process has it, or may have it. */
    private function isHere(): bool
    {
        return isset(self::$open[$this->id]) && !$this->isOfParent();
    }

    /** Whether it is of the process that this one was forked from. */
    private function isOfParent(): bool
    {
        return isset(self::$open[$this->id]) && self::$open[$this->id][3] !== getmypid();
    }

    private function isOver(): void
    {
        $this->ttl = 0.0;
        unset(self::$open[$this->id]);
    }

    /** It began `waited_ms` after the request had come to the service, or later. */
    private function count(LockkeeperAnswer $grant): void
    {
        $this->fencingToken = $grant->body['fencing_token'];
        $this->slot = $grant->body['slot'] ?? null;
        $this->ttl = (($grant->body['waited_ms'] ?? 0) + $grant->body['ttl_ms']) / 1000;
        $this->began = $grant->sent;
    }

    /** Asks until it is certain what has happened, and while the key is busy until the wait is over. */
    private function ask(string $method, array $options = [], float $wait = 0, float $patience = INF): LockkeeperAnswer
    {
        $began = Lockkeeper::clocks();
        $patience = min($patience, $this->patience);
        if ($method === 'POST') {
            self::$open[$this->id] = [$this->service, $this->path, $this->key, getmypid()];
        }
        for ($failures = 0, $superseded = 0, $inDoubt = false;; usleep((int) ($pause * 1e6))) {
            $slice = min(self::SLICE, max(0.0, $wait - Lockkeeper::since($began)));
            $options = ($wait > 0 ? ['wait_ms' => (int) ceil($slice * 1000)] : []) + $options;
            $answer = $this->send($method, $options, $slice + $patience);
            $inDoubt = $inDoubt || $answer->outcome === 'unknown';
            $left = $wait - Lockkeeper::since($began);
            $superseded = $answer->isSuperseded() ? $superseded + 1 : 0;
            if ($answer->outcome === '') {
                if (!($left > 0) || !$answer->isBusy()) { // NAN ends as well
                    break;
                }
                // A service that waits for less is not asked all the time.
                $pause = max(0.0, 0.2 - Lockkeeper::since($answer->sent));
                $failures = 0;
            } else {
                // What may have been done is asked for twice at least.
                $isOver = !($left + $patience > 0) && ($failures > 0 || $answer->outcome !== 'unknown');
                if ($isOver || $superseded === self::SUPERSEDED) {
                    break;
                }
                $pause = $superseded > 0 ? 1.0 : min(1.0, 0.05 * 2 ** $failures++);
            }
        }
        // What a proxy refuses it may have passed on before.
        if ($method === 'POST' && !$answer->isGood() && !$inDoubt && $answer->isOurs) {
            $this->isOver();
        }
        return $answer->certain($this->key, $inDoubt);
    }

    /** One request. It names a lease that is known by its fencing token as well, so that it touches no later one. */
    private function send(string $method, array $options, float $timeout): LockkeeperAnswer
    {
        $names = $this->fencingToken !== null;
        $path = $this->path . ($method === 'PUT' ? '/refresh' : '');
        if ($names && $method === 'DELETE') {
            $path .= "?fencing_token=$this->fencingToken";
        } elseif ($names && $method === 'PUT') {
            $options += ['fencing_token' => $this->fencingToken];
        }
        $token = [self::$tokens[$this->id]];
        return $this->service->send($method, $path, $this->key, $token, $options, $timeout);
    }
}

/** @internal Another PHP that refreshes one lease while this process lives. */
final class LockkeeperKeeper
{
    /** Ignored signals stay ignored in the program, which shares no file with this process. */
    private const SHELL = 'trap "" HUP INT QUIT TERM; exec 3<&- 4<&- 5<&- 6<&- 7<&- 8<&- 9<&-; exec ';

    private $process;
    private $pipes = [];
    private $pid;

    public function __construct(?string $php)
    {
        $this->pid = getmypid();
        if (!function_exists('proc_open')) {
            throw new LockkeeperUnavailable('proc_open is switched off', 0, '', 'not_acquired');
        }
        $php = $php ?? (PHP_SAPI === 'cli' && PHP_BINARY !== '' ? PHP_BINARY : PHP_BINDIR . '/php');
        $options = ' -d auto_prepend_file= -d auto_append_file= -d display_errors=1 -d html_errors=0 -r ';
        $code = 'require ' . var_export(__FILE__, true) . '; LockkeeperKeeper::run();';
        $files = [['pipe', 'r'], ['pipe', 'w'], ['file', '/dev/null', 'w']];
        $command = self::SHELL . escapeshellarg($php) . $options . escapeshellarg($code);
        $this->process = @proc_open($command, $files + self::inherited(), $this->pipes, '/');
        $said = is_resource($this->process) ? (string) fgets($this->pipes[1]) : '';
        if ($said !== "ready\n") {
            $this->process = null;
            throw new LockkeeperUnavailable("$php does not start: $said", 0, '', 'not_acquired');
        }
    }

    /** @param array $lease as run() reads it */
    public function keep(
        #[\SensitiveParameter]
        array $lease
    ): void {
        @fwrite($this->pipes[0], json_encode($lease + ['parent' => $this->pid]) . "\n");
    }

    /** From now on nobody refreshes it. */
    public function end(): void
    {
        if ($this->process !== null && $this->pid === getmypid()) {
            @fwrite($this->pipes[0], "end\n"); // A forked child may have the pipe, so closing it is not enough.
            $this->pipes = [];
            $this->process = null;
        }
    }

    public function __destruct()
    {
        $this->end();
    }

    /**
     * What stands in place of the files, locks and sockets of this process that the shell cannot close: of as many
     * as there are free descriptors, because each takes one while the other PHP is started.
     */
    private static function inherited(): array
    {
        $open = array_map('intval', @is_dir('/dev/fd') ? scandir('/dev/fd') : []);
        $limit = function_exists('posix_getrlimit') ? posix_getrlimit()['soft openfiles'] : 256;
        $free = $limit === 'unlimited' ? count($open) : max(0, $limit - count($open) - 20);
        $files = array_filter($open, function (int $file): bool {
            return $file > 9;
        });
        return array_fill_keys(array_slice($files, 0, $free), ['file', '/dev/null', 'r']);
    }

    /** What the other PHP does. */
    public static function run(): void
    {
        function_exists('posix_setsid') && posix_setsid();
        echo "ready\n";
        $lease = json_decode((string) fgets(STDIN), true);
        if (!is_array($lease)) {
            return; // Nothing was acquired.
        }
        $locks = new Lockkeeper(...$lease['client']);
        $options = ['ttl_ms' => Lockkeeper::millis($lease['ttl']), 'fencing_token' => $lease['fencing_token']];
        $pause = $lease['ttl'] / 3;
        while (($end = self::waits($pause, $lease['parent'])) === null) {
            $within = $lease['ttl'] / 5;
            $answer = $locks->send('PUT', "$lease[path]/refresh", $lease['key'], [$lease['token']], $options, $within);
            if ($answer->isOurs && $answer->outcome === '' && !$answer->isGood()) {
                return; // It is lost, or not ours to refresh.
            }
            $pause = $answer->isGood() ? $lease['ttl'] / 3 : min(1.0, $lease['ttl'] / 10);
        }
        if ($end === 'gone') {
            $path = "$lease[path]?fencing_token=$lease[fencing_token]";
            $locks->send('DELETE', $path, $lease['key'], [$lease['token']], [], 2.0);
        }
    }

    /** Null after so many seconds, else why there is nothing to keep any more. */
    private static function waits(float $seconds, int $parent): ?string
    {
        for ($began = Lockkeeper::clocks(); ($left = $seconds - Lockkeeper::since($began)) > 0;) {
            [$read, $none, $left] = [[STDIN], null, min(0.5, $left)];
            if (@stream_select($read, $none, $none, 0, (int) ($left * 1e6)) > 0) {
                return fgets(STDIN) === "end\n" ? 'end' : 'gone';
            }
            if (function_exists('posix_getppid') && posix_getppid() !== $parent) {
                return 'gone';
            }
        }
        return null;
    }
}

class LockkeeperException extends RuntimeException
{
    /** @var string the service's code, as `forbidden`; empty if it was not the service that answered */
    public $problem;

    /** @var string what is known of the request: `not_acquired` if nothing has happened for sure, or `unknown` */
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

/** While the claim waited in line, it was released elsewhere, or another program waited with its token. */
final class LockkeeperCancelled extends LockkeeperException
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
    /** Whether it is from the service, and to this request. */
    public $isOurs;
    private $status;
    private $text;

    /** @param array{string, string, array} $asked method, key, and the token if there was one */
    public function __construct(
        array $sent,
        #[\SensitiveParameter]
        array $asked,
        int $status,
        string $text,
        bool $mayHaveArrived
    ) {
        $body = $status > 0 ? json_decode($text, true) : null;
        $body = is_array($body) ? $body : [];
        $code = is_string($body['code'] ?? null) ? $body['code'] : '';
        // Gateways have a `code` too, but not this type.
        $isOurs = $status < 300
            ? self::isDone($asked, $status, $body)
            : $code !== '' && ($body['type'] ?? null) === "urn:lockkeeper:$code" && self::isRefused($asked[0], $code);
        $this->isOurs = $isOurs;
        $this->sent = $sent;
        $this->status = $status;
        $this->body = $isOurs ? $body : [];
        $this->text = $status > 0 ? "HTTP $status, and not from lockkeeper" : $text;
        if ($isOurs && ($status >= 500 || in_array($code, ['quota_exceeded', 'superseded'], true))) {
            $isNothing = in_array($code, ['draining', 'not_ready', 'quota_exceeded'], true)
                || ($body['outcome'] ?? '') === 'not_acquired';
            $this->outcome = $isNothing ? 'not_acquired' : 'unknown';
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

    /** Whether a newer request of the same token has taken the place in line. */
    public function isSuperseded(): bool
    {
        return ($this->body['code'] ?? '') === 'superseded';
    }

    public function detail(string $key): string
    {
        $detail = $this->body['detail'] ?? null;
        return Lockkeeper::shown($key) . ': ' . (is_string($detail) ? $detail : $this->text);
    }

    /** @throws LockkeeperException if it says nothing of the lock */
    public function certain(string $key, bool $inDoubt = false): self
    {
        $problem = $this->body['code'] ?? '';
        if ($problem === 'wait_cancelled' || $problem === 'superseded') {
            $outcome = $this->outcome === '' ? 'not_acquired' : $this->outcome;
            throw new LockkeeperCancelled($this->detail($key), $this->status, $problem, $outcome);
        }
        if ($this->outcome !== '') {
            $outcome = $inDoubt ? 'unknown' : $this->outcome;
            throw new LockkeeperUnavailable($this->detail($key), $this->status, $problem, $outcome);
        }
        if (!$this->isGood() && !$this->isBusy() && $problem !== 'lock_lost') {
            // What a proxy refuses it may have passed on before.
            $outcome = $inDoubt || !$this->isOurs ? 'unknown' : 'not_acquired';
            throw new LockkeeperRefused($this->detail($key), $this->status, $problem, $outcome);
        }
        return $this;
    }

    /** Whether the service may refuse such a request so. */
    private static function isRefused(string $method, string $code): bool
    {
        if (in_array($code, ['lock_held', 'too_many_waiters', 'wait_cancelled', 'superseded'], true)) {
            return $method === 'POST';
        }
        return $code !== 'lock_lost' || $method === 'PUT' || $method === 'DELETE';
    }

    /** Whether this is what the service answers when it has done what was asked. */
    private static function isDone(array $asked, int $status, array $body): bool
    {
        [$method, $key, $token] = $asked;
        if ($status === 204) {
            return $method === 'DELETE' && $token !== [];
        }
        if (($status !== 200 && $status !== 201) || ($body['key'] ?? null) !== $key) {
            return false;
        }
        if ($method === 'POST' || $method === 'PUT') {
            return [$body['token'] ?? null] === $token
                && is_int($body['fencing_token'] ?? null)
                && is_int($body['ttl_ms'] ?? null)
                && is_int($body['waited_ms'] ?? 0)
                && is_int($body['slot'] ?? 0);
        }
        if ($method === 'DELETE') {
            return $token === []; // a forced release
        }
        return is_bool($body['held'] ?? null) && is_bool($body['mine'] ?? false);
    }
}
