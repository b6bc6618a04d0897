<?php

declare(strict_types=1);

namespace Lockkeeper\Internal;

use Lockkeeper\Exception\Outcome;
use Lockkeeper\Exception\ServiceUnavailable;

/** @internal One request after another on one connection, which no forked process shares. */
final class Transport
{
    private ?\CurlHandle $curl = null;
    private int $pid = 0;

    /** @param float $connectTimeout seconds */
    public function __construct(
        private readonly string $url,
        #[\SensitiveParameter] private readonly ?string $apiKey,
        private readonly float $connectTimeout,
    ) {
        if (!preg_match('~^https?://[^/?#@\s]+(/[^?#\s]*)?$~D', $url)) {
            throw new \InvalidArgumentException('The URL of the service is written as in http://host:8080');
        }
        if (preg_match('~/locks/*$~D', $url)) { // It would do, with other keys than everybody else.
            throw new \InvalidArgumentException('The URL of the service ends before /locks, as in http://host:8080');
        }
        $this->headers(null);
    }

    /**
     * @param ?array<string, mixed> $options what goes as JSON
     * @param float                 $within  seconds until the answer has to be there
     *
     * @throws ServiceUnavailable no answer
     */
    public function send(
        string $method,
        string $path,
        #[\SensitiveParameter] ?string $token,
        ?array $options,
        float $within,
    ): Answer {
        $retryAfter = null;
        // It is nobody else's meanwhile: a signal handler or a destructor may send a request amid this one.
        $curl = $this->handle();
        $this->curl = null;
        curl_setopt_array($curl, [
            CURLOPT_URL => rtrim($this->url, '/') . $path,
            CURLOPT_PATH_AS_IS => true,
            CURLOPT_CUSTOMREQUEST => $method,
            CURLOPT_HTTPHEADER => $this->headers($token),
            CURLOPT_RETURNTRANSFER => true,
            CURLOPT_CONNECTTIMEOUT_MS => max(1, Clock::millis($this->connectTimeout)),
            CURLOPT_TIMEOUT_MS => max(1, Clock::millis($within)),
            CURLOPT_NOSIGNAL => true,
            // On a connection that was used before, curl itself repeats what was not answered.
            CURLOPT_FRESH_CONNECT => $method === 'DELETE' && $token === null,
            CURLOPT_HEADERFUNCTION => static function ($curl, string $line) use (&$retryAfter): int {
                if (preg_match('/^retry-after:\s*(\d+)/i', $line, $found)) {
                    $retryAfter = (float) $found[1];
                }
                return strlen($line);
            },
        ]);
        if ($options !== null) {
            curl_setopt($curl, CURLOPT_POSTFIELDS, json_encode((object) $options, JSON_INVALID_UTF8_SUBSTITUTE));
        }
        $body = curl_exec($curl);
        if ($body === false) {
            throw $this->noAnswer($curl, "$method $path");
        }
        $this->curl = $curl;
        return new Answer(curl_getinfo($curl, CURLINFO_RESPONSE_CODE), $body, $retryAfter);
    }

    /** @return array<string, string> what may be seen of it */
    public function __debugInfo(): array
    {
        return ['url' => $this->url];
    }

    /** @return list<string> */
    private function headers(#[\SensitiveParameter] ?string $token): array
    {
        $headers = ['Accept: application/json', 'Content-Type: application/json'];
        $token === null || $headers[] = "Lock-Token: $token";
        $this->apiKey === null || $headers[] = "Authorization: Bearer {$this->apiKey}";
        if (preg_grep('/^[\x20-\x7e]+$/D', $headers, PREG_GREP_INVERT)) {
            throw new \InvalidArgumentException('The API key or the token holds what no header may.');
        }
        return $headers;
    }

    private function handle(): \CurlHandle
    {
        $pid = (int) getmypid();
        $curl = $this->pid === $pid ? $this->curl : null;
        $this->pid = $pid;
        $curl ??= curl_init();
        curl_reset($curl);
        return $curl;
    }

    private function noAnswer(\CurlHandle $curl, string $request): ServiceUnavailable
    {
        $sent = curl_getinfo($curl, CURLINFO_REQUEST_SIZE) > 0;
        $message = sprintf('no answer from %s to %s: %s', $this->url, $request, curl_error($curl));
        return new ServiceUnavailable($message, $sent ? Outcome::Unknown : Outcome::NotAcquired);
    }
}
