<?php

declare(strict_types=1);

namespace Lockkeeper\Internal;

use Lockkeeper\Exception\Outcome;
use Lockkeeper\Exception\RequestRefused;
use Lockkeeper\Exception\ServiceUnavailable;

/** @internal One request after another on one connection, which no forked process shares. */
final class Transport
{
    /** Bytes of an answer: more than the service ever sends. */
    private const LONGEST = 1 << 20;

    /** The longest time that every curl takes, in milliseconds: 24 days. */
    private const FOREVER = 2147483647;

    /** The longest time without PHP during a request, and the least between two looks, in seconds. */
    private const LOOK = 0.1;
    private const BREATH = 0.0005;

    /** The path of a unix socket in place of the network; empty for none. */
    private readonly string $socket;

    /** The address that has won a race, and is the first one from then on. */
    private ?string $good = null;

    /** That of the last connection. */
    private ?string $address = null;

    /** What finds another address, where no name may be looked up. */
    private ?Lookup $lookup = null;

    private ?\CurlHandle $curl = null;

    /** What has the connection. */
    private ?\CurlMultiHandle $multi = null;
    private int $pid = 0;

    /**
     * @param float  $connectTimeout seconds
     * @param string $proxy          empty for none
     */
    public function __construct(
        public readonly string $url,
        private readonly ApiKey $apiKey,
        private readonly float $connectTimeout,
        private readonly string $proxy,
        private readonly Certificates $certificates,
    ) {
        $this->socket = str_starts_with($url, 'unix:') ? substr($url, strlen('unix:')) : '';
        if ($this->socket === '' && !preg_match('~^https?://[^/?#@\s\x00-\x1f]+(/[^?#\s\x00-\x1f]*)?$~D', $url)) {
            throw new \InvalidArgumentException(
                'The URL of the service is written as in http://host:8080 or unix:/run/lockkeeper/lockkeeper.sock',
            );
        }
        if ($this->socket !== '' && $this->socket[0] !== '/') { // The keeper works in another directory.
            throw new \InvalidArgumentException('A unix socket has its whole path, as in unix:/run/lockkeeper.sock');
        }
        if ($this->socket === '' && preg_match('~/locks/*$~D', $url)) { // It would do, with other keys.
            throw new \InvalidArgumentException('The URL of the service ends before /locks, as in http://host:8080');
        }
        $this->headers(null);
    }

    /**
     * @throws ServiceUnavailable no answer
     * @throws RequestRefused     there will be none before the URL or a certificate is corrected
     */
    public function send(Request $request): Answer
    {
        $retryAfter = null;
        $text = '';
        // They are nobody else's meanwhile: a signal handler or a destructor may send a request amid this one.
        [$curl, $multi] = $this->handles();
        [$this->curl, $this->multi] = [null, null];
        curl_setopt_array($curl, [
            CURLOPT_URL => ($this->socket === '' ? rtrim($this->url, '/') : 'http://localhost') . $request->path,
            CURLOPT_PATH_AS_IS => true,
            CURLOPT_CUSTOMREQUEST => $request->method,
            CURLOPT_HTTPHEADER => $this->headers($request->token),
            // Empty is none; without it curl takes that of the environment.
            CURLOPT_PROXY => $this->socket === '' ? $this->proxy : '',
            // So a race has as long for each of the first addresses.
            CURLOPT_CONNECTTIMEOUT_MS => self::timeout($this->connectTimeout + Race::STAGGER),
            CURLOPT_NOSIGNAL => true,
            // On a connection that was used before, curl itself repeats what was not answered: a forced release could
            // end the next lease, and neither an acquire nor a release would know that an earlier request may have
            // been it.
            CURLOPT_FRESH_CONNECT => in_array($request->method, ['POST', 'DELETE'], true),
            CURLOPT_HEADERFUNCTION => static function ($curl, string $line) use (&$retryAfter): int {
                if (preg_match('/^retry-after:\s*(\d+)/i', $line, $found)) {
                    $retryAfter = (float) $found[1];
                }
                return strlen($line);
            },
            CURLOPT_WRITEFUNCTION => static function ($curl, string $piece) use (&$text): int {
                $text .= $piece;
                return strlen($text) > self::LONGEST ? 0 : strlen($piece);
            },
        ] + array_filter([CURLOPT_UNIX_SOCKET_PATH => $this->socket]) + $this->certificates->options());
        if ($request->options !== null) {
            $json = json_encode((object) $request->options, JSON_INVALID_UTF8_SUBSTITUTE);
            curl_setopt($curl, CURLOPT_POSTFIELDS, $json);
        }
        $code = $this->exchange($curl, $multi, $request);
        if ($code !== CURLE_OK) {
            $isTooLong = strlen($text) > self::LONGEST;
            throw $this->noAnswer($curl, $request, $code, $isTooLong ? 'an answer without an end' : curl_error($curl));
        }
        $answer = new Answer($request, curl_getinfo($curl, CURLINFO_RESPONSE_CODE), $text, $retryAfter);
        // On a connection with an answer to another request there may be more of them.
        [$this->curl, $this->multi] = $answer->isOurs ? [$curl, $multi] : [null, null];
        return $answer;
    }

    /** The address of the last connection to what has a name: the service, or the proxy before it. */
    public function address(): ?string
    {
        return $this->address;
    }

    /**
     * From now on this process looks up no name. While a request to this address fails, another process finds the
     * next one.
     */
    public function useAddress(string $address): void
    {
        $own = array_diff_key($this->settings(), ['apiKeyFile' => 0]);
        [$this->good, $this->lookup] = [$address, new Lookup(['apiKey' => ''] + $own)];
    }

    /** Returns curl's code. Nothing was sent on a connection that did not come about: then another address is tried. */
    private function exchange(\CurlHandle $curl, \CurlMultiHandle $multi, Request $request): int
    {
        $until = Clock::now() + $request->within;
        do {
            $good = $this->good;
            curl_setopt_array($curl, $this->way($good) + [
                CURLOPT_TIMEOUT_MS => self::timeout($until - Clock::now()),
            ]);
            $code = $this->run($curl, $multi, $request->meanwhile);
            if (self::isConnected($curl)) {
                $address = (string) curl_getinfo($curl, CURLINFO_PRIMARY_IP);
                $this->address = $this->peer() === null || $address === '' ? null : $address;
            }
            if ($this->lookup !== null) {
                $code === CURLE_OK ? $this->lookup->end() : $this->good = $this->lookup->winner() ?? $this->good;
            } elseif ($good !== null && $good === $this->good && !self::isConnected($curl)) {
                $this->good = null;
            }
        } while ($good !== $this->good && !self::isConnected($curl) && Clock::now() < $until);
        return $code;
    }

    /**
     * Returns curl's code, or that of a failed connection if another address has answered first. PHP is back now and
     * then, and at a signal, so that its handlers run meanwhile.
     */
    private function run(\CurlHandle $curl, \CurlMultiHandle $multi, ?\Closure $meanwhile): int
    {
        $race = null;
        $isRace = $this->good === null && $this->socket === '' && $this->proxy === '' || $this->lookup !== null;
        $due = $isRace ? Clock::now() + Race::STAGGER : INF;
        $good = $this->good;
        curl_multi_add_handle($multi, $curl);
        while (curl_multi_exec($multi, $isRunning) === CURLM_OK && $isRunning) {
            // Without anything to wait for it returns at once.
            curl_multi_select($multi, self::LOOK) > 0 || Clock::sleep(self::BREATH);
            if (self::isConnected($curl)) {
                $meanwhile === null || $meanwhile();
            } elseif (Clock::now() >= $due) {
                $race ??= $this->lookup ?? Race::of($this->url);
                $this->good = $race->winner() ?? $good;
                if ($this->good !== $good) {
                    break;
                }
            }
        }
        $end = curl_multi_info_read($multi);
        curl_multi_remove_handle($multi, $curl);
        return $end === false ? CURLE_COULDNT_CONNECT : $end['result'];
    }

    /** @return array<int, list<string>> what curl connects to; null is what the name says */
    private function way(?string $address): array
    {
        $shown = str_contains((string) $address, ':') ? "[$address]" : $address;
        return match (true) {
            $address === null => [CURLOPT_CONNECT_TO => []],
            $this->proxy === '' => [CURLOPT_CONNECT_TO => ["::$shown:"]],
            default => [CURLOPT_RESOLVE => ["{$this->peer()}:$shown"]],
        };
    }

    /** Name and port of what curl connects to; null if that has no name. */
    private function peer(): ?string
    {
        $isProxy = $this->proxy !== '';
        $url = $isProxy ? preg_replace('~^(?!\w+://)~', 'http://', $this->proxy) : $this->url;
        $parts = parse_url($url) ?: [];
        $host = $this->socket === '' ? trim($parts['host'] ?? '', '[]') : '';
        $isTls = strtolower($parts['scheme'] ?? '') === 'https';
        $port = $parts['port'] ?? ($isTls ? 443 : ($isProxy ? 1080 : 80));
        return $host === '' || filter_var($host, FILTER_VALIDATE_IP) ? null : "$host:$port";
    }

    /** Whether a connection has come about, so that the request may have been sent. */
    private static function isConnected(\CurlHandle $curl): bool
    {
        return curl_getinfo($curl, CURLINFO_CONNECT_TIME) > 0 || curl_getinfo($curl, CURLINFO_REQUEST_SIZE) > 0;
    }

    /** @return array<string, mixed> what makes another one of it, by the names of LockClient */
    public function settings(): array
    {
        $way = ['connectTimeout' => min(86400.0, $this->connectTimeout), 'proxy' => $this->proxy];
        return ['url' => $this->url] + $this->apiKey->settings() + $way + $this->certificates->settings();
    }

    /** @return array<string, string> what may be seen of it */
    public function __debugInfo(): array
    {
        return ['url' => $this->url];
    }

    /** @return list<string> */
    private function headers(?Secret $token): array
    {
        $headers = ['Accept: application/json', 'Content-Type: application/json'];
        $token === null || $headers[] = 'Lock-Token: ' . $token->text();
        $apiKey = $this->apiKey->text();
        $apiKey === null || $headers[] = "Authorization: Bearer $apiKey";
        if (preg_grep('/^[\x20-\x7e]+$/D', $headers, PREG_GREP_INVERT)) {
            throw new \InvalidArgumentException('The API key or the token holds what no header may.');
        }
        return $headers;
    }

    /** @return array{\CurlHandle, \CurlMultiHandle} */
    private function handles(): array
    {
        $pid = (int) getmypid();
        [$curl, $multi] = $this->pid === $pid ? [$this->curl, $this->multi] : [null, null];
        $this->pid = $pid;
        $curl ??= curl_init();
        curl_reset($curl);
        $multi ??= curl_multi_init();
        curl_multi_setopt($multi, CURLMOPT_MAXCONNECTS, 1); // The newest one is kept.
        return [$curl, $multi];
    }

    /** In milliseconds; 0 would be none. */
    private static function timeout(float $seconds): int
    {
        return max(1, min(self::FOREVER, Clock::millis($seconds)));
    }

    private function noAnswer(
        \CurlHandle $curl,
        Request $request,
        int $code,
        string $why,
    ): ServiceUnavailable | RequestRefused {
        $refusal = Certificates::refusal($code, $why);
        $why = $refusal ?? $why;
        $message = sprintf('no answer from %s to %s %s: %s', $this->url, $request->method, $request->path, $why);
        if ($refusal !== null) {
            return new RequestRefused($message, 0, '');
        }
        $sent = curl_getinfo($curl, CURLINFO_REQUEST_SIZE) > 0;
        return new ServiceUnavailable($message, $sent ? Outcome::Unknown : Outcome::NotAcquired);
    }
}
