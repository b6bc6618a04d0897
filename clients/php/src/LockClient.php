<?php

declare(strict_types=1);

namespace Lockkeeper;

use Lockkeeper\Exception\LockBusy;
use Lockkeeper\Exception\LockkeeperException;
use Lockkeeper\Exception\LockLost;
use Lockkeeper\Internal\AnyKey;
use Lockkeeper\Internal\ApiKey;
use Lockkeeper\Internal\Block;
use Lockkeeper\Internal\Certificates;
use Lockkeeper\Internal\Clock;
use Lockkeeper\Internal\Duration;
use Lockkeeper\Internal\Environment;
use Lockkeeper\Internal\Grant;
use Lockkeeper\Internal\Holding;
use Lockkeeper\Internal\Keeper;
use Lockkeeper\Internal\Keys;
use Lockkeeper\Internal\Secret;
use Lockkeeper\Internal\Service;
use Lockkeeper\Internal\Share;
use Lockkeeper\Internal\Ticket;
use Lockkeeper\Internal\Token;
use Lockkeeper\Internal\Transport;

/**
 * A client of one lockkeeper service, on one connection. All times are seconds; `ttl`, `wait` and `longest` may be a
 * text as well, such as `1h30m`.
 *
 * Every call may be repeated. An acquire repeats itself while it does not know whether it was granted, with
 * the same token, so a lost answer costs nothing; if it gives up it gives back what may have been granted.
 */
final class LockClient
{
    /** The URL of a service with the default settings. */
    private const LOCAL = 'http://127.0.0.1:8080';

    /** The highest number of a signal. */
    private const SIGNALS = 64;

    private readonly Service $service;

    /**
     * @param ?string                     $url            such as http://locks.internal:8080, or the path of a socket
     *                                                    behind `unix:`; LOCKKEEPER_URL if absent, or
     *                                                    http://127.0.0.1:8080
     * @param ?string                     $apiKey         LOCKKEEPER_API_KEY if absent; empty is none
     * @param ?string                     $owner          who asks, for people to read; host:pid if absent
     * @param float                       $connectTimeout how long making a connection may take
     * @param float                       $answerTimeout  how long an answer may take, besides the wait in line
     * @param float                       $patience       how long to go on asking when the answer fails to come,
     *                                                    where nobody waits
     * @param ?string                     $tokenPrefix    what the tokens begin with; the service's
     *                                                    `redis.token_prefix`; LOCKKEEPER_TOKEN_PREFIX if absent
     * @param ?\Closure(string): void     $warn           hears of what cannot be thrown, such as a lease that cannot be
     *                                                    released, or a long wait without an answer; `error_log` if
     *                                                    absent
     * @param ?string                     $proxy          what stands between, such as http://proxy:3128; nothing if
     *                                                    absent, whatever the environment says
     * @param ?string                     $php            the PHP of the command line, which `hold()` runs; found
     *                                                    beside this PHP if absent
     * @param ?string                     $ca             a PEM file with the only authorities to trust; LOCKKEEPER_CA
     *                                                    if absent, or those of curl
     * @param ?string                     $cert           a PEM file with the certificate of this client, or
     *                                                    LOCKKEEPER_CERT
     * @param ?string                     $certKey        a PEM file with its private key, or LOCKKEEPER_CERT_KEY
     * @param ?string                     $apiKeyFile     a file with the API key, read for each request, if there is no
     *                                                    `apiKey`; LOCKKEEPER_API_KEY_FILE if absent
     *
     * @throws \InvalidArgumentException
     */
    public function __construct(
        ?string $url = null,
        #[\SensitiveParameter] ?string $apiKey = null,
        ?string $owner = null,
        float $connectTimeout = 2.0,
        float $answerTimeout = 5.0,
        float $patience = 10.0,
        ?string $tokenPrefix = null,
        ?\Closure $warn = null,
        ?string $proxy = null,
        ?string $php = null,
        ?string $ca = null,
        ?string $cert = null,
        ?string $certKey = null,
        ?string $apiKeyFile = null,
    ) {
        if (!($connectTimeout > 0 && $answerTimeout > 0 && $patience >= 0)) { // NAN as well
            throw new \InvalidArgumentException('A time has to be positive.');
        }
        $tokenPrefix = Environment::text($tokenPrefix, 'TOKEN_PREFIX') ?? '';
        if (!preg_match('/^[\x20-\x7e]*$/D', $tokenPrefix)) {
            throw new \InvalidArgumentException('The token prefix holds what no header may.');
        }
        $certificates = new Certificates(
            Environment::file($ca, 'CA'),
            Environment::file($cert, 'CERT'),
            Environment::file($certKey, 'CERT_KEY'),
        );
        $this->service = new Service(
            new Transport(
                Environment::text($url, 'URL') ?? self::LOCAL,
                ApiKey::of($apiKey, $apiKeyFile),
                $connectTimeout,
                $proxy ?? '',
                $certificates,
            ),
            $answerTimeout,
            $patience,
            $owner,
            $tokenPrefix,
            $warn ?? static function (string $message): void {
                error_log($message);
            },
            $php,
        );
    }

    /**
     * @param float|string|null $ttl how long the lease lasts unless it is refreshed; INF for the longest that there is,
     *                     at most a day; without it, what the service has set (30 seconds)
     * @param float|string|null $wait how long to wait in line; for ever if INF or null. In a web request at most 2: it
     *                     occupies a PHP worker.
     * @param ?int  $slots  with how many leases in all it may share the key, itself included, from 1 to 1000: a
     *                      semaphore. It is granted if all that would then hold the key allow so many.
     * @param bool  $shared whether it may share the key with any number of such leases, as a reader. Without this and
     *                      `slots` it is exclusive.
     * @param ?\Closure(Wait): void $onWait is called a second after a wait in line has begun, and then once a minute.
     *                      What it throws gives the claim up.
     * @param ?int  $units  how many of the `slots` the lease takes; one if null
     *
     * @throws LockBusy                  somebody else has the key
     * @throws LockkeeperException       the service cannot be reached, or refuses the request, as it does if its store
     *                                   has exclusive leases only
     * @throws \InvalidArgumentException both `slots` and `shared`
     */
    public function acquire(
        string $key,
        float|string|null $ttl = null,
        float|string|null $wait = 0.0,
        ?int $slots = null,
        bool $shared = false,
        ?\Closure $onWait = null,
        ?int $units = null,
    ): Lease {
        $ticket = new Ticket($key, Token::random($this->service->tokenPrefix));
        [$ttl, $wait] = [Duration::of($ttl), Duration::of($wait)];
        $share = new Share($slots, $shared, $units);
        return Lease::claimed(Holding::own($this->service, $ticket), $ttl, $wait, $share, $onWait);
    }

    /**
     * As {@see acquire()}, but null if somebody else has the key.
     *
     * @param ?\Closure(Wait): void $onWait
     *
     * @throws LockkeeperException
     */
    public function tryAcquire(
        string $key,
        float|string|null $ttl = null,
        float|string|null $wait = 0.0,
        ?int $slots = null,
        bool $shared = false,
        ?\Closure $onWait = null,
        ?int $units = null,
    ): ?Lease {
        try {
            return $this->acquire($key, $ttl, $wait, $slots, $shared, $onWait, $units);
        } catch (LockBusy) {
            return null;
        }
    }

    /**
     * Acquires several keys, or none of them: one after the other, in the order of their bytes, so that those who
     * do so do not wait for each other in a circle.
     *
     * @param array<string> $keys
     * @param float|string $ttl seconds that each lease lasts unless it is refreshed. The first ones last longer
     *                            while the later ones are waited for: for what is left of the wait, and 5 seconds.
     * @param float|string $wait how long to wait in all
     * @param ?int          $slots  as in {@see acquire()}, for each of the keys
     * @param bool          $shared
     *
     * @throws LockBusy                  somebody else has one of the keys, and nothing is held
     * @throws LockkeeperException       the service cannot be reached, or refuses a request; what may have been
     *                                   granted is given back
     * @throws \InvalidArgumentException no keys, a key twice, a wait without an end, or both `slots` and `shared`
     */
    public function acquireAll(
        array $keys,
        float|string $ttl = 30.0,
        float|string $wait = 0.0,
        ?int $slots = null,
        bool $shared = false,
        ?int $units = null,
    ): LeaseSet {
        $share = new Share($slots, $shared, $units);
        return LeaseSet::acquired($this, $keys, Duration::of($ttl), Duration::of($wait), $share);
    }

    /**
     * Acquires one of several keys, an exclusive lease each: a semaphore where the store cannot share keys, and so
     * has no `slots`. Each is tried once, in a random order. Then one after the other is waited for, in its line,
     * with a share of the time that is left, and each is tried once more.
     *
     * @param array<string> $keys such as `printer/1` to `printer/3`; {@see Lease::key()} tells which it is
     * @param float|string|null $ttl as in {@see acquire()}
     * @param float|string $wait how long to wait in all
     *
     * @throws LockBusy                  others have all of them; it tells of the one that ends first
     * @throws LockkeeperException       the service cannot be reached, or refuses a request; what may have been
     *                                   granted is given back
     * @throws \InvalidArgumentException no keys, a key twice, or a wait without an end
     */
    public function acquireAny(array $keys, float|string|null $ttl = null, float|string $wait = 0.0): Lease
    {
        return AnyKey::acquired($this->service, $keys, Duration::of($ttl), Duration::of($wait));
    }

    /**
     * Does some work under a lease, which is released afterwards. What the work throws comes out; then `warn` hears
     * of a lease that had ended. A lease that lasted, but cannot be released, is told to `warn` as well.
     *
     * @template T
     *
     * @param callable(Lease): T $work long work calls `refresh()` now and then
     * @param ?\Closure(Wait): void $onWait as in {@see acquire()}
     *
     * @return T
     *
     * @throws LockLost            the lease ended before the work was done, which may have overlapped with another's;
     *                             or before the work could begin
     * @throws LockkeeperException as {@see acquire()}; the work has not begun
     */
    public function withLock(
        string $key,
        callable $work,
        float|string|null $ttl = null,
        float|string|null $wait = 0.0,
        ?int $slots = null,
        bool $shared = false,
        ?\Closure $onWait = null,
        ?int $units = null,
    ): mixed {
        return Block::run($this->acquire($key, $ttl, $wait, $slots, $shared, $onWait, $units), $work);
    }

    /**
     * As {@see withLock()}, under a lease that another process refreshes, as {@see hold()} says.
     *
     * @template T
     *
     * @param callable(HeldLease): T $work long work calls `check()` now and then
     * @param ?\Closure(LockLost): void $onLost
     * @param ?\Closure(Wait): void $onWait as in {@see acquire()}
     *
     * @return T
     *
     * @throws LockLost            as {@see withLock()}
     * @throws LockkeeperException as {@see hold()}; the work has not begun
     */
    public function withHold(
        string $key,
        callable $work,
        float|string $ttl = 15.0,
        float|string|null $wait = 0.0,
        ?\Closure $onLost = null,
        ?int $signal = null,
        float|string $longest = INF,
        ?int $slots = null,
        bool $shared = false,
        ?\Closure $onWait = null,
        ?int $units = null,
    ): mixed {
        $share = [$slots, $shared, $onWait, $units];
        $lease = $this->hold($key, $ttl, $wait, $onLost, $signal, false, $longest, ...$share);
        return Block::run($lease, $work);
    }

    /**
     * Acquires a lease that lasts while this process lives: another process refreshes it, and gives it back as
     * soon as this one has ended, also by `kill -9`. Nothing has to be refreshed here.
     *
     * @param float|string $ttl how long the key stays taken if both processes are killed at once
     * @param float|string|null $wait as in {@see acquire()}
     * @param ?\Closure(LockLost): void $onLost is called once by the first call on the lease that finds it lost
     * @param ?int     $signal   what this process gets when the lease is lost, such as SIGTERM; none if absent
     * @param bool     $children whether programs and forked children that this process starts meanwhile keep the
     *                           lease as well, until the last of them has ended; then there is no `signal`, and the
     *                           lease is not given back at the end of this process
     * @param float|string $longest for how many seconds it is kept at most
     * @param ?int     $slots    as in {@see acquire()}
     * @param bool     $shared
     * @param ?\Closure(Wait): void $onWait as in {@see acquire()}
     *
     * @throws LockBusy            somebody else has the key
     * @throws LockkeeperException the service cannot be reached, or refuses the request; or PHP cannot start the
     *                             other process
     */
    public function hold(
        string $key,
        float|string $ttl = 15.0,
        float|string|null $wait = 0.0,
        ?\Closure $onLost = null,
        ?int $signal = null,
        bool $children = false,
        float|string $longest = INF,
        ?int $slots = null,
        bool $shared = false,
        ?\Closure $onWait = null,
        ?int $units = null,
    ): HeldLease {
        $share = new Share($slots, $shared, $units);
        [$ttl, $wait, $longest] = array_map(Duration::of(...), [$ttl, $wait, $longest]);
        if ($children && $signal !== null) {
            throw new \InvalidArgumentException('A lease that children keep as well has no signal.');
        }
        if ($signal !== null && ($signal < 1 || $signal > self::SIGNALS)) {
            throw new \InvalidArgumentException('A signal has a number from 1 to ' . self::SIGNALS . '.');
        }
        $ticket = new Ticket($key, Token::random($this->service->tokenPrefix));
        $holding = Holding::own($this->service, $ticket);
        $keeper = $children ? new Keeper($this->service, true) : $this->service->keeper();
        return HeldLease::claimed($holding, $keeper, $ttl, $wait, $longest, $onLost, $signal, $share, $onWait);
    }

    /**
     * As {@see hold()}, but null if somebody else has the key.
     *
     * @param ?\Closure(LockLost): void $onLost
     * @param ?\Closure(Wait): void     $onWait
     *
     * @throws LockkeeperException
     */
    public function tryHold(
        string $key,
        float|string $ttl = 15.0,
        float|string|null $wait = 0.0,
        ?\Closure $onLost = null,
        ?int $signal = null,
        bool $children = false,
        float|string $longest = INF,
        ?int $slots = null,
        bool $shared = false,
        ?\Closure $onWait = null,
        ?int $units = null,
    ): ?HeldLease {
        try {
            $share = [$slots, $shared, $onWait, $units];
            return $this->hold($key, $ttl, $wait, $onLost, $signal, $children, $longest, ...$share);
        } catch (LockBusy) {
            return null;
        }
    }

    /**
     * Takes a lease that was handed over: from now on it is released by this process.
     *
     * @param string $token what {@see Lease::handOver()} gave
     *
     * @throws LockLost            it has ended
     * @throws LockkeeperException
     */
    public function resume(string $key, #[\SensitiveParameter] string $token): Lease
    {
        $sent = Clock::now();
        $ticket = new Ticket($key, new Secret($token));
        $body = $this->service->get(Keys::path($key), $key, $ticket->token)->body;
        if (!($body['mine'] ?? false) || !isset($body['ttl_ms'])) {
            $name = Keys::shown($key);
            throw new LockLost("$name: there is nothing to resume, the lease has ended", $key);
        }
        // The body has the limit of the key; that of the lease is in the list, unless it is not among the first 100.
        $own = static fn (array $lease): bool => ($lease['fencing_token'] ?? null) === ($body['fencing_token'] ?? 0);
        $lease = current(array_filter($body['leases'] ?? [], $own)) ?: [];
        $share = array_map(static fn (string $name) => $lease[$name] ?? null, ['slots', 'slot', 'units']);
        $body = array_combine(['slots', 'slot', 'units'], $share) + $body;
        return Lease::resumed(Holding::own($this->service, $ticket), Grant::of($body, $sent, false));
    }

    /**
     * Starts the time of a lease anew whose token you keep; with a {@see Lease}, call its `refresh()`.
     *
     * @param float|string|null $ttl as in {@see Lease::refresh()}
     * @param ?int $fencingToken that of the lease, if you keep it too: a later lease of the token is left alone
     *
     * @throws LockLost            it had ended
     * @throws LockkeeperException
     */
    public function refresh(
        string $key,
        #[\SensitiveParameter] string $token,
        float|string|null $ttl = null,
        ?int $fencingToken = null,
    ): void {
        $ticket = new Ticket($key, new Secret($token), $fencingToken);
        $this->service->refresh($ticket, Duration::of($ttl), INF);
    }

    /**
     * Gives back a lease whose token you keep; with a {@see Lease}, call its `release()`.
     *
     * @param ?int $fencingToken that of the lease, as in {@see refresh()}
     *
     * @return bool false if it had ended
     *
     * @throws LockkeeperException
     */
    public function release(string $key, #[\SensitiveParameter] string $token, ?int $fencingToken = null): bool
    {
        return $this->service->release(new Ticket($key, new Secret($token), $fencingToken), isExact: true);
    }

    /**
     * @param ?string $token with which to ask whether it has the key
     *
     * @throws LockkeeperException
     */
    public function inspect(string $key, #[\SensitiveParameter] ?string $token = null): Look
    {
        $token = $token === null ? null : new Secret($token);
        return Look::of($this->service->get(Keys::path($key), $key, $token)->body);
    }

    /** @throws LockkeeperException */
    public function isMine(string $key, #[\SensitiveParameter] string $token): bool
    {
        return $this->inspect($key, $token)->isMine;
    }

    /**
     * The keys that are held, page by page. The API key needs the permission `read`.
     *
     * @return \Generator<int, Look>
     *
     * @throws LockkeeperException
     */
    public function list(string $prefix = ''): \Generator
    {
        $cursor = null;
        do {
            $query = http_build_query(['prefix' => $prefix, 'cursor' => $cursor], '', '&', PHP_QUERY_RFC3986);
            $body = $this->service->get("/locks?$query", $prefix)->body;
            foreach ($body['locks'] ?? [] as $lock) {
                yield Look::of($lock);
            }
            $cursor = $body['cursor'] ?? null;
        } while ($cursor !== null);
    }

    /**
     * Ends the lease of whoever has the key. The API key needs the permission `admin`.
     *
     * @return bool false if nobody had it
     *
     * @throws LockkeeperException
     */
    public function forceRelease(string $key): bool
    {
        return $this->service->forceRelease($key);
    }

    /** @internal for the stores of the frameworks, whose locks are no leases of ours */
    public function service(): Service
    {
        return $this->service;
    }

    /** @return never */
    public function __serialize(): array
    {
        throw new \LogicException('A client is not serialised: make one where it is needed.');
    }

    /** @param array<mixed> $data */
    public function __unserialize(array $data): void
    {
        throw new \LogicException('A client is not serialised: make one where it is needed.');
    }

    private function __clone()
    {
    }
}
