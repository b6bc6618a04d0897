<?php

declare(strict_types=1);

namespace Lockkeeper\Internal;

use Lockkeeper\Exception\LockBusy;
use Lockkeeper\Exception\LockkeeperException;
use Lockkeeper\Exception\LockLost;
use Lockkeeper\Exception\Outcome;
use Lockkeeper\Exception\RequestRefused;
use Lockkeeper\Exception\ServiceUnavailable;

/** @internal What came back over HTTP, be it from the service or from a proxy before it. */
final class Answer
{
    /** @var array<string, mixed> */
    public readonly array $body;
    private readonly bool $isOurs;

    /** @param ?float $retryAfter seconds */
    public function __construct(
        public readonly int $status,
        #[\SensitiveParameter] string $body,
        private readonly ?float $retryAfter,
    ) {
        $read = json_decode($body, true);
        $this->body = is_array($read) ? $read : [];
        // A gateway may have a `code` too, which is a number.
        $this->isOurs = $status < 300
            ? isset($this->body['key']) || isset($this->body['locks'])
            : is_string($this->body['code'] ?? null);
    }

    public function isGood(): bool
    {
        return $this->isOurs && $this->status < 300;
    }

    /** Why it is not good. */
    public function failure(string $key): LockkeeperException
    {
        $code = $this->isOurs ? $this->body['code'] : '';
        $name = addcslashes($key, "\0..\37\177");
        $detail = $this->body['detail'] ?? "the answer is {$this->status}, and not from lockkeeper";
        return match (true) {
            $code === 'lock_held', $code === 'too_many_waiters' => $this->busy($detail, $key),
            $code === 'lock_lost' => new LockLost("'$name': $detail", $key),
            $this->status < 300, $this->status >= 500, !$this->isOurs && in_array($this->status, [408, 409, 429], true)
                => new ServiceUnavailable("'$name': $detail", $this->outcome($code), $code, $this->retryAfter),
            default => new RequestRefused("'$name': $detail", $this->status, $code, $this->body['field'] ?? null),
        };
    }

    private function busy(string $detail, string $key): LockBusy
    {
        $left = $this->body['retry_after_ms'] ?? null;
        return new LockBusy($detail, $key, $this->body['owner'] ?? null, $left === null ? null : $left / 1000);
    }

    private function outcome(string $code): Outcome
    {
        $nothing = ($this->body['outcome'] ?? '') === 'not_acquired';
        return $nothing || in_array($code, ['draining', 'not_ready'], true) ? Outcome::NotAcquired : Outcome::Unknown;
    }
}
