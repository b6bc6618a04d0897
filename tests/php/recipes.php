<?php

// The ways in which PHP applications take a lock: on Redis directly, as their authors found them
// in manuals and libraries, and over HTTP.

declare(strict_types=1);

require_once __DIR__ . '/answers.php';

interface Recipe
{
    /** A proof of the lock on `lock:<key>`, or null if another has it. */
    public function acquire(string $key, int $ttl_ms): ?string;

    /** Whether the lock was still there to be released. */
    public function release(string $key, string $proof): bool;
}

/** The recipe of this name; `$where` is a port of Redis, several with commas, or a base URL. */
function recipe(string $name, string $where): Recipe
{
    return match ($name) {
        'http' => new OverHttp($where),
        'http-wait' => new OverHttp($where, 20000),
        'set-nx' => new SetNx(connected($where)),
        'predis' => new OverPredis((int) $where),
        'redlock' => new Redlock(array_map(connected(...), explode(',', $where))),
        'getset-int' => new GetSet(connected($where), fn ($value) => (int) $value < time()),
        'getset-float' => new GetSet(connected($where), fn ($value) => (float) $value < time()),
        'getset-juggled' => new GetSet(connected($where), fn ($value) => $value < time()),
        'none' => new NoLock(),
    };
}

function connected(string $port): Redis
{
    $redis = new Redis();
    $redis->connect('127.0.0.1', (int) $port, 10);
    return $redis;
}

/** Over HTTP, with a token that the service makes, waiting in line for so long. */
final class OverHttp implements Recipe
{
    public function __construct(private string $base, private int $wait_ms = 0)
    {
    }

    public function acquire(string $key, int $ttl_ms): ?string
    {
        $options = ['ttl_ms' => $ttl_ms, 'wait_ms' => $this->wait_ms];
        $form = [CURLOPT_POSTFIELDS => http_build_query($options), CURLOPT_TIMEOUT => 30];
        $answer = send('POST', $this->url($key), [], $form);
        if (!in_array($answer->told(), ['201', '409 lock_held'], true)) {
            throw new UnexpectedValueException($answer->body);
        }
        return $answer->status === 201 ? $answer->member('token') : null;
    }

    public function release(string $key, string $proof): bool
    {
        return send('DELETE', $this->url($key), ["Lock-Token: $proof"])->status === 204;
    }

    private function url(string $key): string
    {
        return "$this->base/locks/" . rawurlencode($key);
    }
}

/** SET NX PX, and a script that deletes what is one's own: the recipe of the Redis manual. */
final class SetNx implements Recipe
{
    public const DELETE_MINE = "if redis.call('GET', KEYS[1]) == ARGV[1] then "
        . "return redis.call('DEL', KEYS[1]) else return 0 end";

    public function __construct(private Redis $redis)
    {
    }

    public function acquire(string $key, int $ttl_ms): ?string
    {
        $token = bin2hex(random_bytes(16));
        return $this->redis->set("lock:$key", $token, ['NX', 'PX' => $ttl_ms]) ? $token : null;
    }

    public function release(string $key, string $proof): bool
    {
        return $this->redis->eval(self::DELETE_MINE, ["lock:$key", $proof], 1) === 1;
    }
}

/** The same with the client that is written in PHP. */
final class OverPredis implements Recipe
{
    private Predis\Client $redis;

    public function __construct(int $port)
    {
        require_once 'Predis/autoload.php';
        $this->redis = new Predis\Client(['host' => '127.0.0.1', 'port' => $port]);
    }

    public function acquire(string $key, int $ttl_ms): ?string
    {
        $token = bin2hex(random_bytes(16));
        return $this->redis->set("lock:$key", $token, 'PX', $ttl_ms, 'NX') ? $token : null;
    }

    public function release(string $key, string $proof): bool
    {
        return $this->redis->eval(SetNx::DELETE_MINE, 1, "lock:$key", $proof) === 1;
    }
}

/** The way of redlock-php, with as many nodes as it is given, and a majority of them in integers. */
final class Redlock implements Recipe
{
    private const DRIFT_FACTOR = 0.01;

    /** @param Redis[] $nodes */
    public function __construct(private array $nodes)
    {
    }

    public function acquire(string $key, int $ttl_ms): ?string
    {
        $token = uniqid();
        $began = microtime(true) * 1000;
        $taken = 0;
        foreach ($this->nodes as $node) {
            $taken += (int) $node->set("lock:$key", $token, ['NX', 'PX' => $ttl_ms]);
        }
        $drift = $ttl_ms * self::DRIFT_FACTOR + 2;
        $left = $ttl_ms - (microtime(true) * 1000 - $began) - $drift;
        if ($taken > count($this->nodes) / 2 && $left > 0) {
            return $token;
        }
        $this->release($key, $token);
        return null;
    }

    public function release(string $key, string $proof): bool
    {
        $released = 0;
        foreach ($this->nodes as $node) {
            $released += $node->eval(SetNx::DELETE_MINE, ["lock:$key", $proof], 1);
        }
        return $released > count($this->nodes) / 2;
    }
}

/** SETNX and GETSET: the value is the time of the end, and there is no TTL. */
final class GetSet implements Recipe
{
    /** @param Closure(string): bool $is_over how the application reads the value */
    public function __construct(private Redis $redis, private Closure $is_over)
    {
    }

    public function acquire(string $key, int $ttl_ms): ?string
    {
        $ends = (string) (time() + (int) ceil($ttl_ms / 1000));
        if ($this->redis->setnx("lock:$key", $ends)) {
            return $ends;
        }
        $value = $this->redis->get("lock:$key");
        if ($value === false || !($this->is_over)($value)) {
            return null; // Held, or released just now: the next attempt tells.
        }
        $value = $this->redis->getSet("lock:$key", $ends);
        return $value === false || ($this->is_over)($value) ? $ends : null;
    }

    public function release(string $key, string $proof): bool
    {
        return time() < (int) $proof && $this->redis->del("lock:$key") === 1;
    }
}

/** No lock at all: what the others are compared with. */
final class NoLock implements Recipe
{
    public function acquire(string $key, int $ttl_ms): ?string
    {
        return 'none';
    }

    public function release(string $key, string $proof): bool
    {
        return true;
    }
}
