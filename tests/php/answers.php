<?php

// One request and its answer, with ext-curl as most PHP programs use it.

declare(strict_types=1);

final class Answer
{
    /** @param array<string, string> $headers by lower-case name */
    public function __construct(
        public readonly int $status,
        public readonly array $headers,
        public readonly string $body,
    ) {
    }

    /** A member of the body. */
    public function member(string $name): mixed
    {
        return json_decode($this->body, true, 8, JSON_THROW_ON_ERROR)[$name] ?? null;
    }

    /** Status and code: what most checks are about. */
    public function told(): string
    {
        return trim("{$this->status} " . ($this->status < 300 ? '' : $this->member('code')));
    }
}

/**
 * Sends one request.
 *
 * @param string[] $headers as `Name: value`
 * @param array<int, mixed> $options more of CURLOPT_*
 */
function send(string $method, string $url, array $headers = [], array $options = []): Answer
{
    $came = [];
    $curl = curl_init($url);
    curl_setopt_array($curl, $options + [
        CURLOPT_CUSTOMREQUEST => $method,
        CURLOPT_HTTPHEADER => $headers,
        CURLOPT_RETURNTRANSFER => true,
        CURLOPT_TIMEOUT => 20,
        CURLOPT_HEADERFUNCTION => function ($curl, string $line) use (&$came): int {
            $came[] = $line;
            return strlen($line);
        },
    ]);
    $body = curl_exec($curl);
    if ($body === false) {
        throw new RuntimeException("$method $url: " . curl_error($curl));
    }
    return new Answer(curl_getinfo($curl, CURLINFO_RESPONSE_CODE), named($came), $body);
}

/**
 * Header lines by lower-case name; status lines under an empty one, one after another.
 *
 * @param string[] $lines
 * @return array<string, string>
 */
function named(array $lines): array
{
    $headers = ['' => ''];
    foreach ($lines as $line) {
        [$name, $value] = explode(':', $line, 2) + [1 => null];
        if ($value === null) {
            $headers[''] .= $line;
        } else {
            $headers[strtolower($name)] = trim($value);
        }
    }
    return $headers;
}

/** Stops the process if something is not as it has to be. */
function same(mixed $expected, mixed $actual, string $what): void
{
    if ($expected !== $actual) {
        $texts = array_map(fn ($value) => var_export($value, true), [$expected, $actual]);
        throw new UnexpectedValueException("$what: not $texts[0] but $texts[1]");
    }
}

/** The lease lasts as long as was asked for, less what the answer took: a half at least. */
function lasts(int $ttl_ms, Answer $grant, string $what): void
{
    $left = $grant->member('ttl_ms');
    same(true, $left <= $ttl_ms && $left >= $ttl_ms / 2, "$what, $left of $ttl_ms ms,");
}
