<?php

declare(strict_types=1);

namespace Lockkeeper\Laravel;

use DateTimeInterface;
use Illuminate\Container\Container;
use Lockkeeper\Internal\Keys;
use Lockkeeper\LockClient;

/**
 * A job middleware as Laravel's own of this name. The lock is held while the worker lives, so a job that was
 * killed or that has exhausted its worker's memory frees it within seconds, and it needs no `expireAfter`.
 */
final class WithoutOverlapping
{
    private readonly string $key;
    private string $prefix = 'laravel-queue-overlap:';
    private bool $isShared = false;
    private ?float $longest = null;

    /**
     * @param \UnitEnum|string|int       $key          which jobs of a class exclude each other
     * @param DateTimeInterface|int|null $releaseAfter when another job is tried again; null: never
     * @param float                      $ttl          seconds that the lock outlives a machine that goes down
     * @param float                      $wait         seconds to wait in line before it is released
     */
    public function __construct(
        \UnitEnum|string|int $key = '',
        private DateTimeInterface|int|null $releaseAfter = 0,
        private readonly float $ttl = 15.0,
        private readonly float $wait = 0.0,
    ) {
        $this->key = match (true) {
            $key instanceof \BackedEnum => (string) $key->value,
            $key instanceof \UnitEnum => $key->name,
            default => (string) $key,
        };
    }

    /** @param callable $next */
    public function handle(object $job, $next): mixed
    {
        $container = Container::getInstance();
        $prefix = $container->bound('config') ? $container->make('config')->get('lockkeeper.prefix', '') : '';
        $key = Keys::fit($this->getLockKey($job), (string) $prefix);
        $lease = $container->make(LockClient::class)
            ->tryHold($key, $this->ttl, $this->wait, longest: $this->longest ?? INF);
        if ($lease === null) {
            $this->releaseAfter === null || $job->release($this->releaseAfter);
            return null;
        }
        try {
            return $next($job);
        } finally {
            $lease->giveBack();
        }
    }

    /** When a job that found the lock held is tried again. */
    public function releaseAfter(DateTimeInterface|int $releaseAfter): self
    {
        $this->releaseAfter = $releaseAfter;
        return $this;
    }

    /** A job that found the lock held is not tried again. */
    public function dontRelease(): self
    {
        $this->releaseAfter = null;
        return $this;
    }

    /** Jobs of other classes with this key exclude each other as well. */
    public function shared(): self
    {
        $this->isShared = true;
        return $this;
    }

    /** Stands before the name of the lock instead of `laravel-queue-overlap:`. */
    public function withPrefix(string $prefix): self
    {
        $this->prefix = $prefix;
        return $this;
    }

    /**
     * The name of the lock. All queued listeners, mails and notifications are jobs of one class each, and have a
     * displayName() that tells them apart: its hash stands for the class then, as in Laravel since version 12.
     */
    public function getLockKey(object $job): string
    {
        $name = method_exists($job, 'displayName') ? hash('xxh128', $job->displayName()) : get_class($job);
        return $this->prefix . ($this->isShared ? 'shared' : $name) . ":$this->key";
    }

    /** After so many seconds the lock ends although the job goes on. */
    public function expireAfter(DateTimeInterface|\DateInterval|int $expiresAfter): self
    {
        $now = new \DateTimeImmutable();
        $end = $expiresAfter instanceof \DateInterval ? $now->add($expiresAfter) : $expiresAfter;
        $seconds = is_int($end) ? $end : $end->getTimestamp() - $now->getTimestamp();
        $this->longest = $seconds > 0 ? (float) $seconds : null;
        return $this;
    }
}
