<?php

declare(strict_types=1);

namespace Lockkeeper\Internal;

use Lockkeeper\Exception\LockBusy;
use Lockkeeper\Exception\LockkeeperException;
use Lockkeeper\Exception\LockLost;
use Lockkeeper\Exception\Outcome;
use Lockkeeper\Exception\RequestRefused;
use Lockkeeper\Exception\ServiceUnavailable;
use Lockkeeper\Exception\WaitCancelled;

/** @internal What came back over HTTP, be it from the service or from a proxy before it. */
final class Answer
{
    /** @var array<string, mixed> */
    public readonly array $body;

    /** Whether the service has sent it, and to this request. */
    public readonly bool $isOurs;

    /** @param ?float $retryAfter seconds */
    public function __construct(
        private readonly Request $request,
        public readonly int $status,
        #[\SensitiveParameter] string $text,
        private readonly ?float $retryAfter,
    ) {
        $read = json_decode($text, true);
        $this->body = is_array($read) ? $read : [];
        $this->isOurs = $status < 300 ? $request->isAnsweredBy($status, $read) : $this->isProblem();
    }

    public function isGood(): bool
    {
        return $this->isOurs && $this->status < 300;
    }

    /** Why it is not good. */
    public function failure(): LockkeeperException
    {
        $key = $this->request->key;
        $code = $this->isOurs && is_string($this->body['code'] ?? null) ? $this->body['code'] : '';
        $detail = $this->isOurs
            ? $this->text('detail') ?? "the answer is $code"
            : "the answer is {$this->status}, and not from lockkeeper";
        $message = Keys::shown($key) . ": $detail";
        return match (true) {
            $code === 'lock_held', $code === 'too_many_waiters' => $this->busy($detail, $key),
            $code === 'lock_lost' => new LockLost($message, $key, $this->number('fencing_token')),
            $code === 'wait_cancelled' => new WaitCancelled($message, $key),
            $code === 'superseded' => new WaitCancelled($message, $key, $this->retryAfter ?? 1.0),
            $this->isTemporary()
                => new ServiceUnavailable($message, $this->outcome($code), $code, $this->retryAfter),
            default => $this->refused($message, $code),
        };
    }

    /** Gateways have a `code` too, but not this type. */
    private function isProblem(): bool
    {
        $code = $this->body['code'] ?? null;
        return is_string($code)
            && ($this->body['type'] ?? null) === "urn:lockkeeper:$code"
            && $this->request->isRefusedBy($code);
    }

    private function isTemporary(): bool
    {
        return $this->status < 300
            || $this->status >= 500
            || $this->status === 429
            || (!$this->isOurs && in_array($this->status, [408, 409], true));
    }

    private function busy(string $detail, string $key): LockBusy
    {
        $left = $this->millis('retry_after_ms');
        $isMine = ($this->body['mine'] ?? null) === true;
        $share = [$this->number('holders'), $this->number('slots')];
        $own = [$isMine, $isMine ? $this->number('fencing_token') : null];
        return new LockBusy($detail, $key, $this->text('owner'), $left, ...$share, ...$own);
    }

    private function refused(string $message, string $code): RequestRefused
    {
        // What a proxy refuses it may have passed on before.
        $outcome = $this->isOurs ? Outcome::NotAcquired : Outcome::Unknown;
        $field = $this->isOurs ? $this->text('field') : null;
        $bounds = [null, null];
        if ($field === 'ttl_ms') {
            preg_match('/ (\d+) to (\d+) milliseconds/', $message, $said);
            $bounds[0] = $this->millis('min_ttl_ms') ?? (isset($said[1]) ? $said[1] / 1000 : null);
            $bounds[1] = $this->millis('max_ttl_ms') ?? (isset($said[2]) ? $said[2] / 1000 : null);
        }
        return new RequestRefused($message, $this->status, $code, $field, $outcome, ...$bounds);
    }

    private function outcome(string $code): Outcome
    {
        $nothing = ($this->isOurs && ($this->body['outcome'] ?? '') === 'not_acquired')
            || in_array($code, ['draining', 'not_ready', 'quota_exceeded'], true);
        return $nothing ? Outcome::NotAcquired : Outcome::Unknown;
    }

    private function text(string $name): ?string
    {
        $text = $this->body[$name] ?? null;
        return is_string($text) ? $text : null;
    }

    private function number(string $name): ?int
    {
        $number = $this->body[$name] ?? null;
        return is_int($number) ? $number : null;
    }

    /** Seconds. */
    private function millis(string $name): ?float
    {
        $millis = $this->body[$name] ?? null;
        return is_int($millis) || is_float($millis) ? $millis / 1000 : null;
    }
}
